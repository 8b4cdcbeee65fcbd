//! Finding the place of a fetch: the entry of an index, and the batch behind it (facts 2.5, 2.6).
//!
//! The twins in plain Python are in storage/kernel/reference/lookup.py.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::header::{i32_at, i64_at, LOG_OVERHEAD};
use crate::memory::bytes_of;

const SMALLEST_ENTRY: u64 = 26;
const MAGIC: usize = 16;
const LAST_DELTA: usize = 23;

/// What became of a search.
const FOUND: u8 = 0;
const GO_ON: u8 = 1;
const DAMAGED: u8 = 2;
const ELSEWHERE: u8 = 3;

/// (outcome, position in `data`, size, base offset, last offset)
type Place = (u8, usize, u64, i64, i64);

fn contiguous() -> PyErr {
    PyBufferError::new_err("the bytes are not one piece of memory")
}

/// Number of the last entry whose value is at most `target`, -1 when there is none. Entries are `width` bytes; the value is the
/// big-endian integer of `size` (4 or 8) bytes from byte `at` of the entry on.
#[pyfunction]
#[pyo3(signature = (data, width, at, size, target, /))]
pub fn floor_entry(data: PyBuffer<u8>, width: usize, at: usize, size: usize, target: i64) -> PyResult<isize> {
    let bytes = bytes_of(&data).ok_or_else(contiguous)?;
    let value = |entry: usize| {
        let place = entry * width + at;
        if size == 8 { i64_at(bytes, place) } else { i32_at(bytes, place).map(i64::from) }
    };
    let (mut low, mut high) = (0, bytes.len() / width.max(1));
    while low < high {
        let middle = (low + high) / 2;
        if value(middle).is_some_and(|value| value <= target) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low as isize - 1)
}

/// Looks in `data`, which starts with a batch of which and of what follows `left` bytes are in the segment, for the first batch
/// that ends at or above `offset`. `expected`: the last offset that the first batch has to have.
#[pyfunction]
#[pyo3(signature = (data, left, offset, expected, /))]
pub fn find_batch(data: &[u8], left: u64, offset: i64, expected: Option<i64>) -> Place {
    let mut at = 0usize;
    loop {
        let room = left.saturating_sub(at as u64);
        let (Some(base), Some(length), Some(&magic)) = (i64_at(data, at), i32_at(data, at + 8), data.get(at + MAGIC)) else {
            return (GO_ON, at, 0, 0, 0);
        };
        let size = i64::from(length) + LOG_OVERHEAD as i64;
        let delta = match magic {
            0 | 1 => Some(0),
            2 => i32_at(data, at + LAST_DELTA),
            _ => return (DAMAGED, at, 0, 0, 0),
        };
        let Some(delta) = delta else { return (GO_ON, at, 0, 0, 0) };
        if size < SMALLEST_ENTRY as i64 || size as u64 > room || base < 0 || delta < 0 {
            return (DAMAGED, at, 0, 0, 0);
        }
        let last = base.saturating_add(i64::from(delta));
        if at == 0 && expected.is_some_and(|expected| expected != last) {
            return (ELSEWHERE, 0, 0, 0, 0);
        }
        if last >= offset {
            return (FOUND, at, size as u64, base, last);
        }
        at += size as usize;
        if at as u64 >= left {
            return (GO_ON, at, 0, 0, 0);
        }
    }
}
