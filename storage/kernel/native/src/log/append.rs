//! The usual append in one call: the batch is checked, stamped and written.
//!
//! There is no twin in plain Python: whatever is not done here goes the long way (storage/log_appending.py).

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyOSError};
use pyo3::prelude::*;

use crate::log::admission::Admission;
use crate::log::validate::DETACH_FROM;
use crate::memory::{bytes_of_mut, write_all};

/// The fields of `Admitted`, and whether the batch was written, too.
type Appended = (i64, i64, i64, i16, i32, bool, bool);

/// As `Admission.admit`; and where the batch is of no idempotent producer, or of the one that is `known` with just this id, epoch
/// and first sequence and, as it is, inside or outside of a transaction, has at most `room` bytes, and neither its last offset nor
/// its largest timestamp lies above what the segment takes, it is written to `fd`, at its position. OSError: perhaps in part.
#[pyfunction]
#[pyo3(signature = (admission, batch, next_offset, leader_epoch, now_ms, fd, room, last_fitting, fresh_until, known, in_transaction=false, /))]
pub fn append_batch(
    py: Python<'_>,
    admission: &Bound<'_, Admission>,
    mut batch: PyBuffer<u8>,
    next_offset: i64,
    leader_epoch: i32,
    now_ms: i64,
    fd: i32,
    room: i64,
    last_fitting: i64,
    fresh_until: i64,
    known: Option<(i64, i16, i64)>,
    in_transaction: bool,
) -> PyResult<Option<Appended>> {
    let bytes = bytes_of_mut(&mut batch).ok_or_else(|| {
        PyBufferError::new_err("the batch has to be one piece of writable memory")
    })?;
    let admission = admission.get();
    let stamp = |bytes: &mut [u8]| admission.stamp(bytes, next_offset, leader_epoch, now_ms);
    let admitted = if bytes.len() >= DETACH_FROM {
        py.detach(|| stamp(bytes))
    } else {
        stamp(bytes)
    };
    let Some((last, largest, producer, epoch, sequence, transactional)) = admitted else {
        return Ok(None);
    };
    let follows =
        || transactional == in_transaction && known == Some((producer, epoch, i64::from(sequence)));
    let fits = (producer < 0 || follows())
        && bytes.len() as i64 <= room
        && last <= last_fitting
        && largest <= fresh_until;
    if fits {
        let bytes: &[u8] = bytes;
        py.detach(|| write_all(fd, bytes))
            .map_err(|error| os_error(&error))?;
    }
    Ok(Some((
        last,
        largest,
        producer,
        epoch,
        sequence,
        transactional,
        fits,
    )))
}

/// OSError with its errno and the system's words.
fn os_error(error: &std::io::Error) -> PyErr {
    let (code, text) = (error.raw_os_error().unwrap_or(libc::EIO), error.to_string());
    PyOSError::new_err((
        code,
        text.split(" (os error")
            .next()
            .unwrap_or_default()
            .to_owned(),
    ))
}
