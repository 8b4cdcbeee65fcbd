"""Holds clients to their quotas: what an answer says, and how long their socket then stays unread (facts: kafka-protocol 17).

A request is never refused or delayed by a quota. It is served, its answer tells the client how long to keep still, and the
connection is not read for as long, whether the client keeps still or not (Kafka's ClientQuotaManager, RequestHandlerHelper).
Time that requests take is counted only while somebody has a quota of it. It is time of this worker's one loop, which serves,
encodes and sends; Kafka's is time of its request and network threads.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from compactd.workers.broker.api_keys import WRITE_TXN_MARKERS
from compactd.workers.broker.quotas.counts import ThrottleCounts
from compactd.workers.broker.quotas.limits import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientLimits,
    Limit,
)
from compactd.workers.broker.quotas.rates import Rates, Windows
from compactd.workers.messages import Throttles
from compactd.workers.quota_messages import Mutation

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context
    from compactd.workers.broker.requests import Peer, RequestHeader
    from compactd.workers.catalogue_update import ClientQuota

_T = TypeVar("_T")

#: APIs whose time nobody pays for: those between brokers.
EXEMPT = frozenset({WRITE_TXN_MARKERS})

_NANOSECONDS_TO_PERCENT = 100 / 1e9
#: So many clients' limits are remembered; then all are looked up anew.
_REMEMBERED = 10_000


class TimedWork(Generic[_T]):
    """Awaits a coroutine and counts the time that it holds the loop, not the time that it waits."""

    __slots__ = ("_began", "_work", "header", "spent_ns")

    def __init__(self, header: RequestHeader, work: Coroutine[Any, Any, _T]) -> None:
        self.header = header
        self._work = work
        self._began = 0
        self.spent_ns = 0

    def so_far_ns(self) -> int:
        """Asked from inside the work."""
        return self.spent_ns + time.perf_counter_ns() - self._began

    def __await__(self) -> Generator[Any, Any, _T]:
        work, sent, thrown = self._work, None, None
        while True:
            self._began = time.perf_counter_ns()
            try:
                waits_for = work.send(sent) if thrown is None else work.throw(thrown)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.spent_ns += time.perf_counter_ns() - self._began
            sent, thrown = None, None
            try:
                sent = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                thrown = error


class QuotaKind:
    """The quotas of one kind, and the rates of those who have one."""

    def __init__(self, key: str, windows: Windows) -> None:
        self.key = key
        self.windows = windows
        self.limits = ClientLimits((), key)
        self._found: dict[tuple[str, str], Limit | None] = {}
        #: Of all who share a limit.
        self._rates: Rates[tuple[str, str]] = Rates(windows)

    def changed(self, quotas: tuple[ClientQuota, ...]) -> None:
        """Others count from now on; what was used so far stays used."""
        self.limits = ClientLimits(quotas, self.key)
        self._found.clear()

    def limit(self, header: RequestHeader) -> Limit | None:
        """The client's, or None."""
        if not self.limits:
            return None
        client = (header.peer.user, header.client_id)
        if client not in self._found:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            self._found[client] = self.limits.of(*client)
        return self._found[client]

    def throttle_ms(self, header: RequestHeader, value: float, now_ms: int) -> int:
        """Counts `value`; how long the client has to keep still."""
        limit = self.limit(header)
        if limit is None:
            return 0
        rate = self._rates.of(limit.shared_by, now_ms)
        rate.record(value, now_ms)
        return rate.throttle_ms(limit.value, now_ms)

    def count(self, header: RequestHeader, value: float, now_ms: int) -> None:
        """Counts without a consequence: the next request bears it."""
        limit = self.limit(header)
        if limit is not None:
            self._rates.of(limit.shared_by, now_ms).record(value, now_ms)


def charged(header: RequestHeader, *, strict: bool) -> Mutation:
    """Whose controller_mutation_rate counts the partitions that a request makes or deletes."""
    return Mutation(user=header.peer.user, client_id=header.client_id, strict=strict)


class ClientQuotas:
    """`context.part(ClientQuotas)`. On the broker's loop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        config = context.config
        self.windows = Windows(config.quota_window_num, config.quota_window_size_seconds)
        self._produced = QuotaKind(PRODUCER_BYTE_RATE, self.windows)
        self._fetched = QuotaKind(CONSUMER_BYTE_RATE, self.windows)
        self._time = QuotaKind(REQUEST_PERCENTAGE, self.windows)
        self._seen: tuple[ClientQuota, ...] = ()
        #: Answers that told a client to keep still, and for how many milliseconds in all.
        self.throttled = 0
        self.throttled_ms = 0
        self._counts = context.part(ThrottleCounts)

    def _current(self) -> bool:
        """Takes up changed quotas; whether there are any."""
        quotas = self._context.image.quotas
        if quotas is not self._seen:
            self._seen = quotas
            for kind in (self._produced, self._fetched, self._time):
                kind.changed(quotas)
        return bool(quotas)

    def _now_ms(self) -> int:
        return int(self._context.clock.monotonic() * 1000)

    # ---- time

    def timed(self, header: RequestHeader, work: Coroutine[Any, Any, _T]) -> Awaitable[_T]:
        """The work of a request, its time counted where the client has a quota of it."""
        header.peer.work = None
        if not self._current() or self._time.limit(header) is None:
            return work
        timed = header.peer.work = TimedWork(header, work)
        return timed

    def _time_throttle_ms(self, header: RequestHeader, now_ms: int, *, inside: bool) -> int:
        work = header.peer.work
        if work is None:
            return 0
        spent = work.so_far_ns() if inside else work.spent_ns
        found = self._time.throttle_ms(header, spent * _NANOSECONDS_TO_PERCENT, now_ms)
        return min(found, self.windows.seconds * 1000)

    async def sending(self, request: TimedWork[Any], work: Coroutine[Any, Any, None]) -> None:
        """Counts the time that it takes to send the answer of a request; the client's next request bears it."""
        timed = TimedWork(request.header, work)
        try:
            await timed
        finally:
            self._time.count(request.header, timed.spent_ns * _NANOSECONDS_TO_PERCENT, self._now_ms())

    # ---- requests

    def answered(self, header: RequestHeader, other_ms: int = 0, *, inside: bool = False) -> int:
        """Any request that no bytes are counted of, once its work is done, or from inside; `other_ms`: of another quota.

        What the answer tells; the connection is muted for as long.
        """
        if header.peer.work is None:
            return self._mute(header.peer, Throttles.CONTROLLER_MUTATION, other_ms, 0)
        of_time = self._time_throttle_ms(header, self._now_ms(), inside=inside)
        return self._mute(header.peer, Throttles.CONTROLLER_MUTATION, other_ms, of_time)

    def produced(self, header: RequestHeader, acks: int) -> int:
        """A Produce, at the end of its work: what the answer tells. Without an answer the time is not counted."""
        if not self._seen:
            return 0
        now_ms = self._now_ms()
        of_bytes = self._produced.throttle_ms(header, header.size, now_ms)
        of_time = self._time_throttle_ms(header, now_ms, inside=True) if acks != 0 else 0
        return self._mute(header.peer, Throttles.PRODUCE, of_bytes, of_time)

    def most_fetched(self, header: RequestHeader) -> int | None:
        """Bytes that one Fetch may give: what all windows have room for. None: no limit."""
        if not self._current():
            return None
        limit = self._fetched.limit(header)
        windows = self.windows
        return None if limit is None else int(min(limit.value * (windows.count - 1) * windows.seconds, 2**31 - 1))

    def fetched(self, header: RequestHeader, size: int) -> int:
        """A Fetch whose answer has `size` bytes. If this is not 0, an empty answer with it goes out in its place."""
        if not self._current():
            return 0
        now_ms = self._now_ms()
        of_time = self._time_throttle_ms(header, now_ms, inside=True)
        of_bytes = self._fetched.throttle_ms(header, size, now_ms)
        if max(of_time, of_bytes) > 0:
            # They are not sent, so they don't count.
            self._fetched.count(header, -size, now_ms)
        return self._mute(header.peer, Throttles.FETCH, of_bytes, of_time)

    def _mute(self, peer: Peer, kind: Throttles, of_kind: int, of_time: int) -> int:
        """The longer of both pauses: that of a quota of this kind, and that of the quota of time."""
        milliseconds = max(of_kind, of_time)
        if milliseconds > 0:
            self._counts.count(kind if of_kind >= of_time else Throttles.REQUEST, milliseconds)
            self.throttled += 1
            self.throttled_ms += milliseconds
            peer.muted_until = self._context.loop.time() + milliseconds / 1000
        return milliseconds
