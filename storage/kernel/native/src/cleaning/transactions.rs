//! Which batches belong to aborted transactions, and which markers are still needed (facts 5.4; Kafka's
//! CleanedTransactionMetadata).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use crate::records::batch::Marker;
use crate::records::header::Header;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AbortedTransaction {
    /// First, so that the heap yields them by first offset.
    pub first_offset: i64,
    pub last_offset: i64,
    pub producer_id: i64,
    pub last_stable_offset: i64,
}

impl AbortedTransaction {
    /// Bytes of an entry of a transaction index.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0, 0]);
        for field in [
            self.producer_id,
            self.first_offset,
            self.last_offset,
            self.last_stable_offset,
        ] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }
}

#[derive(Default)]
pub struct Transactions {
    /// Producers with a batch that was not aborted since their last marker.
    committed: HashSet<i64>,
    /// Aborted transactions that have begun, and whether a batch of theirs was seen.
    ongoing: HashMap<i64, (AbortedTransaction, bool)>,
    waiting: BinaryHeap<Reverse<AbortedTransaction>>,
}

impl Transactions {
    pub fn add(&mut self, aborted: &[AbortedTransaction]) {
        self.waiting.extend(aborted.iter().copied().map(Reverse));
    }

    #[inline]
    fn begin_up_to(&mut self, offset: i64) {
        while let Some(Reverse(next)) = self.waiting.peek().copied() {
            if next.first_offset > offset {
                break;
            }
            self.waiting.pop();
            self.ongoing
                .entry(next.producer_id)
                .or_insert((next, false));
        }
    }

    /// A data batch was read. True: it is part of an aborted transaction.
    #[inline]
    pub fn data_batch(&mut self, batch: &Header) -> bool {
        self.begin_up_to(batch.last_offset);
        if !batch.is_transactional() {
            return false;
        }
        if let Some((_, seen)) = self.ongoing.get_mut(&batch.producer_id) {
            *seen = true;
            return true;
        }
        self.committed.insert(batch.producer_id);
        false
    }

    /// A control batch was read; `marker` is None when it is empty. True: nothing needs it any more. An abort marker that
    /// is still needed adds its transaction to `index`.
    pub fn control_batch(
        &mut self,
        batch: &Header,
        marker: Option<Marker>,
        index: &mut Vec<u8>,
    ) -> bool {
        self.begin_up_to(batch.last_offset);
        match marker {
            None => true,
            Some(Marker::Abort) => match self.ongoing.remove(&batch.producer_id) {
                Some((aborted, true)) => {
                    aborted.write(index);
                    false
                }
                _ => true,
            },
            Some(Marker::Commit) => !self.committed.remove(&batch.producer_id),
            Some(Marker::Other) => false,
        }
    }
}
