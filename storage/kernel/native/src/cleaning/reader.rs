//! Reads a segment's batches one after the other, each whole, with its CRC and lengths checked.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::cleaning::transactions::AbortedTransaction;
use crate::errors::{Damage, KernelError, Outcome};
use crate::memory;
use crate::records::header::{self, field, Header};

/// Fits the second-level cache, and is enough to make the cost of a system call vanish.
const BUFFER: usize = 1 << 20;
/// Enough of a batch to know its size and magic.
const FRONT: usize = 17;

/// A source segment of a round.
#[derive(Clone, Debug)]
pub struct Source {
    pub path: PathBuf,
    pub base_offset: i64,
    pub size: u64,
    pub next_offset: i64,
    pub start_position: u64,
    pub retain_legacy_tombstones: bool,
    pub aborted: Vec<AbortedTransaction>,
}

impl Source {
    pub fn name(&self) -> OsString {
        self.path.clone().into_os_string()
    }

    pub fn io(&self, action: &'static str, error: &std::io::Error) -> KernelError {
        KernelError::Io {
            path: self.name(),
            action,
            reason: error.to_string(),
        }
    }

    pub fn open(&self) -> Outcome<File> {
        File::open(&self.path).map_err(|error| self.io("open", &error))
    }

    pub fn damaged(&self, header: &Header, damage: impl Into<Damage>) -> KernelError {
        KernelError::Corrupt {
            path: self.name(),
            position: header.position,
            base_offset: header.base_offset,
            last_offset: header.last_offset,
            damage: damage.into(),
        }
    }
}

/// Memory that reading takes, kept from segment to segment.
#[derive(Default)]
pub struct Buffer {
    bytes: Vec<u8>,
}

pub struct Reader<'a> {
    source: &'a Source,
    file: File,
    bytes: &'a mut Vec<u8>,
    /// What of `bytes` is read and not yet used, and where in the file it starts.
    start: usize,
    end: usize,
    position: u64,
    /// Bytes of the batch that `next` returned last.
    current: usize,
    last_offset: i64,
}

impl<'a> Reader<'a> {
    pub fn new(source: &'a Source, position: u64, buffer: &'a mut Buffer) -> Outcome<Reader<'a>> {
        let file = source.open()?;
        memory::advise_sequential(&file);
        let bytes = &mut buffer.bytes;
        // A batch larger than the buffer made it grow; the next segment starts small again.
        let wanted = BUFFER.min((source.size.saturating_sub(position) as usize).max(FRONT));
        if bytes.len() > BUFFER {
            *bytes = Vec::new();
        }
        if bytes.len() < wanted {
            bytes.resize(wanted, 0);
        }
        Ok(Reader {
            source,
            file,
            bytes,
            start: 0,
            end: 0,
            position,
            current: 0,
            last_offset: source.base_offset.saturating_sub(1),
        })
    }

    fn damaged(&self, damage: Damage) -> KernelError {
        let front = &self.bytes[self.start..self.end];
        let base_offset = header::i64_at(front, field::BASE_OFFSET).unwrap_or(-1);
        let delta = if front.get(field::MAGIC) == Some(&2) {
            header::i32_at(front, field::LAST_OFFSET_DELTA).unwrap_or(0)
        } else {
            0
        };
        KernelError::Corrupt {
            path: self.source.name(),
            position: self.position,
            base_offset,
            last_offset: base_offset.saturating_add(i64::from(delta)),
            damage,
        }
    }

    /// Makes at least `wanted` bytes from `position` on available, or as many as the file has.
    fn fill(&mut self, wanted: usize) -> Outcome<()> {
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        }
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < wanted {
            let at = self.position + self.end as u64;
            let room =
                (self.bytes.len() - self.end).min(self.source.size.saturating_sub(at) as usize);
            match self
                .file
                .read_at(&mut self.bytes[self.end..self.end + room], at)
            {
                Ok(0) => break,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.source.io("read", &error)),
            }
        }
        Ok(())
    }

    /// The next batch, its bytes then being `batch()`; None at the end of the segment.
    #[inline]
    pub fn next(&mut self) -> Outcome<Option<Header>> {
        self.start += self.current;
        self.position += self.current as u64;
        self.current = 0;
        if self.position >= self.source.size {
            return Ok(None);
        }
        if self.end - self.start < FRONT {
            self.fill(FRONT)?;
        }
        let front = &self.bytes[self.start..self.end.min(self.start + FRONT)];
        let size = header::batch_size(front, self.source.size - self.position)
            .map_err(|damage| self.damaged(damage))?;
        if self.end - self.start < size {
            self.fill(size)?;
            if self.end - self.start < size {
                return Err(self.damaged(
                    "truncated: the file is shorter than it was when the round began".into(),
                ));
            }
        }
        let batch = &self.bytes[self.start..self.start + size];
        let header = header::read(batch, self.position).map_err(|damage| self.damaged(damage))?;
        if header.base_offset <= self.last_offset {
            let reason = format!(
                "its base offset {} does not follow offset {}",
                header.base_offset, self.last_offset
            );
            return Err(self.damaged(reason.into()));
        }
        if header.last_offset >= self.source.next_offset {
            let reason = format!(
                "its last offset is not below {}, where the next segment begins",
                self.source.next_offset
            );
            return Err(self.damaged(reason.into()));
        }
        self.last_offset = header.last_offset;
        self.current = size;
        Ok(Some(header))
    }

    #[inline]
    pub fn batch(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.current]
    }
}
