//! Reading a segment's batch headers once, CRCs included, for recovery: LogSegment.recover without the writing (facts 8.3).
//!
//! The twin in plain Python is storage/kernel/reference/scan.py; both give the same result and the same words.

mod head;
mod producers;
mod window;

use std::io;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::records::header::{self, V2_HEADER};
use head::{Fault, Head};
use producers::{Producers, CONTROL, MARKED, TRANSACTIONAL};
use window::Window;

const MAX_RELATIVE: i64 = i32::MAX as i64;
/// Enough for the one record of a transaction marker.
const MARKER: u64 = 128;

/// Position, base and last offset of a batch in which nothing is wrong.
type Good = (u64, i64, i64);

#[derive(Default)]
struct Scan {
    valid_bytes: u64,
    next_offset: i64,
    max_timestamp: i64,
    offset_of_max: i64,
    batches: u64,
    /// After the last batch of magic 2; the base offset where there is none.
    next_of_current: i64,
    offset_index: Vec<u8>,
    time_index: Vec<u8>,
    epochs: Vec<(i32, i64)>,
    /// As `Producers.packed`.
    producers: Vec<u8>,
    fault: Option<Fault>,
    overflow: bool,
    /// The last good batch, where the one that does not follow it would follow the one before: either may be the wrong one.
    doubt: Option<Good>,
}

/// What to read, and how.
#[derive(Clone, Copy)]
struct Request<'a> {
    path: &'a Path,
    base: i64,
    interval: u64,
    check_crc: bool,
    produced_from: i64,
    start: u64,
}

/// Where two batches contradict each other and nobody can tell which is right, neither is taken: no CRC covers offsets.
fn scan(request: &Request, limit: Option<u64>) -> io::Result<Scan> {
    let found = scan_to(request, limit)?;
    let Some((position, first, last)) = found.doubt else {
        return Ok(found);
    };
    let mut before = scan_to(request, Some(position))?;
    before.fault = Some((
        position,
        first,
        last,
        "the batch behind it does not follow its offsets".into(),
        None,
    ));
    Ok(before)
}

/// A scan on its way.
struct Scanner<'a> {
    request: &'a Request<'a>,
    window: Window,
    found: Scan,
    producers: Producers,
    /// Position of the batch that has the last index entry.
    last_entry: u64,
    /// Of the last entry of the time index.
    last_time: i64,
    latest_epoch: i32,
    /// The batch before, and the offset that it had to begin at or above.
    before: Option<(Good, i64)>,
}

fn scan_to(request: &Request, limit: Option<u64>) -> io::Result<Scan> {
    let mut scanner = Scanner {
        request,
        window: Window::open(request.path, limit)?,
        found: Scan {
            valid_bytes: request.start,
            next_offset: request.base,
            next_of_current: request.base,
            max_timestamp: -1,
            offset_of_max: request.base,
            ..Scan::default()
        },
        producers: Producers::default(),
        last_entry: 0,
        last_time: -1,
        latest_epoch: -1,
        before: None,
    };
    while scanner.found.fault.is_none() && scanner.found.valid_bytes < scanner.window.end {
        scanner.found.fault = scanner.batch()?.err();
    }
    scanner.push_time();
    scanner.found.producers = scanner.producers.packed();
    Ok(scanner.found)
}

impl Scanner<'_> {
    /// Takes the batch at the end of what is valid.
    fn batch(&mut self) -> io::Result<Result<(), Fault>> {
        let position = self.found.valid_bytes;
        let left = self.window.end - position;
        let head = match Head::read(self.window.slice(position, V2_HEADER)?, position, left) {
            Ok(head) => head,
            Err(fault) => return Ok(Err(fault)),
        };
        if self.request.check_crc {
            let (stored, legacy) = (head.stored_crc(), !head.is_current());
            let computed = self.window.crc(head.crc_from(), head.end(), legacy)?;
            if stored != computed {
                let words =
                    format!("its CRC is {stored:#010x} and its bytes give {computed:#010x}");
                let (position, first, last, words, _) = head.fault(words);
                return Ok(Err((
                    position,
                    first,
                    last,
                    words,
                    Some((stored, computed)),
                )));
            }
        }
        if let Err(fault) = self.check_offsets(&head) {
            return Ok(Err(fault));
        }
        if head.is_current() {
            if head.producer_id() >= 0 && head.last >= self.request.produced_from {
                if let Err(fault) = self.producer(&head)? {
                    return Ok(Err(fault));
                }
            }
            self.found.next_of_current = head.last + 1;
            let epoch = head.epoch();
            if epoch >= 0 && epoch != self.latest_epoch {
                self.latest_epoch = epoch;
                self.found.epochs.push((epoch, head.first));
            }
        }
        self.index(&head);
        let good = (position, head.first, head.last);
        self.before = Some((good, self.found.next_offset));
        self.found.valid_bytes += head.total;
        self.found.next_offset = head.last + 1;
        self.found.batches += 1;
        Ok(Ok(()))
    }

    fn check_offsets(&mut self, head: &Head) -> Result<(), Fault> {
        let (first, last, base) = (head.first, head.last, self.request.base);
        if first < self.found.next_offset || last < first || last == i64::MAX {
            let doubtful = |&(_, followed): &(Good, i64)| first >= followed && last >= first;
            self.found.doubt = self.before.filter(doubtful).map(|(batch, _)| batch);
            let words = format!("its offsets do not follow {}", self.found.next_offset);
            return Err(head.fault(words));
        }
        if last - base > MAX_RELATIVE {
            self.found.overflow = true;
            let words = format!("offset {last} is too far from the segment's base {base}");
            return Err(head.fault(words));
        }
        Ok(())
    }

    fn producer(&mut self, head: &Head) -> io::Result<Result<(), Fault>> {
        let attributes = head.attributes();
        let mut flags = if attributes & header::TRANSACTIONAL != 0 {
            TRANSACTIONAL
        } else {
            0
        };
        let mut marker = (-1, -1);
        if attributes & header::CONTROL != 0 {
            flags |= CONTROL;
            if head.record_count() > 0 {
                let records = head.position + V2_HEADER as u64;
                let size = (head.end() - records).min(MARKER) as usize;
                let bytes = self.window.slice(records, size)?;
                // Kafka never compresses markers.
                let plain = attributes & header::CODEC_MASK == 0;
                match plain.then(|| head::marker(bytes)).flatten() {
                    Some(read) => marker = read,
                    None => {
                        let words = "its control record is no transaction marker";
                        return Ok(Err(head.fault(words.into())));
                    }
                }
                flags |= MARKED;
            }
        }
        self.producers.batch(head, flags, marker);
        Ok(Ok(()))
    }

    /// LogSegment.recover: an entry for the first batch after each interval.
    fn index(&mut self, head: &Head) {
        let (last, timestamp) = (head.last, head.timestamp());
        if timestamp > self.found.max_timestamp {
            (self.found.max_timestamp, self.found.offset_of_max) = (timestamp, last);
        }
        if head.position - self.last_entry > self.request.interval {
            let relative = (last - self.request.base) as i32;
            let index = &mut self.found.offset_index;
            index.extend_from_slice(&relative.to_be_bytes());
            index.extend_from_slice(&(head.position as i32).to_be_bytes());
            self.push_time();
            self.last_entry = head.position;
        }
    }

    /// TimeIndex.maybeAppend: only a timestamp above the last one is entered.
    fn push_time(&mut self) {
        let found = &mut self.found;
        if found.max_timestamp > self.last_time {
            self.last_time = found.max_timestamp;
            let relative = (found.offset_of_max - self.request.base) as i32;
            let index = &mut found.time_index;
            index.extend_from_slice(&found.max_timestamp.to_be_bytes());
            index.extend_from_slice(&relative.to_be_bytes());
        }
    }
}

type Scanned<'py> = (
    (u64, i64, i64, i64, u64, i64),
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Vec<(i32, i64)>,
    Bound<'py, PyBytes>,
    Option<Fault>,
    bool,
);

/// Reads the batches of a `.log` file in order and stops at the first that is damaged, out of order or too far.
///
/// Of producers' batches those that end below `produced_from` are passed by. `start_position`: of a batch, to begin there.
/// Returns (valid bytes, next offset, max timestamp, its offset, batches, offset after the last batch of magic 2), .index,
/// .timeindex, epochs, producers' batches (53 bytes each), fault, and whether the fault is an offset too far from the base.
/// Raises OSError.
#[pyfunction]
#[pyo3(signature = (path, base_offset, interval_bytes, limit=None, check_crc=true, produced_from=0, start_position=0))]
pub fn scan_segment<'py>(
    py: Python<'py>,
    path: PathBuf,
    base_offset: i64,
    interval_bytes: u64,
    limit: Option<u64>,
    check_crc: bool,
    produced_from: i64,
    start_position: u64,
) -> PyResult<Scanned<'py>> {
    let request = Request {
        path: &path,
        base: base_offset,
        interval: interval_bytes,
        check_crc,
        produced_from,
        start: start_position,
    };
    let found = py.detach(|| scan(&request, limit))?;
    Ok((
        (
            found.valid_bytes,
            found.next_offset,
            found.max_timestamp,
            found.offset_of_max,
            found.batches,
            found.next_of_current,
        ),
        PyBytes::new(py, &found.offset_index),
        PyBytes::new(py, &found.time_index),
        found.epochs,
        PyBytes::new(py, &found.producers),
        found.fault,
        found.overflow,
    ))
}
