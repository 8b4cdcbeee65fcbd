//! What lives as long as a round: the map, what pass one learnt, and the memory of those who work on it.

use std::io;

use crate::cleaning::desk::Desk;
use crate::cleaning::dirty::Dirty;
use crate::cleaning::map::{Hasher, OffsetMap};
use crate::cleaning::reader::Buffer;
use crate::cleaning::settings::Settings;
use crate::cleaning::transactions::Transactions;

pub struct Round {
    pub settings: Settings,
    pub hasher: Hasher,
    pub map: OffsetMap,
    pub dirty: Dirty,
    /// Of pass two; it lives as long as the round.
    pub transactions: Transactions,
    /// A desk for each thread; the first is that of the calling one.
    pub desks: Vec<Desk>,
    /// For what the calling thread looks into while it reads ahead of the others.
    pub aside: Desk,
    pub buffer: Buffer,
}

impl Round {
    pub fn new(settings: Settings) -> io::Result<Round> {
        Ok(Round {
            settings,
            hasher: Hasher::new()?,
            map: OffsetMap::new(
                settings.map_memory_bytes,
                settings.map_load_factor,
                settings.kafka_map,
            )?,
            dirty: Dirty {
                latest_offset: -1,
                ..Dirty::default()
            },
            transactions: Transactions::default(),
            desks: std::iter::repeat_with(Desk::default)
                .take(settings.threads.max(1))
                .collect(),
            aside: Desk::default(),
            buffer: Buffer::default(),
        })
    }
}
