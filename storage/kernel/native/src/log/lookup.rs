//! Finding the place of a fetch: the entry of an index, and the batch behind it (facts 2.5, 2.6).
//!
//! The twins in plain Python are in storage/kernel/reference/lookup.py.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::memory::{bytes_of, read_at};
use crate::records::header::{field, i32_at, i64_at, LOG_OVERHEAD};

const SMALLEST_ENTRY: u64 = 26;

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
pub fn floor_entry(
    data: PyBuffer<u8>,
    width: usize,
    at: usize,
    size: usize,
    target: i64,
) -> PyResult<isize> {
    let bytes = bytes_of(&data).ok_or_else(contiguous)?;
    Ok(floor_slot(bytes, width, at, size, target) as isize)
}

/// As `floor_entry`; usize::MAX for -1.
fn floor_slot(bytes: &[u8], width: usize, at: usize, size: usize, target: i64) -> usize {
    let value = |entry: usize| {
        let place = entry * width + at;
        if size == 8 {
            i64_at(bytes, place)
        } else {
            i32_at(bytes, place).map(i64::from)
        }
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
    low.wrapping_sub(1)
}

/// Read at once when looking for a batch, at most.
const MOST_LOOK: usize = 8192;
/// After so many reads the search is left to the caller.
const MOST_READS: usize = 16;

/// (position in the file, size, base offset, last offset)
type Located = (u64, u64, i64, i64);

/// The first batch of a segment that ends at or above `offset`: its index entry is looked up and believed only if the batch is
/// where it says. `entries`: the offset index, or its end if that begins at or below `offset`; `end`: bytes of the segment;
/// `look`: bytes to read at once. None: it is not found so, and the long way (`floor_entry`, `find_batch`) tells why.
#[pyfunction]
#[pyo3(signature = (entries, base, offset, fd, end, look, /))]
pub fn locate_batch(
    py: Python<'_>,
    entries: PyBuffer<u8>,
    base: i64,
    offset: i64,
    fd: i32,
    end: u64,
    look: usize,
) -> PyResult<Option<Located>> {
    let (mut position, mut expected) = (0, None);
    let bytes = bytes_of(&entries).ok_or_else(contiguous)?;
    let at = floor_slot(bytes, 8, 0, 4, offset.saturating_sub(base)).checked_mul(8);
    if let Some((relative, place)) =
        at.and_then(|at| Some((i32_at(bytes, at)?, i32_at(bytes, at + 4)?)))
    {
        if place > 0 && (place as u64) < end {
            (position, expected) = (place as u64, Some(base.saturating_add(i64::from(relative))));
        }
    }
    // An owner that adds an entry must not find the bytes lent to us.
    drop(entries);
    Ok(py.detach(|| {
        let mut buffer = [0u8; MOST_LOOK];
        let buffer = &mut buffer[..look.min(MOST_LOOK)];
        for _ in 0..MOST_READS {
            if position >= end {
                return None;
            }
            let count = read_at(fd, buffer, position).ok()?;
            match find_batch(&buffer[..count], end - position, offset, expected) {
                (FOUND, at, size, first, last) => {
                    return Some((position + at as u64, size, first, last))
                }
                (GO_ON, at, ..) if at > 0 => position += at as u64,
                _ => return None,
            }
            expected = None;
        }
        None
    }))
}

/// Looks in `data`, which starts with a batch of which and of what follows `left` bytes are in the segment, for the first batch
/// that ends at or above `offset`. `expected`: the offset of the index entry that led here. The first batch ends there, or
/// before where a broker older than 3.9 appended several batches at once and indexed the first by the offset of the last.
#[pyfunction]
#[pyo3(signature = (data, left, offset, expected, /))]
pub fn find_batch(data: &[u8], left: u64, offset: i64, expected: Option<i64>) -> Place {
    let mut at = 0usize;
    loop {
        let room = left.saturating_sub(at as u64);
        let (Some(base), Some(length), Some(&magic)) = (
            i64_at(data, at),
            i32_at(data, at + field::LENGTH),
            data.get(at + field::MAGIC),
        ) else {
            return (GO_ON, at, 0, 0, 0);
        };
        let size = i64::from(length) + LOG_OVERHEAD as i64;
        let delta = match magic {
            0 | 1 => Some(0),
            2 => i32_at(data, at + field::LAST_OFFSET_DELTA),
            _ => return (DAMAGED, at, 0, 0, 0),
        };
        let Some(delta) = delta else {
            return (GO_ON, at, 0, 0, 0);
        };
        if size < SMALLEST_ENTRY as i64 || size as u64 > room || base < 0 || delta < 0 {
            return (DAMAGED, at, 0, 0, 0);
        }
        let last = base.saturating_add(i64::from(delta));
        if at == 0 && expected.is_some_and(|expected| last > expected) {
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
