//! The class `Round` as `storage/kernel/native_adapter.py` calls it: arguments become Rust values, results tuples.

use std::collections::HashMap;
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::border;
use crate::cleaning::planning::ActiveProducer;
use crate::cleaning::progress::Progress;
use crate::cleaning::reader::Source;
use crate::cleaning::settings::Settings;
use crate::cleaning::transactions::AbortedTransaction;
use crate::cleaning::{pass_one, pass_two, round};
use crate::errors::{KernelError, Outcome};
use crate::memory;

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

/// Runs a pass without the interpreter lock, which its reports take back.
fn run<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    pass: impl FnOnce(&mut dyn Progress) -> Outcome<T> + Send,
) -> PyResult<T> {
    let mut callback = Callback {
        function: progress,
        raised: None,
    };
    let outcome = border::detached(py, || pass(&mut callback));
    outcome.map_err(|error| border::exception(py, error, callback.raised))
}

/// One round over one partition.
#[pyclass(module = "compactd.storage.kernel._native")]
pub struct Round {
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
        let settings = Settings {
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
            border::exception(
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
        let bytes = |content: &[u8]| PyBytes::new(py, content);
        Ok((
            result.log_size,
            bytes(&result.offset_index),
            bytes(&result.time_index),
            bytes(&result.transaction_index),
            result.unchanged,
            result.stats.in_order(),
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
