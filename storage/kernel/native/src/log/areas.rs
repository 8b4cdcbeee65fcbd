//! Record areas of V2 batches, decompressed and compressed: to be walked over here, or written again by Python
//! (storage/validator.py, storage/conversion.py).

use std::cell::RefCell;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::Damage;
use crate::memory::bytes_of;
use crate::records::codecs::Codecs;
use crate::records::header::V2_HEADER;
use crate::records::{lz4, record, varint};

/// Of the batches that producers send: older ones are converted before.
pub const MAGIC: u8 = 2;

/// Batches that decompress to more are read as streams: a few kilobytes can become gigabytes.
const AT_ONCE: usize = 32 << 20;
/// What a thread keeps of its decompression buffer between batches.
const KEPT: usize = 4 << 20;

thread_local! {
    static CODECS: RefCell<Codecs> = RefCell::new(Codecs::default());
    static AREA: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What `walk` makes of the decompressed record area; None: it is more than anyone wants to hold.
pub fn walked<T>(
    codec: u8,
    body: &[u8],
    walk: impl FnOnce(&[u8]) -> T,
) -> Result<Option<T>, Damage> {
    AREA.with_borrow_mut(|area| {
        let within = CODECS
            .with_borrow_mut(|codecs| codecs.decompress_within(codec, MAGIC, body, area, AT_ONCE));
        let walked = within.map(|within| within.then(|| walk(area)));
        if area.capacity() > KEPT {
            *area = Vec::new();
        }
        walked
    })
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
            CODECS
                .with_borrow_mut(|codecs| codecs.decompress(codec, MAGIC, body, &mut area))
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
    py.detach(|| CODECS.with_borrow_mut(|codecs| codecs.compress(codec, area, &mut out)))
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
