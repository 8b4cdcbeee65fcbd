//! One pass over a V2 batch on its way into the log: CRC, every length, keys, timestamps, offsets (facts 10.1, 10.2).
//!
//! The twin in plain Python, and the meaning of each argument: `storage/kernel/reference/validate.py`.

use std::borrow::Cow;
use std::cell::RefCell;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

use crate::codecs::Codecs;
use crate::header::V2_HEADER;
use crate::record;

/// Smaller batches are done before another thread could get the lock.
const DETACH_FROM: usize = 4 << 10;
/// What a thread keeps of its decompression buffer between batches.
const KEPT: usize = 4 << 20;

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

#[allow(unsafe_code)]
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
    if !batch.is_c_contiguous() {
        return Err(PyBufferError::new_err("the batch is not one piece of memory"));
    }
    // SAFETY: the buffer is contiguous and its export keeps the memory in place until `batch` is dropped, after the walk.
    // A caller that changes the bytes meanwhile gets a wrong answer about them; every access is inside the slice.
    let bytes = unsafe { std::slice::from_raw_parts(batch.buf_ptr().cast::<u8>(), batch.len_bytes()) };
    let rules = Rules { base_timestamp, append_time, keys_required, earliest, latest, largest_body };
    let outcome = if bytes.len() >= DETACH_FROM {
        py.detach(|| validate(bytes, crc, codec, count, rules))
    } else {
        validate(bytes, crc, codec, count, rules)
    };
    outcome.map_err(|reason| PyValueError::new_err(reason.into_owned()))
}

fn validate(bytes: &[u8], crc: u32, codec: u8, count: i32, rules: Rules) -> Result<Summary, Cow<'static, str>> {
    let (Some(checked), Some(body)) = (bytes.get(21..), bytes.get(V2_HEADER..)) else {
        return Err("it is shorter than a batch header".into());
    };
    if crc32c::crc32c(checked) != crc {
        return Ok((false, -1, false, Vec::new()));
    }
    if codec == 0 {
        return walk(body, count, rules, false);
    }
    SCRATCH.with_borrow_mut(|(codecs, area)| {
        let outcome = match codecs.decompress(codec, 2, body, area) {
            Ok(()) => walk(area, count, rules, true),
            Err(damage) => Err(damage.reason),
        };
        if area.capacity() > KEPT {
            *area = Vec::new();
        }
        outcome
    })
}

fn walk(area: &[u8], count: i32, rules: Rules, compressed: bool) -> Result<Summary, Cow<'static, str>> {
    let mut at = 0;
    let mut largest = -1i64;
    let mut consecutive = true;
    let mut errors = Vec::new();
    for index in 0..count {
        let fields = record::read(area, at).map_err(|reason| Cow::Owned(format!("record {index} of {count}: {reason}")))?;
        if compressed && fields.end - at > rules.largest_body && body_length(area, at) > rules.largest_body {
            let length = body_length(area, at);
            return Err(format!("record {index} of {count} has {length} bytes, more than {}", rules.largest_body).into());
        }
        at = fields.end;
        let timestamp = rules.append_time.unwrap_or_else(|| rules.base_timestamp.wrapping_add(fields.timestamp_delta));
        consecutive &= fields.offset_delta == index;
        if rules.keys_required && fields.key_length < 0 {
            errors.push((index, NO_KEY, timestamp));
        } else if timestamp != -1 && !(rules.earliest..=rules.latest).contains(&timestamp) {
            errors.push((index, TIMESTAMP, timestamp));
        }
        largest = largest.max(timestamp);
    }
    if at != area.len() {
        return Err(format!("{} bytes are left after its {count} records", area.len() - at).into());
    }
    Ok((true, largest, consecutive, errors))
}

fn body_length(area: &[u8], at: usize) -> usize {
    record::body(area, at).map_or(0, |(start, end)| end - start)
}
