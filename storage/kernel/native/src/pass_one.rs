//! Pass one: reads the dirty segments, fills the map, and marks each dirty record whose key comes again (facts 5.2).

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use crate::batch;
use crate::bits::Bits;
use crate::desk::Desk;
use crate::errors::{Damage, KernelError, Outcome};
use crate::header::Header;
use crate::map::{Fingerprint, Hasher, OffsetMap, LARGEST_ORDINAL};
use crate::pool::{self, Line};
use crate::reader::{Buffer, Reader, Source};
use crate::round::{mix, Dirty, DirtySegment, Flow, Meter, Progress, Round};
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
    fn put(&mut self, print: impl FnOnce(&Hasher) -> Fingerprint, ordinal: u64) -> bool {
        if self.map.entries() + self.count >= self.map.capacity() && !self.has_room(ordinal) {
            return false;
        }
        let print = print(self.hasher);
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

/// What pass one does with a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Control,
    /// Its transaction was aborted: it is not looked into.
    Aborted,
    Data,
}

pub fn build_map(
    round: &mut Round,
    sources: &[Source],
    aborted: &[AbortedTransaction],
    progress: &mut dyn Progress,
) -> Outcome<MapOutcome> {
    let unread = |source: &Source| source.size.saturating_sub(source.start_position);
    let flow = Flow::of(&round.settings, sources.iter().map(unread).sum());
    let Round {
        settings,
        hasher,
        map,
        dirty,
        desks,
        aside,
        buffer,
        ..
    } = round;
    let Dirty {
        segments,
        batches,
        records,
        dead,
        skipped,
        closer,
        latest_offset,
    } = dirty;
    let hasher = &*hasher;
    let first_dirty = settings.first_dirty_offset;
    let mut reading = Reading {
        transactions: Transactions::default(),
        aside,
    };
    reading.transactions.add(aborted);
    let mut mapping = Mapping {
        first_dirty,
        filling: Filling {
            map,
            hasher,
            dead,
            waiting: [(Fingerprint::default(), 0); AHEAD],
            count: 0,
            failure: None,
        },
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
    };
    match (flow, desks.as_mut_slice()) {
        (Some(flow), _) => {
            let work = |desk: &mut Desk, chunk: Chunk| chunk.hash(hasher, first_dirty, desk);
            pool::in_order(desks, work, |line| {
                ahead(&mut reading, &mut mapping, sources, flow, line, buffer)
            })?;
        }
        (None, [desk, ..]) => alone(&mut reading, &mut mapping, sources, desk, buffer)?,
        (None, []) => {}
    }
    mapping.meter.finish()?;
    *latest_offset = mapping.outcome.latest_offset;
    Ok(mapping.outcome)
}

/// On the calling thread alone: keys go into the map as they are met.
fn alone(
    reading: &mut Reading,
    mapping: &mut Mapping,
    sources: &[Source],
    desk: &mut Desk,
    buffer: &mut Buffer,
) -> Outcome<()> {
    for source in sources {
        mapping.begin(source);
        let mut reader = Reader::new(source, source.start_position, buffer)?;
        while let Some(header) = reader.next()? {
            let kind = reading.sort(source, &header, reader.batch())?;
            let full = mapping.batch(source, &header, kind, |look| {
                let area =
                    batch::area(&header, reader.batch(), &mut desk.codecs, &mut desk.scratch)?;
                batch::walk(&header, area, |record| look.record(area, record))
            })?;
            desk.scratch.trim();
            if full {
                break;
            }
        }
        if mapping.end(source)? {
            break;
        }
    }
    Ok(())
}

/// With other threads: they decompress, walk and hash ahead, and the keys go into the map in order.
fn ahead(
    reading: &mut Reading,
    mapping: &mut Mapping,
    sources: &[Source],
    flow: Flow,
    line: &mut Line<Chunk, Chunk, Desk>,
    buffer: &mut Buffer,
) -> Outcome<()> {
    let mut spare = Vec::new();
    let mut waiting = 0;
    for (index, source) in sources.iter().enumerate() {
        let mut opened = Reader::new(source, source.start_position, buffer).map_err(Some);
        let (mut begins, mut more) = (true, true);
        while more {
            let mut chunk: Chunk = spare.pop().unwrap_or_default();
            chunk.begin(index, std::mem::take(&mut begins));
            let filled = match &mut opened {
                Ok(reader) => reading.fill(source, reader, flow, &mut chunk),
                Err(error) => error.take().map_or(Ok(false), Err),
            };
            match filled {
                Ok(left) => more = left,
                Err(error) => chunk.failure = Some(error),
            }
            chunk.ends = !more;
            let failed = chunk.failure.is_some();
            waiting += chunk.bytes.len();
            line.push(chunk);
            while failed || flow.is_full(line.len(), waiting) {
                let Some(mut chunk) = line.next() else {
                    return Ok(());
                };
                waiting -= chunk.bytes.len();
                if mapping.take(&sources[chunk.source], &mut chunk)? {
                    return Ok(());
                }
                spare.push(chunk);
            }
        }
    }
    while let Some(mut chunk) = line.next() {
        if mapping.take(&sources[chunk.source], &mut chunk)? {
            break;
        }
    }
    Ok(())
}

/// A key of a dirty record.
#[derive(Clone, Copy)]
struct Key {
    print: Fingerprint,
    offset: i64,
    /// Of the record in its batch.
    index: usize,
}

/// Batches on their way to a desk and back.
#[derive(Default)]
struct Chunk {
    /// Index of their source.
    source: usize,
    /// They are the first of it, the last of it.
    begins: bool,
    ends: bool,
    bytes: Vec<u8>,
    batches: Vec<Ahead>,
    keys: Vec<Key>,
    /// What went wrong after all of the batches.
    failure: Option<KernelError>,
}

struct Ahead {
    header: Header,
    kind: Kind,
    bytes: Range<usize>,
    found: Result<Found, Damage>,
}

/// What the walk over a batch found; its keys are in the chunk.
#[derive(Clone, Default)]
struct Found {
    keys: Range<usize>,
    records: usize,
    closer: bool,
}

/// Memory of a chunk above this is given back.
const KEPT: usize = 4 << 20;

impl Chunk {
    fn begin(&mut self, source: usize, begins: bool) {
        (self.source, self.begins, self.ends) = (source, begins, false);
        self.batches.clear();
        self.keys.clear();
        self.keys.shrink_to(KEPT / size_of::<Key>());
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
    }

    /// Up to the first batch that is damaged.
    fn hash(mut self, hasher: &Hasher, first_dirty: i64, desk: &mut Desk) -> Chunk {
        for ahead in self
            .batches
            .iter_mut()
            .filter(|ahead| ahead.kind == Kind::Data)
        {
            ahead.found = find(
                &ahead.header,
                &self.bytes[ahead.bytes.clone()],
                hasher,
                first_dirty,
                desk,
                &mut self.keys,
            );
            desk.scratch.trim();
            if ahead.found.is_err() {
                break;
            }
        }
        self
    }
}

fn find(
    header: &Header,
    bytes: &[u8],
    hasher: &Hasher,
    first_dirty: i64,
    desk: &mut Desk,
    keys: &mut Vec<Key>,
) -> Result<Found, Damage> {
    let area = batch::area(header, bytes, &mut desk.codecs, &mut desk.scratch)?;
    let (start, mut records, mut closer) = (keys.len(), 0, false);
    batch::walk(header, area, |record| {
        let key = record.key(area);
        closer |= needs_a_closer_look(record) | key.is_none();
        if let Some(key) = key.filter(|_| record.offset >= first_dirty) {
            keys.push(Key {
                print: hasher.fingerprint(key),
                offset: record.offset,
                index: records,
            });
        }
        records += 1;
    })?;
    Ok(Found {
        keys: start..keys.len(),
        records,
        closer,
    })
}

/// Tombstones may expire, and records that are not as Kafka writes them are encoded anew.
#[inline(always)]
fn needs_a_closer_look(record: &batch::Record) -> bool {
    record.is_tombstone() | !record.fields.canonical
}

/// What comes before a batch is looked into, in the order of the batches.
struct Reading<'a> {
    transactions: Transactions,
    aside: &'a mut Desk,
}

impl Reading<'_> {
    fn sort(&mut self, source: &Source, header: &Header, bytes: &[u8]) -> Outcome<Kind> {
        if header.is_control() {
            let marker = batch::marker(
                header,
                bytes,
                &mut self.aside.codecs,
                &mut self.aside.scratch,
            );
            self.aside.scratch.trim();
            let marker = marker.map_err(|damage| source.damaged(header, damage))?;
            self.transactions
                .control_batch(header, marker, &mut Vec::new());
            return Ok(Kind::Control);
        }
        Ok(if self.transactions.data_batch(header) {
            Kind::Aborted
        } else {
            Kind::Data
        })
    }

    /// Reads on until the chunk is large enough. False: the segment is through.
    fn fill(
        &mut self,
        source: &Source,
        reader: &mut Reader,
        flow: Flow,
        chunk: &mut Chunk,
    ) -> Outcome<bool> {
        while !flow.is_enough(chunk.bytes.len(), chunk.batches.len()) {
            let Some(header) = reader.next()? else {
                return Ok(false);
            };
            let kind = self.sort(source, &header, reader.batch())?;
            let start = chunk.bytes.len();
            if kind == Kind::Data {
                chunk.bytes.extend_from_slice(reader.batch());
            }
            chunk.batches.push(Ahead {
                header,
                kind,
                bytes: start..chunk.bytes.len(),
                found: Ok(Found::default()),
            });
        }
        Ok(true)
    }
}

/// What comes after, in the order of the batches: the map, and what pass two has to know.
struct Mapping<'a> {
    first_dirty: i64,
    filling: Filling<'a>,
    segments: &'a mut HashMap<i64, DirtySegment>,
    batches: &'a mut u64,
    records: &'a mut u64,
    skipped: &'a mut Bits,
    closer: &'a mut Bits,
    /// The one at hand.
    segment: DirtySegment,
    outcome: MapOutcome,
    meter: Meter<'a>,
}

impl<'a> Mapping<'a> {
    fn begin(&mut self, source: &Source) {
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
    fn batch(
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
    fn end(&mut self, source: &Source) -> Outcome<bool> {
        self.filling.flush();
        self.segments.insert(source.base_offset, self.segment);
        self.check_memory(source)?;
        if !self.outcome.full {
            self.outcome.latest_offset = source.next_offset - 1;
        }
        Ok(self.outcome.full)
    }

    /// Takes what was found in a chunk. True: the map is full.
    fn take(&mut self, source: &Source, chunk: &mut Chunk) -> Outcome<bool> {
        if chunk.begins {
            self.begin(source);
        }
        for ahead in chunk.batches.drain(..) {
            let keys = &chunk.keys;
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
