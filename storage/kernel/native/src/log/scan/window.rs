//! What is seen of a file at once while it is read from front to back, and CRCs of more than that.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const CHUNK: usize = 1 << 20;

pub struct Window {
    file: File,
    buffer: Vec<u8>,
    start: u64,
    filled: usize,
    /// Where reading ends.
    pub end: u64,
}

impl Window {
    /// Of the first `limit` bytes of the file at `path`.
    pub fn open(path: &Path, limit: Option<u64>) -> io::Result<Window> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let end = limit.map_or(size, |limit| limit.min(size));
        Ok(Window {
            file,
            buffer: vec![0; CHUNK.min(end as usize).max(1)],
            start: 0,
            filled: 0,
            end,
        })
    }

    /// Up to `want` bytes (at most CHUNK) from `position` on; fewer only at the end of what may be read.
    pub fn slice(&mut self, position: u64, want: usize) -> io::Result<&[u8]> {
        let want = (want as u64).min(self.end.saturating_sub(position)) as usize;
        if position < self.start || position + want as u64 > self.start + self.filled as u64 {
            self.start = position;
            self.filled = 0;
            let most = (CHUNK as u64).min(self.end.saturating_sub(position)) as usize;
            while self.filled < most {
                let read = self.file.read_at(
                    &mut self.buffer[self.filled..most],
                    position + self.filled as u64,
                )?;
                if read == 0 {
                    // Cut by somebody else meanwhile: the rest is gone.
                    self.end = position + self.filled as u64;
                    break;
                }
                self.filled += read;
            }
        }
        let from = (position - self.start) as usize;
        let to = (from + want).min(self.filled);
        Ok(&self.buffer[from.min(to)..to])
    }

    /// CRC of the bytes from `from` to `to`.
    pub fn crc(&mut self, from: u64, to: u64, legacy: bool) -> io::Result<u32> {
        let (mut at, mut castagnoli) = (
            from,
            crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi),
        );
        let mut ieee = crc32fast::Hasher::new();
        while at < to {
            let want = ((to - at) as usize).min(CHUNK);
            let bytes = self.slice(at, want)?;
            if bytes.is_empty() {
                break;
            }
            at += bytes.len() as u64;
            if legacy {
                ieee.update(bytes);
            } else {
                castagnoli.update(bytes);
            }
        }
        Ok(if legacy {
            ieee.finalize()
        } else {
            castagnoli.finalize() as u32
        })
    }
}
