//! Pass two: copies what is kept of a group's segments into one (facts 5.4, 5.6, 5.7, 5.8).
//!
//! A batch whose bits of pass one are all equal is copied or dropped without being decompressed, unless pass one saw
//! something in it that other rules need. What depends on the order of batches, transactions and ordinals before and indexes
//! and output after, is done on the calling thread; the records in between are looked into at desks.

use std::collections::HashMap;
use std::fs::File;

use crate::cleaning::ahead::{self, Flow};
use crate::cleaning::desk::{Desk, View};
use crate::cleaning::judging::{self, Deed};
use crate::cleaning::planning::{ActiveProducer, Planning};
use crate::cleaning::pool;
use crate::cleaning::progress::Progress;
use crate::cleaning::reader::{Buffer, Reader, Source};
use crate::cleaning::round::Round;
use crate::cleaning::stats::Stats;
use crate::cleaning::writing::Writing;
use crate::errors::{KernelError, Outcome};

pub struct GroupOutcome {
    pub log_size: u64,
    pub offset_index: Vec<u8>,
    pub time_index: Vec<u8>,
    pub transaction_index: Vec<u8>,
    pub unchanged: bool,
    pub stats: Stats,
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
    let mut planning = Planning::new(view, producers, transactions, aside);
    let interval = settings.index_interval_bytes;
    let mut writing = Writing::new(group, first.base_offset, interval, file, progress);
    match (flow, desks.as_mut_slice()) {
        (Some(flow), _) => {
            let work = |desk: &mut Desk, chunk| judging::judge(chunk, view, group, desk);
            // Batches go to other threads in chunks, and what they make of them is written in order.
            pool::in_order(desks, work, |line| {
                ahead::ahead(
                    group,
                    |_| 0,
                    flow,
                    line,
                    buffer,
                    |source, reader, chunk| planning.fill(source, reader, flow, chunk),
                    |_, chunk| writing.take(chunk).map(|()| false),
                )
            })?;
        }
        (None, [desk, ..]) => alone(&mut planning, &mut writing, group, desk, buffer)?,
        (None, []) => {}
    }
    writing.finish()?;
    let mut stats = writing.stats;
    stats.add(&planning.stats);
    stats.add(&planning.aside.stats);
    desks.iter().for_each(|desk| stats.add(&desk.stats));
    Ok(GroupOutcome {
        log_size: writing.output.size(),
        unchanged: writing.output.unchanged(),
        offset_index: writing.indexes.offset_index,
        time_index: writing.indexes.time_index,
        transaction_index: planning.transaction_index,
        stats,
    })
}

/// On the calling thread alone: what is written again goes straight to the output.
fn alone(
    planning: &mut Planning,
    writing: &mut Writing,
    group: &[Source],
    desk: &mut Desk,
    buffer: &mut Buffer,
) -> Outcome<()> {
    for (index, source) in group.iter().enumerate() {
        writing.source_index = index;
        planning.begin(source);
        let mut reader = Reader::new(source, 0, buffer)?;
        while let Some(header) = reader.next()? {
            let (verdict, deed) = planning.plan(source, &header, reader.batch())?;
            let fate = match deed {
                Deed::Known(fate) => fate,
                Deed::Ask(question) => {
                    let out = writing.output.buffer();
                    let judged = desk.judge(
                        planning.round,
                        source,
                        &header,
                        reader.batch(),
                        verdict,
                        question,
                        out,
                    );
                    let (fate, count) = judged.map_err(|damage| source.damaged(&header, damage))?;
                    planning.counted(&header, question, count);
                    fate
                }
            };
            writing.settle(&header, reader.batch(), verdict, fate, &[])?;
        }
        planning.end(source)?;
    }
    Ok(())
}
