//! The place of a timestamp in a batch (facts 2.6).
//!
//! The twin in plain Python: `search` in `storage/kernel/timestamps.py`.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

use crate::errors::Damage;
use crate::log::areas;
use crate::memory::bytes_of;
use crate::records::header::V2_HEADER;
use crate::records::record;
use crate::records::stream::Stream;

/// (offset delta, timestamp) of the first record of a whole V2 batch, its CRC known to be right, whose timestamp is at least
/// `timestamp` and whose offset delta is at least `first_delta`. ValueError for records that do not fit their lengths.
#[pyfunction]
#[pyo3(signature = (batch, codec, count, base_timestamp, append_time, timestamp, first_delta, /))]
pub fn find_timestamp(
    py: Python<'_>,
    batch: PyBuffer<u8>,
    codec: u8,
    count: i32,
    base_timestamp: i64,
    append_time: Option<i64>,
    timestamp: i64,
    first_delta: i64,
) -> PyResult<Option<(i32, i64)>> {
    let body = bytes_of(&batch)
        .and_then(|bytes| bytes.get(V2_HEADER..))
        .ok_or_else(|| PyBufferError::new_err("the batch is not one piece of memory"))?;
    let wanted = |timestamp_delta: i64, offset_delta: i32| {
        let found = append_time.unwrap_or_else(|| base_timestamp.wrapping_add(timestamp_delta));
        (found >= timestamp && i64::from(offset_delta) >= first_delta)
            .then_some((offset_delta, found))
    };
    py.detach(|| first_of(body, codec, count, wanted))
        .map_err(|damage| PyValueError::new_err(damage.reason.into_owned()))
}

/// The first answer of `wanted`, asked about timestamp and offset delta of each record.
fn first_of<T>(
    body: &[u8],
    codec: u8,
    count: i32,
    wanted: impl Fn(i64, i32) -> Option<T>,
) -> Result<Option<T>, Damage> {
    let walk = |area: &[u8]| {
        let mut at = 0;
        for _ in 0..count {
            let record = record::read(area, at)?;
            at = record.end;
            if let Some(found) = wanted(record.timestamp_delta, record.offset_delta) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    };
    if codec == 0 {
        return walk(body);
    }
    if let Some(found) = areas::walked(codec, body, walk)? {
        return found;
    }
    let mut stream = Stream::open(codec, body)?;
    for _ in 0..count {
        let length = stream.record_length()?;
        let seen = stream.record(length)?;
        if let Some(found) = wanted(seen.timestamp_delta, seen.offset_delta) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
