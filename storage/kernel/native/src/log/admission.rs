//! The rules of a topic for what producers append, and the batch that needs nothing but to be stamped (facts 10.1).
//!
//! The twin in plain Python, which knows every other batch, too: `storage/validator.py`.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::log::areas::MAGIC;
use crate::log::tally::Rules;
use crate::log::validate::{validate, DETACH_FROM};
use crate::memory::bytes_of_mut;
use crate::records::header::{self, field, i16_at, i32_at, i64_at, put, LOG_OVERHEAD, V2_HEADER};

const CODEC_MASK: i16 = header::CODEC_MASK as i16;
const LOG_APPEND_TIME: i16 = header::LOG_APPEND_TIME as i16;
const TRANSACTIONAL: i16 = header::TRANSACTIONAL as i16;
const CONTROL: i16 = header::CONTROL as i16;
/// Bits that a rewritten header keeps; the others are unused and become 0.
const KNOWN: i16 = 0x7f;

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
            || i32_at(bytes, field::LENGTH)? as i64 + LOG_OVERHEAD as i64 != size as i64
        {
            return None;
        }
        let attributes = i16_at(bytes, field::ATTRIBUTES)?;
        let codec = (attributes & CODEC_MASK) as u8;
        let (last_delta, count) = (
            i32_at(bytes, field::LAST_OFFSET_DELTA)?,
            i32_at(bytes, field::RECORD_COUNT)?,
        );
        let (producer_id, base_sequence) = (
            i64_at(bytes, field::PRODUCER_ID)?,
            i32_at(bytes, field::BASE_SEQUENCE)?,
        );
        let plain = bytes[field::MAGIC] == MAGIC
            && i64_at(bytes, field::BASE_OFFSET)? == 0
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
            base_timestamp: i64_at(bytes, field::BASE_TIMESTAMP)?,
            append_time: None,
            keys_required: self.keys_required,
            earliest,
            latest,
            largest_body: self.largest_body,
        };
        let (sound, largest, consecutive, errors) = validate(
            bytes,
            i32_at(bytes, field::CRC)? as u32,
            codec,
            count,
            rules,
        )
        .ok()?;
        if !sound || !consecutive || !errors.is_empty() {
            return None;
        }
        let max_timestamp = if self.append_time { now_ms } else { largest };
        put(bytes, field::BASE_OFFSET, &next_offset.to_be_bytes());
        put(bytes, field::LEADER_EPOCH, &leader_epoch.to_be_bytes());
        if self.append_time || i64_at(bytes, field::MAX_TIMESTAMP)? != max_timestamp {
            let stamped = attributes & KNOWN | if self.append_time { LOG_APPEND_TIME } else { 0 };
            put(bytes, field::ATTRIBUTES, &stamped.to_be_bytes());
            put(bytes, field::MAX_TIMESTAMP, &max_timestamp.to_be_bytes());
            let crc = crc_fast::crc32_iscsi(&bytes[field::ATTRIBUTES..]);
            put(bytes, field::CRC, &crc.to_be_bytes());
        }
        let transactional = attributes & TRANSACTIONAL != 0;
        Some((
            last_offset,
            max_timestamp,
            producer_id,
            i16_at(bytes, field::PRODUCER_EPOCH)?,
            base_sequence,
            transactional,
        ))
    }
}
