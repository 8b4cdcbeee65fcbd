//! Where a cleaned group's bytes go. While the group is a single segment and all of it was kept as it was, nothing is
//! written at all.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;

use crate::cleaning::reader::Source;
use crate::errors::{KernelError, Outcome};
use crate::memory;

const BUFFER: usize = 1 << 20;
/// So much is handed to the file before the kernel is asked to write it out: the fsync at the end then finds little to do.
const WRITE_OUT: u64 = 8 << 20;
/// Largest .log file.
const LARGEST_LOG: u64 = i32::MAX as u64;

pub struct Output<'a> {
    file: Option<File>,
    path: OsString,
    /// The one source whose first `size` bytes are the output so far, as long as that is so.
    same_as: Option<&'a Source>,
    buffer: Vec<u8>,
    size: u64,
    written: u64,
    /// Bytes handed to the file in all, and those of them that it was told to write out.
    handed: u64,
    begun: u64,
}

impl<'a> Output<'a> {
    pub fn new(file: Option<File>, group: &'a [Source]) -> Output<'a> {
        let path = group.first().map(Source::name).unwrap_or_default();
        let same_as = if let [only] = group { Some(only) } else { None };
        Output {
            file,
            path,
            same_as,
            buffer: Vec::with_capacity(BUFFER + (64 << 10)),
            size: 0,
            written: 0,
            handed: 0,
            begun: 0,
        }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn unchanged(&self) -> bool {
        self.same_as.is_some()
    }

    /// Bytes handed to the file since the last call.
    pub fn take_written(&mut self) -> u64 {
        std::mem::take(&mut self.written)
    }

    /// A batch of the source is kept as it is.
    #[inline]
    pub fn copy(&mut self, batch: &[u8]) -> Outcome<()> {
        if self.same_as.is_none() {
            self.buffer.extend_from_slice(batch);
        }
        self.appended(batch.len())
    }

    /// Something differs from the source: what was kept so far is written now.
    pub fn differ(&mut self) -> Outcome<()> {
        let Some(source) = self.same_as.take() else {
            return Ok(());
        };
        if self.file.is_none() || self.size == 0 {
            return Ok(());
        }
        let from = source.open()?;
        // The buffer may hold the batch that differs.
        let (mut at, mut bytes) = (0, Vec::new());
        while at < self.size {
            let step = BUFFER.min((self.size - at) as usize);
            bytes.resize(step, 0);
            from.read_exact_at(&mut bytes, at)
                .map_err(|error| source.io("read", &error))?;
            at += step as u64;
            self.hand_over(&bytes)?;
        }
        Ok(())
    }

    /// The buffer, to append one batch to; then call `differ` and `appended`.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// `length` bytes were added.
    #[inline]
    pub fn appended(&mut self, length: usize) -> Outcome<()> {
        self.size += length as u64;
        if self.size > LARGEST_LOG {
            let reason = format!("the cleaned segment would be larger than {LARGEST_LOG} bytes, lower segment.bytes so that groups are smaller");
            return Err(KernelError::Fault {
                path: self.path.clone(),
                reason,
            });
        }
        if self.buffer.len() >= BUFFER {
            self.flush()?;
        }
        Ok(())
    }

    pub fn flush(&mut self) -> Outcome<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let flushed = self.hand_over(&buffer);
        buffer.clear();
        self.buffer = buffer;
        flushed
    }

    fn hand_over(&mut self, bytes: &[u8]) -> Outcome<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        if let Err(error) = file.write_all(bytes) {
            let reason = if error.kind() == ErrorKind::StorageFull {
                "no space left on the device".to_string()
            } else {
                error.to_string()
            };
            return Err(KernelError::Io {
                path: self.path.clone(),
                action: "write of its cleaned copy",
                reason,
            });
        }
        self.written += bytes.len() as u64;
        self.handed += bytes.len() as u64;
        if self.handed - self.begun >= WRITE_OUT {
            memory::begin_write_out(file, self.begun, self.handed - self.begun);
            self.begun = self.handed;
        }
        Ok(())
    }
}
