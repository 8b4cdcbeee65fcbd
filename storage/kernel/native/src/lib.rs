//! The native cleaning kernel, as `storage/kernel/native_adapter.py` calls it. This file is the border to Python: it turns
//! arguments into Rust values, releases the interpreter lock while a pass runs, and turns errors into exceptions.

#![deny(unsafe_code)]

mod append;
mod batch;
mod bits;
mod codecs;
mod desk;
mod errors;
mod header;
mod index;
mod legacy;
mod lookup;
mod lz4;
mod map;
mod memory;
mod output;
mod pass_one;
mod pass_two;
mod pool;
mod reader;
mod rebuild;
mod record;
mod round;
mod scan;
mod snappy;
mod stream;
mod transactions;
mod validate;
mod varint;

use std::collections::HashMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use errors::{KernelError, Outcome};
use pass_two::ActiveProducer;
use reader::Source;
use round::Progress;
use transactions::AbortedTransaction;

/// (producer id, first offset, last offset, last stable offset)
type AbortedFields = (i64, i64, i64, i64);
/// (path, base offset, size, next offset, start position, retain legacy tombstones, aborted)
type SourceFields = (PathBuf, i64, u64, i64, u64, bool, Vec<AbortedFields>);
/// (first dirty offset, high watermark, now, delete retention, index interval, map bytes, load factor, Kafka's map size)
type SettingsFields = (i64, i64, i64, i64, i64, u64, f64, bool);
/// The fields of MapResult, in order.
type MapFields = (i64, u64, u64, usize, usize, u64, bool);
/// (log size, offset index, time index, transaction index, unchanged, the fields of CopyStats in order)
type GroupFields<'py> = (
    u64,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    bool,
    Vec<u64>,
);

fn aborted(fields: Vec<AbortedFields>) -> Vec<AbortedTransaction> {
    let entry = |(producer_id, first_offset, last_offset, last_stable_offset)| AbortedTransaction {
        first_offset,
        last_offset,
        producer_id,
        last_stable_offset,
    };
    fields.into_iter().map(entry).collect()
}

fn sources(fields: Vec<SourceFields>) -> Vec<Source> {
    let source = |(
        path,
        base_offset,
        size,
        next_offset,
        start_position,
        retain_legacy_tombstones,
        entries,
    )| Source {
        path,
        base_offset,
        size,
        next_offset,
        start_position,
        retain_legacy_tombstones,
        aborted: aborted(entries),
    };
    fields.into_iter().map(source).collect()
}

/// More would only wait for the one that leads.
const MOST_THREADS: usize = 256;

/// Calls back into Python; without a callback it still lets a signal end the pass.
struct Callback {
    function: Option<Py<PyAny>>,
    raised: Option<PyErr>,
}

impl Progress for Callback {
    fn report(&mut self, read: u64, written: u64) -> Outcome<()> {
        let called = Python::attach(|py| {
            py.check_signals()?;
            match &self.function {
                Some(function) => function.call1(py, (read, written)).map(|_| ()),
                None => Ok(()),
            }
        });
        called.map_err(|error| {
            self.raised = Some(error);
            KernelError::Stopped
        })
    }
}

fn exception(py: Python<'_>, error: KernelError, raised: Option<PyErr>) -> PyErr {
    let built = || -> PyResult<PyErr> {
        let fields = PyDict::new(py);
        let name = match error {
            KernelError::Corrupt {
                path,
                position,
                base_offset,
                last_offset,
                damage,
            } => {
                fields.set_item("path", path)?;
                fields.set_item("position", position)?;
                fields.set_item("base_offset", base_offset)?;
                fields.set_item("last_offset", last_offset)?;
                fields.set_item("reason", damage.reason.as_ref())?;
                fields.set_item("expected_crc", damage.crc.map(|(expected, _)| expected))?;
                fields.set_item("found_crc", damage.crc.map(|(_, found)| found))?;
                "CorruptBatchError"
            }
            KernelError::Io {
                path,
                action,
                reason,
            } => {
                fields.set_item("path", path)?;
                fields.set_item("action", action)?;
                fields.set_item("reason", reason)?;
                "StorageIOError"
            }
            KernelError::Overflow {
                path,
                offset,
                base_offset,
                source,
            } => {
                fields.set_item("path", path)?;
                fields.set_item("offset", offset)?;
                fields.set_item("base_offset", base_offset)?;
                fields.set_item("source", source)?;
                "OffsetOverflowError"
            }
            KernelError::Fault { path, reason } => {
                fields.set_item("path", path)?;
                fields.set_item("reason", reason)?;
                "FaultError"
            }
            KernelError::Stopped => return raised.ok_or_else(|| PyValueError::new_err("stopped")),
        };
        let class = py.import("compactd.config.errors")?.getattr(name)?;
        Ok(PyErr::from_value(class.call((), Some(&fields))?))
    };
    built().unwrap_or_else(|error| error)
}

/// Runs `work` without the interpreter lock. A panic, which would be a fault of this crate, becomes an error like any other.
fn run<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&mut dyn Progress) -> Outcome<T> + Send,
) -> PyResult<T> {
    let mut callback = Callback {
        function: progress,
        raised: None,
    };
    let outcome = py.detach(|| {
        catch_unwind(AssertUnwindSafe(|| work(&mut callback))).unwrap_or_else(|panic| {
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
    });
    outcome.map_err(|error| exception(py, error, callback.raised))
}

/// One round over one partition.
#[pyclass(module = "compactd.storage.kernel._native")]
struct Round {
    state: Option<round::Round>,
}

impl Round {
    fn state(&mut self) -> PyResult<&mut round::Round> {
        self.state
            .as_mut()
            .ok_or_else(|| PyValueError::new_err("the round is closed"))
    }
}

#[pymethods]
impl Round {
    /// `threads`: that work on it, the calling one included; `chunk_bytes`: what one is given at once.
    #[new]
    #[pyo3(signature = (fields, threads = 1, chunk_bytes = 512 << 10))]
    fn new(
        py: Python<'_>,
        fields: SettingsFields,
        threads: usize,
        chunk_bytes: usize,
    ) -> PyResult<Round> {
        let (
            first_dirty_offset,
            high_watermark,
            now_ms,
            delete_retention_ms,
            index_interval_bytes,
            map_memory_bytes,
            map_load_factor,
            kafka_map,
        ) = fields;
        let settings = round::Settings {
            first_dirty_offset,
            high_watermark,
            now_ms,
            delete_retention_ms,
            index_interval_bytes,
            map_memory_bytes,
            map_load_factor,
            kafka_map,
            threads: threads.clamp(1, MOST_THREADS),
            chunk_bytes: chunk_bytes.max(1),
        };
        let state = round::Round::new(settings).map_err(|error| {
            let reason = error.to_string();
            exception(
                py,
                KernelError::Io {
                    path: "offset map".into(),
                    action: "reserving its memory",
                    reason,
                },
                None,
            )
        })?;
        Ok(Round { state: Some(state) })
    }

    fn build_map(
        &mut self,
        py: Python<'_>,
        segments: Vec<SourceFields>,
        transactions: Vec<AbortedFields>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<MapFields> {
        let state = self.state()?;
        let (segments, transactions) = (sources(segments), aborted(transactions));
        run(py, progress, |progress| {
            let result = pass_one::build_map(state, &segments, &transactions, progress)?;
            let map = &state.map;
            Ok((
                result.latest_offset,
                result.messages_read,
                result.bytes_read,
                map.entries(),
                map.capacity(),
                map.stated_slots(),
                result.full,
            ))
        })
    }

    fn clean_group<'py>(
        &mut self,
        py: Python<'py>,
        group: Vec<SourceFields>,
        active: HashMap<i64, (Option<i64>, i16)>,
        output: Option<i32>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<GroupFields<'py>> {
        let state = self.state()?;
        let group = sources(group);
        let producer = |(id, (last_data_offset, producer_epoch))| {
            (
                id,
                ActiveProducer {
                    last_data_offset,
                    producer_epoch,
                },
            )
        };
        let producers = active.into_iter().map(producer).collect();
        let file = output.map(memory::duplicate).transpose()?;
        let result = run(py, progress, |progress| {
            pass_two::clean_group(state, &group, &producers, file, progress)
        })?;
        let stats = result.stats;
        let stats = vec![
            stats.messages_read,
            stats.bytes_read,
            stats.messages_written,
            stats.bytes_written,
            stats.invalid_messages_read,
            stats.superseded,
            stats.aborted,
            stats.tombstones_read,
            stats.tombstones_expired,
            stats.markers_removed,
            stats.batches_read,
            stats.batches_copied,
            stats.batches_rewritten,
            stats.batches_emptied,
        ];
        let bytes = |content: &[u8]| PyBytes::new(py, content);
        let indexes = (
            bytes(&result.offset_index),
            bytes(&result.time_index),
            bytes(&result.transaction_index),
        );
        Ok((
            result.log_size,
            indexes.0,
            indexes.1,
            indexes.2,
            result.unchanged,
            stats,
        ))
    }

    fn verify(
        &mut self,
        py: Python<'_>,
        segments: Vec<SourceFields>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let state = self.state()?;
        let segments = sources(segments);
        run(py, progress, |progress| {
            pass_one::verify(state, &segments, progress)
        })
    }

    fn contains(&mut self, key: &[u8]) -> PyResult<bool> {
        let state = self.state()?;
        Ok(state.map.get(state.hasher.fingerprint(key)).is_some())
    }

    fn close(&mut self) {
        self.state = None;
    }
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(scan::scan_segment, module)?)?;
    module.add_function(wrap_pyfunction!(validate::validate_batch, module)?)?;
    module.add_function(wrap_pyfunction!(validate::lz4_frame, module)?)?;
    module.add_function(wrap_pyfunction!(validate::plain_area, module)?)?;
    module.add_function(wrap_pyfunction!(validate::compress_area, module)?)?;
    module.add_class::<validate::Admission>()?;
    module.add_function(wrap_pyfunction!(append::append_batch, module)?)?;
    module.add_function(wrap_pyfunction!(lookup::floor_entry, module)?)?;
    module.add_function(wrap_pyfunction!(lookup::locate_batch, module)?)?;
    module.add_function(wrap_pyfunction!(lookup::find_batch, module)?)?;
    module.add_class::<Round>()
}
