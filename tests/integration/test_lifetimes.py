"""What goes with time and on request, and what clients find then: retention, DeleteRecords, gaps of compaction, topics that end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import pytest

from tests.integration.clients.interface import Client
from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.records import CODECS, Message, Record, as_read, assortment
from tests.integration.servers import Server, until
from tests.workers.broker.batches import FETCH, fetch_body

pytestmark = pytest.mark.kafka
DELETE_RECORDS, DELETE_TOPICS = 21, 20
_HOUR = 3_600_000
_NOW = int(time.time() * 1000)


def produce(server: Server, topic: str, messages: Sequence[Message]) -> None:
    """One batch a message."""
    for message in messages:
        assert isinstance(Librdkafka().produce(server, topic, [message])[0], int)


@pytest.fixture
def seen(server: Server, clients: dict[str, Client]) -> Callable[[str], list[Record]]:
    """What all clients read of a topic; they have to agree."""

    def read(topic: str) -> list[Record]:
        while True:
            found = {name: client.consume(server, topic) for name, client in clients.items()}
            # What is cleaned while they read is not there for all of them.
            if clients["java"].consume(server, topic) == found["java"]:
                break
        for name, records in found.items():
            assert records == found["java"], name
        return found["java"]

    return read


Seen = Callable[[str], list[Record]]


def test_records_older_than_retention_ms_go(server: Server, topic: str, seen: Seen) -> None:
    server.create(topic, retention_ms=_HOUR, segment_ms=1000)
    produce(server, topic, [Message(b"old", timestamp=_NOW - 3 * _HOUR), Message(b"older", timestamp=_NOW - 2 * _HOUR)])
    produce(server, topic, [Message(b"new", timestamp=_NOW)])
    until(lambda: server.offsets(topic, timestamp=-2) == 2, "the end of what is old")
    assert [(each.offset, each.value) for each in seen(topic)] == [(2, b"new")]
    assert server.offsets(topic) == 3
    until(lambda: len(list(server.partition_dir(topic).glob("*.deleted"))) == 0, "the files of what is old gone")
    assert [path.name for path in server.partition_dir(topic).glob("*.log")] == [f"{2:020d}.log"]


def test_all_of_a_topic_goes(server: Server, topic: str, seen: Seen) -> None:
    """The active segment, too; offsets go on where they were."""
    server.create(topic, retention_ms=_HOUR)
    produce(server, topic, [Message(b"old", timestamp=_NOW - 2 * _HOUR)] * 3)
    until(lambda: server.offsets(topic, timestamp=-2) == 3, "the end of everything")
    assert seen(topic) == []
    produce(server, topic, [Message(b"new")])
    assert [(each.offset, each.value) for each in seen(topic)] == [(3, b"new")]


def test_more_than_retention_bytes_goes(server: Server, topic: str, seen: Seen) -> None:
    server.create(topic, retention_bytes=1_500_000, segment_bytes=1 << 20)
    produce(server, topic, [Message(bytes([number]) * 500_000, timestamp=_NOW) for number in range(8)])
    until(lambda: server.offsets(topic, timestamp=-2) == 4, "the end of what is too much")
    assert [each.offset for each in seen(topic)] == [4, 5, 6, 7]


def delete_before(server: Server, topic: str, offset: int) -> tuple[int, int]:
    """DeleteRecords of partition 0; low watermark and error."""
    with server.connect() as raw:
        rows = [{"partition_index": 0, "offset": offset}]
        answer = raw.ask(DELETE_RECORDS, 2, {"topics": [{"name": topic, "partitions": rows}], "timeout": 30_000})
    found = answer.topics[0].partitions[0]
    return found.low_watermark, int(found.error_code)


def test_records_are_deleted_on_request(server: Server, topic: str, seen: Seen) -> None:
    """In the middle of a batch, before what is gone already, beyond the end, and all of them."""
    server.create(topic)
    outcomes = Librdkafka().produce(server, topic, assortment(), codec="lz4")
    assert outcomes == list(range(60))
    assert delete_before(server, topic, 7) == (7, 0)
    assert delete_before(server, topic, 3) == (7, 0)
    assert delete_before(server, topic, 61) == (-1, 1)
    assert [each.offset for each in seen(topic)] == list(range(7, 60))
    assert [server.offsets(topic, timestamp=stamp) for stamp in (-2, -1)] == [7, 60]
    # What lay before may not be asked for any more, not even by its time.
    assert server.offsets(topic, timestamp=0) == 7
    with server.connect() as raw:
        assert raw.ask(FETCH, 12, fetch_body(6, topic)).responses[0].partitions[0].error_code == 1
    assert delete_before(server, topic, -1) == (60, 0)
    assert seen(topic) == []
    produce(server, topic, [Message(b"v")])
    assert [each.offset for each in seen(topic)] == [60]


def test_a_compacted_topic_keeps_its_records(server: Server, topic: str) -> None:
    server.create(topic, cleanup_policy="compact")
    produce(server, topic, [Message(b"v", b"k")])
    assert delete_before(server, topic, 1) == (-1, 44)


def newest(records: Sequence[Record]) -> list[Record]:
    latest = {record.key: record for record in records}
    return sorted(latest.values(), key=lambda record: record.offset)


def test_every_client_reads_over_the_gaps_of_compaction(
    server: Server, clients: dict[str, Client], topic: str, seen: Seen
) -> None:
    """Keys that were written again, in a batch and across batches, by every client in every codec."""
    server.create(topic, cleanup_policy="compact", segment_ms=1000, min_cleanable_dirty_ratio=0.01)
    messages = [
        Message(b"%d" % number, b"key %d" % (number % 7), timestamp=_NOW - 600_000 + 100 * number)
        for number in range(300)
    ]
    turns = itertools.product(CODECS, clients.values())
    for at, (codec, client) in zip(range(0, 300, 12), turns, strict=False):
        client.produce(server, topic, messages[at : at + 12], codec)
    written = server.offsets(topic)
    assert written > 200
    # A segment that is later than segment.ms closes the one before; only the active one stays as it is.
    produce(server, topic, [Message(b"last", b"last", timestamp=_NOW)])
    until(lambda: len(Librdkafka().consume(server, topic)) == 8, "what compaction leaves")
    expected = newest(as_read(messages[:written], range(written)))
    assert seen(topic) == [*expected, Record(0, written, _NOW, b"last", b"last")]
    assert server.offsets(topic, timestamp=-2) == 0


def test_tombstones_go_at_last(server: Server, topic: str, seen: Seen) -> None:
    server.create(
        topic, cleanup_policy="compact", segment_ms=1000, min_cleanable_dirty_ratio=0.01, delete_retention_ms=1
    )
    keys = ((b"a", b"1"), (b"b", b"2"), (b"a", None))
    for number, (key, value) in enumerate(keys):
        produce(server, topic, [Message(value, key, timestamp=_NOW - 100_000 + 5000 * number)])

    def left() -> list[bytes | None]:
        # New records in new segments: a tombstone goes in the second clean that sees it.
        produce(server, topic, [Message(b"more", b"more")])
        return [each.key for each in Librdkafka().consume(server, topic)]

    until(lambda: b"a" not in left(), "the end of a deleted key")
    assert b"b" in {each.key for each in seen(topic)}


def test_a_topic_made_again_is_another(server: Server, topic: str, seen: Seen) -> None:
    server.create(topic)
    produce(server, topic, [Message(b"first")])
    with server.connect() as raw:
        body = {"topics": [{"name": topic}], "timeout": 30_000}
        assert raw.ask(DELETE_TOPICS, 6, body).responses[0].error_code == 0
        until(lambda: raw.ask(3, 9, {"topics": [{"name": topic}]}).topics[0].error_code == 3, "the topic's end")
    # log.segment.delete.delay.ms is a second, by default it is a minute.
    until(lambda: not any(list(log_dir.glob(f"{topic}-*")) for log_dir in server.log_dirs), "the end of its files")
    server.create(topic)
    assert seen(topic) == []
    produce(server, topic, [Message(b"second")])
    assert [(each.offset, each.value) for each in seen(topic)] == [(0, b"second")]
