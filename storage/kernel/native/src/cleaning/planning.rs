//! What pass two decides on a batch before its records are looked into, in the order of the batches: transactions, the
//! ordinals of its records, and whether the bits of pass one say all there is to know.

use std::collections::HashMap;

use crate::cleaning::ahead::{Chunk, Flow};
use crate::cleaning::desk::{Desk, Fate, Noted, Question, Retention, Verdict, View};
use crate::cleaning::dirty::{mix, Dirty, DirtySegment};
use crate::cleaning::judging::{Deed, Judged, Step};
use crate::cleaning::reader::{Reader, Source};
use crate::cleaning::stats::Stats;
use crate::cleaning::transactions::Transactions;
use crate::errors::{KernelError, Outcome};
use crate::records::batch;
use crate::records::header::Header;

#[derive(Clone, Copy, Debug)]
pub struct ActiveProducer {
    pub last_data_offset: Option<i64>,
    pub producer_epoch: i16,
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

pub struct Planning<'a> {
    pub round: View<'a>,
    producers: &'a HashMap<i64, ActiveProducer>,
    transactions: &'a mut Transactions,
    pub aside: &'a mut Desk,
    pub transaction_index: Vec<u8>,
    pub stats: Stats,
    cursor: Option<Cursor>,
}

impl<'a> Planning<'a> {
    pub fn new(
        round: View<'a>,
        producers: &'a HashMap<i64, ActiveProducer>,
        transactions: &'a mut Transactions,
        aside: &'a mut Desk,
    ) -> Planning<'a> {
        Planning {
            round,
            producers,
            transactions,
            aside,
            transaction_index: Vec::new(),
            stats: Stats::default(),
            cursor: None,
        }
    }

    pub fn begin(&mut self, source: &Source) {
        self.transactions.add(&source.aborted);
        self.cursor = self
            .round
            .dirty
            .segments
            .get(&source.base_offset)
            .copied()
            .map(Cursor::new);
    }

    pub fn end(&self, source: &Source) -> Outcome<()> {
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
    pub fn fill(
        &mut self,
        source: &Source,
        reader: &mut Reader,
        flow: Flow,
        chunk: &mut Chunk<Judged>,
    ) -> Outcome<bool> {
        if chunk.begins {
            self.begin(source);
        }
        while !flow.is_enough(chunk.bytes.len(), chunk.load.steps.len()) {
            let Some(header) = reader.next()? else {
                self.end(source)?;
                return Ok(false);
            };
            let bytes = reader.batch();
            let (verdict, mut deed) = self.plan(source, &header, bytes)?;
            let (start, begun) = (chunk.bytes.len(), chunk.load.out.len());
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
                        &mut chunk.load.out,
                    );
                    let (fate, count) = judged.map_err(|damage| source.damaged(&header, damage))?;
                    self.counted(&header, question, count);
                    deed = Deed::Known(fate);
                }
                Deed::Known(Fate::Dropped) if verdict.retention != Retention::RetainEmpty => {}
                _ => chunk.bytes.extend_from_slice(bytes),
            }
            chunk.load.steps.push(Step {
                header,
                verdict,
                deed,
                bytes: start..chunk.bytes.len(),
                out: begun..chunk.load.out.len(),
            });
        }
        Ok(true)
    }

    /// What to do with the batch, as far as it shows without its records.
    pub fn plan(
        &mut self,
        source: &Source,
        header: &Header,
        bytes: &[u8],
    ) -> Outcome<(Verdict, Deed)> {
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
    pub fn counted(&mut self, header: &Header, question: Question, count: u64) {
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
