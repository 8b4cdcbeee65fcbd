//! Reading a segment's batch headers once, CRCs included, for recovery: LogSegment.recover without the writing (facts 8.3).
//!
//! The twin in plain Python is storage/kernel/reference/scan.py; both give the same result and the same words.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::header::{i16_at, i32_at, i64_at, LOG_OVERHEAD, V2_HEADER};
use crate::varint::{read_varint, read_varlong};

const CHUNK: usize = 1 << 20;
/// First byte of a header whose length and magic can be told.
const UP_TO_MAGIC: u64 = 17;
const MAX_RELATIVE: i64 = i32::MAX as i64;
/// Batches of one producer that its state remembers (ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
const RETAINED: usize = 5;
/// Bytes of one packed batch of a producer.
const EVENT_SIZE: usize = 53;
/// Enough for the one record of a transaction marker.
const MARKER: u64 = 128;

const TRANSACTIONAL: u8 = 1;
const CONTROL: u8 = 2;
/// A control batch whose record is left.
const MARKED: u8 = 4;

/// Why reading stopped: position, base and last offset (-1 unknown), words, stored and computed CRC.
type Fault = (u64, i64, i64, String, Option<(u32, u32)>);

/// One batch of a producer, as `ScannedBatch.unpack` reads it.
#[derive(Clone)]
struct Event {
    position: u64,
    packed: Vec<u8>,
}

#[derive(Default)]
struct Producer {
    seen: bool,
    in_transaction: bool,
    /// The last batches since its last marker, with whether they were kept already.
    recent: VecDeque<(Event, bool)>,
}

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
    events: Vec<Event>,
    fault: Option<Fault>,
    overflow: bool,
    /// The last good batch, where the one that does not follow it would follow the one before: either may be the wrong one.
    doubt: Option<(u64, i64, i64)>,
}

struct Reader {
    file: File,
    buffer: Vec<u8>,
    start: u64,
    filled: usize,
    end: u64,
}

impl Reader {
    /// Up to `want` bytes (at most CHUNK) from `position` on; fewer only at the end of what may be read.
    fn slice(&mut self, position: u64, want: usize) -> io::Result<&[u8]> {
        let want = (want as u64).min(self.end.saturating_sub(position)) as usize;
        if position < self.start || position + want as u64 > self.start + self.filled as u64 {
            self.start = position;
            self.filled = 0;
            let most = (CHUNK as u64).min(self.end.saturating_sub(position)) as usize;
            while self.filled < most {
                let read = self.file.read_at(
                    &mut self.buffer[self.filled..most],
                    position + self.filled as u64,
                )?;
                if read == 0 {
                    // Cut by somebody else meanwhile: the rest is gone.
                    self.end = position + self.filled as u64;
                    break;
                }
                self.filled += read;
            }
        }
        let from = (position - self.start) as usize;
        let to = (from + want).min(self.filled);
        Ok(&self.buffer[from.min(to)..to])
    }

    /// CRC of the bytes from `from` to `to`.
    fn crc(&mut self, from: u64, to: u64, legacy: bool) -> io::Result<u32> {
        let (mut at, mut castagnoli) = (
            from,
            crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi),
        );
        let mut ieee = crc32fast::Hasher::new();
        while at < to {
            let want = ((to - at) as usize).min(CHUNK);
            let bytes = self.slice(at, want)?;
            if bytes.is_empty() {
                break;
            }
            at += bytes.len() as u64;
            if legacy {
                ieee.update(bytes);
            } else {
                castagnoli.update(bytes);
            }
        }
        Ok(if legacy {
            ieee.finalize()
        } else {
            castagnoli.finalize() as u32
        })
    }
}

/// (type, coordinator epoch) of the marker whose record starts at `bytes[0]`; None where it is none.
fn marker(bytes: &[u8]) -> Option<(i16, i32)> {
    let (mut at, mut canonical) = (0, true);
    read_varint(bytes, &mut at, &mut canonical)?;
    at += 1;
    read_varlong(bytes, &mut at, &mut canonical)?;
    read_varint(bytes, &mut at, &mut canonical)?;
    let key_length = usize::try_from(read_varint(bytes, &mut at, &mut canonical)?).ok()?;
    if key_length < 4 || i16_at(bytes, at)? < 0 {
        return None;
    }
    let kind = i16_at(bytes, at + 2)?;
    at = at.checked_add(key_length)?;
    let value_length = read_varint(bytes, &mut at, &mut canonical)?;
    if !(0..=1).contains(&kind) || value_length < 6 || i16_at(bytes, at)? < 0 {
        return None;
    }
    Some((kind, i32_at(bytes, at + 2)?))
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

fn scan_to(request: &Request, limit: Option<u64>) -> io::Result<Scan> {
    let Request {
        path,
        base,
        interval,
        check_crc,
        produced_from,
        start,
    } = *request;
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let end = limit.map_or(size, |limit| limit.min(size));
    let mut reader = Reader {
        file,
        buffer: vec![0; CHUNK.min(end as usize).max(1)],
        start: 0,
        filled: 0,
        end,
    };
    let mut found = Scan {
        valid_bytes: start,
        next_offset: base,
        next_of_current: base,
        max_timestamp: -1,
        offset_of_max: base,
        ..Scan::default()
    };
    let mut producers: HashMap<i64, Producer> = HashMap::new();
    let (mut last_entry, mut last_time, mut latest_epoch) = (0u64, -1i64, -1i32);
    // Position, base and last offset of the batch before, and what it had to follow.
    let mut before: Option<((u64, i64, i64), i64)> = None;
    while found.valid_bytes < reader.end {
        let position = found.valid_bytes;
        let left = reader.end - position;
        let fault = |base: i64, last: i64, words: String| Some((position, base, last, words, None));
        let head = reader.slice(position, V2_HEADER)?;
        if left < UP_TO_MAGIC || (head.len() as u64) < UP_TO_MAGIC {
            found.fault = fault(
                -1,
                -1,
                format!("truncated, {left} bytes are left of a header"),
            );
            break;
        }
        let head: Vec<u8> = head.to_vec();
        let first = i64_at(&head, 0).unwrap_or(-1);
        let length = i32_at(&head, 8).unwrap_or(-1);
        if length < 14 {
            found.fault = if head[..17].iter().all(|&byte| byte == 0) {
                fault(
                    -1,
                    -1,
                    "truncated, only zeros where a batch should be".into(),
                )
            } else {
                fault(first, -1, format!("its length field is {length}"))
            };
            break;
        }
        let magic = head[16];
        let total = length as u64 + LOG_OVERHEAD as u64;
        if total > left {
            found.fault = fault(
                first,
                -1,
                format!("truncated, {left} of its {total} bytes are there"),
            );
            break;
        }
        if magic > 2 {
            found.fault = fault(first, -1, format!("unknown magic {magic}"));
            break;
        }
        let least = [26, 34, V2_HEADER as u64][magic as usize];
        if total < least || (head.len() as u64) < least {
            found.fault = fault(
                first,
                -1,
                format!("its length field is {length}, too small for magic {magic}"),
            );
            break;
        }
        let current = magic == 2;
        let last = if current {
            first.wrapping_add(i64::from(i32_at(&head, 23).unwrap_or(-1)))
        } else {
            first
        };
        if check_crc {
            let stored = i32_at(&head, if current { 17 } else { 12 }).unwrap_or(0) as u32;
            let computed = reader.crc(
                position + if current { 21 } else { 16 },
                position + total,
                !current,
            )?;
            if stored != computed {
                let words =
                    format!("its CRC is {stored:#010x} and its bytes give {computed:#010x}");
                found.fault = Some((position, first, last, words, Some((stored, computed))));
                break;
            }
        }
        if first < found.next_offset || last < first || last == i64::MAX {
            found.fault = fault(
                first,
                last,
                format!("its offsets do not follow {}", found.next_offset),
            );
            found.doubt = before
                .filter(|&(_, followed)| first >= followed && last >= first)
                .map(|(batch, _)| batch);
            break;
        }
        if last - base > MAX_RELATIVE {
            found.fault = fault(
                first,
                last,
                format!("offset {last} is too far from the segment's base {base}"),
            );
            found.overflow = true;
            break;
        }
        let timestamp = match magic {
            0 => -1,
            1 => i64_at(&head, 18).unwrap_or(-1),
            _ => i64_at(&head, 35).unwrap_or(-1),
        };
        if current {
            let producer = i64_at(&head, 43).unwrap_or(-1);
            if producer >= 0 && last >= produced_from {
                let attributes = head[22];
                let mut flags = if attributes & 0x10 != 0 {
                    TRANSACTIONAL
                } else {
                    0
                };
                let (mut kind, mut coordinator) = (-1i16, -1i32);
                if attributes & 0x20 != 0 {
                    flags |= CONTROL;
                    if i32_at(&head, 57).unwrap_or(0) > 0 {
                        let bytes = reader.slice(
                            position + V2_HEADER as u64,
                            (total - V2_HEADER as u64).min(MARKER) as usize,
                        )?;
                        let Some(read) = (if attributes & 7 == 0 {
                            marker(bytes)
                        } else {
                            None
                        }) else {
                            found.fault = fault(
                                first,
                                last,
                                "its control record is no transaction marker".into(),
                            );
                            break;
                        };
                        flags |= MARKED;
                        (kind, coordinator) = read;
                    }
                }
                let mut packed = Vec::with_capacity(EVENT_SIZE);
                packed.extend_from_slice(&position.to_be_bytes());
                packed.extend_from_slice(&first.to_be_bytes());
                packed.extend_from_slice(&last.to_be_bytes());
                packed.extend_from_slice(&timestamp.to_be_bytes());
                packed.extend_from_slice(&producer.to_be_bytes());
                packed.extend_from_slice(&head[51..53]);
                packed.extend_from_slice(&head[53..57]);
                packed.push(flags);
                packed.extend_from_slice(&kind.to_be_bytes());
                packed.extend_from_slice(&coordinator.to_be_bytes());
                keep(
                    producers.entry(producer).or_default(),
                    &mut found.events,
                    Event { position, packed },
                    flags,
                );
            }
            found.next_of_current = last + 1;
            let epoch = i32_at(&head, 12).unwrap_or(-1);
            if epoch >= 0 && epoch != latest_epoch {
                latest_epoch = epoch;
                found.epochs.push((epoch, first));
            }
        }
        if timestamp > found.max_timestamp {
            (found.max_timestamp, found.offset_of_max) = (timestamp, last);
        }
        if position - last_entry > interval {
            found
                .offset_index
                .extend_from_slice(&((last - base) as i32).to_be_bytes());
            found
                .offset_index
                .extend_from_slice(&(position as i32).to_be_bytes());
            push_time(&mut found, base, &mut last_time);
            last_entry = position;
        }
        before = Some(((position, first, last), found.next_offset));
        found.valid_bytes += total;
        found.next_offset = last + 1;
        found.batches += 1;
    }
    push_time(&mut found, base, &mut last_time);
    for producer in producers.values_mut() {
        flush(producer, &mut found.events);
    }
    found.events.sort_by_key(|event| event.position);
    Ok(found)
}

/// TimeIndex.maybeAppend: only a timestamp above the last one is entered.
fn push_time(found: &mut Scan, base: i64, last_time: &mut i64) {
    if found.max_timestamp > *last_time {
        *last_time = found.max_timestamp;
        found
            .time_index
            .extend_from_slice(&found.max_timestamp.to_be_bytes());
        found
            .time_index
            .extend_from_slice(&((found.offset_of_max - base) as i32).to_be_bytes());
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
/// Returns (valid bytes, next offset, max timestamp, its offset, batches, offset after the last batch of magic 2), .index, .timeindex, epochs, producers' batches
/// (53 bytes each), fault, and whether the fault is an offset too far from the base. Raises OSError.
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
    let mut packed = Vec::with_capacity(found.events.len() * EVENT_SIZE);
    for event in &found.events {
        packed.extend_from_slice(&event.packed);
    }
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
        PyBytes::new(py, &packed),
        found.fault,
        found.overflow,
    ))
}
