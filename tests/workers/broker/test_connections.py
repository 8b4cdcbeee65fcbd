"""Framing, order, limits and what closes a connection (facts: kafka-protocol 2), on the wire."""

from __future__ import annotations

import random
import resource
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from tests.workers.broker.batches import FETCH, PRODUCE, batch, fetch, fetch_body, produce, produce_body, records_of
from tests.workers.broker.harness import InProcessBroker, RawClient, decode_answer, request_frame

API_VERSIONS, METADATA = 18, 3
_SOFTWARE = {"client_software_name": "raw", "client_software_version": "1"}


def _still_serves(broker: InProcessBroker) -> None:
    with broker.connect() as client:
        assert client.ask(METADATA, 9, {"topics": []}).cluster_id


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 104_857_601),
        struct.pack(">i", 2**31 - 1) + b"x" * 100,
        struct.pack(">i", 3) + b"abc",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_sizes_that_are_none_close_the_connection(broker: InProcessBroker, data: bytes) -> None:
    with broker.connect() as client:
        client.send_bytes(data)
        assert client.is_closed()
    _still_serves(broker)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 63, 0, 1, -1),
        struct.pack(">hhih", 4, 0, 1, -1),
        struct.pack(">hhih", 32000, 0, 1, -1),
        struct.pack(">hhih", METADATA, 14, 1, -1),
        struct.pack(">hhih", METADATA, -1, 1, -1),
        struct.pack(">hhih", PRODUCE, 2, 1, -1),
        struct.pack(">hhih", FETCH, 3, 1, -1),
        struct.pack(">hhih", METADATA, 9, 1, 500) + b"short",
        struct.pack(">hhih", METADATA, 9, 1, 2) + b"\xff\xfe\x00",
        request_frame(METADATA, 9, 1, b"\xff\xff\xff\xff\x0f"),
        request_frame(METADATA, 1, 1, struct.pack(">i", 2**31 - 1)),
        request_frame(PRODUCE, 9, 1, b"\x00\x00\x01\x00\x00\x03\xe8\x02\x05ab"),
        request_frame(PRODUCE, 7, 1, struct.pack(">hhii", -1, 1, 1000, 2**30)),
    ],
)
def test_what_cannot_be_read_closes_the_connection(broker: InProcessBroker, frame: bytes) -> None:
    with broker.connect() as client:
        client.send_frame(frame)
        assert client.is_closed()
    _still_serves(broker)


def test_every_truncation_of_a_request_closes_the_connection_or_is_answered(broker: InProcessBroker) -> None:
    broker.create("t")
    for whole in (
        request_frame(PRODUCE, 9, 1, produce_body(batch([b"v"]))),
        request_frame(FETCH, 12, 1, fetch_body()),
        request_frame(METADATA, 12, 1, {"topics": None}),
    ):
        for size in range(1, len(whole) - 1, 3):
            with broker.connect() as client:
                client.send_frame(whole[:size])
                client.socket.shutdown(socket.SHUT_WR)
                try:
                    client.receive_frame()
                except ConnectionError:
                    continue
    _still_serves(broker)
    assert broker.failure is None


def test_noise_never_stops_the_broker(broker: InProcessBroker) -> None:
    noise = random.Random(7)
    for _ in range(60):
        with broker.connect() as client:
            key = noise.choice([0, 1, 2, 3, 18, 21, 23, 35, 60, 75])
            version = noise.randint(0, 18)
            client.send_frame(struct.pack(">hhih", key, version, 1, -1) + noise.randbytes(noise.randint(0, 200)))
            client.socket.shutdown(socket.SHUT_WR)
            try:
                client.receive_frame()
            except ConnectionError:
                continue
    _still_serves(broker)


def test_bytes_after_the_body_and_a_null_client_id_are_fine(broker: InProcessBroker) -> None:
    with broker.connect() as client:
        client.send_frame(request_frame(METADATA, 13, 9, {"topics": None}, client_id=None) + b"\0\0\0")
        correlation, answer = decode_answer(METADATA, 13, client.receive_frame())
        assert correlation == 9
        assert answer.error_code == 0


def test_a_request_may_come_byte_by_byte(broker: InProcessBroker) -> None:
    frame = request_frame(METADATA, 9, 5, {"topics": None})
    with broker.connect() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in struct.pack(">i", len(frame)) + frame:
            client.send_bytes(bytes([byte]))
        assert decode_answer(METADATA, 9, client.receive_frame())[0] == 5


# ---- ApiVersions


def test_api_versions_of_a_version_to_come_are_answered_as_version_0(broker: InProcessBroker) -> None:
    with broker.connect() as client:
        client.send_frame(struct.pack(">hhih", API_VERSIONS, 9, 77, -1) + b"anything")
        assert client.receive_frame() == bytes.fromhex("0000004d002300000001001200000005")
        # The connection stays usable, at the version that was named.
        answer = client.ask(API_VERSIONS, 5, _SOFTWARE)
        assert answer.error_code == 0


@pytest.mark.parametrize("version", range(6))
def test_api_versions_announce_what_is_served(broker: InProcessBroker, version: int) -> None:
    with broker.connect() as client:
        answer = client.ask(API_VERSIONS, version, _SOFTWARE if version >= 3 else {})
    ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert ranges[PRODUCE] == (0, 13)
    assert ranges[FETCH] == (4, 18)
    assert ranges[API_VERSIONS] == (0, 5)
    assert list(ranges) == sorted(ranges)
    if version >= 3:
        names = {each.name for each in answer.supported_features}
        assert "metadata.version" in names
        assert ("kraft.version" in names) == (version >= 4)
        assert [
            (each.name, each.max_version_level) for each in answer.finalized_features if each.name == "metadata.version"
        ]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"client_software_name": ""}, 42),
        ({"client_software_name": "-x"}, 42),
        ({"client_software_version": "1."}, 42),
        ({"cluster_id": "other"}, 42),
        ({"node_id": 1}, 42),
        ({"cluster_id": "other", "node_id": 1}, 129),
        ({"cluster_id": "Y29tcGFjdGQtdGVzdHMtMQ", "node_id": 2}, 129),
        ({"cluster_id": "Y29tcGFjdGQtdGVzdHMtMQ", "node_id": 1}, 0),
    ],
)
def test_api_versions_check_who_asks_whom(broker: InProcessBroker, changes: dict[str, object], error: int) -> None:
    with broker.connect() as client:
        answer = client.ask(API_VERSIONS, 5, {**_SOFTWARE, **changes})
    assert answer.error_code == error
    assert bool(answer.api_keys) == (error == 0)


# ---- order


def test_pipelined_requests_are_answered_in_order(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        kinds = []
        for number in range(50):
            if number % 3 == 0:
                client.send(PRODUCE, 9, produce_body(batch([b"v%d" % number])))
                kinds.append((PRODUCE, 9))
            elif number % 3 == 1:
                client.send(METADATA, 12, {"topics": None})
                kinds.append((METADATA, 12))
            else:
                client.send(FETCH, 12, fetch_body())
                kinds.append((FETCH, 12))
        for number, kind in enumerate(kinds, 1):
            assert decode_answer(*kind, client.receive_frame())[0] == number


def test_pipelined_requests_of_all_kinds_are_answered_in_order(broker: InProcessBroker) -> None:
    """Those that wait, those that go to a thread, those that are not answered at all, and those in between."""
    broker.create("t", max_message_bytes=2_000_000)
    large = batch([b"x" * 900_000])
    with broker.connect() as client:
        asked = [
            (PRODUCE, 9, produce_body(large)),
            (FETCH, 12, fetch_body(0, partition_max_bytes=10)),
            (PRODUCE, 9, produce_body(batch([b"v"]), acks=0)),
            (METADATA, 12, {"topics": None}),
            (FETCH, 12, fetch_body(2, max_wait=30)),
            (PRODUCE, 9, produce_body(large)),
            (FETCH, 12, fetch_body(2)),
            (API_VERSIONS, 0, {}),
        ] * 3
        for number, (key, version, body) in enumerate(asked):
            assert client.send(key, version, body) == number + 1
        answered = [number for number, (_, _, body) in enumerate(asked, 1) if body.get("acks") != 0]
        for number in answered:
            key, version, _ = asked[number - 1]
            correlation, answer = decode_answer(key, version, client.receive_frame())
            assert correlation == number
            if key == PRODUCE:
                assert answer.responses[0].partition_responses[0].error_code == 0


def test_slow_senders_hold_nobody_up(broker: InProcessBroker) -> None:
    """A hundred connections that are in the middle of a request for as long as they like."""
    broker.create("t")
    frame = request_frame(PRODUCE, 9, 1, produce_body(batch([b"v" * 1000])))
    whole = struct.pack(">i", len(frame)) + frame
    slow = [broker.connect() for _ in range(100)]
    try:
        for number, client in enumerate(slow):
            client.send_bytes(whole[: 1 + number * len(whole) // 100])
        _still_serves(broker)
        for number, client in enumerate(slow):
            client.send_bytes(whole[1 + number * len(whole) // 100 :])
        for client in slow:
            _, answer = decode_answer(PRODUCE, 9, client.receive_frame())
            assert answer.responses[0].partition_responses[0].error_code == 0
    finally:
        for client in slow:
            client.close()


def test_a_long_poll_holds_back_what_comes_after_it_on_the_same_connection_only(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client, broker.connect() as other:
        polling = client.send(FETCH, 12, fetch_body(max_wait=20_000))
        client.send(METADATA, 12, {"topics": None})
        assert other.ask(METADATA, 12, {"topics": None}).cluster_id
        produce(other, batch([b"v"]))
        assert decode_answer(FETCH, 12, client.receive_frame())[0] == polling
        assert decode_answer(METADATA, 12, client.receive_frame())[0] == polling + 1


def test_many_connections_at_once(broker: InProcessBroker) -> None:
    broker.create("t")
    clients = [broker.connect() for _ in range(200)]
    try:
        for client in clients:
            client.send(FETCH, 12, fetch_body(max_wait=20_000))
        with broker.connect() as writer:
            produce(writer, batch([b"v"]))
        for client in clients:
            answer = client.receive(FETCH, 12)
            assert [record.value for record in records_of(answer.responses[0].partitions[0].records)] == [b"v"]
    finally:
        for client in clients:
            client.close()


# ---- acks=0


def test_acks_0_gets_no_answer(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        for number in range(5):
            client.send(PRODUCE, 9, produce_body(batch([b"v%d" % number]), acks=0))
        # The next answer is that of the next request.
        assert client.ask(METADATA, 12, {"topics": None}).cluster_id
        assert len(records_of(fetch(client).records)) == 5


def test_acks_0_with_an_error_closes_the_connection(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        client.send(PRODUCE, 9, produce_body(batch([b"v"]), topic="missing", acks=0))
        assert client.is_closed()


def test_requests_sent_before_the_client_closes_are_served(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        for number in range(20):
            client.send(PRODUCE, 9, produce_body(batch([b"v%d" % number]), acks=0))
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_closed()
    with broker.connect() as client:
        assert len(records_of(fetch(client).records)) == 20


# ---- limits


def test_connections_are_limited(log_dir: Path) -> None:
    with InProcessBroker([log_dir], {"max.connections.per.ip": 2}) as broker:
        with broker.connect() as first, broker.connect() as second, broker.connect() as third:
            assert first.ask(METADATA, 9, {"topics": []}).cluster_id
            assert second.ask(METADATA, 9, {"topics": []}).cluster_id
            assert third.is_closed()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # the broker notices the closed ones in its own time
            with broker.connect() as again:
                try:
                    assert again.ask(METADATA, 9, {"topics": []}).cluster_id
                    return
                except ConnectionError:
                    time.sleep(0.01)
        raise AssertionError("no place was given back")


def test_a_request_larger_than_allowed_is_refused(log_dir: Path) -> None:
    with InProcessBroker([log_dir], {"socket.request.max.bytes": 1000}) as broker, broker.connect() as client:
        assert client.ask(METADATA, 9, {"topics": []}).cluster_id
        client.send_frame(b"x" * 1001)
        assert client.is_closed()


def test_idle_connections_are_closed_but_not_those_that_wait_for_an_answer(log_dir: Path) -> None:
    with InProcessBroker([log_dir], {"connections.max.idle.ms": 150}) as broker:
        broker.create("t")
        with broker.connect() as idle, broker.connect() as polling:
            polling.send(FETCH, 12, fetch_body(max_wait=1500))
            assert idle.is_closed()
            assert polling.receive(FETCH, 12).error_code == 0


def test_memory_of_waiting_requests_is_limited(log_dir: Path) -> None:
    # With room for one request at a time, the others are served after it.
    with InProcessBroker([log_dir], {"queued.max.request.bytes": 1}) as broker:
        broker.create("t", max_message_bytes=10_000_000)
        big = batch([b"x" * 500_000])
        results = []

        def write() -> None:
            with broker.connect() as client:
                results.extend(produce(client, big).error_code for _ in range(5))

        writers = [threading.Thread(target=write) for _ in range(8)]
        for each in writers:
            each.start()
        for each in writers:
            each.join()
        assert results == [0] * 40


def test_a_client_that_never_reads_holds_nobody_up_and_little_memory(broker: InProcessBroker) -> None:
    broker.create("t", max_message_bytes=10_000_000)
    with broker.connect() as writer:
        for _ in range(20):
            produce(writer, batch([b"x" * 1_000_000]))
        lazy = RawClient(broker.port)
        lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        for _ in range(50):
            lazy.send(FETCH, 12, fetch_body(partition_max_bytes=50 << 20))
        answers = [len(records_of(fetch(writer, partition_max_bytes=50 << 20).records)) for _ in range(3)]
        assert answers == [20, 20, 20]
        lazy.close()
    _still_serves(broker)


def test_a_stop_closes_connections_that_wait(log_dir: Path) -> None:
    with InProcessBroker([log_dir]) as broker:
        broker.create("t")
        client = broker.connect()
        client.send(FETCH, 12, fetch_body(max_wait=100_000))
        stopped = broker.stop()
        assert client.is_closed()
        client.close()
    assert stopped.log_dirs_clean == (str(log_dir),)


def test_a_thousand_connections(broker: InProcessBroker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"this system lets a process have {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    broker.create("t")
    clients: list[RawClient] = []
    try:
        clients += [broker.connect() for _ in range(1000)]
        records = batch([b"v"])
        for client in clients:
            client.send(PRODUCE, 9, produce_body(records))
        offsets = set()
        for client in clients:
            (row,) = client.receive(PRODUCE, 9).responses[0].partition_responses
            assert int(row.error_code) == 0
            offsets.add(row.base_offset)
        assert offsets == set(range(1000))
        assert broker.in_loop(lambda _: broker._broker.server.connections) == 1000
    finally:
        for client in clients:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
