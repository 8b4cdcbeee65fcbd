"""A small Kafka client for `compactd produce` and `compactd consume`: plain sockets, one request after another.

It speaks a single version of each API, which Kafka 2.7 and all later ones answer, too, so it works with a Kafka broker as
well. Messages are kio's, written and read by the layout that the broker workers use, where every length is checked.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from compactd.config.errors import ConnectionFailedError, RefusedError, ServerError, StorageIOError, UsageError
from compactd.config.listeners import format_address, parse_address
from compactd.scripts.login import Login, refused
from compactd.storage.records.batch import Batch, iter_batches
from compactd.workers.broker import api_keys
from compactd.workers.broker.decoding import MalformedRequestError, decode, skip_tags
from compactd.workers.broker.encoding import encode
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.schemas import is_flexible, request_class, response_class

#: The one version of each API that is spoken.
VERSIONS = {
    api_keys.PRODUCE: 9,
    api_keys.FETCH: 12,
    api_keys.LIST_OFFSETS: 7,
    api_keys.METADATA: 12,
    api_keys.SASL_HANDSHAKE: 1,
    api_keys.SASL_AUTHENTICATE: 2,
}
#: Longest answer that is read.
MAX_ANSWER_BYTES = 256 << 20
#: Most elements of its arrays: those of a broker with a million partitions.
MOST_ELEMENTS = 10_000_000
CLIENT_ID = "compactd"

EARLIEST, LATEST = -2, -1

#: Errors that asking again, with new metadata, may mend.
RETRIABLE = frozenset(
    (
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    )
)
_ATTEMPTS = 40
_PAUSE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """Partitions of a topic by their number, each with the node that leads it; -1: none does."""

    name: str
    leaders: dict[int, int]


@dataclass(slots=True)
class Fetched:
    """What a fetch brought of one partition."""

    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    batches: list[Batch]
    #: (producer id, first offset) of transactions that were aborted.
    aborted: list[tuple[int, int]]


class Connection:
    """One socket."""

    def __init__(self, host: str, port: int, seconds: float, login: Login | None = None) -> None:
        """StorageIOError: nobody listens there, or not to us."""
        self.address = format_address(host, port)
        self._correlation = 0
        #: It has answered, or we said who we are.
        self._is_known = login is not None
        try:
            self.socket = socket.create_connection((host, port), timeout=seconds)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise _failed(self.address, "connecting", error) from None
        if login is not None:
            try:
                self._come_in(login, host)
            except BaseException:
                self.socket.close()
                raise

    def _come_in(self, login: Login, host: str) -> None:
        try:
            self.socket = login.encrypted(self.socket, host)
        except OSError as error:
            failed = _failed(self.address, "connecting with TLS", error)
            if isinstance(error, (ssl.SSLEOFError, ConnectionError)):
                hint = "; a listener without TLS hangs up like this: --bootstrap-server names another"
                failed = ConnectionFailedError(**{**failed.fields, "reason": failed.reason + hint})
            raise failed from None
        if login.mechanism:
            answer = self.ask(api_keys.SASL_HANDSHAKE, {"mechanism": login.mechanism})
            if answer.error_code:
                offered = ", ".join(answer.mechanisms) or "none"
                raise refused(self.address, f"it takes no {login.mechanism}, it takes {offered}")
            login.log_in(self._exchange, self.address)

    def _exchange(self, token: bytes) -> bytes:
        answer = self.ask(api_keys.SASL_AUTHENTICATE, {"auth_bytes": token})
        if answer.error_code:
            raise refused(self.address, (answer.error_message or error_text(answer.error_code)).rstrip("."))
        return bytes(answer.auth_bytes)

    def close(self) -> None:
        self.socket.close()

    def send(self, api_key: int, body: Mapping[str, Any]) -> None:
        version = VERSIONS[api_key]
        self._correlation += 1
        head = struct.pack(">hhih", api_key, version, self._correlation, len(CLIENT_ID)) + CLIENT_ID.encode()
        frame = bytearray(head + (b"\0" if is_flexible(api_key, version) else b""))
        encode(request_class(api_key, version), body, frame)
        try:
            self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        except OSError as error:
            raise _failed(self.address, "sending a request", error) from None

    def receive(self, api_key: int) -> Any:
        """The answer to the request that was sent last."""
        version = VERSIONS[api_key]
        (size,) = struct.unpack(">i", self._exactly(4))
        if not 4 <= size <= MAX_ANSWER_BYTES:
            raise ServerError(what=self.address, reason=f"it sent {size} bytes, and no Kafka broker would")
        frame = memoryview(self._exactly(size))
        self._is_known = True
        (correlation,) = struct.unpack_from(">i", frame)
        try:
            body = skip_tags(frame, 4) if is_flexible(api_key, version) else 4
            answer = decode(response_class(api_key, version), frame[body:], MOST_ELEMENTS)
        except (MalformedRequestError, IndexError, ValueError) as error:
            raise ServerError(what=self.address, reason=f"its answer cannot be read: {error}") from None
        if correlation != self._correlation:
            raise ServerError(what=self.address, reason="it answered something that was not asked")
        return answer

    def ask(self, api_key: int, body: Mapping[str, Any]) -> Any:
        self.send(api_key, body)
        return self.receive(api_key)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                part = self.socket.recv(min(count - len(data), 1 << 20))
            except ConnectionError:
                part = b""
            except OSError as error:
                raise _failed(self.address, "waiting for its answer", error) from None
            if not part:
                hint = "" if self._is_known else "; a listener that asks for a login or for TLS needs --command-config"
                raise ConnectionFailedError(
                    path=self.address, action="waiting for its answer", reason=f"it closed the connection{hint}"
                )
            data += part
        return bytes(data)


class KafkaClient:
    """Use as a context manager."""

    def __init__(self, bootstrap: str, seconds: float = 30.0, login: Login | None = None) -> None:
        """`bootstrap`: HOST:PORT, or several with commas, of which the first that answers is taken."""
        self._login = login
        self._seconds = seconds
        self._nodes: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, Connection] = {}
        self._addresses = bootstrap
        self._bootstrap = self._first_of(bootstrap)

    def __enter__(self) -> KafkaClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for connection in (self._bootstrap, *self._connections.values()):
            connection.close()
        self._connections.clear()

    def connect_again(self) -> None:
        """Drops all connections, with what was on its way. StorageIOError: nobody listens, yet."""
        self.close()
        self._bootstrap = self._first_of(self._addresses)

    def layout(self, topic: str) -> TopicLayout:
        """Where a topic's partitions are. RefusedError when there is no such topic."""
        body = {"topics": [{"name": topic, "topic_id": None}], "allow_auto_topic_creation": False}
        answer = self._bootstrap.ask(api_keys.METADATA, body)
        self._nodes = {each.node_id: (each.host, each.port) for each in answer.brokers}
        if not answer.topics:
            raise ServerError(what=f"topic {topic}", reason="it said nothing about it")
        found = answer.topics[0]
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            advice = f"`compactd topics create {topic}` makes it, `compactd topics list` shows what there is."
            raise RefusedError(path=f"topic {topic}", reason="there is no such topic", advice=advice)
        if found.error_code and found.error_code not in RETRIABLE:
            raise ServerError(what=f"topic {topic}", reason=error_text(found.error_code))
        leaders = {each.partition_index: each.leader_id for each in found.partitions}
        return TopicLayout(topic, dict(sorted(leaders.items())))

    def offset_at(self, layout: TopicLayout, partition: int, timestamp: int) -> int:
        """EARLIEST or LATEST."""
        asked = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}
        body = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": layout.name, "partitions": [asked]}],
        }
        for attempt in range(_ATTEMPTS):
            answer = self.connection(self._leader(layout, partition)).ask(api_keys.LIST_OFFSETS, body)
            found = answer.topics[0].partitions[0]
            if not found.error_code:
                return int(found.offset)
            layout = self._again(layout, partition, found.error_code, attempt)
        raise AssertionError("unreachable")

    def produce(self, layout: TopicLayout, partition: int, records: bytes, acks: int, timeout_ms: int) -> int:
        """Appends one batch. Its base offset, -1 with acks 0. ServerError with what the broker says."""
        content = {"name": layout.name, "partition_data": [{"index": partition, "records": records}]}
        body = {"transactional_id": None, "acks": acks, "timeout": timeout_ms, "topic_data": [content]}
        for attempt in range(_ATTEMPTS):
            connection = self.connection(self._leader(layout, partition))
            connection.send(api_keys.PRODUCE, body)
            if acks == 0:
                return -1
            found = connection.receive(api_keys.PRODUCE).responses[0].partition_responses[0]
            if not found.error_code:
                return int(found.base_offset)
            if found.error_code not in RETRIABLE:
                texts = [each.batch_index_error_message for each in found.record_errors]
                said = found.error_message or next((text for text in texts if text), "")
                reason = error_text(found.error_code) + (f": {said.rstrip('.')}" if said else "")
                raise ServerError(what=f"{layout.name}-{partition}", reason=reason, code=found.error_code)
            layout = self._again(layout, partition, found.error_code, attempt)
        raise AssertionError("unreachable")

    def fetch(
        self,
        layout: TopicLayout,
        offsets: Mapping[int, int],
        max_wait_ms: int,
        committed_only: bool,
        partition_bytes: int = 1 << 20,
    ) -> list[Fetched]:
        """Records from these offsets on, by partition; all leaders are asked at once."""
        asked: dict[int, list[dict[str, int]]] = {}
        for partition, offset in offsets.items():
            asked.setdefault(self._leader(layout, partition), []).append(
                {"partition": partition, "fetch_offset": offset, "partition_max_bytes": partition_bytes}
            )
        waiting = {}
        for node, partitions in asked.items():
            connection = self.connection(node)
            connection.send(
                api_keys.FETCH,
                {
                    "replica_id": -1,
                    "max_wait": max_wait_ms,
                    "min_bytes": 1,
                    "max_bytes": 64 << 20,
                    "isolation_level": int(committed_only),
                    "session_id": 0,
                    "session_epoch": -1,
                    "topics": [{"topic": layout.name, "partitions": partitions}],
                    "forgotten_topics_data": [],
                    "rack_id": "",
                },
            )
            waiting[connection.socket] = connection
        found: list[Fetched] = []
        end = time.monotonic() + self._seconds + max_wait_ms / 1000
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], max(end - time.monotonic(), 0))
            if not ready:
                address = next(iter(waiting.values())).address
                raise ConnectionFailedError(
                    path=address, action="waiting for its answer", reason="it did not answer in time"
                )
            for each in ready:
                answer = waiting.pop(each).receive(api_keys.FETCH)
                if answer.error_code:
                    raise ServerError(what=f"topic {layout.name}", reason=error_text(answer.error_code))
                for topic in answer.responses:
                    found += [_fetched(layout.name, part) for part in topic.partitions]
        return found

    def connection(self, node: int) -> Connection:
        found = self._connections.get(node)
        if found is None:
            if node not in self._nodes:
                raise ServerError(what=f"node {node}", reason="it is not listed among the brokers")
            found = self._connections[node] = Connection(*self._nodes[node], self._seconds, self._login)
        return found

    # ---- inside

    def _first_of(self, bootstrap: str) -> Connection:
        try:
            addresses = [parse_address(text) for text in bootstrap.split(",")]
        except ValueError as fault:
            raise UsageError(detail=f"--bootstrap-server: {fault}") from None
        for number, (host, port) in enumerate(addresses):
            last = number == len(addresses) - 1
            with contextlib.nullcontext() if last else contextlib.suppress(StorageIOError):
                return Connection(host or "127.0.0.1", port, self._seconds, self._login)
        raise AssertionError("unreachable")

    def _leader(self, layout: TopicLayout, partition: int) -> int:
        leader = layout.leaders.get(partition)
        if leader is None:
            raise UsageError(detail=f"{layout.name} has no partition {partition}, but {_listed(layout.leaders)}")
        if leader < 0:
            raise ServerError(what=f"{layout.name}-{partition}", reason="nobody serves it; `compactd status` says why")
        return leader

    def _again(self, layout: TopicLayout, partition: int, error: int, attempt: int) -> TopicLayout:
        """New metadata after a pause. ServerError for what a retry does not mend."""
        if error not in RETRIABLE or attempt == _ATTEMPTS - 1:
            raise ServerError(what=f"{layout.name}-{partition}", reason=error_text(error))
        time.sleep(_PAUSE_SECONDS)
        return self.layout(layout.name)


def error_text(code: int) -> str:
    """`NOT_LEADER_OR_FOLLOWER` for 6."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _fetched(topic: str, part: Any) -> Fetched:
    records = part.records or b""
    return Fetched(
        partition=part.partition_index,
        error=part.error_code,
        high_watermark=part.high_watermark,
        last_stable_offset=part.last_stable_offset,
        log_start_offset=part.log_start_offset,
        batches=list(iter_batches(records[: _whole(records)], path=f"{topic}-{part.partition_index}")),
        aborted=[(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()],
    )


def _whole(records: bytes) -> int:
    """Bytes of whole batches: the last one of an answer may be cut off where the limit was."""
    position = 0
    while position + 12 <= len(records):
        (size,) = struct.unpack_from(">i", records, position + 8)
        if size < 0 or position + 12 + size > len(records):
            break
        position += 12 + size
    return position


def _listed(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    return f"0 to {found[-1]}" if found == list(range(len(found))) and len(found) > 2 else ", ".join(map(str, found))


def _failed(address: str, action: str, error: OSError) -> ConnectionFailedError:
    reason = "it did not answer in time" if isinstance(error, TimeoutError) else (error.strerror or str(error))
    return ConnectionFailedError(path=address, action=action, reason=reason)
