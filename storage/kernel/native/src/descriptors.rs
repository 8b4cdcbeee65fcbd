//! Reading and writing on descriptors that Python has open. Safe to call with any argument: a wrong number is an error.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

/// Writes all of it at the descriptor's position, however many calls that takes.
pub fn write_all(fd: RawFd, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        // SAFETY: the memory is `data`'s; the descriptor is only used for the call, and a closed one gives EBADF.
        let count = unsafe { libc::write(fd, data.as_ptr().cast(), data.len()) };
        match usize::try_from(count) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::EIO)),
            Ok(count) => data = &data[count.min(data.len())..],
            Err(_) => interrupted()?,
        }
    }
    Ok(())
}

/// One read from byte `position` on; how many bytes came.
pub fn read_at(fd: RawFd, buffer: &mut [u8], position: u64) -> io::Result<usize> {
    let position = i64::try_from(position).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    loop {
        // SAFETY: as above; no more than `buffer` holds is written to it.
        let count = unsafe { libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), position) };
        match usize::try_from(count) {
            Ok(count) => return Ok(count),
            Err(_) => interrupted()?,
        }
    }
}

/// Nothing where a signal cut the last call short, which is then to be made again; else its error.
fn interrupted() -> io::Result<()> {
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}
