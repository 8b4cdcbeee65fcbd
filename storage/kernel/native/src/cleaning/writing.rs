//! What pass two makes of the batches, in their order, once their fate is known: the cleaned log and its indexes.

use std::fs::File;

use crate::cleaning::ahead::Chunk;
use crate::cleaning::desk::{Fate, Retention, Verdict};
use crate::cleaning::index::{Indexes, TooFar};
use crate::cleaning::judging::{Deed, Judged};
use crate::cleaning::output::Output;
use crate::cleaning::progress::{Meter, Progress};
use crate::cleaning::reader::Source;
use crate::cleaning::rebuild::{self, Rebuilt, Written};
use crate::cleaning::stats::Stats;
use crate::errors::{KernelError, Outcome};
use crate::records::header::{Header, V2_HEADER};

pub struct Writing<'a> {
    group: &'a [Source],
    pub output: Output<'a>,
    pub indexes: Indexes,
    pub stats: Stats,
    /// Of the batch at hand.
    pub source_index: usize,
    meter: Meter<'a>,
}

impl<'a> Writing<'a> {
    /// `base_offset`: of the cleaned segment. `file`: None where only the outcome is asked for.
    pub fn new(
        group: &'a [Source],
        base_offset: i64,
        index_interval_bytes: i64,
        file: Option<File>,
        progress: &'a mut dyn Progress,
    ) -> Writing<'a> {
        Writing {
            group,
            output: Output::new(file, group),
            indexes: Indexes::new(base_offset, index_interval_bytes),
            stats: Stats::default(),
            source_index: 0,
            meter: Meter::new(progress),
        }
    }

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

    pub fn finish(&mut self) -> Outcome<()> {
        self.indexes.close().map_err(|far| self.overflow(far))?;
        if !self.output.unchanged() {
            self.output.flush()?;
        }
        self.meter.add(0, self.output.take_written())?;
        self.meter.finish()
    }

    /// Writes what became of a chunk.
    pub fn take(&mut self, chunk: &mut Chunk<Judged>) -> Outcome<()> {
        self.source_index = chunk.source;
        let Judged { steps, out, damage } = &mut chunk.load;
        let damage = damage.take();
        for (index, step) in steps.iter().enumerate() {
            match (step.deed, &damage) {
                (Deed::Known(fate), _) => {
                    self.settle(
                        &step.header,
                        &chunk.bytes[step.bytes.clone()],
                        step.verdict,
                        fate,
                        &out[step.out.clone()],
                    )?;
                }
                (Deed::Ask(_), Some((at, _))) if *at == index => break,
                (Deed::Ask(_), _) => {}
            }
        }
        if let Some((index, damage)) = damage {
            return Err(self.source().damaged(&steps[index].header, damage));
        }
        chunk.failure.take().map_or(Ok(()), Err)
    }

    /// Puts the batch where its fate belongs. `rewritten` is empty if the output has it already.
    pub fn settle(
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
