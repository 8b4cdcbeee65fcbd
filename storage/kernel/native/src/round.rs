//! What both passes of a round share.

use std::collections::HashMap;
use std::io;

use crate::bits::Bits;
use crate::desk::Desk;
use crate::errors::Outcome;
use crate::map::{Hasher, OffsetMap};
use crate::reader::Buffer;
use crate::transactions::Transactions;

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub first_dirty_offset: i64,
    pub high_watermark: i64,
    pub now_ms: i64,
    pub delete_retention_ms: i64,
    pub index_interval_bytes: i64,
    pub map_memory_bytes: u64,
    pub map_load_factor: f64,
    pub kafka_map: bool,
    /// That work on the round; 1: only the calling one.
    pub threads: usize,
    /// Bytes that a thread is given at once.
    pub chunk_bytes: usize,
}

/// Told about bytes read and written; answers Err(Stopped) to end the pass.
pub trait Progress {
    fn report(&mut self, read: u64, written: u64) -> Outcome<()>;
}

const REPORT_EVERY: u64 = 4 << 20;

/// Gathers bytes until they are worth a report.
pub struct Meter<'a> {
    progress: &'a mut dyn Progress,
    read: u64,
    written: u64,
}

impl<'a> Meter<'a> {
    pub fn new(progress: &'a mut dyn Progress) -> Meter<'a> {
        Meter {
            progress,
            read: 0,
            written: 0,
        }
    }

    #[inline]
    pub fn add(&mut self, read: usize, written: u64) -> Outcome<()> {
        self.read += read as u64;
        self.written += written;
        if self.read >= REPORT_EVERY {
            return self.finish();
        }
        Ok(())
    }

    pub fn finish(&mut self) -> Outcome<()> {
        let (read, written) = (
            std::mem::take(&mut self.read),
            std::mem::take(&mut self.written),
        );
        if read == 0 && written == 0 {
            return Ok(());
        }
        self.progress.report(read, written)
    }
}

/// How far work on several threads runs ahead of what is taken back in order: this bounds the memory that it takes.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    threads: usize,
    chunk_bytes: usize,
}

/// Batches in a chunk; their headers are kept beside their bytes.
const MOST_BATCHES: usize = 4096;

impl Flow {
    /// None: `bytes` in all are not worth a second thread, or there is none.
    pub fn of(settings: &Settings, bytes: u64) -> Option<Flow> {
        let Settings {
            threads,
            chunk_bytes,
            ..
        } = *settings;
        (threads > 1 && bytes > chunk_bytes as u64).then_some(Flow {
            threads,
            chunk_bytes,
        })
    }

    pub fn is_enough(self, bytes: usize, batches: usize) -> bool {
        bytes >= self.chunk_bytes || batches >= MOST_BATCHES
    }

    /// Whether to take a result before reading on: so many chunks with so many bytes are on their way. One batch may be
    /// larger than all of that; then there is one at a time.
    pub fn is_full(self, chunks: usize, bytes: usize) -> bool {
        chunks > 2 * self.threads || bytes > 4 * self.threads * self.chunk_bytes
    }
}

/// What pass one read of one segment, so that pass two finds the same batches and ordinals.
#[derive(Clone, Copy, Debug, Default)]
pub struct DirtySegment {
    pub start_position: u64,
    pub first_batch: u64,
    pub batches: u64,
    pub first_ordinal: u64,
    /// Over the CRCs of those batches: the file must not change between the passes.
    pub checksum: u64,
}

/// Adds a batch to the checksum of a segment.
pub fn mix(checksum: u64, crc: u32) -> u64 {
    (checksum ^ u64::from(crc))
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

/// What pass one learnt about the dirty records. Ordinals number the records of all data batches it looked into, in
/// order; batches are numbered likewise, control batches included.
#[derive(Default)]
pub struct Dirty {
    /// By base offset.
    pub segments: HashMap<i64, DirtySegment>,
    pub batches: u64,
    pub records: u64,
    /// Records whose key came again: bit per ordinal.
    pub dead: Bits,
    /// Batches that pass one did not look into, as their transaction was aborted; their records have no ordinals.
    pub skipped: Bits,
    /// Batches with tombstones, keyless records, or records that a rewrite would encode differently.
    pub closer: Bits,
    pub latest_offset: i64,
}

pub struct Round {
    pub settings: Settings,
    pub hasher: Hasher,
    pub map: OffsetMap,
    pub dirty: Dirty,
    /// Of pass two; it lives as long as the round.
    pub transactions: Transactions,
    /// A desk for each thread; the first is that of the calling one.
    pub desks: Vec<Desk>,
    /// For what the calling thread looks into while it reads ahead of the others.
    pub aside: Desk,
    pub buffer: Buffer,
}

impl Round {
    pub fn new(settings: Settings) -> io::Result<Round> {
        Ok(Round {
            settings,
            hasher: Hasher::new()?,
            map: OffsetMap::new(
                settings.map_memory_bytes,
                settings.map_load_factor,
                settings.kafka_map,
            )?,
            dirty: Dirty {
                latest_offset: -1,
                ..Dirty::default()
            },
            transactions: Transactions::default(),
            desks: std::iter::repeat_with(Desk::default)
                .take(settings.threads.max(1))
                .collect(),
            aside: Desk::default(),
            buffer: Buffer::default(),
        })
    }
}
