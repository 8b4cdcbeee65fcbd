//! Pass two: copies what is kept of a group's segments into one (facts 5.4, 5.6, 5.7, 5.8).
//!
//! Dirty records need no lookup: pass one left a bit for each that says whether its key came again. A batch whose bits are
//! all equal is copied or dropped without being decompressed, unless pass one saw something in it that other rules need.

use std::collections::HashMap;
use std::fs::File;

use crate::batch;
use crate::errors::{Damage, KernelError, Outcome};
use crate::header::{Header, V2_HEADER};
use crate::index::{Indexes, TooFar};
use crate::map::Fingerprint;
use crate::output::Output;
use crate::reader::{Buffer, Reader, Source};
use crate::rebuild::{self, Rebuild, Rebuilt};
use crate::record;
use crate::round::{mix, DirtySegment, Meter, Progress, Round};
use crate::varint;

/// Lookups that are prefetched together.
const AHEAD: usize = 32;

/// Marks of a record: it stays,
const KEPT: u8 = 1;
/// it has no value,
const TOMBSTONE: u8 = 2;
/// it has no key,
const KEYLESS: u8 = 4;
/// and its offset lies in the range that the map speaks of.
const MAPPED: u8 = 8;

/// A key on its way to be looked up.
#[derive(Clone, Copy, Default)]
struct Lookup {
    print: Fingerprint,
    /// Of the record in its batch.
    index: usize,
    lose_from: u64,
}

/// Last offset, max timestamp and bytes of a batch that was written.
type Written = (i64, i64, usize);

#[derive(Clone, Copy, Debug)]
pub struct ActiveProducer {
    pub last_data_offset: Option<i64>,
    pub producer_epoch: i16,
}

/// The fields of CopyStats.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub messages_read: u64,
    pub bytes_read: u64,
    pub messages_written: u64,
    pub bytes_written: u64,
    pub invalid_messages_read: u64,
    pub superseded: u64,
    pub aborted: u64,
    pub tombstones_read: u64,
    pub tombstones_expired: u64,
    pub markers_removed: u64,
    pub batches_read: u64,
    pub batches_copied: u64,
    pub batches_rewritten: u64,
    pub batches_emptied: u64,
}

pub struct GroupOutcome {
    pub log_size: u64,
    pub offset_index: Vec<u8>,
    pub time_index: Vec<u8>,
    pub transaction_index: Vec<u8>,
    pub unchanged: bool,
    pub stats: Stats,
}

/// What pass one noted about a batch.
#[derive(Clone, Copy)]
struct Noted {
    /// Of its first record.
    ordinal: u64,
    skipped: bool,
    closer: bool,
}

/// Follows the batches of a segment that pass one read.
struct Cursor {
    segment: DirtySegment,
    batch: u64,
    ordinal: u64,
    checksum: u64,
}

impl Cursor {
    fn new(segment: DirtySegment) -> Cursor {
        Cursor { segment, batch: 0, ordinal: segment.first_ordinal, checksum: 0 }
    }

    #[inline]
    fn note(&mut self, round: &Round, header: &Header) -> Option<Noted> {
        if header.position < self.segment.start_position || self.batch == self.segment.batches {
            return None;
        }
        let number = self.segment.first_batch + self.batch;
        self.batch += 1;
        self.checksum = mix(self.checksum, header.crc);
        Some(Noted { ordinal: self.ordinal, skipped: round.dirty.skipped.get(number), closer: round.dirty.closer.get(number) })
    }

    fn is_complete(&self) -> bool {
        self.batch == self.segment.batches && self.checksum == self.segment.checksum
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Retention {
    /// Its records are not even looked at.
    Delete,
    DeleteEmpty,
    RetainEmpty,
}

/// The decision on a batch, before its records are looked at.
#[derive(Clone, Copy)]
struct Verdict {
    discard_records: bool,
    retention: Retention,
    marker_of_empty_transaction: bool,
}

struct Group<'a> {
    round: &'a mut Round,
    producers: &'a HashMap<i64, ActiveProducer>,
    output: Output<'a>,
    indexes: Indexes,
    transaction_index: Vec<u8>,
    stats: Stats,
    source: &'a Source,
    source_index: usize,
    /// A mark for each record of the batch at hand.
    marks: Vec<u8>,
    raw: Vec<u8>,
    encoded: Vec<u8>,
}

pub fn clean_group(
    round: &mut Round,
    group: &[Source],
    producers: &HashMap<i64, ActiveProducer>,
    file: Option<File>,
    progress: &mut dyn Progress,
) -> Outcome<GroupOutcome> {
    let Some(first) = group.first() else {
        return Err(KernelError::Fault { path: "".into(), reason: "a group without segments cannot be cleaned".into() });
    };
    let indexes = Indexes::new(first.base_offset, round.settings.index_interval_bytes);
    let mut meter = Meter::new(progress);
    let mut buffer = std::mem::take(&mut round.buffer);
    let mut cleaning = Group {
        producers,
        output: Output::new(file, group),
        indexes,
        transaction_index: Vec::new(),
        stats: Stats::default(),
        source: first,
        source_index: 0,
        marks: Vec::new(),
        raw: Vec::new(),
        encoded: Vec::new(),
        round,
    };
    for (index, source) in group.iter().enumerate() {
        cleaning.source = source;
        cleaning.source_index = index;
        cleaning.segment(&mut buffer, &mut meter)?;
    }
    cleaning.indexes.close().map_err(|far| cleaning.overflow(far))?;
    if !cleaning.output.unchanged() {
        cleaning.output.flush()?;
    }
    meter.add(0, cleaning.output.take_written())?;
    meter.finish()?;
    let Group { output, indexes, transaction_index, stats, round, .. } = cleaning;
    round.buffer = buffer;
    Ok(GroupOutcome {
        log_size: output.size(),
        offset_index: indexes.offset_index,
        time_index: indexes.time_index,
        transaction_index,
        unchanged: output.unchanged(),
        stats,
    })
}

impl Group<'_> {
    fn overflow(&self, far: TooFar) -> KernelError {
        let (path, base_offset) = (self.source.name(), self.base_offset());
        KernelError::Overflow { path, offset: far.0, base_offset, source: self.source_index }
    }

    fn base_offset(&self) -> i64 {
        self.indexes.base_offset()
    }

    fn segment(&mut self, buffer: &mut Buffer, meter: &mut Meter) -> Outcome<()> {
        let source = self.source;
        self.round.transactions.add(&source.aborted);
        let mut cursor = self.round.dirty.segments.get(&source.base_offset).copied().map(Cursor::new);
        let mut reader = Reader::new(source, 0, buffer)?;
        while let Some(header) = reader.next()? {
            self.stats.batches_read += 1;
            self.stats.bytes_read += header.size as u64;
            let noted = cursor.as_mut().and_then(|cursor| cursor.note(self.round, &header));
            let count = self.batch(&header, reader.batch(), noted)?;
            if let (Some(cursor), Some(Noted { skipped: false, .. }), false) = (&mut cursor, noted, header.is_control()) {
                cursor.ordinal += count;
            }
            self.round.scratch.trim();
            meter.add(header.size, self.output.take_written())?;
        }
        match cursor {
            Some(cursor) if !cursor.is_complete() => {
                let reason = "its content changed while it was being cleaned".to_string();
                Err(KernelError::Fault { path: source.name(), reason })
            }
            _ => Ok(()),
        }
    }

    /// Keeps, drops or rewrites one batch. Returns how many records it has.
    fn batch(&mut self, header: &Header, bytes: &[u8], noted: Option<Noted>) -> Outcome<u64> {
        let verdict = self.judge(header, bytes)?;
        let count = header.record_count as u64;
        if verdict.retention == Retention::Delete {
            if header.is_control() {
                self.stats.markers_removed += count;
            } else {
                self.stats.aborted += count;
            }
            self.output.differ()?;
            return Ok(count);
        }
        match noted {
            Some(noted) if !noted.skipped && !noted.closer && count > 0 && self.bits_decide(header, verdict) => {
                match self.round.dirty.dead.count(noted.ordinal, count) {
                    0 => {
                        self.stats.messages_read += count;
                        self.copy(header, bytes, count)?;
                    }
                    dead if dead == count => {
                        self.stats.messages_read += count;
                        self.stats.superseded += count;
                        self.drop(header, bytes, verdict)?;
                    }
                    dead => {
                        self.stats.messages_read += count;
                        self.stats.superseded += dead;
                        self.thin_out(header, bytes, noted.ordinal)?;
                    }
                }
                Ok(count)
            }
            _ => self.look_into(header, bytes, noted, verdict),
        }
    }

    /// Whether the bits of pass one answer for every record of the batch.
    #[inline]
    fn bits_decide(&self, header: &Header, verdict: Verdict) -> bool {
        !header.is_legacy()
            && !header.is_control()
            && !verdict.discard_records
            && header.base_offset >= self.round.settings.first_dirty_offset
            && header.last_offset <= self.round.dirty.latest_offset
    }

    fn judge(&mut self, header: &Header, bytes: &[u8]) -> Outcome<Verdict> {
        let round = &mut *self.round;
        let settings = round.settings;
        let control = header.is_control();
        let discard = if control {
            let marker = batch::marker(header, bytes, &mut round.codecs, &mut round.scratch);
            let marker = marker.map_err(|damage| self.source.damaged(header, damage))?;
            round.transactions.control_batch(header, marker, &mut self.transaction_index)
        } else {
            round.transactions.data_batch(header)
        };
        let expired = header.delete_horizon().is_some_and(|horizon| horizon <= settings.now_ms);
        let discard_records = discard && (!control || expired);
        let retention = if self.is_last_of_producer(header) || header.last_offset + 1 == settings.high_watermark {
            Retention::RetainEmpty
        } else if discard_records {
            Retention::Delete
        } else {
            Retention::DeleteEmpty
        };
        Ok(Verdict { discard_records, retention, marker_of_empty_transaction: discard && control })
    }

    fn is_last_of_producer(&self, header: &Header) -> bool {
        if header.producer_id < 0 {
            return false;
        }
        self.producers.get(&header.producer_id).is_some_and(|producer| match producer.last_data_offset {
            Some(offset) => header.last_offset == offset,
            None => header.is_control() && header.producer_epoch == producer.producer_epoch,
        })
    }

    /// All of the batch is kept as it is.
    fn copy(&mut self, header: &Header, bytes: &[u8], count: u64) -> Outcome<()> {
        self.stats.batches_copied += 1;
        self.stats.messages_written += count;
        self.index(header.last_offset, header.last_offset, header.max_timestamp, header.size)?;
        self.output.copy(bytes)
    }

    /// Nothing of the batch is kept, or only its header.
    fn drop(&mut self, header: &Header, bytes: &[u8], verdict: Verdict) -> Outcome<()> {
        if verdict.retention != Retention::RetainEmpty {
            return self.output.differ();
        }
        if header.is_legacy() {
            let reason = format!(
                "the batch at byte {}, last offset {}, has to stay without its records as it ends at the high watermark, and \
                 magic {} has no empty batches (Kafka refuses to clean this log as well, until more is written to it)",
                header.position, header.last_offset, header.magic
            );
            return Err(KernelError::Fault { path: self.source.name(), reason });
        }
        let empty = rebuild::empty_batch(header);
        if bytes == empty {
            return self.copy(header, bytes, 0);
        }
        self.output.differ()?;
        self.stats.batches_emptied += 1;
        self.index(header.last_offset, header.last_offset, header.max_timestamp, V2_HEADER)?;
        self.output.buffer().extend_from_slice(&empty);
        self.output.appended(V2_HEADER)
    }

    /// Accounts for the batch that comes next in the output.
    #[inline]
    fn index(&mut self, largest_offset: i64, last_offset: i64, max_timestamp: i64, size: usize) -> Outcome<()> {
        self.stats.bytes_written += size as u64;
        let position = self.output.size();
        let checked = self.indexes.relative(largest_offset).and_then(|_| self.indexes.append(last_offset, max_timestamp, position, size));
        checked.map_err(|far| self.overflow(far))
    }

    /// Writes the batch without its dead records; the bits decide and nothing else matters.
    fn thin_out(&mut self, header: &Header, bytes: &[u8], ordinal: u64) -> Outcome<()> {
        self.output.differ()?;
        let horizon = header.delete_horizon().filter(|&horizon| horizon >= 0);
        let round = &mut *self.round;
        let out = self.output.buffer();
        let start = out.len();
        out.resize(start + V2_HEADER, 0);
        let compressed = header.codec() != 0;
        let target = if compressed {
            self.raw.clear();
            &mut self.raw
        } else {
            &mut *out
        };
        let mut rebuild = Rebuild::new(target, &mut self.encoded, Some(header.base_offset), horizon);
        let area = batch::area(header, bytes, &mut round.codecs, &mut round.scratch);
        let thinned = area.and_then(|area| thin_records(header, area, &mut rebuild, |index| round.dirty.dead.get(ordinal + index)));
        let rebuilt = rebuild.done();
        let written = thinned.and_then(|()| finish(&mut round.codecs, header, compressed.then_some(&self.raw), out, start, &rebuilt, horizon.is_some()));
        let written = written.map_err(|damage| self.source.damaged(header, damage))?;
        self.rewritten(&rebuilt, written)
    }

    fn rewritten(&mut self, rebuilt: &Rebuilt, (last_offset, max_timestamp, size): Written) -> Outcome<()> {
        self.stats.batches_rewritten += 1;
        self.stats.messages_written += u64::from(rebuilt.count);
        self.index(rebuilt.last_offset, last_offset, max_timestamp, size)?;
        self.output.appended(size)
    }

    /// The whole rule, record by record. Returns how many records there are.
    fn look_into(&mut self, header: &Header, bytes: &[u8], noted: Option<Noted>, verdict: Verdict) -> Outcome<u64> {
        let mut scratch = std::mem::take(&mut self.round.scratch);
        let done = match batch::area(header, bytes, &mut self.round.codecs, &mut scratch) {
            Ok(area) => self.filter(header, bytes, area, noted, verdict),
            Err(damage) => Err(self.source.damaged(header, damage)),
        };
        self.round.scratch = scratch;
        done
    }

    fn filter(&mut self, header: &Header, bytes: &[u8], area: &[u8], noted: Option<Noted>, verdict: Verdict) -> Outcome<u64> {
        let source = self.source;
        self.look_up(header, area, noted, verdict).map_err(|damage| source.damaged(header, damage))?;
        let count = self.marks.len() as u64;
        self.stats.messages_read += count;
        if verdict.discard_records {
            if header.is_control() {
                self.stats.markers_removed += count;
            } else {
                self.stats.aborted += count;
            }
            self.drop(header, bytes, verdict)?;
            return Ok(count);
        }
        let (kept, tombstone) = self.decide(header);
        if kept == 0 {
            self.drop(header, bytes, verdict)?;
            return Ok(count);
        }
        let old_horizon = header.delete_horizon();
        let set_horizon = old_horizon.is_none() && (tombstone || verdict.marker_of_empty_transaction);
        if kept == count && !header.is_legacy() && !set_horizon {
            self.copy(header, bytes, kept)?;
            return Ok(count);
        }
        let settings = self.round.settings;
        let horizon = if set_horizon { Some(settings.now_ms.wrapping_add(settings.delete_retention_ms)) } else { old_horizon };
        self.output.differ()?;
        let written = self.rebuild(header, area, horizon).map_err(|damage| source.damaged(header, damage))?;
        self.rewritten(&written.0, written.1)?;
        Ok(count)
    }

    /// Marks every record: what it is, and whether no later record of the mapped range has its key.
    fn look_up(&mut self, header: &Header, area: &[u8], noted: Option<Noted>, verdict: Verdict) -> Result<(), Damage> {
        let round = &*self.round;
        let (first_dirty, latest_offset) = (round.settings.first_dirty_offset, round.dirty.latest_offset);
        let plain = verdict.discard_records || header.is_control();
        let marks = &mut self.marks;
        marks.clear();
        let mut lookups = [Lookup::default(); AHEAD];
        let mut waiting = 0;
        let mut unread = false;
        batch::walk(header, area, |record| {
            let index = marks.len();
            let mut mark = KEPT | if record.is_tombstone() { TOMBSTONE } else { 0 };
            let key = record.key(area);
            if plain || record.offset > latest_offset {
                marks.push(mark | if key.is_none() { KEYLESS } else { 0 });
                return;
            }
            mark |= MAPPED;
            let Some(key) = key else { return marks.push(mark | KEYLESS) };
            // A record without an ordinal of its own loses to every record that has one at or after this.
            let lose_from = match noted {
                _ if record.offset < first_dirty => 0,
                Some(Noted { skipped: false, ordinal, .. }) => {
                    let dead = round.dirty.dead.get(ordinal + index as u64);
                    return marks.push(if dead { mark & !KEPT } else { mark });
                }
                Some(Noted { ordinal, .. }) => ordinal,
                None => {
                    unread = true;
                    0
                }
            };
            marks.push(mark);
            let print = round.hasher.fingerprint(key);
            round.map.prefetch(print);
            lookups[waiting] = Lookup { print, index, lose_from };
            waiting += 1;
            if waiting == AHEAD {
                answer(round, &lookups, marks);
                waiting = 0;
            }
        })?;
        answer(round, &lookups[..waiting], marks);
        if unread {
            return Err("its records belong to the mapped range but pass one did not read them".into());
        }
        Ok(())
    }

    /// Applies the rules for keyless records and tombstones. How many records are kept, and whether a tombstone is.
    fn decide(&mut self, header: &Header) -> (u64, bool) {
        let retain_tombstones = if header.is_legacy() {
            self.source.retain_legacy_tombstones
        } else {
            header.delete_horizon().is_none_or(|horizon| self.round.settings.now_ms < horizon)
        };
        let control = header.is_control();
        let stats = &mut self.stats;
        let (mut kept, mut tombstone_kept) = (0, false);
        for mark in &mut self.marks {
            let tombstone = *mark & TOMBSTONE != 0;
            stats.tombstones_read += u64::from(tombstone && *mark & KEYLESS == 0 && !control);
            if *mark & MAPPED != 0 {
                if *mark & KEYLESS != 0 {
                    stats.invalid_messages_read += 1;
                    *mark &= !KEPT;
                } else if *mark & KEPT == 0 {
                    stats.superseded += 1;
                } else if tombstone && !retain_tombstones {
                    stats.tombstones_expired += 1;
                    *mark &= !KEPT;
                }
            }
            kept += u64::from(*mark & KEPT);
            tombstone_kept |= tombstone && *mark & KEPT != 0;
        }
        (kept, tombstone_kept)
    }

    /// Writes the kept records as one V2 batch.
    fn rebuild(&mut self, header: &Header, area: &[u8], horizon: Option<i64>) -> Result<(Rebuilt, Written), Damage> {
        let horizon = horizon.filter(|&horizon| horizon >= 0);
        let out = self.output.buffer();
        let start = out.len();
        out.resize(start + V2_HEADER, 0);
        let compressed = header.codec() != 0;
        let target = if compressed {
            self.raw.clear();
            &mut self.raw
        } else {
            &mut *out
        };
        let base_offset = (!header.is_legacy()).then_some(header.base_offset);
        let mut rebuild = Rebuild::new(target, &mut self.encoded, base_offset, horizon);
        let mut marks = self.marks.iter();
        let mut pushed = Ok(());
        batch::walk(header, area, |record| {
            if marks.next().is_some_and(|mark| mark & KEPT != 0) && pushed.is_ok() {
                pushed = rebuild.push(area, record);
            }
        })?;
        pushed?;
        let rebuilt = rebuild.done();
        let written = finish(&mut self.round.codecs, header, compressed.then_some(&self.raw), out, start, &rebuilt, horizon.is_some())?;
        Ok((rebuilt, written))
    }
}

/// Asks the map for the records of `lookups`.
fn answer(round: &Round, lookups: &[Lookup], marks: &mut [u8]) {
    for lookup in lookups {
        if round.map.get(lookup.print).is_some_and(|ordinal| ordinal >= lookup.lose_from) {
            marks[lookup.index] &= !KEPT;
        }
    }
}

/// Compresses the records if need be and completes the header at `start`.
fn finish(
    codecs: &mut crate::codecs::Codecs,
    header: &Header,
    raw: Option<&Vec<u8>>,
    out: &mut Vec<u8>,
    start: usize,
    rebuilt: &Rebuilt,
    horizon: bool,
) -> Result<Written, Damage> {
    if let Some(raw) = raw {
        codecs.compress(header.codec(), raw, out)?;
    }
    rebuild::write_header(out, start, header, rebuilt, horizon)
}

/// Pushes the records that are not dead; they were found whole and canonical in pass one.
#[inline(always)]
fn thin_records(header: &Header, area: &[u8], rebuild: &mut Rebuild, dead: impl Fn(u64) -> bool) -> Result<(), Damage> {
    const CHANGED: &str = "its records differ from those of pass one";
    let fixed_timestamp = header.is_log_append_time().then_some(header.max_timestamp);
    let mut at = 0;
    for index in 0..header.record_count as u64 {
        let (start, end) = record::body(area, at)?;
        at = end;
        if dead(index) {
            continue;
        }
        let body = &area[start..end];
        let (mut next, mut ignored) = (1, true);
        let delta = varint::read_varlong(body, &mut next, &mut ignored).ok_or(CHANGED)?;
        let tail = &body[next..];
        let offset_delta = varint::read_varint(tail, &mut 0, &mut ignored).ok_or(CHANGED)?;
        let timestamp = fixed_timestamp.unwrap_or(header.base_timestamp.wrapping_add(delta));
        rebuild.push_tail(header.base_offset + i64::from(offset_delta), timestamp, tail)?;
    }
    Ok(())
}
