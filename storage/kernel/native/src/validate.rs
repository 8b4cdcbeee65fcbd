//! One pass over a V2 batch on its way into the log: CRC, every length, keys, timestamps, offsets (facts 10.1, 10.2).
//!
//! The twin in plain Python, and the meaning of each argument: `storage/kernel/reference/validate.py`.

use std::borrow::Cow;
use std::cell::RefCell;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::codecs::Codecs;
use crate::errors::Damage;
use crate::header::{i16_at, i32_at, i64_at, LOG_OVERHEAD, V2_HEADER};
use crate::lz4;
use crate::memory::{bytes_of, bytes_of_mut};
use crate::stream::Stream;
use crate::{record, varint};

/// Smaller batches are done in less time than it takes to give the lock away and get it back.
pub const DETACH_FROM: usize = 32 << 10;
/// What a thread keeps of its decompression buffer between batches.
const KEPT: usize = 4 << 20;

const CRC_FROM: usize = 21;
const LOG_APPEND_TIME: i16 = 0x08;
const TRANSACTIONAL: i16 = 0x10;
const CONTROL: i16 = 0x20;
/// Attribute bits that a rewritten header keeps; the others are unused and become 0.
const KNOWN: i16 = 0x7f;

const ZSTD: u8 = 4;
const LARGEST_WINDOW: u64 = 128 << 20;

/// Batches that decompress to more are read as streams: a few kilobytes can become gigabytes.
const AT_ONCE: usize = 32 << 20;
/// Faulty records of a batch that are named; the twin has the same number.
const MOST_ERRORS: usize = 100_000;

const NO_KEY: i32 = 1;
const TIMESTAMP: i32 = 2;

/// (record index, kind, timestamp)
type RecordError = (i32, i32, i64);
/// (crc matches, largest timestamp, offsets are 0, 1, 2…, errors)
type Summary = (bool, i64, bool, Vec<RecordError>);

thread_local! {
    static SCRATCH: RefCell<(Codecs, Vec<u8>)> = RefCell::new((Codecs::default(), Vec::new()));
}

#[derive(Clone, Copy)]
struct Rules {
    base_timestamp: i64,
    append_time: Option<i64>,
    keys_required: bool,
    earliest: i64,
    latest: i64,
    largest_body: usize,
}

#[allow(clippy::too_many_arguments)]
#[pyfunction]
#[pyo3(signature = (batch, crc, codec, count, base_timestamp, append_time, keys_required, earliest, latest, largest_body, /))]
pub fn validate_batch(
    py: Python<'_>,
    batch: PyBuffer<u8>,
    crc: u32,
    codec: u8,
    count: i32,
    base_timestamp: i64,
    append_time: Option<i64>,
    keys_required: bool,
    earliest: i64,
    latest: i64,
    largest_body: usize,
) -> PyResult<Summary> {
    let bytes = bytes_of(&batch)
        .ok_or_else(|| PyBufferError::new_err("the batch is not one piece of memory"))?;
    let rules = Rules {
        base_timestamp,
        append_time,
        keys_required,
        earliest,
        latest,
        largest_body,
    };
    let outcome = if bytes.len() >= DETACH_FROM {
        py.detach(|| validate(bytes, crc, codec, count, rules))
    } else {
        validate(bytes, crc, codec, count, rules)
    };
    outcome.map_err(|reason| PyValueError::new_err(reason.into_owned()))
}

fn validate(
    bytes: &[u8],
    crc: u32,
    codec: u8,
    count: i32,
    rules: Rules,
) -> Result<Summary, Cow<'static, str>> {
    let (Some(checked), Some(body)) = (bytes.get(21..), bytes.get(V2_HEADER..)) else {
        return Err("it is shorter than a batch header".into());
    };
    if crc_fast::crc32_iscsi(checked) != crc {
        return Ok((false, -1, false, Vec::new()));
    }
    if codec == 0 {
        return walk(body, count, rules, false);
    }
    if codec == ZSTD && !windows_fit(body) {
        return Err("its zstd frame needs a larger window than readers allow".into());
    }
    SCRATCH.with_borrow_mut(|(codecs, area)| {
        let outcome = match codecs.decompress_within(codec, 2, body, area, AT_ONCE) {
            Ok(true) => walk(area, count, rules, true),
            Ok(false) => {
                *area = Vec::new();
                walk_stream(codec, body, count, rules)
            }
            Err(damage) => Err(damage.reason),
        };
        if area.capacity() > KEPT {
            *area = Vec::new();
        }
        outcome
    })
}

/// Whether every frame can be decompressed with libzstd's usual limit of 128 MiB: here a whole frame is decompressed at once,
/// where no window is needed, but consumers stream. What is no frame header is left to the decompressor.
fn windows_fit(mut data: &[u8]) -> bool {
    while let Some((&[0x28, 0xb5, 0x2f, 0xfd, descriptor], rest)) = data.split_first_chunk::<5>() {
        let window = if descriptor & 0x20 == 0 {
            let Some(&byte) = rest.first() else {
                return true;
            };
            let base = 1u64 << (10 + (byte >> 3));
            base + base / 8 * u64::from(byte & 7)
        } else {
            // A single segment: the window is the content, whose size follows an optional dictionary id.
            let at = [0, 1, 2, 4][usize::from(descriptor & 3)];
            let width = [1, 2, 4, 8][usize::from(descriptor >> 6)];
            let Some(size) = rest.get(at..at + width) else {
                return true;
            };
            size.iter()
                .rev()
                .fold(0u64, |sum, &byte| sum << 8 | u64::from(byte))
        };
        if window > LARGEST_WINDOW {
            return false;
        }
        match zstd_safe::find_frame_compressed_size(data) {
            Ok(size) if size > 0 && size <= data.len() => data = &data[size..],
            _ => return true,
        }
    }
    true
}

fn walk(
    area: &[u8],
    count: i32,
    rules: Rules,
    compressed: bool,
) -> Result<Summary, Cow<'static, str>> {
    let mut at = 0;
    let mut tally = Tally::new(rules);
    for index in 0..count {
        let record = quick(area, at).map_or_else(|| slow(area, at), Ok);
        let record = record.map_err(|reason| of_record(index, count, reason))?;
        if compressed
            && record.end - at > rules.largest_body
            && body_length(area, at) > rules.largest_body
        {
            return Err(too_long(index, count, body_length(area, at), rules));
        }
        at = record.end;
        tally.take(
            index,
            record.timestamp_delta,
            record.offset_delta,
            record.has_key,
        );
        if tally.is_full() {
            return Ok(tally.done());
        }
    }
    if at != area.len() {
        return Err(format!(
            "{} bytes are left after its {count} records",
            area.len() - at
        )
        .into());
    }
    Ok(tally.done())
}

/// As `walk`, of a batch that decompresses to more than anyone wants to hold.
#[inline(never)]
fn walk_stream(
    codec: u8,
    body: &[u8],
    count: i32,
    rules: Rules,
) -> Result<Summary, Cow<'static, str>> {
    let mut stream = Stream::open(codec, body).map_err(|damage| damage.reason)?;
    let mut tally = Tally::new(rules);
    for index in 0..count {
        let damaged = |damage: Damage| of_record(index, count, &damage.reason);
        let length = stream.record_length().map_err(damaged)?;
        if length > rules.largest_body {
            return Err(too_long(index, count, length, rules));
        }
        let seen = stream.record(length).map_err(damaged)?;
        tally.take(index, seen.timestamp_delta, seen.offset_delta, seen.has_key);
        if tally.is_full() {
            return Ok(tally.done());
        }
    }
    match stream.is_through() {
        Ok(true) => Ok(tally.done()),
        Ok(false) => Err(format!("bytes are left after its {count} records").into()),
        Err(damage) => Err(damage.reason),
    }
}

fn of_record(index: i32, count: i32, reason: &str) -> Cow<'static, str> {
    format!("record {index} of {count}: {reason}").into()
}

fn too_long(index: i32, count: i32, length: usize, rules: Rules) -> Cow<'static, str> {
    let most = rules.largest_body;
    format!("record {index} of {count} has {length} bytes, more than {most}").into()
}

/// What is found of the records of a batch, one after the other.
struct Tally {
    rules: Rules,
    largest: i64,
    consecutive: bool,
    errors: Vec<RecordError>,
}

impl Tally {
    fn new(rules: Rules) -> Tally {
        Tally {
            rules,
            largest: -1,
            consecutive: true,
            errors: Vec::new(),
        }
    }

    #[inline(always)]
    fn take(&mut self, index: i32, timestamp_delta: i64, offset_delta: i32, has_key: bool) {
        let rules = &self.rules;
        let timestamp = rules
            .append_time
            .unwrap_or_else(|| rules.base_timestamp.wrapping_add(timestamp_delta));
        self.consecutive &= offset_delta == index;
        if rules.keys_required && !has_key {
            self.errors.push((index, NO_KEY, timestamp));
        } else if timestamp != -1 && !(rules.earliest..=rules.latest).contains(&timestamp) {
            self.errors.push((index, TIMESTAMP, timestamp));
        }
        self.largest = self.largest.max(timestamp);
    }

    /// The batch is refused, and enough is said about why.
    #[inline(always)]
    fn is_full(&self) -> bool {
        self.errors.len() >= MOST_ERRORS
    }

    fn done(self) -> Summary {
        (true, self.largest, self.consecutive, self.errors)
    }
}

/// What a check has to know of one record.
struct Checked {
    timestamp_delta: i64,
    offset_delta: i32,
    has_key: bool,
    end: usize,
}

/// Any record, with every check.
#[inline(never)]
fn slow(area: &[u8], at: usize) -> Result<Checked, &'static str> {
    let fields = record::read(area, at)?;
    let has_key = fields.key_length >= 0;
    Ok(Checked {
        timestamp_delta: fields.timestamp_delta,
        offset_delta: fields.offset_delta,
        has_key,
        end: fields.end,
    })
}

/// The usual record: lengths and deltas of one or two bytes, no headers. None: another one, or a damaged one.
#[inline(always)]
fn quick(area: &[u8], start: usize) -> Option<Checked> {
    let mut at = start;
    let length = short(area, &mut at)?;
    let end = at.checked_add(usize::try_from(length).ok()?)?;
    let bytes = area.get(..end)?;
    at += 1; // attributes
    let timestamp_delta = short(bytes, &mut at)?;
    let offset_delta = short(bytes, &mut at)?;
    let key_length = short(bytes, &mut at)?;
    at += key_length.max(0) as usize;
    let value_length = short(bytes, &mut at)?;
    at += value_length.max(0) as usize;
    // One byte is left, and it says that there are no headers.
    if at + 1 != end || bytes[at] != 0 {
        return None;
    }
    Some(Checked {
        timestamp_delta: i64::from(timestamp_delta),
        offset_delta,
        has_key: key_length >= 0,
        end,
    })
}

/// A varint of one or two bytes.
#[inline(always)]
fn short(bytes: &[u8], at: &mut usize) -> Option<i32> {
    let first = u32::from(*bytes.get(*at)?);
    let raw = if first < 0x80 {
        *at += 1;
        first
    } else {
        let second = u32::from(*bytes.get(*at + 1)?);
        if second >= 0x80 {
            return None;
        }
        *at += 2;
        first & 0x7f | second << 7
    };
    Some((raw >> 1) as i32 ^ -((raw & 1) as i32))
}

/// The decompressed record area of a batch, if Kafka would encode its records to just these bytes when it rebuilds the batch:
/// shortest varints, record attributes 0, offsets 0, 1, 2…, the base timestamp that of the first record. Else None.
#[pyfunction]
pub fn plain_area<'py>(
    py: Python<'py>,
    batch: PyBuffer<u8>,
    codec: u8,
    count: i32,
) -> Option<Bound<'py, PyBytes>> {
    let body = bytes_of(&batch)?.get(V2_HEADER..)?;
    let area = py.detach(|| {
        let mut area = Vec::new();
        if codec == 0 {
            area.extend_from_slice(body);
        } else {
            SCRATCH
                .with_borrow_mut(|(codecs, _)| codecs.decompress(codec, 2, body, &mut area))
                .ok()?;
        }
        is_plain(&area, count).then_some(area)
    })?;
    Some(PyBytes::new(py, &area))
}

fn is_plain(area: &[u8], count: i32) -> bool {
    let mut at = 0;
    for index in 0..count {
        let start = at;
        let Ok(fields) = record::read(area, at) else {
            return false;
        };
        let length = fields.end - start;
        let Ok((body, _)) = record::body(area, start) else {
            return false;
        };
        let prefix = body - start;
        let timestamp_bytes = fields.tail - body - 1;
        let shortest = prefix == varint::length((length - prefix) as i64)
            && timestamp_bytes == varint::length(fields.timestamp_delta)
            && fields.canonical;
        if !shortest || fields.offset_delta != index || (index == 0 && fields.timestamp_delta != 0)
        {
            return false;
        }
        at = fields.end;
    }
    at == area.len()
}

/// Compresses a record area at the codec's default level, to Kafka's bytes.
#[pyfunction]
pub fn compress_area<'py>(
    py: Python<'py>,
    codec: u8,
    area: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    py.detach(|| SCRATCH.with_borrow_mut(|(codecs, _)| codecs.compress(codec, area, &mut out)))
        .map_err(|damage| PyValueError::new_err(damage.reason.into_owned()))?;
    Ok(PyBytes::new(py, &out))
}

/// One lz4 frame at a level of compression.lz4.level other than 9.
#[pyfunction]
pub fn lz4_frame<'py>(py: Python<'py>, data: &[u8], level: i32) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    if !py.detach(|| lz4::compress_at(data, Some(level), &mut out)) {
        return Err(PyValueError::new_err(
            "liblz4 could not compress the records",
        ));
    }
    Ok(PyBytes::new(py, &out))
}

/// The rules of one topic for batches of producers, and the assignment of offsets to those that need nothing else.
///
/// The usual batch (one, V2, whole, of the topic's codec) is checked and stamped in one call. For any other, and for one that
/// has to be refused, `admit` changes nothing and answers None: Python then takes the long way, which says what is wrong.
#[pyclass(frozen)]
pub struct Admission {
    keys_required: bool,
    append_time: bool,
    before_ms: i64,
    after_ms: i64,
    largest_body: usize,
    largest_batch: usize,
    /// None: whatever the producer chose.
    codec: Option<u8>,
}

/// (last offset, largest timestamp, producer id, producer epoch, base sequence, transactional)
pub type Admitted = (i64, i64, i64, i16, i32, bool);

#[pymethods]
impl Admission {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        keys_required: bool,
        append_time: bool,
        before_ms: i64,
        after_ms: i64,
        largest_body: usize,
        largest_batch: usize,
        codec: Option<u8>,
    ) -> Self {
        Admission {
            keys_required,
            append_time,
            before_ms,
            after_ms,
            largest_body,
            largest_batch,
            codec,
        }
    }

    fn admit(
        &self,
        py: Python<'_>,
        mut batch: PyBuffer<u8>,
        next_offset: i64,
        leader_epoch: i32,
        now_ms: i64,
    ) -> PyResult<Option<Admitted>> {
        let bytes = bytes_of_mut(&mut batch).ok_or_else(|| {
            PyBufferError::new_err("the batch has to be one piece of writable memory")
        })?;
        Ok(if bytes.len() >= DETACH_FROM {
            py.detach(|| self.stamp(bytes, next_offset, leader_epoch, now_ms))
        } else {
            self.stamp(bytes, next_offset, leader_epoch, now_ms)
        })
    }
}

impl Admission {
    pub fn stamp(
        &self,
        bytes: &mut [u8],
        next_offset: i64,
        leader_epoch: i32,
        now_ms: i64,
    ) -> Option<Admitted> {
        let size = bytes.len();
        if size < V2_HEADER
            || size > self.largest_batch
            || i32_at(bytes, 8)? as i64 + LOG_OVERHEAD as i64 != size as i64
        {
            return None;
        }
        let attributes = i16_at(bytes, CRC_FROM)?;
        let codec = (attributes & 7) as u8;
        let (last_delta, count) = (i32_at(bytes, 23)?, i32_at(bytes, 57)?);
        let (producer_id, base_sequence) = (i64_at(bytes, 43)?, i32_at(bytes, 53)?);
        let plain = bytes[16] == 2
            && i64_at(bytes, 0)? == 0
            && attributes & (LOG_APPEND_TIME | CONTROL) == 0
            && codec <= 4
            && self.codec.is_none_or(|wanted| wanted == codec)
            && last_delta >= 0
            && i64::from(count) == i64::from(last_delta) + 1
            && (producer_id < 0 || base_sequence >= 0);
        let last_offset = next_offset.checked_add(i64::from(last_delta))?;
        if !plain || last_offset == i64::MAX {
            return None;
        }
        let (earliest, latest) = if self.append_time {
            (i64::MIN, i64::MAX)
        } else {
            (
                now_ms.saturating_sub(self.before_ms),
                now_ms.saturating_add(self.after_ms),
            )
        };
        let rules = Rules {
            base_timestamp: i64_at(bytes, 27)?,
            append_time: None,
            keys_required: self.keys_required,
            earliest,
            latest,
            largest_body: self.largest_body,
        };
        let (sound, largest, consecutive, errors) =
            validate(bytes, i32_at(bytes, 17)? as u32, codec, count, rules).ok()?;
        if !sound || !consecutive || !errors.is_empty() {
            return None;
        }
        let max_timestamp = if self.append_time { now_ms } else { largest };
        bytes[..8].copy_from_slice(&next_offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&leader_epoch.to_be_bytes());
        if self.append_time || i64_at(bytes, 35)? != max_timestamp {
            let stamped = attributes & KNOWN | if self.append_time { LOG_APPEND_TIME } else { 0 };
            bytes[21..23].copy_from_slice(&stamped.to_be_bytes());
            bytes[35..43].copy_from_slice(&max_timestamp.to_be_bytes());
            let crc = crc_fast::crc32_iscsi(&bytes[CRC_FROM..]);
            bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        }
        let transactional = attributes & TRANSACTIONAL != 0;
        Some((
            last_offset,
            max_timestamp,
            producer_id,
            i16_at(bytes, 51)?,
            base_sequence,
            transactional,
        ))
    }
}

fn body_length(area: &[u8], at: usize) -> usize {
    record::body(area, at).map_or(0, |(start, end)| end - start)
}
