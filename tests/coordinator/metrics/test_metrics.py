from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from compactd.config.settings import CleanerConfig, DaemonConfig, TopicConfig
from compactd.coordinator.control.messages import (
    CleaningStatus,
    DeleterStatus,
    LogDirStatus,
    LoopStatus,
    PartitionStatus,
    QuarantineStatus,
    Status,
    WorkerStatus,
)
from compactd.coordinator.metrics import http as metrics_http
from compactd.coordinator.metrics.document import metrics_markdown
from compactd.coordinator.metrics.metrics import STALE_SECONDS, Metrics
from compactd.coordinator.metrics.table import BY_NAME, METRICS, PARTITION_METRICS
from compactd.storage.names import TopicPartition
from compactd.workers.cleaning_messages import CleanDone, CleanProgress
from compactd.workers.messages import BrokerCounts, Throttles
from compactd.workers.partition_messages import PartitionState, SegmentState
from tests.coordinator.serving import until
from tests.scripts.daemons import RunningDaemon

NOW = 1_700_000_000_000
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class FakeFrame:
    """What metrics look at."""

    def __init__(self, threads: int = 1, partitions: bool = True) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}
        self.configs: dict[str, TopicConfig] = {}
        self.settings = SimpleNamespace(
            cleaner=CleanerConfig(threads=threads), daemon=DaemonConfig(metrics_partitions=partitions)
        )

    def topic_config(self, topic: str) -> TopicConfig:
        return self.configs.get(topic) or TopicConfig()

    def add(self, name: str, config: TopicConfig, *closed: SegmentState, start: int = 0, end: int = 0) -> None:
        topic, number = name.rsplit("-", 1)
        self.configs[topic] = config
        self.states[TopicPartition(topic, int(number))] = PartitionState(
            topic=topic,
            partition=int(number),
            log_dir="/d1",
            log_start_offset=start,
            log_end_offset=end,
            high_watermark=end,
            last_stable_offset=end,
            recovery_point=0,
            active_base_offset=end,
            active_size=100,
            closed=closed,
        )


def segment(base: int, size: int, first: int = -1) -> SegmentState:
    return SegmentState(base_offset=base, size=size, largest_timestamp=first, first_batch_timestamp=first)


def dirty(name: str, ratio: float, size: int, first_dirty: int = 0) -> PartitionStatus:
    return PartitionStatus(
        name=name,
        log_dir="/d1",
        log_start_offset=0,
        log_end_offset=9,
        size=size,
        segments=1,
        dirty_ratio=ratio,
        dirty_bytes=size,
        first_dirty_offset=first_dirty,
    )


def aside(name: str) -> QuarantineStatus:
    return QuarantineStatus(
        partition=name, since_ms=NOW, retry_at_ms=None, attempts=1, error="CorruptBatchError", reason="damaged"
    )


def worker(kind: str, state: str = "running", **more: Any) -> WorkerStatus:
    return WorkerStatus(name=f"{kind}-0", kind=kind, number=0, state=state, **more)


def status(**changes: Any) -> Status:
    fields: dict[str, Any] = {
        "version": "0.1.0",
        "pid": 1,
        "state": "running",
        "up_seconds": 60.0,
        "now_ms": NOW,
        "cluster_id": "abc",
        "node_id": 1,
        "topics": 2,
        "partitions": 3,
        "offline": {},
        "workers": (worker("broker"), worker("cleaner", restarts=2, silent_seconds=0.5)),
        "log_dirs": (LogDirStatus(path="/d1", partitions=3, free_bytes=30, total_bytes=100),),
        "cleaning": CleaningStatus(),
        "deleter": DeleterStatus(queued=4, queued_bytes=400, removed=5),
        "loop": LoopStatus(turns=1000, slow_turns=1, slowest_ms=150.0, busy_seconds=3.0),
        **changes,
    }
    return Status(**fields)


@pytest.fixture
def frame() -> FakeFrame:
    return FakeFrame()


@pytest.fixture
def metrics(frame: FakeFrame) -> Iterator[Metrics]:
    made = Metrics(frame)  # type: ignore[arg-type]
    yield made
    made.close()


def get(address: str, path: str, accept: str = "*/*") -> tuple[int, Mapping[str, str], bytes]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def shown(metrics: Metrics) -> Samples:
    page = metrics._page("/metrics", "text/plain")
    assert page is not None
    return samples(page.body.decode())


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return shown(metrics)[name, tuple(sorted(labels.items()))]


def health(metrics: Metrics) -> tuple[int, str, list[str]]:
    page = metrics._page("/healthz", "")
    assert page is not None
    answer = json.loads(page.body)
    return page.status, answer["status"], answer["reasons"]


# ---- names


def test_the_reference_page_is_the_tables() -> None:
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text() == metrics_markdown(), "python -m compactd.coordinator.metrics.document > docs/metrics.md"


def test_names_are_kafkas_as_its_exporter_writes_them() -> None:
    kafkas = {metric.kafka: metric.name for metric in METRICS if metric.kafka}
    assert kafkas["kafka.log:type=LogCleanerManager,name=uncleanable-partitions-count"] == (
        "kafka_log_logcleanermanager_uncleanable_partitions_count"
    )
    assert kafkas["kafka.log:type=Log,name=RetentionSizeInPercent"] == "kafka_log_log_retentionsizeinpercent"
    assert len(BY_NAME) == len(METRICS)
    assert all(metric.name.endswith("_total") == (metric.kind == "counter") for metric in METRICS)


def test_everything_in_the_table_is_served_and_nothing_else(frame: FakeFrame, metrics: Metrics) -> None:
    frame.add("users-0", TopicConfig())
    metrics.update(
        status(cleaning=CleaningStatus(partitions=(dirty("users-0", 0.5, 10),), quarantine=(aside("users-0"),)))
    )
    metrics.observe(BrokerCounts(worker=0, listeners={"PLAINTEXT": (0, 0, 0, 0, 0)}))
    found = shown(metrics)
    assert {name for name, _ in found} == set(BY_NAME)
    for name, labels in found:
        assert {label for label, _ in labels} == set(BY_NAME[name].labels)


# ---- values


def test_logs_have_kafkas_values(frame: FakeFrame, metrics: Metrics) -> None:
    frame.add("users-0", TopicConfig(retention_bytes=1000), segment(5, 300), segment(9, 350), start=5, end=12)
    frame.add("users-a-1", TopicConfig(retention_bytes=1000, cleanup_policy=frozenset(("compact",))))
    metrics.update(status())
    of = {"topic": "users", "partition": "0"}
    assert value(metrics, "kafka_log_log_numlogsegments", **of) == 3
    assert value(metrics, "kafka_log_log_logstartoffset", **of) == 5
    assert value(metrics, "kafka_log_log_logendoffset", **of) == 12
    assert value(metrics, "kafka_log_log_size", **of) == 750
    assert value(metrics, "kafka_log_log_retentionsizeinpercent", **of) == 75
    assert value(metrics, "kafka_log_log_retentionsizeinpercent", topic="users-a", partition="1") == 0
    # A state or a setting that is another one is seen.
    frame.add("users-0", TopicConfig(retention_bytes=200), start=7, end=12)
    metrics.update(status())
    assert value(metrics, "kafka_log_log_logstartoffset", **of) == 7
    assert value(metrics, "kafka_log_log_retentionsizeinpercent", **of) == 50
    frame.states.clear()
    metrics.update(status())
    assert not [name for name, _ in shown(metrics) if name.startswith("kafka_log_log_")]


def test_series_of_partitions_can_be_turned_off_while_running(frame: FakeFrame, metrics: Metrics) -> None:
    frame.add("users-0", TopicConfig())
    cleaning = CleaningStatus(partitions=(dirty("users-0", 0.5, 10),), quarantine=(aside("users-0"),))
    metrics.update(status(cleaning=cleaning))
    every = {name for name, _ in shown(metrics)}
    frame.settings.daemon = DaemonConfig(metrics_partitions=False)
    metrics.update(status(cleaning=cleaning))
    assert every - {name for name, _ in shown(metrics)} == {metric.name for metric in PARTITION_METRICS}


def test_what_the_cleaner_manager_says(frame: FakeFrame, metrics: Metrics) -> None:
    cleaning = CleaningStatus(
        partitions=(dirty("users-0", 0.5, 10), dirty("users-1", 0.759, 70), dirty("orders-0", 0.1, 5)),
        quarantine=(aside("users-1"), aside("orders-0"), aside("gone-0")),
        paused=("*",),
        held_by="no space",
    )
    dirs = (
        LogDirStatus(path="/d1", partitions=3, free_bytes=30, total_bytes=100),
        LogDirStatus(path="/d2", partitions=0, free_bytes=0, total_bytes=0, offline_because="EIO", cordoned=True),
    )
    metrics.update(status(cleaning=cleaning, log_dirs=dirs, offline={"x-0": "EIO"}, moves={"y-0": "/d1"}))
    assert value(metrics, "compactd_partitions_moving") == 1
    assert value(metrics, "kafka_log_logcleanermanager_max_dirty_percent") == 75
    assert value(metrics, "kafka_log_logcleanermanager_uncleanable_partitions_count", logDirectory="/d1") == 2
    assert value(metrics, "kafka_log_logcleanermanager_uncleanable_bytes", logDirectory="/d1") == 75
    assert value(metrics, "kafka_log_logcleanermanager_uncleanable_bytes", logDirectory="/d2") == 0
    assert value(metrics, "compactd_quarantined_partitions") == 3
    assert value(metrics, "compactd_partition_quarantined", topic="gone", partition="0") == 1
    assert value(metrics, "compactd_cleaning_paused") == 1
    assert value(metrics, "compactd_cleaning_held") == 1
    assert value(metrics, "kafka_log_logmanager_offlinelogdirectorycount") == 1
    assert value(metrics, "kafka_log_logmanager_cordonedlogdirectorycount") == 1
    assert value(metrics, "kafka_log_logmanager_logdirectoryoffline", logDirectory="/d2") == 1
    assert value(metrics, "kafka_log_logmanager_logdirectorycordoned", logDirectory="/d1") == 0
    assert value(metrics, "kafka_controller_kafkacontroller_offlinepartitionscount") == 1


def test_the_compaction_delay_is_that_of_the_oldest_dirty_closed_segment(frame: FakeFrame, metrics: Metrics) -> None:
    limited = TopicConfig(max_compaction_lag_ms=60_000, cleanup_policy=frozenset(("compact",)))
    # The first segment is clean, the second has no timestamp.
    closed = (segment(0, 1, NOW - 999_000), segment(10, 1), segment(20, 1, NOW - 165_500), segment(30, 1, NOW - 70_000))
    frame.add("users-0", limited, *closed)
    frame.add("free-0", TopicConfig(cleanup_policy=frozenset(("compact",))), segment(0, 1, 5))
    cleaning = CleaningStatus(partitions=(dirty("users-0", 0.5, 1, first_dirty=10), dirty("free-0", 0.5, 1)))
    metrics.update(status(cleaning=cleaning))
    assert value(metrics, "kafka_log_logcleaner_max_compaction_delay_secs") == 105
    frame.add("users-0", limited, segment(10, 1, NOW - 59_000))
    metrics.update(status(cleaning=cleaning))
    assert value(metrics, "kafka_log_logcleaner_max_compaction_delay_secs") == 0


def done(request_id: int, outcome: str = "cleaned", **stats: float) -> CleanDone:
    return CleanDone(request_id=request_id, next_dirty_offset=0, outcome=outcome, stats=stats)


def test_the_last_cleans_are_as_many_as_there_are_cleaners() -> None:
    frame = FakeFrame(threads=2)
    metrics = Metrics(frame)  # type: ignore[arg-type]
    metrics.observe(done(1, bytes_read=10, bytes_written=10, map_entries=90, map_capacity=100))
    metrics.observe(done(2, bytes_read=1000, bytes_written=100, map_entries=20, map_capacity=100))
    metrics.observe(done(3, bytes_read=1000, bytes_written=500, map_entries=45, map_capacity=100))
    metrics.observe(done(4, "aborted", bytes_read=9, bytes_written=9, map_entries=99, map_capacity=100))
    metrics.update(status())
    assert value(metrics, "kafka_log_logcleaner_cleaner_recopy_percent") == 30
    assert value(metrics, "kafka_log_logcleaner_max_buffer_utilization_percent") == 45
    assert value(metrics, "kafka_log_logcleaner_max_clean_time_secs") == 0
    assert value(metrics, "compactd_cleans_total", outcome="cleaned") == 3
    assert value(metrics, "compactd_cleans_total", outcome="aborted") == 1
    assert value(metrics, "compactd_cleans_total", outcome="failed") == 0
    assert value(metrics, "compactd_clean_read_bytes_total") == 2019


def test_io_of_cleaners_counts_each_byte_once(metrics: Metrics) -> None:
    def progress(request_id: int, read: int, written: int) -> CleanProgress:
        return CleanProgress(request_id=request_id, phase="copying", bytes_read=read, bytes_written=written)

    name = "kafka_utils_throttler_cleaner_io_bytes_total"
    metrics.observe(progress(1, 100, 0))
    metrics.observe(progress(2, 10, 10))
    metrics.observe(progress(1, 150, 50))
    assert shown(metrics)[name, ()] == 220
    # Pass one read more than pass two did.
    metrics.observe(done(1, bytes_read=100, bytes_written=50))
    assert shown(metrics)[name, ()] == 220
    metrics.observe(done(2, bytes_read=40, bytes_written=20))
    assert shown(metrics)[name, ()] == 260
    # Cleans that never end, as their cleaners died, are forgotten in time.
    for number in range(10, 3000):
        metrics.observe(progress(number, 1, 0))
    assert len(metrics._running) <= 1024


def test_what_brokers_count_of_their_clients_adds_up(metrics: Metrics) -> None:
    metrics.observe(BrokerCounts(worker=0, listeners={"SASL": (7, 5, 2, 1, 0)}, open_transactions=3, committed=4))
    metrics.observe(BrokerCounts(worker=1, listeners={"SASL": (1, 1, 0, 0, 0)}, open_transactions=2, aborted=1))
    metrics.observe(
        BrokerCounts(worker=0, listeners={"SASL": (6, 1, 1, 0, 1)}, committed=1, aborted=2, timed_out=1)
    )  # fmt: skip
    found = shown(metrics)
    server, of_first = "kafka_server_socket_server_metrics", (("listener", "SASL"), ("networkProcessor", "0"))
    assert found[f"{server}_connection_count", of_first] == 6
    assert found[f"{server}_successful_authentication_total", of_first] == 6
    assert found[f"{server}_failed_authentication_total", of_first] == 3
    assert found[f"{server}_successful_reauthentication_total", of_first] == 1
    assert found[f"{server}_failed_reauthentication_total", of_first] == 1
    assert value(metrics, f"{server}_connection_count", listener="SASL", networkProcessor="1") == 1
    assert value(metrics, "compactd_transactions_open") == 2
    assert value(metrics, "compactd_transactions_committed_total") == 5
    assert value(metrics, "compactd_transactions_aborted_total") == 3
    assert value(metrics, "compactd_transactions_timed_out_total") == 1


def test_what_quotas_and_the_authorizer_said_adds_up(metrics: Metrics) -> None:
    for quota in Throttles:
        assert value(metrics, "compactd_throttles_total", quota=str(quota)) == 0
    throttles = {"produce": (2, 1500), "request": (1, 20)}
    metrics.observe(BrokerCounts(worker=0, throttles=throttles, allowed=5, denied=2, acls=3))
    metrics.observe(BrokerCounts(worker=1, throttles={"produce": (1, 500)}, allowed=1, acls=4))
    for quota, count, seconds in (("produce", 3, 2.0), ("request", 1, 0.02), ("fetch", 0, 0)):
        assert value(metrics, "compactd_throttles_total", quota=quota) == count
        assert value(metrics, "compactd_throttle_seconds_total", quota=quota) == seconds
    assert value(metrics, "compactd_authorizations_total", result="allowed") == 6
    assert value(metrics, "compactd_authorizations_total", result="denied") == 2
    assert value(metrics, "kafka_server_plugins_acls_total_count") == 4


def test_dead_cleaners_are_those_that_were_given_up(metrics: Metrics) -> None:
    metrics.update(status(workers=(worker("cleaner", "given up"), worker("broker", "waiting"))))
    assert value(metrics, "kafka_log_logcleaner_deadthreadcount") == 1
    assert value(metrics, "compactd_worker_up", kind="cleaner", number="0") == 0


# ---- health


def test_health_tells_serving_from_serving_less_from_not_serving(metrics: Metrics) -> None:
    assert health(metrics) == (503, "failing", ["nothing is known yet"])
    metrics.update(status())
    assert health(metrics) == (200, "ok", [])
    trouble = status(
        offline={"a-0": "why"},
        workers=(worker("broker"), worker("cleaner", "given up", last_exit="it cannot start")),
        log_dirs=(LogDirStatus(path="/d2", partitions=0, free_bytes=0, total_bytes=0, offline_because="EIO"),),
        cleaning=CleaningStatus(quarantine=(aside("a-1"),)),
    )
    metrics.update(trouble)
    assert health(metrics) == (
        200,
        "degraded",
        [
            "cleaner-0 is given up: it cannot start",
            "log dir /d2 is offline: EIO",
            "1 partitions are not served",
            "1 partitions are in quarantine",
        ],
    )
    metrics.update(status(workers=(worker("broker", "starting"),)))
    assert health(metrics) == (503, "failing", ["broker-0 is starting"])
    metrics.update(status(state="stopping"))
    assert health(metrics) == (503, "failing", ["compactd is stopping"])


def test_a_loop_that_stands_still_is_not_healthy(metrics: Metrics) -> None:
    metrics.update(status())
    metrics._updated -= STALE_SECONDS + 5
    code, word, reasons = health(metrics)
    assert (code, word) == (503, "failing")
    assert reasons[0].startswith("the coordinator's loop has stood still for 35 s")


# ---- the web server


def test_pages_and_their_types(metrics: Metrics) -> None:
    address = metrics.start("127.0.0.1", 0)
    metrics.update(status())
    code, headers, body = get(address, "/metrics")
    assert code == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert b"\ncompactd_uptime_seconds 60.0\n" in body
    _, headers, body = get(address, "/metrics?x=1", "application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    code, headers, body = get(address, "/healthz")
    assert (code, headers["Content-Type"], json.loads(body)["status"]) == (200, "application/json", "ok")
    assert get(address, "/")[0] == 404
    with urlopen(Request(f"http://{address}/metrics", method="HEAD")) as answer:
        assert (answer.status, answer.read()) == (200, b"")


def test_names_of_anything_are_escaped(frame: FakeFrame, metrics: Metrics) -> None:
    path = '/a "quoted"\\dir\nline'
    metrics.update(status(log_dirs=(LogDirStatus(path=path, partitions=1, free_bytes=1, total_bytes=2),)))
    assert value(metrics, "compactd_log_dir_free_bytes", logDirectory=path) == 1


def test_odd_clients_do_not_keep_others_from_their_answer(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "MAX_REQUESTS", 2)
    address = metrics.start("127.0.0.1", 0)
    metrics.update(status())
    host, port = address.rsplit(":", 1)
    for junk in (
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\n\r\n",
        b"G" * 70_000 + b"\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=30) as odd:
            odd.sendall(junk)
            odd.shutdown(socket.SHUT_WR)
            while odd.recv(65536):
                pass
    # Two that say nothing hold both places, and a third is closed at once; when one goes, there is room again.
    silent = [socket.create_connection((host, int(port)), timeout=30) for _ in range(2)]
    try:
        with pytest.raises(ConnectionError):
            get(address, "/healthz")
        silent.pop().close()
        assert until(lambda: _answers(address), "an answer")
    finally:
        for each in silent:
            each.close()


def _answers(address: str) -> bool:
    try:
        return get(address, "/healthz")[0] == 200
    except ConnectionError:
        return False


def test_an_address_that_is_taken_is_an_error(metrics: Metrics) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        metrics.start("127.0.0.1", taken.getsockname()[1])


# ---- in a daemon


def test_a_daemon_serves_them(tmp_path: Path) -> None:
    with RunningDaemon(tmp_path, metrics_listener="127.0.0.1:0") as daemon:
        address = daemon.status().metrics
        create = ["topics", "create", "users", "--run-dir", str(daemon.run_dir)]
        subprocess.run([sys.executable, "-m", "compactd.scripts", *create], check=True, stdout=subprocess.DEVNULL)
        found = samples(get(address, "/metrics")[2].decode())
        assert found["compactd_worker_up", (("kind", "broker"), ("number", "0"))] == 1
        assert {name for name, _ in found} <= set(BY_NAME)
        code, _, body = get(address, "/healthz")
        assert (code, json.loads(body)) == (200, {"status": "ok", "reasons": []})
