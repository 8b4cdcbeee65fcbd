//! What both passes of a round share.

use std::collections::HashMap;
use std::io;

use crate::batch::Scratch;
use crate::bits::Bits;
use crate::codecs::Codecs;
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
        Meter { progress, read: 0, written: 0 }
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
        let (read, written) = (std::mem::take(&mut self.read), std::mem::take(&mut self.written));
        if read == 0 && written == 0 {
            return Ok(());
        }
        self.progress.report(read, written)
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
    (checksum ^ u64::from(crc)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
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
    pub codecs: Codecs,
    pub scratch: Scratch,
    pub buffer: Buffer,
}

impl Round {
    pub fn new(settings: Settings) -> io::Result<Round> {
        Ok(Round {
            settings,
            hasher: Hasher::new()?,
            map: OffsetMap::new(settings.map_memory_bytes, settings.map_load_factor, settings.kafka_map)?,
            dirty: Dirty { latest_offset: -1, ..Dirty::default() },
            transactions: Transactions::default(),
            codecs: Codecs::default(),
            scratch: Scratch::default(),
            buffer: Buffer::default(),
        })
    }
}
