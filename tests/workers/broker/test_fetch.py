"""Fetch: what it gives, when it answers, and how much (facts: kafka-protocol 7)."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from compactd.storage.log import Origin
from compactd.storage.names import parse_uuid
from compactd.workers.cleaning_messages import LetGo, LetGoDone
from compactd.workers.partition_messages import PartitionsReleased, ReleasePartitions
from tests.workers.broker.batches import FETCH, batch, fetch, fetch_body, produce, records_of
from tests.workers.broker.harness import NODE_ID, InProcessBroker, RawClient


def _values(partition: Any) -> list[bytes | None]:
    return [record.value for record in records_of(partition.records)]


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_reads(broker: InProcessBroker, version: int) -> None:
    topic_id = parse_uuid(broker.create("t").topic_id)
    name: dict[str, Any] = {"topic_id": topic_id} if version >= 13 else {}
    with broker.connect() as client:
        produce(client, batch([b"a", b"b"]))
        answer = client.ask(FETCH, version, fetch_body(**name))
        partition = answer.responses[0].partitions[0]
        assert _values(partition) == [b"a", b"b"]
        assert (partition.error_code, partition.high_watermark, partition.last_stable_offset) == (0, 2, 2)
        assert partition.aborted_transactions is None
        assert getattr(partition, "log_start_offset", 0) == 0
        assert getattr(answer, "session_id", 0) == 0
        empty = client.ask(FETCH, version, fetch_body(2, **name)).responses[0].partitions[0]
        assert (empty.error_code, empty.records) == (0, b"")


def test_a_read_begins_with_the_batch_that_holds_the_offset(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        produce(client, batch([b"a", b"b", b"c"]))
        produce(client, batch([b"d"]))
        assert _values(fetch(client, 1)) == [b"a", b"b", b"c", b"d"]
        assert _values(fetch(client, 3)) == [b"d"]


# ---- errors


@pytest.mark.parametrize("offset", [-1, 3, 2**62])
def test_an_offset_out_of_range(broker: InProcessBroker, offset: int) -> None:
    broker.create("t")
    with broker.connect() as client:
        produce(client, batch([b"a", b"b"]))
        found = fetch(client, offset, max_wait=60_000)
        assert (found.error_code, found.high_watermark, found.last_stable_offset, found.log_start_offset) == (
            1,
            -1,
            -1,
            -1,
        )
        assert (found.aborted_transactions, found.records) == (None, b"")


def test_what_is_not_here(log_dir: Path) -> None:
    with InProcessBroker([log_dir], nodes=2) as broker, broker.connect() as client:
        made = broker.create("t", 2, others={1: 1}, leader_epoch=3)
        assert fetch(client, topic="nowhere", max_wait=60_000).error_code == 3
        assert fetch(client, partition=7, max_wait=60_000).error_code == 3
        assert fetch(client, version=13, topic_id=uuid.uuid4(), max_wait=60_000).error_code == 100
        assert fetch(client, version=13, topic_id=None).error_code == 100
        elsewhere = client.ask(FETCH, 16, fetch_body(partition=1, topic_id=parse_uuid(made.topic_id)))
        found = elsewhere.responses[0].partitions[0]
        assert found.error_code == 6
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (NODE_ID + 1_000_000, 3)
        assert [node.node_id for node in elsewhere.node_endpoints] == [NODE_ID + 1_000_000]


def test_leader_epochs(broker: InProcessBroker) -> None:
    broker.create("t", leader_epoch=5)
    with broker.connect() as client:
        produce(client, batch([b"a"]))
        assert fetch(client, current_leader_epoch=5).error_code == 0
        assert fetch(client, current_leader_epoch=4).error_code == 74
        assert fetch(client, current_leader_epoch=6).error_code == 75
        assert fetch(client, last_fetched_epoch=5).error_code == 0
        assert fetch(client, last_fetched_epoch=6).error_code == 1


def test_followers_read_nothing_here(broker: InProcessBroker) -> None:
    topic_id = parse_uuid(broker.create("t").topic_id)
    with broker.connect() as client:
        assert client.ask(FETCH, 12, {**fetch_body(), "replica_id": 2}).responses[0].partitions[0].error_code == 6
        body = {**fetch_body(topic_id=topic_id), "replica_state": {"replica_id": 2, "replica_epoch": 1}}
        assert client.ask(FETCH, 17, body).responses[0].partitions[0].error_code == 6
        # -2 is a consumer that looks for trouble.
        assert client.ask(FETCH, 12, {**fetch_body(), "replica_id": -2}).responses[0].partitions[0].error_code == 0


# ---- how much


def test_the_first_batch_is_whole_however_small_the_limits(broker: InProcessBroker) -> None:
    broker.create("t", 2)
    with broker.connect() as client:
        produce(client, batch([b"x" * 5000]))
        produce(client, batch([b"y" * 5000]))
        produce(client, batch([b"z" * 5000]), partition=1)
        assert _values(fetch(client, partition_max_bytes=1)) == [b"x" * 5000]
        assert _values(fetch(client, max_bytes=0)) == [b"x" * 5000]
        body = fetch_body(partition_max_bytes=100)
        body["topics"][0]["partitions"].append({"partition": 1, "fetch_offset": 0, "partition_max_bytes": 100})
        first, second = client.ask(FETCH, 12, body).responses[0].partitions
        assert _values(first) == [b"x" * 5000]
        # Only the first partition that has anything may go beyond its limit.
        assert second.records == b""


def test_limits_of_partition_and_request(broker: InProcessBroker) -> None:
    broker.create("t", 3)
    one = batch([b"v" * 1000])
    with broker.connect() as client:
        for partition in range(3):
            for _ in range(10):
                produce(client, one, partition=partition)
        assert len(fetch(client, partition_max_bytes=3 * len(one)).records) == 3 * len(one)
        body = fetch_body(max_bytes=15 * len(one))
        for partition in (1, 2):
            body["topics"][0]["partitions"].append(
                {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
            )
        sizes = [len(each.records) for each in client.ask(FETCH, 12, body).responses[0].partitions]
        assert sizes == [10 * len(one), 5 * len(one), 0]


def test_fetch_max_bytes_caps_what_a_client_asks_for(log_dir: Path) -> None:
    with InProcessBroker([log_dir], {"fetch.max.bytes": 1024}) as broker, broker.connect() as client:
        broker.create("t")
        for _ in range(20):
            produce(client, batch([b"v" * 200]))
        assert 0 < len(fetch(client).records) <= 1024


@pytest.mark.parametrize("size", [100, 40_000, 900_000])
def test_large_answers_come_whole_from_the_file(broker: InProcessBroker, size: int) -> None:
    broker.create("t")
    values = [bytes([65 + number]) * size for number in range(5)]
    with broker.connect() as client:
        for value in values:
            produce(client, batch([value]))
        found = fetch(client, partition_max_bytes=50 << 20)
        assert _values(found) == values


def test_several_large_partitions_in_one_answer(broker: InProcessBroker) -> None:
    broker.create("t", 4)
    broker.create("u", 1)
    with broker.connect() as client:
        for partition in range(4):
            produce(client, batch([b"%d" % partition * 100_000]), partition=partition)
        produce(client, batch([b"small"]), topic="u")
        body = fetch_body()
        for partition in (3, 1, 2):
            body["topics"][0]["partitions"].append(
                {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
            )
        body["topics"] += fetch_body(topic="u")["topics"]
        answer = client.ask(FETCH, 12, body)
        assert [(topic.topic, [each.partition_index for each in topic.partitions]) for topic in answer.responses] == [
            ("t", [0, 3, 1, 2]),
            ("u", [0]),
        ]
        for each in answer.responses[0].partitions:
            assert _values(each) == [b"%d" % each.partition_index * 100_000]
        assert _values(answer.responses[1].partitions[0]) == [b"small"]


def test_old_segments_are_read_as_well(broker: InProcessBroker) -> None:
    broker.create("t", segment_bytes=1_048_576)
    with broker.connect() as client:
        for number in range(40):
            produce(client, batch([b"%02d" % number + b"x" * 100_000]))
        assert len(broker.partition("t").log.segments) > 3
        offset, found = 0, []
        while offset < 40:
            records = records_of(fetch(client, offset).records)
            found += [record.value[:2] for record in records if record.offset >= offset and record.value]
            offset = records[-1].offset + 1
        assert found == [b"%02d" % number for number in range(40)]


# ---- when


def test_nothing_new_is_answered_when_the_time_is_up(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        began = time.monotonic()
        found = fetch(client, max_wait=200)
        assert time.monotonic() - began >= 0.19
        assert (found.error_code, found.records) == (0, b"")


def test_an_append_wakes_a_long_poll(broker: InProcessBroker) -> None:
    broker.create("t", 2)
    with broker.connect() as client, broker.connect() as writer:
        body = fetch_body(max_wait=100_000)
        body["topics"][0]["partitions"].append({"partition": 1, "fetch_offset": 0, "partition_max_bytes": 1 << 20})
        client.send(FETCH, 12, body)
        produce(writer, batch([b"v"]), partition=1)
        first, second = client.receive(FETCH, 12).responses[0].partitions
        assert (_values(first), _values(second)) == ([], [b"v"])


def test_a_long_poll_waits_for_min_bytes(broker: InProcessBroker) -> None:
    broker.create("t")
    one = batch([b"v" * 100])
    with broker.connect() as client, broker.connect() as writer:
        client.send(FETCH, 12, fetch_body(max_wait=100_000, min_bytes=5 * len(one)))
        for _ in range(5):
            produce(writer, one)
        assert len(client.receive(FETCH, 12).responses[0].partitions[0].records) == 5 * len(one)
        # With too little at the end of the time it gets what there is.
        assert len(fetch(client, max_wait=100, min_bytes=100 * len(one)).records) == 5 * len(one)


def test_a_log_start_that_moves_wakes_a_long_poll(broker: InProcessBroker) -> None:
    broker.create("t", 2)
    with broker.connect() as client, broker.connect() as other:
        produce(other, batch([b"v", b"w"]))
        body = fetch_body(max_wait=100_000, min_bytes=1 << 20)
        body["topics"][0]["partitions"].append({"partition": 1, "fetch_offset": 0, "partition_max_bytes": 1 << 20})
        client.send(FETCH, 12, body)
        broker.wait_for_watchers("t")
        rows = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]}]
        other.ask(21, 2, {"topics": rows, "timeout": 1000})
        first, second = client.receive(FETCH, 12).responses[0].partitions
        assert (first.error_code, first.records) == (1, b"")
        assert second.error_code == 0


def test_retention_wakes_a_long_poll(broker: InProcessBroker) -> None:
    broker.create("t", retention_ms=1000)
    with broker.connect() as client, broker.connect() as other:
        produce(other, batch([b"v"], timestamp=1000))
        client.send(FETCH, 12, fetch_body(max_wait=100_000, min_bytes=1 << 20))
        broker.wait_for_watchers("t")
        request = LetGo(request_id=broker.next_id(), partitions=("t-0",), now_ms=broker.clock.now_ms() + 10_000)
        assert broker.ask(request, LetGoDone).deleted
        assert client.receive(FETCH, 12).responses[0].partitions[0].error_code == 1


def test_data_before_a_roll_is_not_waited_on(broker: InProcessBroker) -> None:
    broker.create("t", segment_bytes=1_048_576)
    with broker.connect() as client:
        for _ in range(3):
            produce(client, batch([b"x" * 500_000]))
        # The rest of the first segment is all that one answer can hold.
        assert len(records_of(fetch(client, max_wait=100_000, min_bytes=50 << 20).records)) == 2


def test_an_error_of_one_partition_answers_for_all(broker: InProcessBroker) -> None:
    broker.create("t")
    body = fetch_body(max_wait=100_000)
    body["topics"] += fetch_body(topic="nowhere")["topics"]
    with broker.connect() as client:
        answer = client.ask(FETCH, 12, body)
        assert [topic.partitions[0].error_code for topic in answer.responses] == [0, 3]


def test_no_partitions_no_waiting(broker: InProcessBroker) -> None:
    with broker.connect() as client:
        assert client.ask(FETCH, 12, {**fetch_body(max_wait=100_000), "topics": []}).responses == ()


def test_a_topic_that_goes_away_wakes_a_long_poll(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        client.send(FETCH, 12, fetch_body(max_wait=100_000))
        broker.wait_for_watchers("t")
        broker.drop("t")
        broker.ask(ReleasePartitions(request_id=broker.next_id(), partitions=("t-0",)), PartitionsReleased)
        assert client.receive(FETCH, 12).responses[0].partitions[0].error_code == 3


def test_a_client_that_leaves_while_it_waits_leaves_nothing(broker: InProcessBroker) -> None:
    broker.create("t")
    client = broker.connect()
    client.send(FETCH, 12, fetch_body(max_wait=1_000_000))
    broker.wait_for_watchers("t")
    client.close()
    broker.wait_for_watchers("t", 0)
    assert broker.failure is None


# ---- transactions


def _transaction(broker: InProcessBroker, producer_id: int, values: list[bytes], sequence: int = 0) -> int:
    data = batch(values, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True)

    async def append(context: Any) -> int:
        context.partitions.verify_transactions(False)  # there is no coordinator here
        done = await context.partitions.get("t", 0).append(bytearray(data), origin=Origin.COORDINATOR)
        return int(done.first_offset)

    return int(broker.in_loop(append))


def _end(broker: InProcessBroker, kind: str, producer_id: int) -> None:
    async def append(context: Any) -> None:
        await context.partitions.get("t", 0).append_marker(kind, producer_id, 0, coordinator_epoch=0)

    broker.in_loop(append)


def test_committed_readers_stop_at_open_transactions(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        produce(client, batch([b"plain"]))
        _transaction(broker, 1, [b"a", b"b"])
        produce(client, batch([b"after"]))
        everything = fetch(client)
        assert (everything.high_watermark, everything.last_stable_offset) == (4, 1)
        assert _values(everything) == [b"plain", b"a", b"b", b"after"]
        committed = fetch(client, committed=True)
        assert (_values(committed), committed.aborted_transactions) == ([b"plain"], ())
        assert fetch(client, 1, committed=True, max_wait=50).records == b""
        _end(broker, "commit", 1)
        assert _values(fetch(client, 1, committed=True))[:3] == [b"a", b"b", b"after"]


def test_aborted_transactions_are_named(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        _transaction(broker, 1, [b"a"])
        _transaction(broker, 2, [b"b"])
        _end(broker, "abort", 1)
        assert fetch(client, committed=True).last_stable_offset == 1
        _end(broker, "abort", 2)
        found = fetch(client, committed=True)
        assert [(each.producer_id, each.first_offset) for each in found.aborted_transactions] == [(1, 0), (2, 1)]
        assert fetch(client).aborted_transactions is None


def test_the_end_of_a_transaction_wakes_a_long_poll(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        _transaction(broker, 1, [b"a"])
        client.send(FETCH, 12, fetch_body(committed=True, max_wait=100_000))
        broker.wait_for_watchers("t")
        _transaction(broker, 1, [b"b"], sequence=1)
        _end(broker, "commit", 1)
        assert _values(client.receive(FETCH, 12).responses[0].partitions[0])[:2] == [b"a", b"b"]


# ---- under change


def test_readers_go_on_while_writers_write_and_segments_roll(broker: InProcessBroker) -> None:
    broker.create("t", segment_bytes=1_048_576)
    total, found = 300, []

    def read() -> None:
        with broker.connect() as client:
            offset = 0
            while offset < total:
                partition = fetch(client, offset, max_wait=1000)
                assert partition.error_code == 0
                for record in records_of(partition.records):
                    if record.offset >= offset:
                        found.append(record.value)
                        offset = record.offset + 1

    reader = threading.Thread(target=read)
    reader.start()
    with broker.connect() as writer:
        for number in range(total):
            produce(writer, batch([b"%d" % number + b"x" * 20_000]))
    reader.join(60)
    assert [value.split(b"x")[0] for value in found if value] == [b"%d" % number for number in range(total)]


# ---- sessions


def _session(client: RawClient, session_id: int, epoch: int, *partitions: tuple[int, int], **more: Any) -> Any:
    body = fetch_body(session_id=session_id, session_epoch=epoch, **more)
    body["topics"] = []
    if partitions:
        rows = [
            {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            for number, offset in partitions
        ]
        body["topics"] = [{"topic": "t", "partitions": rows}]
    return client.ask(FETCH, 12, body)


def _told(answer: Any) -> dict[int, int]:
    return {
        each.partition_index: len(records_of(each.records)) for topic in answer.responses for each in topic.partitions
    }


def test_a_session_tells_changes_only(broker: InProcessBroker) -> None:
    broker.create("t", 3)
    with broker.connect() as client:
        begun = _session(client, 0, 0, (0, 0), (1, 0), (2, 0))
        assert begun.session_id > 0
        assert _told(begun) == {0: 0, 1: 0, 2: 0}
        assert _told(_session(client, begun.session_id, 1)) == {}
        produce(client, batch([b"v"]), partition=1)
        second = _session(client, begun.session_id, 2)
        assert second.session_id == begun.session_id
        assert _told(second) == {1: 1}
        # The consumer goes on behind it, and reads one partition less.
        body = {"forgotten_topics_data": [{"topic": "t", "partitions": [2]}]}
        assert _told(_session(client, begun.session_id, 3, (1, 1), **body)) == {}
        produce(client, batch([b"w"]), partition=2)
        produce(client, batch([b"x"]), partition=0)
        assert _told(_session(client, begun.session_id, 4)) == {0: 1}


def test_a_long_poll_in_a_session(broker: InProcessBroker) -> None:
    broker.create("t", 2)
    with broker.connect() as client, broker.connect() as writer:
        begun = _session(client, 0, 0, (0, 0), (1, 0))
        body = fetch_body(session_id=begun.session_id, session_epoch=1, max_wait=100_000)
        client.send(FETCH, 12, {**body, "topics": []})
        produce(writer, batch([b"v"]), partition=1)
        assert _told(client.receive(FETCH, 12)) == {1: 1}


def test_what_is_wrong_with_a_session(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        unknown = _session(client, 12345, 1)
        assert (unknown.error_code, unknown.session_id, unknown.responses) == (70, 0, ())
        begun = _session(client, 0, 0, (0, 0))
        wrong = _session(client, begun.session_id, 5)
        assert (wrong.error_code, wrong.session_id) == (71, 0)
        mixed = client.ask(
            FETCH, 13, {**fetch_body(topic_id=None), "session_id": begun.session_id, "session_epoch": 1, "topics": []}
        )
        assert mixed.error_code == 106
        assert _session(client, begun.session_id, 1).error_code == 0
        # -1 ends it.
        assert _session(client, begun.session_id, -1, (0, 0)).session_id == 0
        assert _session(client, begun.session_id, 2).error_code == 70


def test_a_session_without_partitions_ends(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        assert _session(client, 0, 0).session_id == 0
        begun = _session(client, 0, 0, (0, 0))
        body = {"forgotten_topics_data": [{"topic": "t", "partitions": [0]}]}
        assert _session(client, begun.session_id, 1, **body).session_id == 0
        assert _session(client, begun.session_id, 2).error_code == 70


def test_an_error_in_a_session_is_told_until_it_is_over(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        begun = _session(client, 0, 0, (0, 7))
        assert [each.error_code for each in begun.responses[0].partitions] == [1]
        again = _session(client, begun.session_id, 1)
        assert [each.error_code for each in again.responses[0].partitions] == [1]
        healed = _session(client, begun.session_id, 2, (0, 0))
        assert [each.error_code for each in healed.responses[0].partitions] == [0]
        assert _told(_session(client, begun.session_id, 3)) == {}


def test_partitions_that_gave_records_are_read_last_the_next_time(broker: InProcessBroker) -> None:
    broker.create("t", 3)
    one = batch([b"v" * 1000])
    with broker.connect() as client:
        for partition in range(3):
            for _ in range(3):
                produce(client, one, partition=partition)
        limit = {"max_bytes": len(one)}
        begun = _session(client, 0, 0, (0, 0), (1, 0), (2, 0), **limit)
        assert _told(begun) == {0: 1, 1: 0, 2: 0}
        first = _session(client, begun.session_id, 1, (0, 1), **limit)
        second = _session(client, begun.session_id, 2, **limit)
        assert [key for answer in (first, second) for key, count in _told(answer).items() if count] == [0, 1]


@pytest.mark.parametrize("slots", [0, 2])
def test_sessions_are_limited(log_dir: Path, slots: int) -> None:
    settings = {"max.incremental.fetch.session.cache.slots": slots}
    with InProcessBroker([log_dir], settings) as broker, broker.connect() as client:
        broker.create("t")
        ids = [_session(client, 0, 0, (0, 0)).session_id for _ in range(4)]
        assert sum(each > 0 for each in ids) == slots
        assert len({each for each in ids if each}) == slots
