//! Pass one: reads the dirty segments, fills the map, and marks each dirty record whose key comes again (facts 5.2).

use crate::cleaning::ahead::{self, Chunk, Flow};
use crate::cleaning::desk::Desk;
use crate::cleaning::hashing::{self, Ahead, Found, Hashed, Kind};
use crate::cleaning::mapping::{MapOutcome, Mapping};
use crate::cleaning::pool;
use crate::cleaning::progress::{Meter, Progress};
use crate::cleaning::reader::{Buffer, Reader, Source};
use crate::cleaning::round::Round;
use crate::cleaning::transactions::{AbortedTransaction, Transactions};
use crate::errors::Outcome;
use crate::records::batch;
use crate::records::header::Header;

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
    let hasher = &*hasher;
    let first_dirty = settings.first_dirty_offset;
    let mut sorting = Sorting {
        transactions: Transactions::default(),
        aside,
    };
    sorting.transactions.add(aborted);
    let mut mapping = Mapping::new(first_dirty, map, hasher, dirty, progress);
    match (flow, desks.as_mut_slice()) {
        (Some(flow), _) => {
            let work = |desk: &mut Desk, chunk| hashing::hash(chunk, hasher, first_dirty, desk);
            // Other threads decompress, walk and hash ahead, and the keys go into the map in order.
            pool::in_order(desks, work, |line| {
                ahead::ahead(
                    sources,
                    |source| source.start_position,
                    flow,
                    line,
                    buffer,
                    |source, reader, chunk| sorting.fill(source, reader, flow, chunk),
                    |source, chunk| mapping.take(source, chunk),
                )
            })?;
        }
        (None, [desk, ..]) => alone(&mut sorting, &mut mapping, sources, desk, buffer)?,
        (None, []) => {}
    }
    mapping.meter.finish()?;
    let outcome = mapping.outcome;
    dirty.latest_offset = outcome.latest_offset;
    Ok(outcome)
}

/// On the calling thread alone: keys go into the map as they are met.
fn alone(
    sorting: &mut Sorting,
    mapping: &mut Mapping,
    sources: &[Source],
    desk: &mut Desk,
    buffer: &mut Buffer,
) -> Outcome<()> {
    for source in sources {
        mapping.begin(source);
        let mut reader = Reader::new(source, source.start_position, buffer)?;
        while let Some(header) = reader.next()? {
            let kind = sorting.sort(source, &header, reader.batch())?;
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

/// What is told of a batch before it is looked into, in the order of the batches.
struct Sorting<'a> {
    transactions: Transactions,
    aside: &'a mut Desk,
}

impl Sorting<'_> {
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
        chunk: &mut Chunk<Hashed>,
    ) -> Outcome<bool> {
        while !flow.is_enough(chunk.bytes.len(), chunk.load.batches.len()) {
            let Some(header) = reader.next()? else {
                return Ok(false);
            };
            let kind = self.sort(source, &header, reader.batch())?;
            let start = chunk.bytes.len();
            if kind == Kind::Data {
                chunk.bytes.extend_from_slice(reader.batch());
            }
            chunk.load.batches.push(Ahead {
                header,
                kind,
                bytes: start..chunk.bytes.len(),
                found: Ok(Found::default()),
            });
        }
        Ok(true)
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
