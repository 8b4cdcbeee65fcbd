//! What pass one does at a desk: the keys of dirty records, found and hashed ahead of the map.

use std::ops::Range;

use crate::cleaning::ahead::{self, Chunk, Load};
use crate::cleaning::desk::Desk;
use crate::cleaning::map::{Fingerprint, Hasher};
use crate::errors::Damage;
use crate::records::batch;
use crate::records::header::Header;
use crate::records::record::Record;

/// What pass one does with a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Control,
    /// Its transaction was aborted: it is not looked into.
    Aborted,
    Data,
}

/// A key of a dirty record.
#[derive(Clone, Copy)]
pub struct Key {
    pub print: Fingerprint,
    pub offset: i64,
    /// Of the record in its batch.
    pub index: usize,
}

/// The batches of a chunk, and their keys.
#[derive(Default)]
pub struct Hashed {
    pub batches: Vec<Ahead>,
    pub keys: Vec<Key>,
}

impl Load for Hashed {
    fn clear(&mut self) {
        ahead::clear(&mut self.batches);
        ahead::clear(&mut self.keys);
    }
}

pub struct Ahead {
    pub header: Header,
    pub kind: Kind,
    /// In the chunk.
    pub bytes: Range<usize>,
    pub found: Result<Found, Damage>,
}

/// What the walk over a batch found; its keys are in the chunk.
#[derive(Clone, Default)]
pub struct Found {
    pub keys: Range<usize>,
    pub records: usize,
    pub closer: bool,
}

/// Looks into the batches of a chunk, up to the first that is damaged.
pub fn hash(
    mut chunk: Chunk<Hashed>,
    hasher: &Hasher,
    first_dirty: i64,
    desk: &mut Desk,
) -> Chunk<Hashed> {
    let Hashed { batches, keys } = &mut chunk.load;
    for ahead in batches.iter_mut().filter(|ahead| ahead.kind == Kind::Data) {
        ahead.found = find(
            &ahead.header,
            &chunk.bytes[ahead.bytes.clone()],
            hasher,
            first_dirty,
            desk,
            keys,
        );
        desk.scratch.trim();
        if ahead.found.is_err() {
            break;
        }
    }
    chunk
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
pub fn needs_a_closer_look(record: &Record) -> bool {
    record.is_tombstone() | !record.fields.canonical
}
