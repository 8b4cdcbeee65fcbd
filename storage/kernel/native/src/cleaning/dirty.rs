//! What pass one leaves for pass two beside the map.

use std::collections::HashMap;

use crate::cleaning::bits::Bits;

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
