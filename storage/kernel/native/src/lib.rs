//! The native kernel: what `storage/kernel` does in Rust. This file lists what Python finds in it.
//!
//!     cleaning/   a round of a clean: both passes, the offset map
//!     log/        the live log: admission and append, lookups, the scan of recovery
//!     records/    batches and records of every magic, codecs
//!     border      exceptions, and the interpreter lock
//!     memory      all that is unsafe

#![deny(unsafe_code)]

mod border;
mod cleaning;
mod errors;
mod log;
mod memory;
mod records;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<cleaning::python::Round>()?;
    module.add_class::<log::admission::Admission>()?;
    module.add_function(wrap_pyfunction!(log::append::append_batch, module)?)?;
    module.add_function(wrap_pyfunction!(log::areas::compress_area, module)?)?;
    module.add_function(wrap_pyfunction!(log::areas::lz4_frame, module)?)?;
    module.add_function(wrap_pyfunction!(log::areas::plain_area, module)?)?;
    module.add_function(wrap_pyfunction!(log::lookup::find_batch, module)?)?;
    module.add_function(wrap_pyfunction!(log::lookup::floor_entry, module)?)?;
    module.add_function(wrap_pyfunction!(log::lookup::locate_batch, module)?)?;
    module.add_function(wrap_pyfunction!(log::scan::scan_segment, module)?)?;
    module.add_function(wrap_pyfunction!(log::timestamps::find_timestamp, module)?)?;
    module.add_function(wrap_pyfunction!(log::validate::validate_batch, module)?)?;
    Ok(())
}
