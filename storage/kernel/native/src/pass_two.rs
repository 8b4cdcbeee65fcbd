//! Pass two: copies what is kept of a group's segments into one (facts 5.4, 5.6, 5.7, 5.8).
//!
//! A batch whose bits of pass one are all equal is copied or dropped without being decompressed, unless pass one saw
//! something in it that other rules need. What depends on the order of batches, transactions and ordinals before and indexes
//! and output after, is done on the calling thread; the records in between are looked into at desks.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;

use crate::batch;
use crate::desk::{Desk, Fate, Noted, Question, Retention, Stats, Verdict, View, Written};
use crate::errors::{Damage, KernelError, Outcome};
use crate::header::{Header, V2_HEADER};
use crate::index::{Indexes, TooFar};
use crate::output::Output;
use crate::pool::{self, Line};
use crate::reader::{Buffer, Reader, Source};
use crate::rebuild::{self, Rebuilt};
use crate::round::{mix, Dirty, DirtySegment, Flow, Meter, Progress, Round};
use crate::transactions::Transactions;

#[derive(Clone, Copy, Debug)]
pub struct ActiveProducer {
    pub last_data_offset: Option<i64>,
    pub producer_epoch: i16,
}

pub struct GroupOutcome {
    pub log_size: u64,
    pub offset_index: Vec<u8>,
    pub time_index: Vec<u8>,
    pub transaction_index: Vec<u8>,
    pub unchanged: bool,
    pub stats: Stats,
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
        Cursor {
            segment,
            batch: 0,
            ordinal: segment.first_ordinal,
            checksum: 0,
        }
    }

    #[inline]
    fn note(&mut self, dirty: &Dirty, header: &Header) -> Option<Noted> {
        if header.position < self.segment.start_position || self.batch == self.segment.batches {
            return None;
        }
        let number = self.segment.first_batch + self.batch;
        self.batch += 1;
        self.checksum = mix(self.checksum, header.crc);
        Some(Noted {
            ordinal: self.ordinal,
            skipped: dirty.skipped.get(number),
            closer: dirty.closer.get(number),
        })
    }

    fn is_complete(&self) -> bool {
        self.batch == self.segment.batches && self.checksum == self.segment.checksum
    }
}

/// What is to be done with a batch.
#[derive(Clone, Copy)]
enum Deed {
    Known(Fate),
    Ask(Question),
}

pub fn clean_group(
    round: &mut Round,
    group: &[Source],
    producers: &HashMap<i64, ActiveProducer>,
    file: Option<File>,
    progress: &mut dyn Progress,
) -> Outcome<GroupOutcome> {
    let Some(first) = group.first() else {
        return Err(KernelError::Fault {
            path: "".into(),
            reason: "a group without segments cannot be cleaned".into(),
        });
    };
    let flow = Flow::of(
        &round.settings,
        group.iter().map(|source| source.size).sum(),
    );
    let Round {
        settings,
        hasher,
        map,
        dirty,
        transactions,
        desks,
        aside,
        buffer,
    } = round;
    let view = View {
        settings,
        hasher,
        map,
        dirty,
    };
    desks
        .iter_mut()
        .chain([&mut *aside])
        .for_each(|desk| desk.stats = Stats::default());
    let mut reading = Reading {
        round: view,
        producers,
        transactions,
        aside,
        transaction_index: Vec::new(),
        stats: Stats::default(),
        cursor: None,
    };
    let mut writing = Writing {
        group,
        output: Output::new(file, group),
        indexes: Indexes::new(first.base_offset, settings.index_interval_bytes),
        stats: Stats::default(),
        source_index: 0,
        meter: Meter::new(progress),
    };
    match (flow, desks.as_mut_slice()) {
        (Some(flow), _) => {
            let work = |desk: &mut Desk, chunk: Chunk| chunk.judge(view, group, desk);
            pool::in_order(desks, work, |line| {
                ahead(&mut reading, &mut writing, flow, line, buffer)
            })?;
        }
        (None, [desk, ..]) => alone(&mut reading, &mut writing, desk, buffer)?,
        (None, []) => {}
    }
    writing.finish()?;
    let mut stats = writing.stats;
    stats.add(&reading.stats);
    stats.add(&reading.aside.stats);
    desks.iter().for_each(|desk| stats.add(&desk.stats));
    Ok(GroupOutcome {
        log_size: writing.output.size(),
        unchanged: writing.output.unchanged(),
        offset_index: writing.indexes.offset_index,
        time_index: writing.indexes.time_index,
        transaction_index: reading.transaction_index,
        stats,
    })
}

/// On the calling thread alone: what is written again goes straight to the output.
fn alone(
    reading: &mut Reading,
    writing: &mut Writing,
    desk: &mut Desk,
    buffer: &mut Buffer,
) -> Outcome<()> {
    for (index, source) in writing.group.iter().enumerate() {
        writing.source_index = index;
        reading.begin(source);
        let mut reader = Reader::new(source, 0, buffer)?;
        while let Some(header) = reader.next()? {
            let (verdict, deed) = reading.plan(source, &header, reader.batch())?;
            let fate = match deed {
                Deed::Known(fate) => fate,
                Deed::Ask(question) => {
                    let out = writing.output.buffer();
                    let judged = desk.judge(
                        reading.round,
                        source,
                        &header,
                        reader.batch(),
                        verdict,
                        question,
                        out,
                    );
                    let (fate, count) = judged.map_err(|damage| source.damaged(&header, damage))?;
                    reading.counted(&header, question, count);
                    fate
                }
            };
            writing.settle(&header, reader.batch(), verdict, fate, &[])?;
        }
        reading.end(source)?;
    }
    Ok(())
}

/// With other threads: batches go to them in chunks, and what they make of them is written in order.
fn ahead(
    reading: &mut Reading,
    writing: &mut Writing,
    flow: Flow,
    line: &mut Line<Chunk, Chunk, Desk>,
    buffer: &mut Buffer,
) -> Outcome<()> {
    let mut spare = Vec::new();
    let mut waiting = 0;
    for (index, source) in writing.group.iter().enumerate() {
        reading.begin(source);
        let mut opened = Reader::new(source, 0, buffer).map_err(Some);
        let mut more = true;
        while more {
            let mut chunk: Chunk = spare.pop().unwrap_or_default();
            chunk.begin(index);
            let filled = match &mut opened {
                Ok(reader) => reading.fill(source, reader, flow, &mut chunk),
                Err(error) => error.take().map_or(Ok(false), Err),
            };
            match filled {
                Ok(left) => more = left,
                Err(error) => chunk.failure = Some(error),
            }
            let failed = chunk.failure.is_some();
            waiting += chunk.bytes.len();
            line.push(chunk);
            while failed || flow.is_full(line.len(), waiting) {
                let Some(chunk) = line.next() else {
                    return Ok(());
                };
                waiting -= chunk.bytes.len();
                spare.push(writing.take(chunk)?);
            }
        }
    }
    while let Some(chunk) = line.next() {
        writing.take(chunk)?;
    }
    Ok(())
}

/// Batches on their way to a desk and back.
#[derive(Default)]
struct Chunk {
    /// Index of their source in the group.
    source: usize,
    bytes: Vec<u8>,
    steps: Vec<Step>,
    /// The batches that were written again.
    out: Vec<u8>,
    /// The step that found damage; those after it were not taken.
    damage: Option<(usize, Damage)>,
    /// What went wrong after all of the batches.
    failure: Option<KernelError>,
}

struct Step {
    header: Header,
    verdict: Verdict,
    deed: Deed,
    /// Of the batch in `bytes`, if it is needed; and of what it became in `out`.
    bytes: Range<usize>,
    out: Range<usize>,
}

/// Memory of a chunk above this is given back.
const KEPT: usize = 4 << 20;

impl Chunk {
    fn begin(&mut self, source: usize) {
        self.source = source;
        self.steps.clear();
        for bytes in [&mut self.bytes, &mut self.out] {
            bytes.clear();
            bytes.shrink_to(KEPT);
        }
    }

    fn judge(mut self, round: View, group: &[Source], desk: &mut Desk) -> Chunk {
        let source = &group[self.source];
        for (index, step) in self.steps.iter_mut().enumerate() {
            let Deed::Ask(question) = step.deed else {
                continue;
            };
            let start = self.out.len();
            match desk.judge(
                round,
                source,
                &step.header,
                &self.bytes[step.bytes.clone()],
                step.verdict,
                question,
                &mut self.out,
            ) {
                Ok((fate, _)) => step.deed = Deed::Known(fate),
                Err(damage) => {
                    self.damage = Some((index, damage));
                    break;
                }
            }
            step.out = start..self.out.len();
        }
        self
    }
}

/// What comes before a batch's records are looked into, in the order of the batches.
struct Reading<'a> {
    round: View<'a>,
    producers: &'a HashMap<i64, ActiveProducer>,
    transactions: &'a mut Transactions,
    aside: &'a mut Desk,
    transaction_index: Vec<u8>,
    stats: Stats,
    cursor: Option<Cursor>,
}

impl Reading<'_> {
    fn begin(&mut self, source: &Source) {
        self.transactions.add(&source.aborted);
        self.cursor = self
            .round
            .dirty
            .segments
            .get(&source.base_offset)
            .copied()
            .map(Cursor::new);
    }

    fn end(&self, source: &Source) -> Outcome<()> {
        match &self.cursor {
            Some(cursor) if !cursor.is_complete() => {
                let reason = "its content changed while it was being cleaned".to_string();
                Err(KernelError::Fault {
                    path: source.name(),
                    reason,
                })
            }
            _ => Ok(()),
        }
    }

    /// Reads on until the chunk is large enough. False: the segment is through.
    fn fill(
        &mut self,
        source: &Source,
        reader: &mut Reader,
        flow: Flow,
        chunk: &mut Chunk,
    ) -> Outcome<bool> {
        while !flow.is_enough(chunk.bytes.len(), chunk.steps.len()) {
            let Some(header) = reader.next()? else {
                self.end(source)?;
                return Ok(false);
            };
            let bytes = reader.batch();
            let (verdict, mut deed) = self.plan(source, &header, bytes)?;
            let (start, begun) = (chunk.bytes.len(), chunk.out.len());
            match deed {
                // How many records it has, and with it the ordinals of all that follow, is known afterwards only.
                Deed::Ask(question) if header.is_legacy() => {
                    let judged = self.aside.judge(
                        self.round,
                        source,
                        &header,
                        bytes,
                        verdict,
                        question,
                        &mut chunk.out,
                    );
                    let (fate, count) = judged.map_err(|damage| source.damaged(&header, damage))?;
                    self.counted(&header, question, count);
                    deed = Deed::Known(fate);
                }
                Deed::Known(Fate::Dropped) if verdict.retention != Retention::RetainEmpty => {}
                _ => chunk.bytes.extend_from_slice(bytes),
            }
            chunk.steps.push(Step {
                header,
                verdict,
                deed,
                bytes: start..chunk.bytes.len(),
                out: begun..chunk.out.len(),
            });
        }
        Ok(true)
    }

    /// What to do with the batch, as far as it shows without its records.
    fn plan(&mut self, source: &Source, header: &Header, bytes: &[u8]) -> Outcome<(Verdict, Deed)> {
        self.stats.batches_read += 1;
        self.stats.bytes_read += header.size as u64;
        let noted = self
            .cursor
            .as_mut()
            .and_then(|cursor| cursor.note(self.round.dirty, header));
        let verdict = self.judge(source, header, bytes)?;
        let count = header.record_count as u64;
        if let (Some(cursor), Some(Noted { skipped: false, .. }), false) =
            (&mut self.cursor, noted, header.is_control())
        {
            cursor.ordinal += count;
        }
        if verdict.retention == Retention::Delete {
            if header.is_control() {
                self.stats.markers_removed += count;
            } else {
                self.stats.aborted += count;
            }
            return Ok((verdict, Deed::Known(Fate::Dropped)));
        }
        let deed = match noted {
            Some(noted)
                if !noted.skipped
                    && !noted.closer
                    && count > 0
                    && self.bits_decide(header, verdict) =>
            {
                let dead = self.round.dirty.dead.count(noted.ordinal, count);
                self.stats.messages_read += count;
                self.stats.superseded += dead;
                match dead {
                    0 => Deed::Known(Fate::Copied(count)),
                    _ if dead == count => Deed::Known(Fate::Dropped),
                    _ => Deed::Ask(Question::Bits(noted.ordinal)),
                }
            }
            _ => Deed::Ask(Question::Rule(noted)),
        };
        Ok((verdict, deed))
    }

    /// The batch was looked into and has `count` records; only that of a legacy one was not known before.
    fn counted(&mut self, header: &Header, question: Question, count: u64) {
        if let (true, Some(cursor), Question::Rule(Some(Noted { skipped: false, .. }))) =
            (header.is_legacy(), &mut self.cursor, question)
        {
            cursor.ordinal += count;
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

    fn judge(&mut self, source: &Source, header: &Header, bytes: &[u8]) -> Outcome<Verdict> {
        let settings = self.round.settings;
        let control = header.is_control();
        let discard = if control {
            let marker = batch::marker(
                header,
                bytes,
                &mut self.aside.codecs,
                &mut self.aside.scratch,
            );
            self.aside.scratch.trim();
            let marker = marker.map_err(|damage| source.damaged(header, damage))?;
            self.transactions
                .control_batch(header, marker, &mut self.transaction_index)
        } else {
            self.transactions.data_batch(header)
        };
        let expired = header
            .delete_horizon()
            .is_some_and(|horizon| horizon <= settings.now_ms);
        let discard_records = discard && (!control || expired);
        let retention = if self.is_last_of_producer(header)
            || header.last_offset + 1 == settings.high_watermark
        {
            Retention::RetainEmpty
        } else if discard_records {
            Retention::Delete
        } else {
            Retention::DeleteEmpty
        };
        Ok(Verdict {
            discard_records,
            retention,
            marker_of_empty_transaction: discard && control,
        })
    }

    fn is_last_of_producer(&self, header: &Header) -> bool {
        if header.producer_id < 0 {
            return false;
        }
        self.producers
            .get(&header.producer_id)
            .is_some_and(|producer| match producer.last_data_offset {
                Some(offset) => header.last_offset == offset,
                None => header.is_control() && header.producer_epoch == producer.producer_epoch,
            })
    }
}

/// What comes after, in the order of the batches.
struct Writing<'a> {
    group: &'a [Source],
    output: Output<'a>,
    indexes: Indexes,
    stats: Stats,
    /// Of the batch at hand.
    source_index: usize,
    meter: Meter<'a>,
}

impl<'a> Writing<'a> {
    fn source(&self) -> &'a Source {
        &self.group[self.source_index]
    }

    fn overflow(&self, far: TooFar) -> KernelError {
        let (path, base_offset) = (self.source().name(), self.indexes.base_offset());
        KernelError::Overflow {
            path,
            offset: far.0,
            base_offset,
            source: self.source_index,
        }
    }

    fn finish(&mut self) -> Outcome<()> {
        self.indexes.close().map_err(|far| self.overflow(far))?;
        if !self.output.unchanged() {
            self.output.flush()?;
        }
        self.meter.add(0, self.output.take_written())?;
        self.meter.finish()
    }

    /// Writes what became of a chunk and gives it back, to be filled again.
    fn take(&mut self, mut chunk: Chunk) -> Outcome<Chunk> {
        self.source_index = chunk.source;
        let damage = chunk.damage.take();
        for (index, step) in chunk.steps.iter().enumerate() {
            match (step.deed, &damage) {
                (Deed::Known(fate), _) => {
                    self.settle(
                        &step.header,
                        &chunk.bytes[step.bytes.clone()],
                        step.verdict,
                        fate,
                        &chunk.out[step.out.clone()],
                    )?;
                }
                (Deed::Ask(_), Some((at, _))) if *at == index => break,
                (Deed::Ask(_), _) => {}
            }
        }
        if let Some((index, damage)) = damage {
            return Err(self.source().damaged(&chunk.steps[index].header, damage));
        }
        match chunk.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(chunk),
        }
    }

    /// Puts the batch where its fate belongs. `rewritten` is empty if the output has it already.
    fn settle(
        &mut self,
        header: &Header,
        bytes: &[u8],
        verdict: Verdict,
        fate: Fate,
        rewritten: &[u8],
    ) -> Outcome<()> {
        match fate {
            Fate::Dropped => self.drop(header, bytes, verdict)?,
            Fate::Copied(count) => self.copy(header, bytes, count)?,
            Fate::Rewritten(rebuilt, written) => {
                self.output.differ()?;
                self.output.buffer().extend_from_slice(rewritten);
                self.rewritten(&rebuilt, written)?;
            }
        }
        self.meter.add(header.size, self.output.take_written())
    }

    /// All of the batch is kept as it is.
    fn copy(&mut self, header: &Header, bytes: &[u8], count: u64) -> Outcome<()> {
        self.stats.batches_copied += 1;
        self.stats.messages_written += count;
        self.index(
            header.last_offset,
            header.last_offset,
            header.max_timestamp,
            header.size,
        )?;
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
            return Err(KernelError::Fault {
                path: self.source().name(),
                reason,
            });
        }
        let empty = rebuild::empty_batch(header);
        if bytes == empty {
            return self.copy(header, bytes, 0);
        }
        self.output.differ()?;
        self.stats.batches_emptied += 1;
        self.index(
            header.last_offset,
            header.last_offset,
            header.max_timestamp,
            V2_HEADER,
        )?;
        self.output.buffer().extend_from_slice(&empty);
        self.output.appended(V2_HEADER)
    }

    /// Accounts for the batch that comes next in the output.
    #[inline]
    fn index(
        &mut self,
        largest_offset: i64,
        last_offset: i64,
        max_timestamp: i64,
        size: usize,
    ) -> Outcome<()> {
        self.stats.bytes_written += size as u64;
        let position = self.output.size();
        let checked = self.indexes.relative(largest_offset).and_then(|_| {
            self.indexes
                .append(last_offset, max_timestamp, position, size)
        });
        checked.map_err(|far| self.overflow(far))
    }

    fn rewritten(
        &mut self,
        rebuilt: &Rebuilt,
        (last_offset, max_timestamp, size): Written,
    ) -> Outcome<()> {
        self.stats.batches_rewritten += 1;
        self.stats.messages_written += u64::from(rebuilt.count);
        self.index(rebuilt.last_offset, last_offset, max_timestamp, size)?;
        self.output.appended(size)
    }
}
