//! What pass one makes of the batches, in their order, once they are looked into: the map, the dead, and what pass two has
//! to know.

use std::collections::HashMap;

use crate::cleaning::ahead::Chunk;
use crate::cleaning::bits::Bits;
use crate::cleaning::dirty::{mix, Dirty, DirtySegment};
use crate::cleaning::filling::Filling;
use crate::cleaning::hashing::{needs_a_closer_look, Found, Hashed, Key, Kind};
use crate::cleaning::map::{Hasher, OffsetMap};
use crate::cleaning::progress::{Meter, Progress};
use crate::cleaning::reader::Source;
use crate::errors::{Damage, Outcome};
use crate::records::header::Header;
use crate::records::record::Record;

#[derive(Clone, Copy, Debug, Default)]
pub struct MapOutcome {
    pub latest_offset: i64,
    pub messages_read: u64,
    pub bytes_read: u64,
    pub full: bool,
}

/// The map, and what pass two has to know.
pub struct Mapping<'a> {
    first_dirty: i64,
    filling: Filling<'a>,
    segments: &'a mut HashMap<i64, DirtySegment>,
    batches: &'a mut u64,
    records: &'a mut u64,
    skipped: &'a mut Bits,
    closer: &'a mut Bits,
    /// The one at hand.
    segment: DirtySegment,
    pub outcome: MapOutcome,
    pub meter: Meter<'a>,
}

impl<'a> Mapping<'a> {
    /// Goes on where `dirty` ends.
    pub fn new(
        first_dirty: i64,
        map: &'a mut OffsetMap,
        hasher: &'a Hasher,
        dirty: &'a mut Dirty,
        progress: &'a mut dyn Progress,
    ) -> Mapping<'a> {
        let Dirty {
            segments,
            batches,
            records,
            dead,
            skipped,
            closer,
            ..
        } = dirty;
        Mapping {
            first_dirty,
            filling: Filling::new(map, hasher, dead),
            segments,
            batches,
            records,
            skipped,
            closer,
            segment: DirtySegment::default(),
            outcome: MapOutcome {
                latest_offset: -1,
                ..MapOutcome::default()
            },
            meter: Meter::new(progress),
        }
    }

    pub fn begin(&mut self, source: &Source) {
        let (first_batch, first_ordinal) = (*self.batches, *self.records);
        self.segment = DirtySegment {
            start_position: source.start_position,
            first_batch,
            first_ordinal,
            ..DirtySegment::default()
        };
    }

    /// Takes one batch; `walk` goes over its records, if they matter. True: the map is full.
    #[inline(always)]
    pub fn batch(
        &mut self,
        source: &Source,
        header: &Header,
        kind: Kind,
        walk: impl FnOnce(&mut Look<'_, 'a>) -> Result<(), Damage>,
    ) -> Outcome<bool> {
        self.segment.batches += 1;
        self.outcome.bytes_read += header.size as u64;
        self.segment.checksum = mix(self.segment.checksum, header.crc);
        let number = *self.batches;
        *self.batches += 1;
        match kind {
            Kind::Control => self.outcome.messages_read += 1,
            Kind::Aborted => {
                self.skipped.set(number);
                self.outcome.messages_read += header.record_count as u64;
            }
            Kind::Data => {
                let (filling, latest_offset) = (&mut self.filling, &mut self.outcome.latest_offset);
                let mut look = Look {
                    first_dirty: self.first_dirty,
                    filling,
                    latest_offset,
                    ordinal: *self.records,
                    closer: false,
                    full: false,
                };
                walk(&mut look).map_err(|damage| source.damaged(header, damage))?;
                let Look {
                    ordinal,
                    closer,
                    full,
                    ..
                } = look;
                self.outcome.messages_read += ordinal - *self.records;
                *self.records = ordinal;
                if closer || full {
                    self.closer.set(number);
                }
                self.outcome.full = full;
            }
        }
        self.check_memory(source)?;
        if self.outcome.full {
            return Ok(true);
        }
        if header.last_offset >= self.first_dirty {
            self.outcome.latest_offset = header.last_offset;
        }
        self.meter.add(header.size, 0)?;
        Ok(false)
    }

    /// The segment is through, or the map is full: then this is true, and it was the last.
    pub fn end(&mut self, source: &Source) -> Outcome<bool> {
        self.filling.flush();
        self.segments.insert(source.base_offset, self.segment);
        self.check_memory(source)?;
        if !self.outcome.full {
            self.outcome.latest_offset = source.next_offset - 1;
        }
        Ok(self.outcome.full)
    }

    /// Takes what was found in a chunk. True: the map is full.
    pub fn take(&mut self, source: &Source, chunk: &mut Chunk<Hashed>) -> Outcome<bool> {
        if chunk.begins {
            self.begin(source);
        }
        let Hashed { batches, keys } = &mut chunk.load;
        for ahead in batches.drain(..) {
            let full = self.batch(source, &ahead.header, ahead.kind, |look| {
                let found = ahead.found?;
                look.found(&keys[found.keys.clone()], &found);
                Ok(())
            })?;
            if full {
                return self.end(source);
            }
        }
        if let Some(failure) = chunk.failure.take() {
            return Err(failure);
        }
        if chunk.ends {
            return self.end(source);
        }
        Ok(false)
    }

    fn check_memory(&mut self, source: &Source) -> Outcome<()> {
        match self.filling.failure.take() {
            Some(error) => Err(source.io("reserving memory for the offset map", &error)),
            None => Ok(()),
        }
    }
}

/// The walk over one batch.
pub struct Look<'a, 'b> {
    first_dirty: i64,
    filling: &'a mut Filling<'b>,
    latest_offset: &'a mut i64,
    ordinal: u64,
    closer: bool,
    full: bool,
}

impl Look<'_, '_> {
    #[inline(always)]
    pub fn record(&mut self, area: &[u8], record: &Record) {
        // The rest of the batch is checked, and not taken.
        if self.full {
            return;
        }
        self.closer |= needs_a_closer_look(record);
        match record.key(area) {
            Some(key) if record.offset >= self.first_dirty => {
                if !self
                    .filling
                    .put(|hasher| hasher.fingerprint(key), self.ordinal)
                {
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

    /// As `record` for each of them, after another thread has walked over the batch.
    fn found(&mut self, keys: &[Key], found: &Found) {
        let first = self.ordinal;
        for key in keys {
            let ordinal = first + key.index as u64;
            if !self.filling.put(|_| key.print, ordinal) {
                self.full = true;
                self.ordinal = ordinal;
                return;
            }
            *self.latest_offset = key.offset;
        }
        self.closer = found.closer;
        self.ordinal = first + found.records as u64;
    }
}
