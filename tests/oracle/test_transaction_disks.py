"""Transactions on the same disks: what Kafka leaves open is ended here, what is decided here is finished by Kafka, and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactd.workers.broker.transactions.markers import MarkerWriter
from tests.oracle.broker import Broker
from tests.oracle.driver import Oracle, decode, encode
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.transactional import RawProducer, committed, described, group_offset, ready, settled

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

_SECONDS = 60.0
_SETTINGS = {
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.min.isr": 1,
    "offsets.topic.num.partitions": 2,
}


def client_of(bootstrap: str) -> RawClient:
    return RawClient(int(bootstrap.rpartition(":")[2]))


def adopted(client: RawClient, name: str, newer: bool) -> RawProducer:
    """The producer that somebody else began with: it has what DescribeTransactions tells."""
    found = settled(client, name)
    assert not found.error_code
    return RawProducer(client, name, newer, found.producer_id, found.producer_epoch)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def values(oracle: Oracle, bootstrap: str) -> list[bytes]:
    """What Kafka's consumer of committed records reads."""
    read = oracle.request("consume", bootstrap=bootstrap, topics=["t"])["records"]
    return sorted(decode(each["value"]) or b"" for each in read)


def java(oracle: Oracle, bootstrap: str, name: str, value: bytes, end: str | None) -> None:
    """A transaction of Kafka's producer; `end` None: it is left open, as by a crash."""
    records = [{"topic": "t", "partition": number, "key": None, "value": encode(value)} for number in range(2)]
    more = {} if end is None else {"end": end}
    oracle.request("produce", bootstrap=bootstrap, config={"transactional.id": name}, records=records, **more)


async def _never(_self: MarkerWriter, _marker: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_there_and_back(
    oracle: Oracle, oracle_classpath: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    log_dir = tmp_path / "d"
    log_dir.mkdir()
    kafka = Broker(oracle_classpath, tmp_path / "home", [log_dir], _SETTINGS)
    kafka.format()
    with kafka:
        with client_of(kafka.bootstrap) as client:
            ready(client, {"t": 2})
        java(oracle, kafka.bootstrap, "done", b"a", "commit")
        java(oracle, kafka.bootstrap, "gone", b"-", "abort")
        java(oracle, kafka.bootstrap, "open", b"b", None)
        java(oracle, kafka.bootstrap, "lost", b"-", None)
        with client_of(kafka.bootstrap) as client:
            old = RawProducer(client, "old", False)
            assert old.init() == 0
            assert old.send("t", b"c") == 0
            assert old.commit_offset("g", "t", 5) == 0
        if killed:
            kafka.kill()

    # Here: what is open goes on where it was, by clients of both kinds.
    with CatalogueBroker([log_dir], _SETTINGS, clean=not killed) as ours, ours.connect() as client:
        assert settled(client, "done").transaction_state == "CompleteCommit"
        assert settled(client, "gone").transaction_state == "CompleteAbort"
        assert {described(client, name).transaction_state for name in ("open", "lost", "old")} == {"Ongoing"}
        assert [committed(client, "t", number) for number in range(2)] == [[b"a"], [b"a"]]
        newer = adopted(client, "open", True)
        assert newer.write("t", b"b2", sequence=1) == 0
        assert newer.end(True) == 0
        older = adopted(client, "old", False)
        assert older.end(True) == 0
        settled(client, "old")
        assert group_offset(client, "g", "t") == 5
        lost = RawProducer(client, "lost", True)
        assert lost.init() == 0
        assert lost.send("t", b"d") == 0
        # This one is decided, and we end before anything of it is done.
        monkeypatch.setattr(MarkerWriter, "write", _never)
        assert lost.end(True) == 0
        assert described(client, "lost").transaction_state == "PrepareCommit"
        begun = RawProducer(client, "begun", False)
        assert begun.init() == 0
        assert begun.send("t", b"e", 1) == 0
        ids = {each.producer_id for each in (newer, older, lost, begun)}
    monkeypatch.undo()

    # Kafka: it finishes what we decided, and its clients go on with our ids.
    again = Broker(oracle_classpath, tmp_path / "home", [log_dir], _SETTINGS)
    with again:
        with client_of(again.bootstrap) as client:
            found = settled(client, "lost")
            assert (found.transaction_state, found.producer_epoch) == ("CompleteCommit", lost.epoch)
            assert settled(client, "begun").transaction_state == "Ongoing"
            assert adopted(client, "begun", False).end(True) == 0
            settled(client, "begun")
        expected = [b"a", b"a", b"b", b"b", b"b2", b"c", b"d", b"e"]
        assert values(oracle, again.bootstrap) == expected
        for name in ("done", "lost", "begun"):
            java(oracle, again.bootstrap, name, b"f", "commit")
        java(oracle, again.bootstrap, "new", b"g", "commit")
        with client_of(again.bootstrap) as client:
            assert described(client, "new").producer_id not in ids
            for name in ("done", "lost", "begun", "new"):
                assert settled(client, name).transaction_state == "CompleteCommit"
    assert again.complaints() == []

    # And here once more.
    with CatalogueBroker([log_dir], _SETTINGS) as ours, ours.connect() as client:
        for name in ("done", "open", "old", "lost", "begun", "new"):
            assert settled(client, name).transaction_state == "CompleteCommit"
        java(oracle, ours.bootstrap, "new", b"h", "commit")
        settled(client, "new")
        assert values(oracle, ours.bootstrap) == sorted([*expected, *[b"f"] * 6, *[b"g"] * 2, *[b"h"] * 2])
