//! The offset map: which record is the last one of its key.
//!
//! A slot holds an 88-bit fingerprint of the key and the 40-bit ordinal of the record: SipHash-1-3-128 under a secret
//! drawn for each round, so nobody can make two keys meet on purpose (a meeting would lose a live record). Slots are
//! probed linearly and kept in the order of their fingerprints, so that a missing key is noticed as early as a present one
//! even when the map is full to nine tenths. Home slots grow with the fingerprint, so growing is one sequential pass.

use std::io;

use siphasher::sip128::SipHasher13;

use crate::memory::{Slot, Slots};

const ORDINAL_BITS: u32 = 40;
const ORDINAL_MASK: u64 = (1 << ORDINAL_BITS) - 1;
/// Ordinals that fit beside "empty".
pub const LARGEST_ORDINAL: u64 = ORDINAL_MASK - 1;
const FIRST_HOMES: usize = 1 << 16;
const SLOT_BYTES: u64 = 16;
const KAFKA_SLOT_BYTES: u64 = 24;
/// Slots of the old table that are moved before their memory is given back.
const RELEASE_STEP: usize = (2 << 20) / SLOT_BYTES as usize;

#[derive(Clone, Copy, Default)]
pub struct Fingerprint {
    high: u64,
    /// In the upper 24 bits.
    low: u64,
}

pub struct Hasher {
    sip: SipHasher13,
}

impl Hasher {
    pub fn new() -> io::Result<Hasher> {
        let mut secret = [0u8; 16];
        getrandom::fill(&mut secret).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Hasher {
            sip: SipHasher13::new_with_key(&secret),
        })
    }

    #[inline(always)]
    pub fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        let hash = self.sip.hash(key);
        Fingerprint {
            high: hash.h1,
            low: hash.h2 & !ORDINAL_MASK,
        }
    }
}

pub struct OffsetMap {
    slots: Slots,
    homes: usize,
    largest_homes: usize,
    entries: usize,
    capacity: usize,
    stated_slots: u64,
}

impl OffsetMap {
    /// A map for `bytes` of memory. `kafka`: it takes as many keys as Kafka's map of 24-byte slots would.
    pub fn new(bytes: u64, load_factor: f64, kafka: bool) -> io::Result<OffsetMap> {
        let stated_slots = bytes / if kafka { KAFKA_SLOT_BYTES } else { SLOT_BYTES };
        let capacity = (stated_slots as f64 * load_factor.clamp(0.0, 1.0)) as usize;
        // Beyond 0.95 the runs of full slots would grow without bound; then a little more memory is taken.
        let largest_homes = ((capacity as f64 / 0.95) as usize + 16).max(if kafka {
            0
        } else {
            stated_slots as usize
        });
        let homes = largest_homes.min(FIRST_HOMES);
        let slots = Self::reserve(homes, capacity)?;
        Ok(OffsetMap {
            slots,
            homes,
            largest_homes,
            entries: 0,
            capacity,
            stated_slots,
        })
    }

    /// Room behind the last home for entries pushed beyond it: no more than all of them can be. It costs address space only.
    fn reserve(homes: usize, capacity: usize) -> io::Result<Slots> {
        Slots::reserve(homes + capacity.min(homes) + 1)
    }

    pub fn entries(&self) -> usize {
        self.entries
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn stated_slots(&self) -> u64 {
        self.stated_slots
    }

    #[inline(always)]
    fn home(homes: usize, print: Fingerprint) -> usize {
        ((u128::from(print.high) * homes as u128) >> 64) as usize
    }

    #[inline(always)]
    pub fn prefetch(&self, print: Fingerprint) {
        self.slots.prefetch(Self::home(self.homes, print));
    }

    /// The slot of `print`, or the one where it belongs.
    #[inline(always)]
    fn find(slots: &[Slot], homes: usize, print: Fingerprint) -> (usize, bool) {
        let home = Self::home(homes, print);
        for (step, slot) in slots[home..].iter().enumerate() {
            // Empty slots have ordinal 0; anything that sorts after `print` ends the search.
            if slot.high >= print.high || slot.low == 0 {
                if slot.low == 0 || slot.high > print.high {
                    return (home + step, false);
                }
                let low = slot.low & !ORDINAL_MASK;
                if low >= print.low {
                    return (home + step, low == print.low);
                }
            }
        }
        (slots.len(), false)
    }

    /// Makes `ordinal` the last record of the key and returns the one it takes the place of.
    #[inline(always)]
    pub fn put(&mut self, print: Fingerprint, ordinal: u64) -> io::Result<Option<u64>> {
        if self.entries >= self.homes / 5 * 4 && self.homes < self.largest_homes {
            self.grow()?;
        }
        let slots = self.slots.all_mut();
        let (at, found) = Self::find(slots, self.homes, print);
        let new = Slot {
            high: print.high,
            low: print.low | (ordinal + 1),
        };
        if found {
            let old = std::mem::replace(&mut slots[at], new);
            return Ok(Some((old.low & ORDINAL_MASK) - 1));
        }
        let Some(run) = slots
            .get(at..)
            .and_then(|rest| rest.iter().position(|slot| slot.low == 0))
        else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        slots.copy_within(at..at + run, at + 1);
        slots[at] = new;
        self.entries += 1;
        Ok(None)
    }

    /// The ordinal of the last record of the key.
    #[inline(always)]
    pub fn get(&self, print: Fingerprint) -> Option<u64> {
        let slots = self.slots.all();
        let (at, found) = Self::find(slots, self.homes, print);
        found.then(|| (slots[at].low & ORDINAL_MASK) - 1)
    }

    /// Moves everything, in order, into a table four times as large. Old memory is given back on the way.
    #[inline(never)]
    fn grow(&mut self) -> io::Result<()> {
        let homes = self.homes.saturating_mul(4).min(self.largest_homes);
        let mut larger = Self::reserve(homes, self.capacity)?;
        let target = larger.all_mut();
        let mut free = 0;
        for start in (0..self.slots.all().len()).step_by(RELEASE_STEP) {
            let old = self.slots.all();
            for slot in &old[start..old.len().min(start + RELEASE_STEP)] {
                if slot.low != 0 {
                    let at = free.max(Self::home(
                        homes,
                        Fingerprint {
                            high: slot.high,
                            low: 0,
                        },
                    ));
                    target[at] = *slot;
                    free = at + 1;
                }
            }
            self.slots.release_front(start + RELEASE_STEP);
        }
        self.slots = larger;
        self.homes = homes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn holds_what_a_hash_map_holds() {
        let hasher = Hasher::new().unwrap();
        for (bytes, load) in [(4u64 << 20, 0.9), (16 << 20, 0.9), (1 << 20, 1.0)] {
            let mut map = OffsetMap::new(bytes, load, false).unwrap();
            let mut model = HashMap::new();
            let mut ordinal = 0;
            while map.entries() < map.capacity() {
                let key = (ordinal * 2_654_435_761 % 1_000_003 / 2).to_string();
                assert_eq!(
                    map.put(hasher.fingerprint(key.as_bytes()), ordinal)
                        .unwrap(),
                    model.insert(key, ordinal)
                );
                ordinal += 1;
                if ordinal > 2_000_000 {
                    break;
                }
            }
            assert_eq!(map.entries(), model.len());
            for (key, ordinal) in &model {
                assert_eq!(map.get(hasher.fingerprint(key.as_bytes())), Some(*ordinal));
                assert_eq!(
                    map.get(hasher.fingerprint(format!("no{key}").as_bytes())),
                    None
                );
            }
        }
    }

    #[test]
    fn kafka_capacity() {
        assert_eq!(
            OffsetMap::new(134_217_728, 0.9, true).unwrap().capacity(),
            5_033_164
        );
        assert_eq!(OffsetMap::new(48, 0.9, true).unwrap().capacity(), 1);
        assert_eq!(OffsetMap::new(23, 0.9, true).unwrap().capacity(), 0);
    }
}
