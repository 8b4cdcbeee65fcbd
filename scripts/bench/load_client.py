"""Many connections that ask a broker as quickly as it answers, in one thread: requests are bytes that are made beforehand.

What comes back is only looked at as far as it takes to know that nothing was refused, so that it is the broker that is
measured and not this.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from compactd.config.errors import CompactdError
from compactd.config.listeners import parse_address
from compactd.workers.broker import api_keys
from compactd.workers.broker.decoding import decode
from compactd.workers.broker.encoding import encode
from compactd.workers.broker.schemas import is_flexible, request_class, response_class

PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = 9, 12, 12
_CLIENT_ID = b"compactd-bench"
_RECEIVE_BYTES = 4 << 20
_SIZE = struct.Struct(">i")
#: Without a word from the broker for so long, it is taken for stuck.
_SILENCE_SECONDS = 30.0


class LoadError(CompactdError):
    """The broker at {address} {what}."""


def request(api_key: int, version: int, body: Mapping[str, object]) -> bytes:
    """A whole frame with correlation id 0."""
    head = struct.pack(">hhih", api_key, version, 0, len(_CLIENT_ID)) + _CLIENT_ID
    frame = bytearray(head + (b"\0" if is_flexible(api_key, version) else b""))
    encode(request_class(api_key, version), body, frame)
    return _SIZE.pack(len(frame)) + bytes(frame)


def produce_request(topic: str, partition: int, records: bytes, acks: int = -1) -> bytes:
    """A frame with one batch."""
    content = {"name": topic, "partition_data": [{"index": partition, "records": records}]}
    body = {"transactional_id": None, "acks": acks, "timeout": 30_000, "topic_data": [content]}
    return request(api_keys.PRODUCE, PRODUCE_VERSION, body)


def fetch_request(
    topic: str, partitions: Iterable[int], offset: int, most: int, partition_most: int, wait_ms: int = 500
) -> bytes:
    """A frame that asks for everything from an offset on, outside sessions."""
    rows = [
        {"partition": number, "fetch_offset": offset, "partition_max_bytes": partition_most} for number in partitions
    ]
    body = {
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": most,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": rows}],
    }
    return request(api_keys.FETCH, FETCH_VERSION, body)


def metadata_request(topic: str) -> bytes:
    """A frame that asks for one topic."""
    return request(api_keys.METADATA, METADATA_VERSION, {"topics": [{"name": topic, "topic_id": None}]})


@dataclass(slots=True)
class Load:
    """What a run came to."""

    seconds: float = 0.0
    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    #: From a request's last byte sent to its answer's last byte received, seconds.
    latencies: list[float] = field(default_factory=list)

    def latency(self, share: float) -> float:
        """The latency that this share of requests did not exceed."""
        ordered = sorted(self.latencies)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


class _Conversation:
    """One connection: requests are sent while fewer than `window` are unanswered."""

    __slots__ = ("frames", "lacking", "rest", "sending", "sent_at", "size", "sock", "turn", "wants_write")

    def __init__(self, sock: socket.socket, frames: Sequence[bytes], turn: int) -> None:
        self.sock = sock
        self.frames = frames
        self.turn = turn
        self.sending: memoryview | None = None
        self.sent_at: deque[float] = deque()
        #: Bytes that the answer under way still lacks, and a size of which not all has come.
        self.lacking = 0
        self.size = 0
        self.rest = b""
        self.wants_write = False


class Driver:
    """`with Driver(bootstrap, 8) as driver: driver.run(frames, seconds)`"""

    def __init__(self, bootstrap: str, connections: int, receive_buffer: int | None = None) -> None:
        self.address = bootstrap
        host, port = parse_address(bootstrap)
        self._selector = selectors.DefaultSelector()
        self._buffer = bytearray(_RECEIVE_BYTES)
        self.sockets: list[socket.socket] = []
        try:
            for _ in range(connections):
                sock = socket.create_connection((host, port), timeout=_SILENCE_SECONDS)
                self.sockets.append(sock)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if receive_buffer is not None:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
                sock.setblocking(False)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """All connections."""
        for sock in self.sockets:
            sock.close()
        self._selector.close()

    def run(
        self,
        frames: Sequence[bytes] | Callable[[int], Sequence[bytes]],
        seconds: float = 0.0,
        *,
        requests: int = 0,
        window: int = 1,
        check: Callable[[bytes], None] | None = None,
    ) -> Load:
        """Each connection sends the frames in turn, over and over, until the time is up or so many were sent in all.

        `frames` may be a function of the connection's number. `check` gets the first answer of each connection, and of
        every hundredth request; it needs answers that come in one piece.
        """
        load = Load()
        conversations = []
        for number, sock in enumerate(self.sockets):
            own = frames(number) if callable(frames) else frames
            conversations.append(_Conversation(sock, own, number % len(own)))
        self._limit = requests or 1 << 62
        self._window = window
        self._check = check
        self._started = 0
        begun = time.perf_counter()
        self._end = begun + (seconds or 1e9)
        busy = 0
        for each in conversations:
            self._selector.register(each.sock, selectors.EVENT_READ, each)
            busy += self._send(each, load)
        while any(each.sent_at or each.sending is not None for each in conversations) if busy else False:
            ready = self._selector.select(_SILENCE_SECONDS)
            if not ready:
                raise LoadError(address=self.address, what=f"said nothing for {_SILENCE_SECONDS:g} s")
            for key, events in ready:
                if events & selectors.EVENT_READ:
                    self._receive(key.data, load)
                self._send(key.data, load)
            if time.perf_counter() >= self._end and not any(each.sent_at for each in conversations):
                break
        load.seconds = time.perf_counter() - begun
        for each in conversations:
            self._selector.unregister(each.sock)
        return load

    def _send(self, each: _Conversation, load: Load) -> bool:
        while True:
            if each.sending is None:
                if (
                    len(each.sent_at) >= self._window
                    or self._started >= self._limit
                    or time.perf_counter() >= self._end
                ):
                    break
                each.sending = memoryview(each.frames[each.turn])
                each.turn = (each.turn + 1) % len(each.frames)
                self._started += 1
            try:
                sent = each.sock.send(each.sending)
            except BlockingIOError:
                sent = 0
            load.sent_bytes += sent
            if sent < len(each.sending):
                each.sending = each.sending[sent:]
                break
            each.sending = None
            each.sent_at.append(time.perf_counter())
        wants = each.sending is not None
        if wants != each.wants_write:
            each.wants_write = wants
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants else 0)
            self._selector.modify(each.sock, events, each)
        return bool(each.sent_at) or wants

    def _receive(self, each: _Conversation, load: Load) -> None:
        buffer = self._buffer
        try:
            count = each.sock.recv_into(buffer)
        except BlockingIOError:
            return
        if count == 0:
            raise LoadError(address=self.address, what="closed a connection")
        load.received_bytes += count
        position = 0
        while position < count:
            if each.lacking == 0:
                head = each.rest + bytes(buffer[position : position + 4 - len(each.rest)])
                position += len(head) - len(each.rest)
                if len(head) < 4:
                    each.rest = head
                    return
                each.rest = b""
                (each.size,) = _SIZE.unpack(head)
                each.lacking = each.size
            taken = min(each.lacking, count - position)
            if (
                self._check is not None
                and taken == each.size
                and (load.requests % 100 == 0 or load.requests < len(self.sockets))
            ):
                self._check(bytes(buffer[position : position + taken]))
            each.lacking -= taken
            position += taken
            if each.lacking == 0:
                load.requests += 1
                load.latencies.append(time.perf_counter() - each.sent_at.popleft())


def check_produced(answer: bytes) -> None:
    """LoadError for an answer that refuses a batch."""
    decoded = decode(response_class(api_keys.PRODUCE, PRODUCE_VERSION), memoryview(answer)[5:])
    for topic in decoded.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise LoadError(address="it", what=f"refused a batch with error {partition.error_code}")
