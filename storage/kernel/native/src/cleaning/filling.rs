//! Keys on their way into the offset map: some wait until their places are in the cache, and each that takes the place of
//! an earlier record marks that one as dead.

use std::io;

use crate::cleaning::bits::Bits;
use crate::cleaning::map::{Fingerprint, Hasher, OffsetMap, LARGEST_ORDINAL};

/// Keys that are hashed and prefetched before the first of them goes into the map.
const AHEAD: usize = 32;

pub struct Filling<'a> {
    map: &'a mut OffsetMap,
    hasher: &'a Hasher,
    dead: &'a mut Bits,
    waiting: [(Fingerprint, u64); AHEAD],
    count: usize,
    /// There was no memory for the map.
    pub failure: Option<io::Error>,
}

impl<'a> Filling<'a> {
    pub fn new(map: &'a mut OffsetMap, hasher: &'a Hasher, dead: &'a mut Bits) -> Filling<'a> {
        Filling {
            map,
            hasher,
            dead,
            waiting: [(Fingerprint::default(), 0); AHEAD],
            count: 0,
            failure: None,
        }
    }

    /// False: the map is full, or there is no memory for it; the key was not taken.
    ///
    /// Kafka asks whether there is room before it looks whether the key is there already, so the number of entries has to
    /// be exact as soon as the waiting keys could fill the map.
    #[inline(always)]
    pub fn put(&mut self, print: impl FnOnce(&Hasher) -> Fingerprint, ordinal: u64) -> bool {
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

    pub fn flush(&mut self) -> bool {
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
