"""What happens on a connection, whatever is asked over it: order, waiting, closing. The same assertions against both."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.servers import Server
from tests.workers.broker.batches import FETCH, LIST_OFFSETS, PRODUCE, batch, fetch_body, produce, produce_body
from tests.workers.broker.harness import RawClient, decode_answer, request_frame

pytestmark = pytest.mark.kafka
METADATA, API_VERSIONS, DELETE_RECORDS = 3, 18, 21
#: Longer than any fetch here may wait.
_LONG_MS = 60_000
_NOW = int(time.time() * 1000)


@pytest.fixture
def raw(server: Server) -> Iterator[RawClient]:
    with server.connect() as client:
        yield client


def offsets_body(topic: str) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "topics": [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
    }


def test_answers_come_in_the_order_of_the_requests(server: Server, raw: RawClient, topic: str) -> None:
    """A fetch that waits holds up what was sent after it."""
    server.create(topic)
    begun = time.monotonic()
    sent = [
        raw.send(METADATA, 9, {"topics": [{"name": topic}]}),
        raw.send(FETCH, 12, fetch_body(topic=topic, max_wait=700)),
        raw.send(PRODUCE, 9, produce_body(batch([b"v"], timestamp=_NOW), topic)),
        raw.send(LIST_OFFSETS, 7, offsets_body(topic)),
    ]
    answers = [
        decode_answer(api, version, raw.receive_frame())
        for api, version in ((METADATA, 9), (FETCH, 12), (PRODUCE, 9), (LIST_OFFSETS, 7))
    ]
    assert time.monotonic() - begun >= 0.65
    assert [correlation for correlation, _ in answers] == sent
    # The record was written when the fetch had been answered.
    assert answers[1][1].responses[0].partitions[0].high_watermark == 0
    assert answers[3][1].topics[0].partitions[0].offset == 1


def test_without_acks_there_is_no_answer(server: Server, raw: RawClient, topic: str) -> None:
    server.create(topic)
    raw.send(PRODUCE, 9, produce_body(batch([b"v"], timestamp=_NOW), topic, acks=0))
    asked = raw.send(LIST_OFFSETS, 7, offsets_body(topic))
    correlation, answer = decode_answer(LIST_OFFSETS, 7, raw.receive_frame())
    assert (correlation, answer.topics[0].partitions[0].offset) == (asked, 1)
    # What is refused can only be told by closing.
    raw.send(PRODUCE, 9, produce_body(batch([b"v"], timestamp=_NOW), "nowhere", acks=0))
    assert raw.is_closed()


def waiting(server: Server, topic: str, **more: Any) -> tuple[threading.Thread, list[Any]]:
    """A fetch that waits at the end of a topic, on a connection of its own."""
    answers: list[Any] = []
    client = server.connect()
    client.send(FETCH, 12, fetch_body(**{"offset": 1, "topic": topic, "max_wait": _LONG_MS, **more}))

    def receive() -> None:
        with client:
            client.socket.settimeout(90)
            answers.append(client.receive(FETCH, 12))

    thread = threading.Thread(target=receive)
    thread.start()
    return thread, answers


def test_a_fetch_wakes_when_there_are_bytes_enough(server: Server, raw: RawClient, topic: str) -> None:
    server.create(topic)
    produce(raw, batch([b"first"], timestamp=_NOW), topic)
    size = len(batch([b"x" * 100], timestamp=_NOW))
    thread, answers = waiting(server, topic, min_bytes=2 * size)
    produce(raw, batch([b"x" * 100], timestamp=_NOW), topic)
    thread.join(0.5)
    assert thread.is_alive(), "one batch is not enough"
    produce(raw, batch([b"x" * 100], timestamp=_NOW), topic)
    thread.join(60)
    assert not thread.is_alive()
    found = answers[0].responses[0].partitions[0]
    assert (found.high_watermark, len(found.records)) == (3, 2 * size)


def test_a_fetch_is_told_that_the_log_start_has_passed_it(server: Server, raw: RawClient, topic: str) -> None:
    """At once by compactd, at the end of its time by Kafka."""
    server.create(topic)
    for _ in range(3):
        produce(raw, batch([b"v"], timestamp=_NOW), topic)
    thread, answers = waiting(server, topic, min_bytes=1 << 20, max_wait=1500 if server.is_kafka else _LONG_MS)
    rows = [{"partition_index": 0, "offset": 2}]
    thread.join(0.2)
    raw.ask(DELETE_RECORDS, 2, {"topics": [{"name": topic, "partitions": rows}], "timeout": 30_000})
    thread.join(50)
    assert not thread.is_alive()
    assert answers[0].responses[0].partitions[0].error_code == 1


def test_a_fetch_waits_no_longer_than_it_said(server: Server, raw: RawClient, topic: str) -> None:
    server.create(topic)
    produce(raw, batch([b"v"], timestamp=_NOW), topic)
    begun = time.monotonic()
    answer = raw.ask(FETCH, 12, fetch_body(0, topic, max_wait=600, min_bytes=1 << 20))
    assert time.monotonic() - begun >= 0.55
    assert answer.responses[0].partitions[0].records, "what there is comes at the end of the time"


def test_a_first_batch_comes_whole(server: Server, raw: RawClient, topic: str) -> None:
    server.create(topic, 2)
    large = batch([b"x" * 100_000], timestamp=_NOW)
    for partition in (0, 1):
        produce(raw, large, topic, partition)
    body = fetch_body(0, topic, max_bytes=1000, partition_max_bytes=1000)
    first = body["topics"][0]["partitions"][0]
    body["topics"][0]["partitions"] = [first, {**first, "partition": 1}]
    partitions = raw.ask(FETCH, 12, body).responses[0].partitions
    assert [len(each.records) for each in partitions] == [len(large), 0]


def test_bytes_after_a_request_are_skipped(server: Server, raw: RawClient) -> None:
    """librdkafka sends three with some."""
    frame = request_frame(METADATA, 13, 5, {"topics": []})
    raw.send_frame(frame + b"\0\0\0")
    assert decode_answer(METADATA, 13, raw.receive_frame())[0] == 5


def test_tags_that_nobody_knows_are_skipped(server: Server, raw: RawClient) -> None:
    """In the header and in the body, where a client to come would put them."""
    tag = bytes([1, 77, 3]) + b"new"
    frame = request_frame(METADATA, 13, 6, {"topics": []})
    head = struct.calcsize(">hhih") + len(b"raw")
    raw.send_frame(frame[:head] + tag + frame[head + 1 : -1] + tag)
    assert decode_answer(METADATA, 13, raw.receive_frame())[0] == 6


def test_a_version_of_api_versions_to_come_is_answered_as_the_first(server: Server, raw: RawClient) -> None:
    raw.send_frame(struct.pack(">hhih", API_VERSIONS, 99, 7, 3) + b"raw" + b"\0\x04new\x04one\0")
    correlation, answer = decode_answer(API_VERSIONS, 0, raw.receive_frame())
    rows = [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys]
    assert (correlation, int(answer.error_code), rows) == (7, 35, [(18, 0, 5)])
    assert raw.ask(API_VERSIONS, 0, {}).error_code == 0, "the connection can be used on"


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1), struct.pack(">i", 104_857_601), struct.pack(">i", 0x7FFFFFFF), struct.pack(">i", 0),
        struct.pack(">ihhih", 10, 999, 0, 1, -1), struct.pack(">ihhih", 10, METADATA, 99, 1, -1),
        struct.pack(">ihhih", 10, 4, 0, 1, -1), struct.pack(">ihhih", 10, 63, 0, 1, -1),
        struct.pack(">ihhih", 10, PRODUCE, 2, 1, -1), struct.pack(">ihhih", 10, METADATA, 9, 1, 500),
        struct.pack(">ihhihi", 14, METADATA, 1, 1, -1, 0x7FFFFFFF), struct.pack(">i", 2) + b"\0\3",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=[
        "negative size", "too large", "far too large", "empty", "no such API", "no such version", "removed API",
        "API of controllers", "removed version", "name beyond the end", "array beyond the end", "half a header", "HTTP",
    ],
)  # fmt: skip
def test_what_cannot_be_read_closes_the_connection(server: Server, raw: RawClient, data: bytes) -> None:
    """Without an answer, and nobody else notices."""
    with server.connect() as other:
        raw.send_bytes(data)
        assert raw.is_closed()
        assert other.ask(METADATA, 9, {"topics": []}).brokers
