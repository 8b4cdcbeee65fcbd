"""Metrics of the daemon: fills `interfaces.MetricsPart`. What is shown is in `metrics_table`, how in `metrics_http`.

The loop's thread puts what is to be shown together every few seconds and hands it over whole; threads of the web server
only ever read such a whole. Counters of what cleaners tell are prometheus_client's own, which lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
from prometheus_client import CollectorRegistry, Counter, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from compactd.config.setting import LONG_MAX
from compactd.config.settings import TopicConfig
from compactd.coordinator.control_messages import PartitionStatus, Status
from compactd.coordinator.interfaces import Frame
from compactd.coordinator.metrics_http import Page, WebServer
from compactd.coordinator.metrics_table import BY_NAME, COUNTER
from compactd.storage.names import TopicPartition
from compactd.workers.messages import CleanDone, CleanProgress, Message, PartitionState

#: /healthz fails when the loop told nothing for this long; it tells something every five seconds.
STALE_SECONDS = 30.0

_OUTCOMES = ("cleaned", "aborted", "faulty", "refused", "failed")
#: Counters of metrics_table that CleanDone's stats feed.
_FROM_STATS = {
    "compactd_clean_read_bytes_total": "bytes_read",
    "compactd_clean_written_bytes_total": "bytes_written",
    "compactd_clean_read_records_total": "messages_read",
    "compactd_clean_written_records_total": "messages_written",
    "compactd_clean_superseded_records_total": "superseded",
    "compactd_clean_removed_tombstones_total": "tombstones_expired",
}
_MOST_RUNNING = 1024
_CLEANER_IO = "kafka_utils_throttler_cleaner_io_bytes_total"

#: Label values and the value, for each series of a metric.
Series = list[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class _PastClean:
    """A clean that ended."""

    bytes_read: float
    bytes_written: float
    map_use: float
    seconds: float


@dataclass(slots=True)
class _RunningClean:
    """What was counted of a clean so far."""

    begun: float
    moved: int = 0


class Metrics:
    """See the module. `start` may raise OSError."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._server: WebServer | None = None
        self._shown: dict[str, Series] = {}
        self._status: Status | None = None
        self._updated = time.monotonic()
        self._running: dict[int, _RunningClean] = {}
        self._past: deque[_PastClean] = deque(maxlen=1024)
        #: What a partition's state came to, kept until it is another one.
        self._logs: dict[TopicPartition, tuple[PartitionState, TopicConfig, tuple[int, int, int, int, int]]] = {}
        # A second series for each counter, with the time of its birth: that is the coordinator's, for all of them.
        disable_created_metrics()
        self._registry = CollectorRegistry()
        self._counters = {name: self._counter(name) for name in (*_FROM_STATS, _CLEANER_IO)}
        self._cleans = self._counter("compactd_cleans_total")
        for outcome in _OUTCOMES:
            self._cleans.labels(outcome)
        self._registry.register(_Shown(self))

    # ---- MetricsPart

    def start(self, host: str, port: int) -> str:
        self._server = WebServer(host, port, self._page)
        return self._server.address

    def update(self, status: Status) -> None:
        shown: dict[str, Series] = {}
        _of_node(status, shown)
        _of_log_dirs(status, shown)
        self._of_cleaning(status, shown)
        if self._frame.settings.daemon.metrics_partitions:
            self._of_partitions(status, shown)
        else:
            self._logs.clear()
        self._shown, self._status, self._updated = shown, status, time.monotonic()

    def observe(self, message: Message) -> None:
        if isinstance(message, CleanProgress):
            self._moved(message.request_id, message.bytes_read + message.bytes_written)
        elif isinstance(message, CleanDone):
            self._cleaned(message)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    # ---- on the loop's thread

    def _counter(self, name: str) -> Counter:
        metric = BY_NAME[name]
        return Counter(name.removesuffix("_total"), metric.meaning, metric.labels, registry=self._registry)

    def _moved(self, request_id: int, total: int) -> None:
        clean = self._running.get(request_id)
        if clean is None:
            # Cleans whose cleaner died never end.
            while len(self._running) >= _MOST_RUNNING:
                del self._running[next(iter(self._running))]
            clean = self._running[request_id] = _RunningClean(time.monotonic())
        if total > clean.moved:
            self._counters[_CLEANER_IO].inc(total - clean.moved)
            clean.moved = total

    def _cleaned(self, done: CleanDone) -> None:
        stats = done.stats
        read, written = stats.get("bytes_read", 0.0), stats.get("bytes_written", 0.0)
        self._moved(done.request_id, int(read + written))
        clean = self._running.pop(done.request_id)
        self._cleans.labels(done.outcome).inc()
        for name, field in _FROM_STATS.items():
            self._counters[name].inc(max(stats.get(field, 0.0), 0.0))
        capacity = stats.get("map_capacity", 0.0)
        if done.outcome == "cleaned":
            use = stats.get("map_entries", 0.0) / capacity if capacity else 0.0
            self._past.append(_PastClean(read, written, use, time.monotonic() - clean.begun))

    def _of_cleaning(self, status: Status, shown: dict[str, Series]) -> None:
        cleaning = status.cleaning
        last = list(self._past)[-max(1, self._frame.settings.cleaner.threads) :]
        read = max(sum(clean.bytes_read for clean in last), 1)
        written = sum(clean.bytes_written for clean in last)
        ratios = [each.dirty_ratio for each in cleaning.partitions if each.dirty_ratio is not None]
        dead = sum(worker.kind == "cleaner" and worker.state == "given up" for worker in status.workers)
        values = {
            "kafka_log_logcleaner_max_buffer_utilization_percent": int(
                100 * max((clean.map_use for clean in last), default=0)
            ),
            "kafka_log_logcleaner_cleaner_recopy_percent": int(100 * written / read),
            "kafka_log_logcleaner_max_clean_time_secs": int(max((clean.seconds for clean in last), default=0)),
            "kafka_log_logcleaner_max_compaction_delay_secs": self._compaction_delay_ms(status) // 1000,
            "kafka_log_logcleaner_deadthreadcount": dead,
            "kafka_log_logcleanermanager_max_dirty_percent": int(100 * max(ratios, default=0)),
            "compactd_cleans_running": len(cleaning.jobs),
            "compactd_cleaning_paused": len(cleaning.paused),
            "compactd_cleaning_held": int(bool(cleaning.held_by)),
            "compactd_quarantined_partitions": len(cleaning.quarantine),
        }
        shown.update({name: [((), value)] for name, value in values.items()})
        known = {each.name: each for each in cleaning.partitions}
        aside = [known.get(each.partition) for each in cleaning.quarantine]
        for name, count in (
            ("kafka_log_logcleanermanager_uncleanable_partitions_count", lambda _: 1),
            ("kafka_log_logcleanermanager_uncleanable_bytes", lambda each: each.dirty_bytes),
        ):
            sums = dict.fromkeys((each.path for each in status.log_dirs), 0)
            for each in aside:
                if each is not None and each.log_dir in sums:
                    sums[each.log_dir] += count(each)
            shown[name] = [((path,), value) for path, value in sums.items()]

    def _compaction_delay_ms(self, status: Status) -> int:
        """As LogCleaner's maxCompactionDelay: of closed, dirty segments the earliest first batch, past the topic's limit."""
        worst = 0
        for each in status.cleaning.partitions:
            name = _name(each)
            state, config = self._frame.states.get(name), self._frame.topic_config(name.topic)
            if state is None or config.max_compaction_lag_ms == LONG_MAX:
                continue
            dirty = [s.first_batch_timestamp for s in state.closed if s.base_offset >= each.first_dirty_offset]
            earliest = min((timestamp for timestamp in dirty if timestamp > 0), default=status.now_ms)
            worst = max(worst, status.now_ms - earliest - config.max_compaction_lag_ms)
        return worst

    def _of_partitions(self, status: Status, shown: dict[str, Series]) -> None:
        logs: dict[TopicPartition, tuple[PartitionState, TopicConfig, tuple[int, int, int, int, int]]] = {}
        columns: tuple[Series, ...] = ([], [], [], [], [])
        for name, state in self._frame.states.items():
            config = self._frame.topic_config(name.topic)
            found = self._logs.get(name)
            if found is None or found[0] is not state or found[1] is not config:
                found = (state, config, _log_values(state, config))
            logs[name] = found
            labels = (name.topic, str(name.partition))
            for column, value in zip(columns, found[2], strict=True):
                column.append((labels, value))
        self._logs = logs
        for metric, column in zip(
            ("numlogsegments", "logstartoffset", "logendoffset", "size", "retentionsizeinpercent"), columns, strict=True
        ):
            shown[f"kafka_log_log_{metric}"] = column
        ratios: Series = []
        sizes: Series = []
        for each in status.cleaning.partitions:
            if each.dirty_ratio is not None:
                labels = _labels(_name(each))
                ratios.append((labels, each.dirty_ratio))
                sizes.append((labels, each.dirty_bytes))
        shown["compactd_partition_dirty_ratio"], shown["compactd_partition_dirty_bytes"] = ratios, sizes
        shown["compactd_partition_quarantined"] = [
            (tuple(each.partition.rsplit("-", 1)), 1) for each in status.cleaning.quarantine
        ]

    # ---- in the web server's threads

    def _page(self, path: str, accept: str) -> Page | None:
        if path == "/metrics":
            encoder, content_type = choose_encoder(accept)
            return Page(200, content_type, encoder(self._registry))
        if path == "/healthz":
            return self._health()
        return None

    def _health(self) -> Page:
        failing, degraded = _health_of(self._status, time.monotonic() - self._updated)
        status = "failing" if failing else "degraded" if degraded else "ok"
        body = msgspec.json.encode({"status": status, "reasons": [*failing, *degraded]})
        return Page(503 if failing else 200, "application/json", body + b"\n")

    def families(self) -> Iterator[Family]:
        """What was handed over last, as prometheus_client takes it."""
        shown = self._shown
        for name, series in shown.items():
            metric = BY_NAME[name]
            kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
            family = kind(name.removesuffix("_total"), metric.meaning, labels=metric.labels)
            for labels, value in series:
                family.add_metric(labels, value)
            yield family


class _Shown(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Family]:
        return self._metrics.families()

    def describe(self) -> Iterable[Family]:
        """Nothing yet: the names are the table's, and checked there."""
        return ()


def _of_node(status: Status, shown: dict[str, Series]) -> None:
    loop, deleter, offline = status.loop, status.deleter, len(status.offline)
    values: dict[str, float] = {
        "kafka_server_replicamanager_partitioncount": status.partitions,
        "kafka_server_replicamanager_offlinereplicacount": offline,
        "kafka_controller_kafkacontroller_globaltopiccount": status.topics,
        "kafka_controller_kafkacontroller_globalpartitioncount": status.partitions,
        "kafka_controller_kafkacontroller_offlinepartitionscount": offline,
        "compactd_uptime_seconds": status.up_seconds,
        "compactd_deleter_queue_files": deleter.queued,
        "compactd_deleter_queue_bytes": deleter.queued_bytes,
        "compactd_deleter_removed_total": deleter.removed,
        "compactd_loop_turns_total": loop.turns,
        "compactd_loop_slow_turns_total": loop.slow_turns,
        "compactd_loop_busy_seconds_total": loop.busy_seconds,
        "compactd_loop_slowest_seconds": loop.slowest_ms / 1000,
    }
    shown.update({name: [((), value)] for name, value in values.items()})
    shown["compactd_info"] = [((status.version, status.state, status.cluster_id), 1)]
    workers = [((each.kind, str(each.number)), each) for each in status.workers]
    shown["compactd_worker_up"] = [(labels, int(each.state == "running")) for labels, each in workers]
    shown["compactd_worker_restarts_total"] = [(labels, each.restarts) for labels, each in workers]
    shown["compactd_worker_silent_seconds"] = [(labels, each.silent_seconds) for labels, each in workers]


def _of_log_dirs(status: Status, shown: dict[str, Series]) -> None:
    dirs = [((each.path,), each) for each in status.log_dirs]
    failed = [(labels, int(bool(each.offline_because))) for labels, each in dirs]
    cordoned = [(labels, int(each.cordoned)) for labels, each in dirs]
    shown["kafka_log_logmanager_logdirectoryoffline"] = list(failed)
    shown["kafka_log_logmanager_logdirectorycordoned"] = list(cordoned)
    shown["kafka_log_logmanager_offlinelogdirectorycount"] = [((), sum(value for _, value in failed))]
    shown["kafka_log_logmanager_cordonedlogdirectorycount"] = [((), sum(value for _, value in cordoned))]
    shown["compactd_log_dir_free_bytes"] = [(labels, each.free_bytes) for labels, each in dirs]
    shown["compactd_log_dir_total_bytes"] = [(labels, each.total_bytes) for labels, each in dirs]
    shown["compactd_log_dir_partitions"] = [(labels, each.partitions) for labels, each in dirs]


def _log_values(state: PartitionState, config: TopicConfig) -> tuple[int, int, int, int, int]:
    """Segments, start, end, size, retention size in percent."""
    size = state.active_size + sum(segment.size for segment in state.closed)
    limit = config.retention_bytes if config.delete else -1
    share = 100 * size // limit if limit > 0 else 0
    return len(state.closed) + 1, state.log_start_offset, state.log_end_offset, size, share


def _health_of(status: Status | None, age_seconds: float) -> tuple[list[str], list[str]]:
    """Why it does not serve; why it serves less than all of what it should."""
    if status is None:
        return ["nothing is known yet"], []
    failing: list[str] = []
    degraded: list[str] = []
    if status.state != "running":
        failing.append(f"compactd is {status.state}")
    if age_seconds > STALE_SECONDS:
        failing.append(f"the coordinator's loop has stood still for {age_seconds:.0f} s")
    for worker in status.workers:
        if worker.state == "running":
            continue
        reason = f"{worker.name} is {worker.state}" + (f": {worker.last_exit}" if worker.last_exit else "")
        (failing if worker.kind == "broker" else degraded).append(reason)
    degraded += [
        f"log dir {each.path} is offline: {each.offline_because}" for each in status.log_dirs if each.offline_because
    ]
    if status.offline:
        degraded.append(f"{len(status.offline)} partitions are not served")
    if status.cleaning.quarantine:
        degraded.append(f"{len(status.cleaning.quarantine)} partitions are in quarantine")
    return failing, degraded


def _name(partition: PartitionStatus) -> TopicPartition:
    topic, _, number = partition.name.rpartition("-")
    return TopicPartition(topic, int(number))


def _labels(name: TopicPartition) -> tuple[str, str]:
    return name.topic, str(name.partition)
