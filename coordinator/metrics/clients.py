"""Metrics that brokers' counts feed: connections, logins, transactions, quotas and the authorizer."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from compactd.coordinator.metrics.table import BY_NAME
from compactd.workers.messages import BrokerCounts, Throttles

_SERVER = "kafka_server_socket_server_metrics_"
#: In the order of BrokerCounts.listeners.
_LOGINS = (
    "successful_authentication_total",
    "failed_authentication_total",
    "successful_reauthentication_total",
    "failed_reauthentication_total",
)
_ENDED = ("committed", "aborted", "timed_out")


class ClientMetrics:
    """Counters and gauges of prometheus_client's own, which lock. `counted` is called on the loop's thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._connections = _gauge(f"{_SERVER}connection_count", registry)
        self._logins = [_counter(f"{_SERVER}{name}", registry) for name in _LOGINS]
        self._open = _gauge("compactd_transactions_open", registry)
        self._ended = {name: _counter(f"compactd_transactions_{name}_total", registry) for name in _ENDED}
        self._open_by_worker: dict[int, int] = {}
        self._acls = _gauge("kafka_server_plugins_acls_total_count", registry)
        authorizations = _counter("compactd_authorizations_total", registry)
        self._allowed, self._denied = (authorizations.labels(result) for result in ("allowed", "denied"))
        throttles, seconds = (
            _counter(f"compactd_{name}_total", registry) for name in ("throttles", "throttle_seconds")
        )
        #: Those that nobody met yet are shown as well.
        self._throttles = {str(quota): (throttles.labels(quota), seconds.labels(quota)) for quota in Throttles}

    def counted(self, counts: BrokerCounts) -> None:
        """What a broker counted since it told the last time."""
        worker = str(counts.worker)
        for listener, (connections, *logins) in counts.listeners.items():
            self._connections.labels(listener, worker).set(connections)
            for counter, count in zip(self._logins, logins, strict=True):
                counter.labels(listener, worker).inc(count)
        self._open_by_worker[counts.worker] = counts.open_transactions
        self._open.set(sum(self._open_by_worker.values()))
        for name, counter in self._ended.items():
            counter.inc(getattr(counts, name))
        self._acls.set(counts.acls)
        self._allowed.inc(counts.allowed)
        self._denied.inc(counts.denied)
        for quota, (count, milliseconds) in counts.throttles.items():
            throttles, seconds = self._throttles[quota]
            throttles.inc(count)
            seconds.inc(milliseconds / 1000)


def _gauge(name: str, registry: CollectorRegistry) -> Gauge:
    metric = BY_NAME[name]
    return Gauge(name, metric.meaning, metric.labels, registry=registry)


def _counter(name: str, registry: CollectorRegistry) -> Counter:
    metric = BY_NAME[name]
    return Counter(name.removesuffix("_total"), metric.meaning, metric.labels, registry=registry)
