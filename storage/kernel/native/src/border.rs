//! The border to Python: work without the interpreter lock, and what went wrong as an exception of compactd.config.errors.

use std::panic::{catch_unwind, AssertUnwindSafe};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{KernelError, Outcome};

/// Runs `work` without the interpreter lock. A panic, which would be a fault of this crate, becomes an error like any other.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    py.detach(|| {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<&str>()
                .map(ToString::to_string)
                .or_else(|| panic.downcast_ref::<String>().cloned());
            let reason = format!("the native kernel failed ({})", text.unwrap_or_default());
            Err(KernelError::Fault {
                path: "cleaning".into(),
                reason,
            })
        })
    })
}

/// `raised`: what a callback raised, which is why the work was stopped.
pub fn exception(py: Python<'_>, error: KernelError, raised: Option<PyErr>) -> PyErr {
    if let (KernelError::Stopped, Some(raised)) = (&error, raised) {
        return raised;
    }
    built(py, error).unwrap_or_else(|error| error)
}

fn built(py: Python<'_>, error: KernelError) -> PyResult<PyErr> {
    let fields = PyDict::new(py);
    macro_rules! of {
        ($class:literal, $($name:ident: $value:expr),*) => {{
            $(fields.set_item(stringify!($name), $value)?;)*
            $class
        }};
    }
    let class = match error {
        KernelError::Corrupt {
            path,
            position,
            base_offset,
            last_offset,
            damage,
        } => of!("CorruptBatchError", path: path, position: position, base_offset: base_offset,
            last_offset: last_offset, reason: damage.reason.as_ref(),
            expected_crc: damage.crc.map(|(expected, _)| expected), found_crc: damage.crc.map(|(_, found)| found)),
        KernelError::Io {
            path,
            action,
            reason,
        } => of!("StorageIOError", path: path, action: action, reason: reason),
        KernelError::Overflow {
            path,
            offset,
            base_offset,
            source,
        } => {
            of!("OffsetOverflowError", path: path, offset: offset, base_offset: base_offset, source: source)
        }
        KernelError::Fault { path, reason } => of!("FaultError", path: path, reason: reason),
        KernelError::Stopped => return Ok(PyValueError::new_err("stopped")),
    };
    let class = py.import("compactd.config.errors")?.getattr(class)?;
    Ok(PyErr::from_value(class.call((), Some(&fields))?))
}
