"""Metrics of the daemon: fills `interfaces.MetricsPart`. What is shown is in `metrics.table`, how in `metrics.http`.

Every few seconds the loop's thread hands over what the daemon is like; it is worked out when somebody asks, in threads of
the web server, which read nothing else of the daemon. Counters of what cleaners tell are prometheus_client's own, which lock.
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

from compactd.coordinator.control.messages import Status
from compactd.coordinator.interfaces import Frame
from compactd.coordinator.metrics.clients import ClientMetrics
from compactd.coordinator.metrics.http import Page, WebServer
from compactd.coordinator.metrics.series import Moment, PastClean, series_of
from compactd.coordinator.metrics.table import BY_NAME, COUNTER
from compactd.workers.cleaning_messages import CleanDone, CleanProgress
from compactd.workers.message import Message
from compactd.workers.messages import BrokerCounts

#: /healthz fails when the loop told nothing for this long; it tells something every five seconds.
STALE_SECONDS = 30.0

_OUTCOMES = ("cleaned", "aborted", "faulty", "refused", "failed")
#: Counters of metrics.table that CleanDone's stats feed.
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
        self._moment: Moment | None = None
        self._updated = time.monotonic()
        self._running: dict[int, _RunningClean] = {}
        self._past: deque[PastClean] = deque(maxlen=1024)
        # A second series for each counter, with the time of its birth: that is the coordinator's, for all of them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._counters = {name: self._counter(name) for name in (*_FROM_STATS, _CLEANER_IO)}
        self._clients = ClientMetrics(self._registry)
        self._cleans = self._counter("compactd_cleans_total")
        for outcome in _OUTCOMES:
            self._cleans.labels(outcome)
        self._registry.register(_Shown(self))

    # ---- MetricsPart

    def start(self, host: str, port: int) -> str:
        self._server = WebServer(host, port, self._page)
        return self._server.address

    def update(self, status: Status) -> None:
        frame = self._frame
        threads = max(1, frame.settings.cleaner.threads)
        self._moment = Moment(
            status,
            list(frame.states.items()),
            {topic: frame.topic_config(topic) for topic in {name.topic for name in frame.states}},
            list(self._past)[-threads:],
            frame.settings.daemon.metrics_partitions,
        )
        self._updated = time.monotonic()

    def observe(self, message: Message) -> None:
        if isinstance(message, CleanProgress):
            self._moved(message.request_id, message.bytes_read + message.bytes_written)
        elif isinstance(message, CleanDone):
            self._cleaned(message)
        elif isinstance(message, BrokerCounts):
            self._clients.counted(message)

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
            self._past.append(PastClean(read, written, use, time.monotonic() - clean.begun))

    # ---- in the web server's threads

    def _page(self, path: str, accept: str) -> Page | None:
        if path == "/metrics":
            encoder, content_type = choose_encoder(accept)
            return Page(200, content_type, encoder(self._registry))
        if path == "/healthz":
            return self._health()
        return None

    def _health(self) -> Page:
        failing, degraded = _health_of(
            None if self._moment is None else self._moment.status, time.monotonic() - self._updated
        )
        status = "failing" if failing else "degraded" if degraded else "ok"
        body = msgspec.json.encode({"status": status, "reasons": [*failing, *degraded]})
        return Page(503 if failing else 200, "application/json", body + b"\n")

    def families(self) -> Iterator[Family]:
        """What was handed over last, as prometheus_client takes it."""
        moment = self._moment
        for name, series in () if moment is None else series_of(moment).items():
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
