//! Pass one: reads the dirty segments, fills the map, and marks each dirty record whose key comes again (facts 5.2).

use std::io;

use crate::batch;
use crate::bits::Bits;
use crate::errors::Outcome;
use crate::map::{Fingerprint, Hasher, OffsetMap, LARGEST_ORDINAL};
use crate::reader::{Reader, Source};
use crate::round::{mix, Dirty, DirtySegment, Meter, Progress, Round};
use crate::transactions::{AbortedTransaction, Transactions};

/// Keys that are hashed and prefetched before the first of them goes into the map.
const AHEAD: usize = 32;

#[derive(Clone, Copy, Debug, Default)]
pub struct MapOutcome {
    pub latest_offset: i64,
    pub messages_read: u64,
    pub bytes_read: u64,
    pub full: bool,
}

/// Keys on their way into the map.
struct Filling<'a> {
    map: &'a mut OffsetMap,
    hasher: &'a Hasher,
    dead: &'a mut Bits,
    waiting: [(Fingerprint, u64); AHEAD],
    count: usize,
    failure: Option<io::Error>,
}

impl Filling<'_> {
    /// False: the map is full, or there is no memory for it; the key was not taken.
    ///
    /// Kafka asks whether there is room before it looks whether the key is there already, so the number of entries has to
    /// be exact as soon as the waiting keys could fill the map.
    #[inline(always)]
    fn put(&mut self, key: &[u8], ordinal: u64) -> bool {
        if self.map.entries() + self.count >= self.map.capacity() && !self.has_room(ordinal) {
            return false;
        }
        let print = self.hasher.fingerprint(key);
        self.map.prefetch(print);
        self.waiting[self.count] = (print, ordinal);
        self.count += 1;
        self.count < AHEAD || self.flush()
    }

    #[inline(never)]
    fn has_room(&mut self, ordinal: u64) -> bool {
        self.flush() && self.map.entries() < self.map.capacity() && ordinal < LARGEST_ORDINAL
    }

    fn flush(&mut self) -> bool {
        for &(print, ordinal) in &self.waiting[..self.count] {
            match self.map.put(print, ordinal) {
                Ok(None) => {}
                Ok(Some(earlier)) => self.dead.set(earlier),
                Err(error) => self.failure = Some(error),
            }
        }
        self.count = 0;
        self.failure.is_none()
    }
}

pub fn build_map(round: &mut Round, sources: &[Source], aborted: &[AbortedTransaction], progress: &mut dyn Progress) -> Outcome<MapOutcome> {
    let first_dirty = round.settings.first_dirty_offset;
    let mut meter = Meter::new(progress);
    let mut transactions = Transactions::default();
    transactions.add(aborted);
    let mut outcome = MapOutcome { latest_offset: -1, ..MapOutcome::default() };
    let Dirty { segments, batches, records, dead, skipped, closer, latest_offset } = &mut round.dirty;
    let mut filling =
        Filling { map: &mut round.map, hasher: &round.hasher, dead, waiting: [(Fingerprint::default(), 0); AHEAD], count: 0, failure: None };
    for source in sources {
        let mut segment =
            DirtySegment { start_position: source.start_position, first_batch: *batches, first_ordinal: *records, ..DirtySegment::default() };
        let mut reader = Reader::new(source, source.start_position, &mut round.buffer)?;
        while let Some(header) = reader.next()? {
            segment.batches += 1;
            outcome.bytes_read += header.size as u64;
            segment.checksum = mix(segment.checksum, header.crc);
            let number = *batches;
            *batches += 1;
            if header.is_control() {
                let marker = batch::marker(&header, reader.batch(), &mut round.codecs, &mut round.scratch);
                let marker = marker.map_err(|damage| source.damaged(&header, damage))?;
                transactions.control_batch(&header, marker, &mut Vec::new());
                outcome.messages_read += 1;
            } else if transactions.data_batch(&header) {
                skipped.set(number);
                outcome.messages_read += header.record_count as u64;
            } else {
                let mut look = Look { first_dirty, filling: &mut filling, latest_offset: &mut outcome.latest_offset, ordinal: *records, closer: false, full: false };
                let walked = batch::area(&header, reader.batch(), &mut round.codecs, &mut round.scratch)
                    .and_then(|area| batch::walk(&header, area, |record| look.record(area, record)));
                walked.map_err(|damage| source.damaged(&header, damage))?;
                let Look { ordinal, closer: needed, full, .. } = look;
                outcome.messages_read += ordinal - *records;
                *records = ordinal;
                if needed || full {
                    closer.set(number);
                }
                outcome.full = full;
            }
            round.scratch.trim();
            check_memory(&mut filling, source)?;
            if outcome.full {
                break;
            }
            if header.last_offset >= first_dirty {
                outcome.latest_offset = header.last_offset;
            }
            meter.add(header.size, 0)?;
        }
        filling.flush();
        segments.insert(source.base_offset, segment);
        check_memory(&mut filling, source)?;
        if outcome.full {
            break;
        }
        outcome.latest_offset = source.next_offset - 1;
    }
    meter.finish()?;
    *latest_offset = outcome.latest_offset;
    Ok(outcome)
}

fn check_memory(filling: &mut Filling, source: &Source) -> Outcome<()> {
    match filling.failure.take() {
        Some(error) => Err(source.io("reserving memory for the offset map", &error)),
        None => Ok(()),
    }
}

/// The walk over one batch.
struct Look<'a, 'b> {
    first_dirty: i64,
    filling: &'a mut Filling<'b>,
    latest_offset: &'a mut i64,
    ordinal: u64,
    closer: bool,
    full: bool,
}

impl Look<'_, '_> {
    #[inline(always)]
    fn record(&mut self, area: &[u8], record: &batch::Record) {
        // The rest of the batch is checked, and not taken.
        if self.full {
            return;
        }
        self.closer |= record.is_tombstone() | !record.fields.canonical;
        match record.key(area) {
            Some(key) if record.offset >= self.first_dirty => {
                if !self.filling.put(key, self.ordinal) {
                    self.full = true;
                    return;
                }
                *self.latest_offset = record.offset;
            }
            Some(_) => {}
            None => self.closer = true,
        }
        self.ordinal += 1;
    }
}

/// Checks every batch of `sources` from their start positions on: CRC, lengths and order, not the records.
pub fn verify(round: &mut Round, sources: &[Source], progress: &mut dyn Progress) -> Outcome<()> {
    let mut meter = Meter::new(progress);
    for source in sources {
        let mut reader = Reader::new(source, source.start_position, &mut round.buffer)?;
        while let Some(header) = reader.next()? {
            meter.add(header.size, 0)?;
        }
    }
    meter.finish()
}
