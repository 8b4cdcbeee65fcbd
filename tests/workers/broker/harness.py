"""A broker worker inside the test's process: a channel of queues in place of the coordinator, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import queue
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from kio.serial import entity_reader

from compactd.config.flat import flatten
from compactd.config.settings import CleanerConfig, DaemonConfig, StorageConfig, TopicConfig, as_text
from compactd.storage.names import uuid_text
from compactd.workers import catalogue_messages
from compactd.workers.broker import main
from compactd.workers.broker.context import Context
from compactd.workers.broker.encoding import encode
from compactd.workers.broker.partition import Partition
from compactd.workers.broker.requests import Peer
from compactd.workers.broker.schemas import is_flexible, request_class, response_class
from compactd.workers.catalogue_update import (
    CatalogueChange,
    CatalogueChanged,
    CataloguePartition,
    CatalogueTopic,
    CatalogueUpdate,
)
from compactd.workers.clock import Clock
from compactd.workers.message import Endpoint, Message
from compactd.workers.messages import Failed, GivenSettings, Listening, Stop, Stopped, Welcome
from compactd.workers.partition_messages import (
    AssignPartitions,
    PartitionAssignment,
    PartitionsReady,
    PartitionState,
    PartitionStates,
)

NODE_ID = 1
CLUSTER_ID = "Y29tcGFjdGQtdGVzdHMtMQ"
_SECONDS = 60.0


class MovedClock(Clock):
    """The time of day, moved by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.moved_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.moved_ms


class FakeChannel:
    """The broker's end (send, receive, fileno) and the test's (put, wait_for)."""

    def __init__(self, welcome: Welcome) -> None:
        self.number = 0
        self.welcome = welcome
        self.sent: list[Message] = []
        self.on_sent: Callable[[Message], None] = lambda _: None
        self._to_broker: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._readable = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._news = threading.Condition()
        self.serving = threading.Event()

    def send(self, message: Message) -> None:
        with self._news:
            self.sent.append(message)
            self._news.notify_all()
        self.on_sent(message)

    def receive(self, timeout: float | None = None) -> Message | None:
        try:
            message = self._to_broker.get_nowait()
        except queue.Empty:
            return None
        with contextlib.suppress(BlockingIOError):  # `put` is about to write to it
            os.eventfd_read(self._readable)
        return message

    def fileno(self) -> int:
        return self._readable

    def set_phase(self, phase: str) -> None:
        if phase == "serving":
            self.serving.set()

    def put(self, message: Message) -> None:
        """To the broker."""
        self._to_broker.put(message)
        os.eventfd_write(self._readable, 1)

    def wait_for(self, wanted: Callable[[Message], bool]) -> Any:
        """The first message of the broker, taken out of `sent`, that is wanted."""
        end = time.monotonic() + _SECONDS
        with self._news:
            while True:
                for message in self.sent:
                    if wanted(message):
                        self.sent.remove(message)
                        return message
                if not self._news.wait(end - time.monotonic()):
                    raise AssertionError(f"the broker did not say what was expected, but {self.sent}")

    def close(self) -> None:
        os.close(self._readable)


def _report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tells of what nobody waited for, without a traceback.

    Tasks that a crash ended tell it when they are collected, wherever the interpreter is then; and CPython 3.11 cannot
    parse a source for a traceback while it parses another (SystemError: AST constructor recursion depth mismatch).
    """
    logging.getLogger("asyncio").error("%s: %r", context["message"], context.get("exception"))


class InProcessBroker:
    """`with InProcessBroker(log_dirs) as broker:` a broker that owns the topics that `create` made."""

    def __init__(
        self,
        log_dirs: Sequence[Path],
        settings: Mapping[str, object] | None = None,
        clean: bool = True,
        nodes: int = 1,
    ) -> None:
        self.log_dirs = [str(path) for path in log_dirs]
        values = {"log.dirs": ",".join(self.log_dirs), **(settings or {})}
        daemon = {name: value for name, value in values.items() if name not in ("log.dirs", "cordoned.log.dirs")}
        storage = {name: value for name, value in values.items() if name in ("log.dirs", "cordoned.log.dirs")}
        flat = flatten(
            StorageConfig.from_strings(storage), CleanerConfig.from_strings({}), DaemonConfig.from_strings(daemon)
        )
        listen = tuple(
            Endpoint(each.name, "127.0.0.1", 0, int(each.protocol))
            for each in DaemonConfig.from_strings(daemon).open_listeners
        )
        given = GivenSettings(broker={name: as_text(value) for name, value in values.items()})
        self.clock = MovedClock()
        self.channel = FakeChannel(Welcome(settings=flat, node_id=NODE_ID, listen=listen, given=given))
        self.channel.on_sent = self._catalogue
        self.clean = clean
        self.topics: dict[str, CatalogueTopic] = {}
        self.configs: dict[str, TopicConfig] = {}
        self.port = 0
        self.ports: dict[str, int] = {}
        self.stopped: Stopped | None = None
        self.failure: BaseException | None = None
        self._offset = 0
        self._request_id = 0
        self._nodes = nodes
        self._thread = threading.Thread(target=self._run, name="broker-under-test")

    def _run(self) -> None:
        try:
            with ThreadPoolExecutor(8, thread_name_prefix="disk") as executor:
                self.stopped = asyncio.run(self._serve(executor))
        except BaseException as error:
            self.failure = error

    async def _serve(self, executor: ThreadPoolExecutor) -> Stopped:
        asyncio.get_running_loop().set_exception_handler(_report)
        self._broker = main.Broker(self.channel, self.clock, executor)
        return await self._broker.serve()

    def __enter__(self) -> InProcessBroker:
        self._thread.start()
        try:
            listening = self.channel.wait_for(lambda message: isinstance(message, Listening))
        except AssertionError:
            raise AssertionError(f"the broker did not listen: {self.failure!r}") from None
        #: Bound ports by listener; `port` is that of the first.
        self.ports = {each.listener: each.port for each in listening.endpoints}
        self.port = listening.endpoints[0].port
        self._update(full=True)
        assert self.channel.serving.wait(_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> Stopped:
        """An orderly stop; its last words."""
        if self._thread.is_alive():
            self.channel.put(Stop(reason="test"))
            self._thread.join(_SECONDS)
        assert not self._thread.is_alive(), "the broker did not stop"
        if self.failure is not None:
            raise self.failure
        self.channel.close() if self._request_id >= 0 else None
        self._request_id = -1
        assert self.stopped is not None
        return self.stopped

    # ---- the coordinator's side

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def next_id(self) -> int:
        self._request_id += 1
        return self._request_id

    def _update(self, full: bool = False, topics: Sequence[CatalogueTopic] = (), deleted: Sequence[str] = ()) -> None:
        self._offset += 1
        nodes = [(NODE_ID, "127.0.0.1", self.port)]
        nodes += [(NODE_ID + 1_000_000 * k, "127.0.0.1", self.port + k) for k in range(1, self._nodes)]
        self.channel.put(
            CatalogueUpdate(
                full=full,
                metadata_offset=self._offset,
                cluster_id=CLUSTER_ID,
                topics=tuple(self.topics.values()) if full else tuple(topics),
                deleted=tuple(deleted),
                features={"metadata.version": 33, "group.version": 1, "transaction.version": 2},
                nodes=tuple(nodes),
                endpoints=self._endpoints(),
            )
        )

    def _endpoints(self) -> tuple[tuple[Endpoint, ...], ...]:
        return tuple(
            tuple(Endpoint(name, "127.0.0.1", port + k) for name, port in self.ports.items())
            for k in range(self._nodes)
        )

    def create(
        self,
        topic: str,
        partitions: int = 1,
        *,
        topic_id: uuid.UUID | None = None,
        log_dir: str | None = None,
        others: Mapping[int, int] | None = None,
        leader_epoch: int = 0,
        wait: bool = True,
        recovery_point: int = 0,
        **config: object,
    ) -> CatalogueTopic:
        """Makes a topic: tells the catalogue, assigns the partitions. `others`: partition to the worker that has it.

        `config`: topic settings with underscores for dots.
        """
        settings = {name.replace("_", "."): str(value) for name, value in config.items()}
        parsed = TopicConfig.from_strings(settings)
        identity = uuid_text(topic_id or uuid.uuid4())
        where = log_dir or self.log_dirs[0]
        made = CatalogueTopic(
            name=topic,
            topic_id=identity,
            partitions=tuple(
                CataloguePartition(
                    partition=number,
                    leader_epoch=leader_epoch,
                    partition_epoch=0,
                    log_dir=where,
                    worker=(others or {}).get(number, 0),
                )
                for number in range(partitions)
            ),
            configs=settings,
        )
        self.topics[topic] = made
        self.configs[topic] = parsed
        self._update(topics=[made])
        request_id = self.next_id()
        self.channel.put(
            AssignPartitions(
                request_id=request_id,
                partitions=tuple(
                    PartitionAssignment(
                        topic=topic,
                        partition=number,
                        topic_id=identity,
                        log_dir=where,
                        config=parsed,
                        leader_epoch=leader_epoch,
                        recovery_point=recovery_point,
                    )
                    for number in range(partitions)
                    if number not in (others or {})
                ),
                clean_log_dirs=tuple(self.log_dirs) if self.clean else (),
            )
        )
        if wait:
            self.ready = self.answer_to(request_id, PartitionsReady)
        return made

    def answer_to(self, request_id: int, kind: type[Any]) -> Any:
        """The broker's answer to a request."""
        return self.channel.wait_for(
            lambda message: isinstance(message, (kind, Failed)) and getattr(message, "request_id", None) == request_id
        )

    def ask(self, message: Message, kind: type[Any]) -> Any:
        """Sends a request of the coordinator and waits for the answer."""
        self.channel.put(message)
        return self.answer_to(message.request_id, kind)  # type: ignore[attr-defined]

    def state(self, topic: str, wanted: Callable[[PartitionState], bool] = lambda _: True) -> PartitionState:
        """The next state that the broker tells of a topic's partition 0 and that is wanted."""
        message = self.channel.wait_for(
            lambda message: (
                isinstance(message, PartitionStates)
                and any(state.topic == topic and wanted(state) for state in message.states)
            )
        )
        return next(state for state in reversed(message.states) if state.topic == topic and wanted(state))

    def drop(self, topic: str) -> None:
        """The catalogue loses a topic; returns when the broker has heard of it."""
        del self.topics[topic]
        self._update(deleted=[topic])
        end = time.monotonic() + _SECONDS
        while self.in_loop(lambda context: any(each.name == topic for each in context.image.topics.values())):
            assert time.monotonic() < end
            time.sleep(0.002)

    def _catalogue(self, message: Message) -> None:
        """Answers what the broker asks of the catalogue; called in the broker's thread."""
        if not isinstance(message, CatalogueChange):
            return
        arguments: Any = catalogue_messages.arguments_of(message.operation, message.arguments)
        assert message.operation == "create_topics"
        results = []
        for topic in arguments.topics:
            made = self.create(topic.name, 1, wait=False)
            results.append(catalogue_messages.TopicResult(name=topic.name, topic_id=made.topic_id, num_partitions=1))
        answer = catalogue_messages.TopicResults(results=tuple(results))
        self.channel.put(
            CatalogueChanged(request_id=message.request_id, results=msgspec.Raw(msgspec.msgpack.encode(answer)))
        )

    # ---- the broker's inside

    def in_loop(self, work: Callable[[Context], Any]) -> Any:
        """Runs something on the broker's loop; awaits what it returns if that can be awaited."""
        broker = self._broker

        async def run() -> Any:
            result = work(broker.context)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(run(), broker.loop).result(_SECONDS)

    @property
    def connections(self) -> int:
        """On the broker's loop."""
        return self._broker.server.connections

    def peers(self) -> list[Peer]:
        """Of the clients that are connected."""
        return self.in_loop(lambda _: [each.peer for each in self._broker.server._connections])  # type: ignore[no-any-return]

    def partition(self, topic: str, number: int = 0) -> Partition:
        """The broker's own object: to look at."""
        found = self.in_loop(lambda context: context.partitions.get(topic, number))
        assert isinstance(found, Partition)
        return found

    def wait_for_watchers(self, topic: str, count: int = 1) -> None:
        """Returns when so many fetches wait for the topic's partition 0."""
        partition = self.partition(topic)
        end = time.monotonic() + _SECONDS
        while len(partition.watchers) != count:
            assert time.monotonic() < end, f"{len(partition.watchers)} fetches wait, not {count}"
            time.sleep(0.002)

    # ---- clients

    def connect(self, listener: str | None = None) -> RawClient:
        """A connection that sends what it is told, to the first listener or the one named."""
        return RawClient(self.port if listener is None else self.ports[listener])


class RawClient:
    """Frames by hand."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        """`source`: the address to come from, one of 127.0.0.0/8."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS, source_address=(source, 0))
        self._correlation = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def send(self, api_key: int, version: int, body: Mapping[str, Any] | bytes, client_id: str | None = "raw") -> int:
        """Sends a request; its correlation id."""
        self._correlation += 1
        self.send_frame(request_frame(api_key, version, self._correlation, body, client_id))
        return self._correlation

    def receive_frame(self) -> bytes:
        """The next answer, whole. ConnectionError when the broker closed."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def receive(self, api_key: int, version: int) -> Any:
        """The next answer's body; its correlation id must be that of the last request, or `expect` is used."""
        return decode_answer(api_key, version, self.receive_frame())[1]

    def ask(self, api_key: int, version: int, body: Mapping[str, Any] | bytes) -> Any:
        """Request and answer."""
        sent = self.send(api_key, version, body)
        correlation, answer = decode_answer(api_key, version, self.receive_frame())
        assert correlation == sent
        return answer

    def is_closed(self) -> bool:
        """Whether the broker closes the connection; waits for that, or for data."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionError("closed by the broker")
            data += part
        return bytes(data)


def request_frame(
    api_key: int, version: int, correlation: int, body: Mapping[str, Any] | bytes, client_id: str | None = "raw"
) -> bytes:
    """Header and body, without the size."""
    client = struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    head = struct.pack(">hhi", api_key, version, correlation) + client
    if is_flexible(api_key, version):
        head += b"\0"
    content = body if isinstance(body, bytes) else bytes(encode(request_class(api_key, version), body))
    return head + content


def decode_answer(api_key: int, version: int, frame: bytes) -> tuple[int, Any]:
    """(correlation id, body); the whole frame has to be the answer."""
    (correlation,) = struct.unpack_from(">i", frame)
    position = 4
    if is_flexible(api_key, version) and api_key != 18:
        assert frame[4] == 0
        position = 5
    answer, size = entity_reader(response_class(api_key, version))(frame, position)
    assert position + size == len(frame)
    return correlation, answer
