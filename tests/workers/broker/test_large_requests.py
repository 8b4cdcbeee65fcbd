"""Requests of many elements, and answers of many: in a thread, within limits, while others are served."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactd.workers.broker import decoding
from compactd.workers.broker.decoding import MalformedRequestError, decode
from compactd.workers.broker.encoding import write_uvarint
from compactd.workers.broker.fetch_codec import decode_fetch
from compactd.workers.broker.produce_codec import decode_produce
from compactd.workers.broker.schemas import request_class
from tests.workers.broker.batches import FETCH, PRODUCE, batch, fetch_body, produce, produce_body
from tests.workers.broker.harness import InProcessBroker, RawClient

API_VERSIONS, METADATA, OFFSET_FETCH = 18, 3, 9


@pytest.fixture
def broker(log_dir: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker([log_dir], {"auto.create.topics.enable": "false"}) as running:
        yield running


def _names(count: int) -> bytes:
    """A MetadataRequest v9 for so many topics."""
    body = bytearray()
    write_uvarint(body, count + 1)
    body += b"\x02a\x00" * count
    return bytes(body) + b"\0\0\0\0"


def test_more_elements_than_anybody_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MOST_ELEMENTS", 1000)
    cls = request_class(METADATA, 9)
    assert len(decode(cls, _names(1000)).topics) == 1000
    with pytest.raises(MalformedRequestError, match="more than 1000 elements"):
        decode(cls, _names(1001))
    # All arrays count together, and each message for itself.
    group = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": range(400)}] * 3}
    from compactd.workers.broker.encoding import encode  # noqa: PLC0415

    with pytest.raises(MalformedRequestError, match="more than 1000 elements"):
        decode(request_class(OFFSET_FETCH, 7), bytes(encode(request_class(OFFSET_FETCH, 7), group)))
    assert len(decode(cls, _names(999)).topics) == 999


def test_more_partitions_than_a_cluster_has_are_refused() -> None:
    count = decoding.MOST_PARTITIONS + 1
    partition = struct.pack(">i", 0) + b"\x00\x00"
    produced = bytearray(b"\x00" + struct.pack(">hi", 1, 1000) + b"\x03")
    for number in (count // 2, count - count // 2):
        produced += b"\x02t"
        write_uvarint(produced, number + 1)
        produced += partition * number + b"\0"
    with pytest.raises(MalformedRequestError, match="more than"):
        decode_produce(9, memoryview(bytes(produced) + b"\0"))
    asked = bytearray(struct.pack(">iiiib", -1, 0, 0, 1, 0) + struct.pack(">ii", 0, -1) + b"\x03")
    for number in (count // 2, count - count // 2):
        asked += b"\x02t"
        write_uvarint(asked, number + 1)
        asked += (struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 100) + b"\0") * number + b"\0"
    with pytest.raises(MalformedRequestError, match="more than"):
        decode_fetch(12, memoryview(bytes(asked) + b"\x01\x01\0"))


def test_others_are_served_while_a_large_request_is_read_and_answered(broker: InProcessBroker) -> None:
    with broker.connect() as client, broker.connect() as other:
        other.ask(API_VERSIONS, 0, {})  # the first of its kind makes its classes
        client.ask(METADATA, 9, {"topics": []})
        client.send(METADATA, 9, _names(200_000))
        served = 0
        arrived = threading.Event()

        def receive() -> None:
            client.receive_frame()
            arrived.set()

        waiting = threading.Thread(target=receive)
        waiting.start()
        while not arrived.is_set():
            other.ask(API_VERSIONS, 0, {})
            served += 1
        waiting.join()
        assert served > 3


def test_all_of_many_topics_are_told_of_and_changes_are_seen(broker: InProcessBroker) -> None:
    for number in range(60):
        broker.create(f"t{number:03}", 3, wait=number == 59)
    with broker.connect() as client:
        for version in (0, 1, 5, 9, 12, 13):
            everything = {"topics": [] if version == 0 else None}
            first = client.ask(METADATA, version, everything)
            assert [topic.name for topic in first.topics] == [f"t{number:03}" for number in range(60)]
            assert client.ask(METADATA, version, everything) == first
        with_operations = {"topics": None, "include_topic_authorized_operations": True}
        told = client.ask(METADATA, 9, with_operations).topics[0]
        assert told.topic_authorized_operations != client.ask(METADATA, 9, {"topics": None}).topics[0]
        broker.drop("t001")
        broker.create("t002", 5, wait=False)
        found = {topic.name: len(topic.partitions) for topic in client.ask(METADATA, 12, {"topics": None}).topics}
        assert len(found) == 59
        assert (found["t000"], found["t002"]) == (3, 5)
        broker.in_loop(lambda context: context.partitions.offline_log_dirs.add(broker.log_dirs[0]))
        assert client.ask(METADATA, 12, {"topics": None}).topics[0].partitions[0].offline_replicas == (1,)


def test_a_request_of_very_many_partitions(broker: InProcessBroker) -> None:
    broker.create("t", 2)
    with broker.connect() as client:
        produce(client, batch([b"v"]))
        rows = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 1000} for number in range(5000)]
        answer = client.ask(FETCH, 12, {**fetch_body(), "topics": [{"topic": "t", "partitions": rows}]})
        errors = [int(each.error_code) for each in answer.responses[0].partitions]
        assert errors == [0, 0] + [3] * 4998
        assert answer.responses[0].partitions[0].records
        data = [{"index": number, "records": batch([b"v"])} for number in range(3000)]
        body = {**produce_body(None), "topic_data": [{"name": "t", "partition_data": data}]}
        results = client.ask(PRODUCE, 9, body).responses[0].partition_responses
        assert [int(each.error_code) for each in results] == [0, 0] + [3] * 2998


def test_an_endless_request_is_cut_off_where_it_says_too_much(broker: InProcessBroker) -> None:
    with broker.connect() as client:
        body = bytearray()
        write_uvarint(body, decoding.MOST_ELEMENTS + 2)
        client.send(METADATA, 9, bytes(body) + b"\x02a\x00" * (decoding.MOST_ELEMENTS + 1) + b"\0\0\0\0")
        assert client.is_closed()
    with RawClient(broker.port) as client:
        assert client.ask(API_VERSIONS, 0, {}).error_code == 0
