//! The batches of producers that recovery is told of: not all, but those from which the same state comes as from all.

use std::collections::{HashMap, VecDeque};

use crate::log::scan::head::Head;

/// Batches of one producer that its state remembers (ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
const RETAINED: usize = 5;
/// Bytes of one packed batch of a producer.
const EVENT_SIZE: usize = 53;

/// Flags of a packed batch.
pub const TRANSACTIONAL: u8 = 1;
pub const CONTROL: u8 = 2;
/// A control batch whose record is left.
pub const MARKED: u8 = 4;

/// One batch of a producer, as `ScannedBatch.unpack` reads it.
#[derive(Clone)]
struct Event {
    position: u64,
    packed: Vec<u8>,
}

impl Event {
    /// `marker`: type and coordinator epoch, -1 where there is none.
    fn of(head: &Head, flags: u8, marker: (i16, i32)) -> Event {
        let mut packed = Vec::with_capacity(EVENT_SIZE);
        packed.extend_from_slice(&head.position.to_be_bytes());
        packed.extend_from_slice(&head.first.to_be_bytes());
        packed.extend_from_slice(&head.last.to_be_bytes());
        packed.extend_from_slice(&head.timestamp().to_be_bytes());
        packed.extend_from_slice(&head.producer_id().to_be_bytes());
        packed.extend_from_slice(head.epoch_and_sequence());
        packed.push(flags);
        packed.extend_from_slice(&marker.0.to_be_bytes());
        packed.extend_from_slice(&marker.1.to_be_bytes());
        Event {
            position: head.position,
            packed,
        }
    }
}

#[derive(Default)]
struct Producer {
    seen: bool,
    in_transaction: bool,
    /// The last batches since its last marker, with whether they were kept already.
    recent: VecDeque<(Event, bool)>,
}

/// All producers of a segment.
#[derive(Default)]
pub struct Producers {
    states: HashMap<i64, Producer>,
    events: Vec<Event>,
}

impl Producers {
    pub fn batch(&mut self, head: &Head, flags: u8, marker: (i16, i32)) {
        let producer = self.states.entry(head.producer_id()).or_default();
        keep(
            producer,
            &mut self.events,
            Event::of(head, flags, marker),
            flags,
        );
    }

    /// The batches that were kept, packed one behind the other, in the order of the file.
    pub fn packed(mut self) -> Vec<u8> {
        for producer in self.states.values_mut() {
            flush(producer, &mut self.events);
        }
        self.events.sort_by_key(|event| event.position);
        let mut packed = Vec::with_capacity(self.events.len() * EVENT_SIZE);
        for event in &self.events {
            packed.extend_from_slice(&event.packed);
        }
        packed
    }
}

/// Keeps of a producer's batches those from which the same state comes as from all: its first, the first of each
/// transaction, every marker, what is against the rules, and the last five before either and at the end.
fn keep(producer: &mut Producer, events: &mut Vec<Event>, event: Event, flags: u8) {
    if flags & CONTROL != 0 {
        flush(producer, events);
        producer.in_transaction = false;
        producer.seen = true;
        events.push(event);
        return;
    }
    let transactional = flags & TRANSACTIONAL != 0;
    let needed = !producer.seen || transactional != producer.in_transaction;
    if producer.in_transaction && !transactional {
        // Against the rules: whoever goes by the batches stops here, and those before it are the last.
        flush(producer, events);
    }
    producer.seen = true;
    producer.in_transaction |= transactional;
    if needed {
        events.push(event.clone());
    }
    if producer.recent.len() == RETAINED {
        producer.recent.pop_front();
    }
    producer.recent.push_back((event, needed));
}

fn flush(producer: &mut Producer, events: &mut Vec<Event>) {
    events.extend(
        producer
            .recent
            .drain(..)
            .filter(|(_, kept)| !kept)
            .map(|(event, _)| event),
    );
}
