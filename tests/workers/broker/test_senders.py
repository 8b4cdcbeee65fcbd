"""Large ranges of files go out in threads: in order, whole, to clients that read, and are let go of when they end."""

from __future__ import annotations

import asyncio
import fcntl
import random
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactd.workers.broker import senders
from compactd.workers.broker.senders import LARGE, Piece, Senders
from tests.workers.broker.batches import FETCH, batch, fetch_body, produce
from tests.workers.broker.harness import InProcessBroker, RawClient

METADATA = 3
_NOISE = random.Random(5).randbytes(8 << 20)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A descriptor of a file with the noise."""
    path = tmp_path / "noise"
    path.write_bytes(_NOISE)
    with path.open("rb") as opened:
        yield opened.fileno()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The broker's end, with a small buffer, and the client's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
        ours.setblocking(False)
        yield ours, theirs


def _received(client: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count and (data := client.recv(1 << 20)):
        got += data
    return bytes(got)


def test_a_client_that_reads_gets_all_in_one_turn(file: int, pair: tuple[socket.socket, socket.socket]) -> None:
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(_received(pair[1], len(_NOISE) - 100)))
    reader.start()
    all_senders = Senders()
    piece = Piece(all_senders, pair[0].fileno(), file, 100, len(_NOISE) - 100)

    async def send() -> None:
        while piece.left:
            await all_senders.turn(piece)

    asyncio.run(send())
    reader.join()
    all_senders.close()
    assert got == [_NOISE[100:]]
    assert piece.position == len(_NOISE)


@pytest.mark.parametrize("is_crowded", [False, True])
def test_a_client_that_does_not_read_gives_the_thread_back(
    file: int, pair: tuple[socket.socket, socket.socket], is_crowded: bool
) -> None:
    all_senders = Senders()
    all_senders._pieces = 100 if is_crowded else 1
    piece = Piece(all_senders, pair[0].fileno(), file, 0, len(_NOISE))
    piece.run()
    assert piece.is_full
    assert piece.is_slow
    sent = len(_NOISE) - piece.left
    assert piece.position == sent
    assert 0 < sent < senders._WORTH
    assert _received(pair[1], sent) == _NOISE[:sent]


def test_a_turn_ends(file: int, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders, "_TURN", 10_000)
    piece = Piece(Senders(), pair[0].fileno(), file, 0, 50_000)
    piece.run()
    # What the kernel is given in one call may be more than what is left of a turn.
    assert piece.left == 0 or piece.is_full
    monkeypatch.setattr(senders, "_AT_ONCE", 1000)
    _received(pair[1], 50_000 - piece.left)
    piece = Piece(Senders(), pair[0].fileno(), file, 0, 50_000)
    piece.run()
    assert (piece.left, piece.is_full, piece.is_slow) == (40_000, False, False)


def test_a_file_that_ends_too_soon_is_noticed(file: int, pair: tuple[socket.socket, socket.socket]) -> None:
    piece = Piece(Senders(), pair[0].fileno(), file, len(_NOISE) - 1000, 5000)
    piece.run()
    assert piece.is_cut
    assert piece.left == 4000


def test_a_client_that_left_is_an_error_for_who_waits(file: int, pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    all_senders = Senders()
    piece = Piece(all_senders, pair[0].fileno(), file, 0, len(_NOISE))
    with pytest.raises(ConnectionError):
        asyncio.run(all_senders.turn(piece))
    all_senders.close()
    assert all_senders._pieces == 0


def test_a_cancellation_waits_until_the_thread_lets_go(file: int, pair: tuple[socket.socket, socket.socket]) -> None:
    """Else the descriptors would be closed under the thread, and be another client's when it sends next."""
    all_senders = Senders()
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    class Held(Piece):
        __slots__ = ()

        def run(self) -> None:
            begun.set()
            assert goes_on.wait(30)
            super().run()
            ended.set()

    piece = Held(all_senders, pair[0].fileno(), file, 0, len(_NOISE))

    async def cancel() -> None:
        task = asyncio.create_task(all_senders.turn(piece))
        await asyncio.to_thread(begun.wait, 30)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(cancel())
    all_senders.close()
    # Told to stop, it sent nothing any more.
    assert piece.left == len(_NOISE)
    assert all_senders._pieces == 0


# ---- on the wire


def _filled(broker: InProcessBroker) -> bytes:
    """Topic t with some megabytes; its log's bytes as they are fetched."""
    broker.create("t", max_message_bytes=10_000_000)
    with broker.connect() as client:
        for number in range(8):
            assert produce(client, batch([_NOISE[number << 20 : (number + 1) << 20]])).error_code == 0
        client.send(FETCH, 12, fetch_body(partition_max_bytes=50 << 20))
        records = client.receive(FETCH, 12).responses[0].partitions[0].records
    assert len(records) > 8 * LARGE
    return bytes(records)


def _descriptors(log_dir: Path) -> int:
    """Of segments of topic t that this process has open."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            count += str(each.readlink()).startswith(str(log_dir / "t-0")) and str(each.readlink()).endswith(".log")
        except FileNotFoundError:
            continue
    return count


def _settled(broker: InProcessBroker, most: int) -> None:
    end = time.monotonic() + 60
    while broker.in_loop(lambda _: broker._broker.server.connections) > most:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_answers_of_every_size_keep_their_order(broker: InProcessBroker) -> None:
    whole = _filled(broker)
    with broker.connect() as client:
        asked = [whole, whole[: 3 << 20], None, whole[: LARGE - 1], whole[:LARGE], None, whole, whole[: LARGE + 1]]
        for records in asked:
            if records is None:
                client.send(METADATA, 9, {"topics": []})
            else:
                client.send(FETCH, 12, fetch_body(partition_max_bytes=len(records)))
        for records in asked:
            if records is None:
                assert client.receive(METADATA, 9).cluster_id
            else:
                got = bytes(client.receive(FETCH, 12).responses[0].partitions[0].records)
                # The first batch comes whole, however little was asked for.
                assert got == whole[: max(len(records), len(got))]
                assert len(got) >= len(records)


def test_many_clients_at_once_get_what_is_theirs(broker: InProcessBroker) -> None:
    whole = _filled(broker)
    wrong: list[int] = []

    def ask(number: int) -> None:
        with broker.connect() as client:
            for _ in range(5):
                client.send(FETCH, 12, fetch_body(partition_max_bytes=50 << 20))
                if bytes(client.receive(FETCH, 12).responses[0].partitions[0].records) != whole:
                    wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []
    assert broker.in_loop(lambda _: broker._broker.server.senders._pieces) == 0


@pytest.mark.parametrize("abruptly", [False, True])
def test_consumers_that_never_read_hold_nobody_up_and_leave_nothing_behind(
    broker: InProcessBroker, log_dir: Path, abruptly: bool
) -> None:
    whole = _filled(broker)
    before = _descriptors(log_dir)
    lazy = []
    for _ in range(30):
        client = RawClient(broker.port)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        for _ in range(4):
            client.send(FETCH, 12, fetch_body(partition_max_bytes=50 << 20))
        lazy.append(client)
    with broker.connect() as reader:
        for _ in range(3):
            reader.send(FETCH, 12, fetch_body(partition_max_bytes=50 << 20))
            assert bytes(reader.receive(FETCH, 12).responses[0].partitions[0].records) == whole
    for client in lazy:
        if abruptly:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    _settled(broker, 0)
    assert _descriptors(log_dir) <= before
    assert broker.in_loop(lambda _: broker._broker.server.senders._pieces) == 0


def test_a_consumer_that_begins_late_gets_all(broker: InProcessBroker) -> None:
    """Its socket was full long before: the rest is sent by the loop."""
    whole = _filled(broker)
    with broker.connect() as client:
        client.send(FETCH, 12, fetch_body(partition_max_bytes=50 << 20))
        end = time.monotonic() + 60
        while not _is_full(broker, client):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert bytes(client.receive(FETCH, 12).responses[0].partitions[0].records) == whole


def _is_full(broker: InProcessBroker, client: RawClient) -> bool:
    """Whether part of an answer waits at the client, and no thread sends more of it."""
    waiting = struct.unpack("i", fcntl.ioctl(client.socket, termios.FIONREAD, bytes(4)))[0]
    return waiting > 32 << 10 and broker.in_loop(lambda _: broker._broker.server.senders._pieces) == 0


def test_a_stop_does_not_wait_for_who_never_reads(log_dir: Path) -> None:
    with InProcessBroker([log_dir]) as broker:
        _filled(broker)
        lazy = [RawClient(broker.port) for _ in range(10)]
        for client in lazy:
            client.send(FETCH, 12, fetch_body(partition_max_bytes=50 << 20))
        stopped = broker.stop()
        for client in lazy:
            client.close()
    assert stopped.log_dirs_clean == (str(log_dir),)
    assert not [
        each for each in threading.enumerate() if each.name.startswith("send") and each.is_alive() and _left(each)
    ]


def _left(thread: threading.Thread) -> bool:
    """Whether it is still there after it had time to end."""
    thread.join(30)
    return thread.is_alive()


# ---- send buffers


@pytest.mark.parametrize(
    ("settings", "is_bounded"), [({}, True), ({"socket.send.buffer.bytes": 1 << 20}, False)], ids=["system", "given"]
)
def test_the_buffer_of_a_client_nearby_stays_small_unless_it_was_asked_for(
    log_dir: Path, settings: dict[str, object], is_bounded: bool
) -> None:
    with InProcessBroker([log_dir], settings) as broker:
        whole = _filled(broker)
        with broker.connect() as client:
            size = _buffer_of(broker, client)
            client.send(FETCH, 12, fetch_body(partition_max_bytes=LARGE // 2))
            client.receive(FETCH, 12)
            assert bytes(_fetched(client)) == whole
            after = _buffer_of(broker, client)
    expected = socket.socket()
    with expected:
        expected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, senders._NEAR_BUFFER)
        assert (after == expected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)) == is_bounded
    assert is_bounded or after == size


def _buffer_of(broker: InProcessBroker, client: RawClient) -> int:
    client.ask(METADATA, 9, {"topics": []})
    (connection,) = broker.in_loop(lambda _: list(broker._broker.server._connections))
    return connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _fetched(client: RawClient) -> bytes:
    client.send(FETCH, 12, fetch_body(partition_max_bytes=50 << 20))
    return client.receive(FETCH, 12).responses[0].partitions[0].records


class _Told:
    """A socket as far as `bound_buffer` looks at it."""

    def __init__(self, told: bytes) -> None:
        self.told = told
        self.buffers: list[int] = []

    def getsockopt(self, level: int, name: int, size: int) -> bytes:
        assert (level, name) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        return self.told[:size]

    def setsockopt(self, level: int, name: int, value: int) -> None:
        assert (level, name) == (socket.SOL_SOCKET, socket.SO_SNDBUF)
        self.buffers.append(value)


@pytest.mark.parametrize(
    ("told", "is_near"),
    [
        (bytes(148) + struct.pack("=I", 20) + bytes(80), True),
        (bytes(148) + struct.pack("=I", senders._NEAR_MICROSECONDS), True),
        (bytes(148) + struct.pack("=I", senders._NEAR_MICROSECONDS + 1) + bytes(80), False),
        (bytes(148) + b"\xff\xff\xff\xff" + bytes(80), False),  # not measured
        (bytes(104), False),  # a kernel that doesn't tell
    ],
)
def test_clients_far_away_keep_a_buffer_that_grows(told: bytes, is_near: bool) -> None:
    sock = _Told(told)
    senders.bound_buffer(sock)  # type: ignore[arg-type]
    assert sock.buffers == ([senders._NEAR_BUFFER] if is_near else [])


def test_what_is_no_tcp_keeps_its_buffer(pair: tuple[socket.socket, socket.socket]) -> None:
    size = pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    senders.bound_buffer(pair[0])
    assert pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == size
