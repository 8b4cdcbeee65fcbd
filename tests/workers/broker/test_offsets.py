"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords and DescribeLogDirs (facts: kafka-protocol 8 and 11)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from compactd.storage.log import Origin
from tests.workers.broker.batches import LIST_OFFSETS, batch, fetch, fetch_body, produce
from tests.workers.broker.harness import InProcessBroker, RawClient

OFFSET_FOR_LEADER_EPOCH, DELETE_RECORDS, DESCRIBE_LOG_DIRS = 23, 21, 35


def _list(client: RawClient, timestamp: int, version: int = 11, topic: str = "t", **more: Any) -> Any:
    row = {"partition_index": more.pop("partition", 0), "timestamp": timestamp, **more.pop("row", {})}
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [row]}], **more}
    return client.ask(LIST_OFFSETS, version, body).topics[0].partitions[0]


def _found(answer: Any) -> tuple[int, int, int, int]:
    return int(answer.error_code), answer.timestamp, answer.offset, getattr(answer, "leader_epoch", -1)


@pytest.mark.parametrize("version", range(1, 12))
def test_the_ends_of_the_log(broker: InProcessBroker, version: int) -> None:
    broker.create("t", leader_epoch=3)
    epoch = 3 if version >= 4 else -1
    with broker.connect() as client:
        assert _found(_list(client, -1, version)) == (0, -1, 0, epoch)
        assert _found(_list(client, -2, version)) == (0, -1, 0, epoch)
        produce(client, batch([b"a", b"b"]))
        assert _found(_list(client, -1, version)) == (0, -1, 2, epoch)
        assert _found(_list(client, -2, version)) == (0, -1, 0, epoch)


def test_offsets_by_time(broker: InProcessBroker) -> None:
    broker.create("t")
    now = int(time.time() * 1000)
    with broker.connect() as client:
        for number in range(5):
            produce(client, batch([b"v", b"w"], timestamp=now + 10 * number))
        assert _found(_list(client, now - 5)) == (0, now, 0, 0)
        assert _found(_list(client, now + 11)) == (0, now + 20, 4, 0)
        assert _found(_list(client, now + 40)) == (0, now + 40, 8, 0)
        assert _found(_list(client, now + 41)) == (0, -1, -1, -1)
        assert _found(_list(client, -3)) == (0, now + 40, 8, 0)
        assert _found(_list(client, -4)) == (0, -1, 0, 0)
        assert _found(_list(client, -5)) == (0, -1, -1, -1)
        assert _found(_list(client, -6)) == (0, -1, -1, -1)


@pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99)])
def test_special_times_before_their_version(broker: InProcessBroker, timestamp: int, since: int) -> None:
    broker.create("t")
    with broker.connect() as client:
        for version in range(1, 12):
            assert _list(client, timestamp, version).error_code == (0 if version >= since else 35)


def test_list_offsets_errors(log_dir: Path) -> None:
    with InProcessBroker([log_dir], nodes=2) as broker, broker.connect() as client:
        broker.create("t", 2, others={1: 1}, leader_epoch=3)
        assert _list(client, -1, topic="nowhere").error_code == 3
        assert _list(client, -1, partition=9).error_code == 3
        assert _list(client, -1, partition=1).error_code == 6
        assert _list(client, -1, row={"current_leader_epoch": 2}).error_code == 74
        assert _list(client, -1, row={"current_leader_epoch": 4}).error_code == 75
        row = {"partition_index": 0, "timestamp": -1}
        twice = client.ask(LIST_OFFSETS, 7, {"replica_id": -1, "topics": [{"name": "t", "partitions": [row, row]}]})
        assert [each.error_code for each in twice.topics[0].partitions] == [42]


def test_committed_readers_see_the_last_stable_offset(broker: InProcessBroker) -> None:
    broker.create("t")
    data = batch([b"a"], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)

    async def append(context: Any) -> None:
        context.partitions.verify_transactions(False)  # there is no coordinator here
        await context.partitions.get("t", 0).append(bytearray(data), origin=Origin.COORDINATOR)

    with broker.connect() as client:
        produce(client, batch([b"v"]))
        broker.in_loop(append)
        assert _list(client, -1, isolation_level=0).offset == 2
        assert _list(client, -1, isolation_level=1).offset == 1


# ---- leader epochs


def _epoch(client: RawClient, epoch: int, version: int = 4, **more: Any) -> tuple[int, int, int]:
    row = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch, **more}
    body = {"replica_id": -1, "topics": [{"topic": "t", "partitions": [row]}]}
    found = client.ask(OFFSET_FOR_LEADER_EPOCH, version, body).topics[0].partitions[0]
    return int(found.error_code), found.leader_epoch, found.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_end_of_an_epoch(log_dir: Path, version: int) -> None:
    with InProcessBroker([log_dir]) as broker:
        identity = broker.create("t").topic_id
        with broker.connect() as client:
            assert _epoch(client, 0, version) == (0, 0, 0)
            produce(client, batch([b"a", b"b"]))
            assert _epoch(client, 0, version) == (0, 0, 2)
    from compactd.storage.names import parse_uuid  # noqa: PLC0415

    with InProcessBroker([log_dir]) as broker:
        broker.create("t", topic_id=parse_uuid(identity), leader_epoch=2)
        with broker.connect() as client:
            assert _epoch(client, 2, version) == (0, 2, 2)
            produce(client, batch([b"c"]))
            assert _epoch(client, 0, version) == (0, 0, 2)
            assert _epoch(client, 1, version) == (0, 0, 2)
            assert _epoch(client, 2, version) == (0, 2, 3)
            assert _epoch(client, 3, version) == (0, -1, -1)
            assert _epoch(client, -1, version) == (0, -1, -1)
            assert _epoch(client, 0, version, current_leader_epoch=1) == (74, -1, -1)
            assert _epoch(client, 0, version, partition=5) == (3, -1, -1)


# ---- DeleteRecords


def _delete(client: RawClient, offset: int, topic: str = "t", version: int = 2, partition: int = 0) -> tuple[int, int]:
    body = {"topics": [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}], "timeout": 1}
    found = client.ask(DELETE_RECORDS, version, body).topics[0].partitions[0]
    return int(found.error_code), found.low_watermark


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_are_deleted_below_an_offset(broker: InProcessBroker, version: int) -> None:
    broker.create("t")
    with broker.connect() as client:
        for _ in range(5):
            produce(client, batch([b"v"]))
        assert _delete(client, 3, version=version) == (0, 3)
        assert fetch(client, 2).error_code == 1
        assert fetch(client, 3).log_start_offset == 3
        assert _delete(client, 1, version=version) == (0, 3)
        assert _delete(client, 6, version=version) == (1, -1)
        assert _delete(client, -2, version=version) == (1, -1)
        assert _delete(client, -1, version=version) == (0, 5)
        assert _found(_list(client, -2))[2] == 5


def test_whose_records_may_not_be_deleted(broker: InProcessBroker) -> None:
    broker.create("c", cleanup_policy="compact")
    broker.create("both", cleanup_policy="compact,delete")
    broker.create("__consumer_offsets", cleanup_policy="compact")
    with broker.connect() as client:
        assert _delete(client, 0, topic="c") == (44, -1)
        assert _delete(client, 0, topic="both") == (0, 0)
        assert _delete(client, 0, topic="__consumer_offsets") == (17, -1)
        assert _delete(client, 0, topic="nowhere") == (3, -1)
        assert _delete(client, 0, topic="c", partition=3) == (3, -1)


def test_a_deletion_wakes_a_long_poll_that_it_overtakes(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client, broker.connect() as admin:
        produce(admin, batch([b"v"]))
        client.send(1, 12, fetch_body(0, max_wait=100_000, min_bytes=1 << 20))
        broker.wait_for_watchers("t")
        assert _delete(admin, -1) == (0, 1)
        assert client.receive(1, 12).responses[0].partitions[0].error_code == 1


# ---- DescribeLogDirs


def _row(each: Any) -> tuple[int, int, int, bool]:
    return each.partition_index, each.partition_size, each.offset_lag, each.is_future_key


@pytest.mark.parametrize("version", range(1, 6))
def test_what_lies_in_the_log_dirs(fast_dir: Path, version: int) -> None:
    dirs = [fast_dir / "one", fast_dir / "two"]
    for each in dirs:
        each.mkdir()
    with InProcessBroker(dirs, {"cordoned.log.dirs": str(dirs[1])}) as broker, broker.connect() as client:
        broker.create("t", 2)
        broker.create("u", 1, log_dir=str(dirs[1]))
        data = batch([b"v"])
        produce(client, data)
        answer = client.ask(DESCRIBE_LOG_DIRS, version, {"topics": None})
        found = {
            result.log_dir: {
                topic.name: [
                    (each.partition_index, each.partition_size, each.offset_lag, each.is_future_key)
                    for each in topic.partitions
                ]
                for topic in result.topics
            }
            for result in answer.results
        }
        assert found == {
            str(dirs[0]): {"t": [(0, len(data), 0, False), (1, 0, 0, False)]},
            str(dirs[1]): {"u": [(0, 0, 0, False)]},
        }
        assert [int(result.error_code) for result in answer.results] == [0, 0]
        if version >= 4:
            assert all(0 < result.usable_bytes <= result.total_bytes for result in answer.results)
        if version >= 5:
            assert [result.is_cordoned for result in answer.results] == [False, True]
        some = client.ask(DESCRIBE_LOG_DIRS, version, {"topics": [{"topic": "t", "partitions": [1, 9]}]})
        assert [[topic.name for topic in result.topics] for result in some.results] == [["t"], []]
