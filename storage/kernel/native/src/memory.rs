//! The one module with unsafe code: anonymous memory for the offset map, prefetching, liblz4, libdeflate, the memory of
//! Python buffers, and calls on file descriptors. Everything it exports is safe to call with any argument.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;

use pyo3::buffer::PyBuffer;

/// One slot of the offset map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    pub high: u64,
    pub low: u64,
}

const HUGE_PAGE: usize = 2 << 20;

/// Zeroed memory for `len` slots. Address space is taken at once, pages when they are first written.
pub struct Slots {
    start: NonNull<Slot>,
    len: usize,
    bytes: usize,
}

// SAFETY: the mapping is owned by this value alone and is plain memory.
unsafe impl Send for Slots {}
// SAFETY: shared access only reads.
unsafe impl Sync for Slots {}

impl Slots {
    pub fn reserve(len: usize) -> io::Result<Slots> {
        let wanted = len
            .max(1)
            .checked_mul(size_of::<Slot>())
            .and_then(|bytes| bytes.checked_next_multiple_of(4096));
        let bytes = wanted
            .filter(|&bytes| bytes <= isize::MAX as usize)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh anonymous private mapping, no existing memory is touched; the result is checked.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if bytes >= 2 * HUGE_PAGE {
            // SAFETY: the range is the mapping just made; the call is only advice, so its result does not matter.
            unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
        }
        let start = NonNull::new(start.cast::<Slot>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Slots {
            start,
            len: len.max(1),
            bytes,
        })
    }

    #[inline(always)]
    pub fn all(&self) -> &[Slot] {
        // SAFETY: the mapping holds `len` slots, is page aligned, lives as long as self, and zero bytes are a valid Slot.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    #[inline(always)]
    pub fn all_mut(&mut self) -> &mut [Slot] {
        // SAFETY: as for `all`, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Asks for the cache line of slot `index` without waiting for it.
    #[inline(always)]
    pub fn prefetch(&self, index: usize) {
        #[cfg(target_arch = "x86_64")]
        if index < self.len {
            // SAFETY: the address is inside the mapping, and a prefetch has no effect but on caches.
            unsafe {
                use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
                _mm_prefetch(self.start.as_ptr().add(index).cast::<i8>(), _MM_HINT_T0);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = index;
    }

    /// Gives back the pages of slots `0..upto`, which read as zero afterwards.
    pub fn release_front(&mut self, upto: usize) {
        let bytes = (upto.min(self.len) * size_of::<Slot>()) / HUGE_PAGE * HUGE_PAGE;
        if bytes > 0 {
            // SAFETY: the range lies inside the private anonymous mapping; no reference into it is alive.
            unsafe { libc::madvise(self.start.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `reserve` with this size, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Largest number of bytes that `length` bytes become, or None if liblz4 cannot take so many at once.
fn lz4_bound(length: usize) -> Option<(i32, i32)> {
    let length = i32::try_from(length).ok()?;
    // SAFETY: a function of its argument.
    let bound = unsafe { lz4_sys::LZ4_compressBound(length) };
    (bound > 0).then_some((length, bound))
}

/// Appends `block` compressed by LZ4_compress_default, or with a level by LZ4_compress_HC. None: liblz4 refused.
pub fn lz4_compress_block(block: &[u8], level: Option<i32>, out: &mut Vec<u8>) -> Option<usize> {
    let (length, bound) = lz4_bound(block.len())?;
    out.reserve(bound as usize);
    let spare = out.spare_capacity_mut();
    // SAFETY: source and target are valid for the lengths given, and do not overlap; at most `bound` bytes are written
    // into capacity reserved above.
    let (source, target) = (block.as_ptr().cast(), spare.as_mut_ptr().cast());
    let written = unsafe {
        match level {
            None => lz4_sys::LZ4_compress_default(source, target, length, bound),
            Some(level) => lz4_sys::LZ4_compress_HC(source, target, length, bound, level),
        }
    };
    let written = usize::try_from(written)
        .ok()
        .filter(|&written| written > 0 && written <= spare.len())?;
    // SAFETY: liblz4 initialised `written` bytes of the spare capacity.
    unsafe { out.set_len(out.len() + written) };
    Some(written)
}

/// Appends the decompressed `block`, at most `limit` bytes; with `history` it may refer to that many bytes at the end of
/// `out`. None: the block is damaged or larger.
pub fn lz4_decompress_block(
    block: &[u8],
    out: &mut Vec<u8>,
    limit: usize,
    history: usize,
) -> Option<usize> {
    let length = i32::try_from(block.len()).ok()?;
    let limit = i32::try_from(limit).ok()?;
    let history = history.min(out.len()).min(64 << 10);
    out.reserve(limit as usize);
    let used = out.len();
    let start = out.as_mut_ptr();
    // SAFETY: the target is `limit` bytes of reserved capacity behind the `used` initialised ones; the dictionary is the
    // `history` initialised bytes directly before it; the source is another allocation. LZ4_decompress_safe_usingDict
    // neither reads outside source and dictionary nor writes outside the target, whatever the source holds.
    let written = unsafe {
        lz4_decompress_safe_using_dict(
            block.as_ptr().cast(),
            start.add(used).cast(),
            length,
            limit,
            start.add(used - history).cast(),
            history as libc::c_int,
        )
    };
    let written = usize::try_from(written)
        .ok()
        .filter(|&written| written <= limit as usize)?;
    // SAFETY: liblz4 initialised `written` bytes behind the used ones.
    unsafe { out.set_len(used + written) };
    Some(written)
}

/// How an attempt to inflate ended.
pub enum Inflated {
    /// A whole stream was appended; it took the first `consumed` bytes.
    Done { consumed: usize },
    /// There is more than the spare capacity holds; nothing was appended.
    Full,
    /// The stream is damaged or cut short; nothing was appended.
    Damaged,
}

/// libdeflate's decoder of raw deflate streams.
pub struct Inflater {
    decoder: NonNull<libdeflate_sys::libdeflate_decompressor>,
}

// SAFETY: the decoder is owned by this value alone and has no ties to a thread.
unsafe impl Send for Inflater {}
// SAFETY: nothing can be done through a shared reference.
unsafe impl Sync for Inflater {}

impl Inflater {
    /// None: no memory.
    pub fn new() -> Option<Inflater> {
        // SAFETY: a call without arguments; a null result is handled.
        let decoder = unsafe { libdeflate_sys::libdeflate_alloc_decompressor() };
        NonNull::new(decoder).map(|decoder| Inflater { decoder })
    }

    /// Appends the stream at the start of `data`, into the capacity that `out` has.
    pub fn inflate(&mut self, data: &[u8], out: &mut Vec<u8>) -> Inflated {
        let spare = out.spare_capacity_mut();
        let (mut consumed, mut written) = (0, 0);
        // SAFETY: source and target are valid for the lengths given and do not overlap; libdeflate neither reads nor writes
        // outside them, whatever the source holds. The decoder is alive, and `&mut self` keeps others from using it.
        let result = unsafe {
            libdeflate_sys::libdeflate_deflate_decompress_ex(
                self.decoder.as_ptr(),
                data.as_ptr().cast(),
                data.len(),
                spare.as_mut_ptr().cast(),
                spare.len(),
                &mut consumed,
                &mut written,
            )
        };
        match result {
            libdeflate_sys::libdeflate_result_LIBDEFLATE_SUCCESS if written <= spare.len() => {
                // SAFETY: libdeflate initialised `written` bytes of the spare capacity.
                unsafe { out.set_len(out.len() + written) };
                Inflated::Done { consumed }
            }
            libdeflate_sys::libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE => Inflated::Full,
            _ => Inflated::Damaged,
        }
    }
}

impl Drop for Inflater {
    fn drop(&mut self) {
        // SAFETY: it came from libdeflate_alloc_decompressor and is not used again.
        unsafe { libdeflate_sys::libdeflate_free_decompressor(self.decoder.as_ptr()) };
    }
}

extern "C" {
    #[link_name = "LZ4_decompress_safe_usingDict"]
    fn lz4_decompress_safe_using_dict(
        source: *const libc::c_char,
        target: *mut libc::c_char,
        source_size: libc::c_int,
        target_capacity: libc::c_int,
        dictionary: *const libc::c_char,
        dictionary_size: libc::c_int,
    ) -> libc::c_int;
}

/// A File of our own on the open file that `fd` names.
pub fn duplicate(fd: RawFd) -> io::Result<File> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the descriptor is only borrowed for the call; a closed one makes the duplication fail with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(File::from(borrowed.try_clone_to_owned()?))
}

/// Tells the kernel that the file will be read from front to back.
pub fn advise_sequential(file: &File) {
    // SAFETY: a call on an open descriptor without memory arguments; only advice.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_SEQUENTIAL) };
}

/// Lets the kernel begin to write out `length` bytes from `from` on, so that less is left to do when the file is fsynced.
pub fn begin_write_out(file: &File, from: u64, length: u64) {
    #[cfg(target_os = "linux")]
    // SAFETY: a call on an open descriptor without memory arguments; it promises nothing, so its result does not matter.
    unsafe {
        libc::sync_file_range(
            file.as_raw_fd(),
            from as i64,
            length as i64,
            libc::SYNC_FILE_RANGE_WRITE,
        );
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, from, length);
}

/// The memory of a Python buffer, where it is one piece. A thread that changes it meanwhile changes what is read from it.
pub fn bytes_of(buffer: &PyBuffer<u8>) -> Option<&[u8]> {
    // SAFETY: the buffer is contiguous, and its export keeps the memory in place for as long as `buffer` lives.
    buffer.is_c_contiguous().then(|| unsafe {
        std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes())
    })
}

/// As `bytes_of`, to write to; None for read-only memory too.
pub fn bytes_of_mut(buffer: &mut PyBuffer<u8>) -> Option<&mut [u8]> {
    let fit = buffer.is_c_contiguous() && !buffer.readonly();
    // SAFETY: as above, and the buffer is writable.
    fit.then(|| unsafe {
        std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes())
    })
}

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
    let position =
        i64::try_from(position).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
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
    if error.kind() == io::ErrorKind::Interrupted {
        Ok(())
    } else {
        Err(error)
    }
}
