//! One pass over a V2 batch on its way into the log: CRC, every length, keys, timestamps, offsets (facts 10.1, 10.2).
//!
//! The twin in plain Python, and the meaning of each argument: `storage/kernel/reference/validate.py`.

use std::borrow::Cow;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

use crate::errors::Damage;
use crate::log::areas;
use crate::log::tally::{Rules, Summary, Tally};
use crate::memory::bytes_of;
use crate::records::header::{field, V2_HEADER};
use crate::records::record;
use crate::records::stream::Stream;

/// Smaller batches are done in less time than it takes to give the lock away and get it back.
pub const DETACH_FROM: usize = 32 << 10;

const ZSTD: u8 = 4;
const LARGEST_WINDOW: u64 = 128 << 20;

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

pub fn validate(
    bytes: &[u8],
    crc: u32,
    codec: u8,
    count: i32,
    rules: Rules,
) -> Result<Summary, Cow<'static, str>> {
    let (Some(checked), Some(body)) = (bytes.get(field::ATTRIBUTES..), bytes.get(V2_HEADER..))
    else {
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
    match areas::walked(codec, body, |area| walk(area, count, rules, true)) {
        Ok(Some(summary)) => summary,
        Ok(None) => walk_stream(codec, body, count, rules),
        Err(damage) => Err(damage.reason),
    }
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

fn body_length(area: &[u8], at: usize) -> usize {
    record::body(area, at).map_or(0, |(start, end)| end - start)
}
