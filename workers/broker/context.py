"""What every handler is given: the broker's parts, and how it talks to the coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from compactd.config.errors import CompactdError
from compactd.config.settings import DaemonConfig, StorageConfig
from compactd.workers.broker.image import CatalogueImage
from compactd.workers.catalogue_update import CatalogueChange, CatalogueChanged
from compactd.workers.clock import Clock
from compactd.workers.message import Message
from compactd.workers.messages import Failed, GivenSettings

if TYPE_CHECKING:
    from compactd.workers.broker.partitions import Partitions

_LOGGER = logging.getLogger(__name__)
_Part = TypeVar("_Part")
_T = TypeVar("_T")

#: How long a change of the catalogue may take.
CHANGE_SECONDS = 30.0


class CatalogueRefusedError(CompactdError):
    """The coordinator could not change the catalogue: {detail}."""


class Sends(Protocol):
    """The part of a worker's channel that this needs."""

    def send(self, message: Message) -> None: ...


class CatalogueClient:
    """Asks the coordinator for changes of the catalogue."""

    def __init__(self, channel: Sends) -> None:
        self.channel = channel
        self._next_id = 0
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}

    async def change(self, operation: str, arguments: msgspec.Struct, results: type[_T]) -> _T:
        """Operation, arguments and type of the results: those of catalogue_messages.OPERATIONS.

        When this returns, the image has the change. CatalogueRefusedError, TimeoutError.
        """
        self._next_id += 1
        request_id = self._next_id
        future: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            self.channel.send(
                CatalogueChange(
                    request_id=request_id, operation=operation, arguments=msgspec.Raw(msgspec.msgpack.encode(arguments))
                )
            )
            async with asyncio.timeout(CHANGE_SECONDS):
                raw = await future
            return msgspec.msgpack.decode(raw, type=results)
        finally:
            self._waiting.pop(request_id, None)

    def received(self, message: CatalogueChanged | Failed) -> bool:
        """Takes an answer; False when nobody waits for it."""
        future = self._waiting.get(message.request_id)
        if future is None or future.done():
            return False
        if isinstance(message, Failed):
            future.set_exception(CatalogueRefusedError(detail=message.message))
        else:
            future.set_result(message.results)
        return True


@dataclass(slots=True)
class Context:
    """One broker worker. Everything here belongs to its loop."""

    clock: Clock
    config: DaemonConfig
    storage: StorageConfig
    node_id: int
    #: Its number among the broker workers.
    worker: int
    image: CatalogueImage
    partitions: Partitions
    catalogue: CatalogueClient
    #: Threads for what would block the loop.
    executor: Executor
    loop: asyncio.AbstractEventLoop
    #: Changed settings by broker-level name, as Reconfigure told them.
    settings: dict[str, str] = field(default_factory=dict)
    #: Settings as a person wrote them, which clients may ask for.
    given: GivenSettings = field(default_factory=GivenSettings)
    _parts: dict[type[Any], Any] = field(default_factory=dict)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _on_stop: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    _on_topics_gone: list[Callable[[list[str]], None]] = field(default_factory=list)

    def leaders_told(self, node_ids: Collection[int], listener: str) -> list[tuple[int, str, int, str | None]]:
        """Node id, host, port and rack of these nodes, as clients of a listener reach them."""
        if not node_ids:
            return []
        return [
            (node.node_id, node.host, node.port, self.config.broker_rack)
            for node in self.image.nodes_at(listener)
            if node.node_id in node_ids
        ]

    def part(self, kind: type[_Part]) -> _Part:
        """The broker's one instance of a class, made as `kind(context)` when it is first asked for."""
        found = self._parts.get(kind)
        if found is None:
            found = self._parts[kind] = kind(self)  # type: ignore[call-arg]
        return found

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs something beside the requests; it is cancelled when the broker stops. Its errors are logged."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOGGER.error("a bug in a background task", exc_info=task.exception())

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """Runs what blocks in a thread."""
        return await self.loop.run_in_executor(self.executor, work)

    def on_stop(self, call: Callable[[], Awaitable[None]]) -> None:
        """`call` is awaited when the broker stops: no client is connected any more, the logs are still open."""
        self._on_stop.append(call)

    def on_topics_gone(self, call: Callable[[list[str]], None]) -> None:
        """`call` gets the names of topics that were deleted, as soon as the image knows."""
        self._on_topics_gone.append(call)

    def topics_gone(self, names: list[str]) -> None:
        """The image lost these topics."""
        for call in self._on_topics_gone:
            call(names)

    async def stop(self) -> None:
        """Runs what was registered to be run, and ends the background tasks."""
        for call in reversed(self._on_stop):
            try:
                await call()
            except Exception:
                _LOGGER.exception("a bug while stopping")
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
