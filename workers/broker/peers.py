"""What brokers ask each other when there are several: through the coordinator, which passes it on as it is.

    context.part(Peers).serve("markers", Markers, MarkerResults, write)      what this broker answers
    await context.part(Peers).ask(2, "markers", Markers(...), MarkerResults) asked of worker 2

Clients' own connections are not used for it: what protects a listener is meant for clients.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from compactd.config.errors import CompactdError
from compactd.workers.messages import PeerAnswer, PeerRequest

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

#: How long a peer may take, ms: Kafka's request.timeout.ms between brokers.
PEER_TIMEOUT_MS = 30_000


class PeerError(CompactdError):
    """Broker worker {worker} did not answer: {detail}."""


class Peers:
    """`context.part(Peers)`. On the broker's loop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._served: dict[str, tuple[type[Any], Callable[[Any], Awaitable[msgspec.Struct]]]] = {}
        #: Whoever had this number before may still be answered: its questions must not be taken for ours.
        self._next_id = secrets.randbits(48)
        #: By number of the question: whom it went to, and who waits.
        self._waiting: dict[int, tuple[int, asyncio.Future[msgspec.Raw]]] = {}

    def serve(self, operation: str, arguments: type[_T], work: Callable[[_T], Awaitable[msgspec.Struct]]) -> None:
        """From now on `operation` is answered with what `work` makes of it."""
        self._served[operation] = (arguments, work)

    async def ask(self, worker: int, operation: str, arguments: msgspec.Struct, results: type[_T]) -> _T:
        """PeerError: it is not there, or too slow; whether it did what was asked is not known then."""
        self._next_id += 1
        number = self._next_id
        future: asyncio.Future[msgspec.Raw] = self._context.loop.create_future()
        self._waiting[number] = (worker, future)
        request = PeerRequest(
            asker=self._context.worker,
            worker=worker,
            number=number,
            operation=operation,
            arguments=msgspec.Raw(msgspec.msgpack.encode(arguments)),
        )
        try:
            self._context.catalogue.channel.send(request)
            async with asyncio.timeout(PEER_TIMEOUT_MS / 1000):
                raw = await future
            return msgspec.msgpack.decode(raw, type=results)
        except TimeoutError:
            raise PeerError(worker=worker, detail=f"nothing came within {PEER_TIMEOUT_MS} ms") from None
        finally:
            self._waiting.pop(number, None)

    def received(self, message: PeerRequest | PeerAnswer) -> None:
        """A message of another broker."""
        if isinstance(message, PeerRequest):
            self._context.spawn(self._serve(message))
            return
        worker, future = self._waiting.get(message.number, (-1, None))
        if future is None or future.done():
            return
        if message.error:
            future.set_exception(PeerError(worker=worker, detail=message.error))
        else:
            future.set_result(message.results)

    async def _serve(self, request: PeerRequest) -> None:
        served = self._served.get(request.operation)
        error, results = "", msgspec.Raw(b"\xc0")
        try:
            if served is None:
                raise PeerError(worker=request.worker, detail=f"it knows no {request.operation}")
            arguments, work = served
            answer = await work(msgspec.msgpack.decode(request.arguments, type=arguments))
            results = msgspec.Raw(msgspec.msgpack.encode(answer))
        except (CompactdError, msgspec.ValidationError) as failure:
            error = str(failure)
        self._context.catalogue.channel.send(
            PeerAnswer(asker=request.asker, number=request.number, error=error, results=results)
        )
