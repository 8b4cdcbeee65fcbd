"""The load that `compactd bench serve --load` puts on brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactd.scripts.bench import serve_load
from compactd.scripts.bench.load_client import (
    Driver,
    LoadError,
    check_produced,
    fetch_request,
    metadata_request,
    produce_request,
)
from tests.workers.broker.harness import InProcessBroker


@pytest.fixture
def broker(fast_dir: Path) -> Iterator[InProcessBroker]:
    path = fast_dir / "log"
    path.mkdir()
    with InProcessBroker([path]) as running:
        running.create("big", 4, retention_bytes=536870912)
        running.create("small", 8)
        yield running


def test_every_connection_sends_and_every_answer_is_counted(broker: InProcessBroker) -> None:
    _, small = serve_load.batches()
    frames = [produce_request("small", number, small) for number in range(8)]
    with Driver(broker.bootstrap, 5) as driver:
        load = driver.run(frames, requests=203, window=3, check=check_produced)
        assert load.requests == len(load.latencies) == 203
        assert load.sent_bytes == 203 * len(frames[0])
        assert 0 < load.latency(0.5) <= load.latency(0.99) <= load.seconds
        # Of a partition everything comes back.
        partition = broker.partition("small", 1)
        fetched = driver.run([fetch_request("small", [1], 0, 50 << 20, 50 << 20)], requests=1)
        assert fetched.received_bytes > partition.log.size > 0
        assert driver.run([metadata_request("small")], requests=17).requests == 17


def test_large_batches_go_through_whole(broker: InProcessBroker) -> None:
    big, _ = serve_load.batches()
    with Driver(broker.bootstrap, 2) as driver:
        driver.run([produce_request("big", 0, big)], requests=20, window=5, check=check_produced)
    assert broker.partition("big").log.size == 20 * len(big)


def test_a_refusal_and_a_broker_that_goes_are_noticed(broker: InProcessBroker) -> None:
    _, small = serve_load.batches()
    with Driver(broker.bootstrap, 1) as driver, pytest.raises(LoadError, match="error 3"):
        driver.run([produce_request("small", 99, small)], requests=1, check=check_produced)
    with Driver(broker.bootstrap, 1) as driver, pytest.raises(LoadError, match="closed"):
        driver.run([b"\xff\xff\xff\xff"], requests=1)


def test_all_loads_run(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_load, "GOAL_CONNECTIONS", 20)
    monkeypatch.setattr(serve_load, "_LAZY", 2)
    loads = serve_load.run(broker.bootstrap, 0.05, lambda: 0.0, lambda: 0, warm=False)
    assert len(loads.measured) == 9
    assert all(each.requests_per_second > 0 and each.bytes_per_second > 0 for each in loads.measured)
    assert loads.connect_seconds > 0
