"""One partition of `__consumer_offsets` and its groups: one change at a time, written to the log before anybody is told.

A change is made in memory, then its record is appended, then the answers go out; all of that under `lock`, so that nobody
sees what may not be written. When an append fails, memory and log may differ: every group is given up, its members are
told to look for their coordinator again, and the partition is loaded anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from compactd.config.errors import (
    CompactdError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
)
from compactd.storage.log import Origin
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from compactd.workers.broker.context import Context
from compactd.workers.broker.coordinating import CoordinatorShard, Phase
from compactd.workers.broker.errors import ErrorCode, error_of
from compactd.workers.broker.groups.consumer.group import ConsumerGroup
from compactd.workers.broker.groups.consumer.running import ConsumerGroups
from compactd.workers.broker.groups.group import ClassicGroup
from compactd.workers.broker.groups.loading import load
from compactd.workers.broker.groups.member import (
    NEVER,
    Answer,
    GroupError,
    GroupSettings,
    Moment,
    Ticket,
    refusal,
)
from compactd.workers.broker.groups.records import KeyValue, group_record
from compactd.workers.broker.groups.state import GroupState
from compactd.workers.broker.groups.streams.group import StreamsGroup
from compactd.workers.broker.groups.streams.running import StreamsGroups
from compactd.workers.broker.partition import Partition

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

#: A batch of more records than this is put together in a thread.
_MANY = 1000

AnyGroup = ClassicGroup | ConsumerGroup | StreamsGroup

#: Producer id and epoch.
Producer = tuple[int, int]

#: What a producer is told that may not write, or not now.
_PRODUCER_ERRORS = (InvalidProducerEpochError, InvalidTransactionStateError, OutOfOrderSequenceError)


class Shard(CoordinatorShard):
    """Belongs to the broker's loop."""

    def __init__(self, context: Context, partition: Partition) -> None:
        super().__init__(context, partition)
        self.lock = asyncio.Lock()
        self.state = self._empty()
        #: Group id to when it is looked at next, and the timer.
        self._timers: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        self.consumers = ConsumerGroups(self)
        self.streams = StreamsGroups(self)
        #: Ends of transactions that came while the log was read.
        self._markers: list[tuple[int, bool]] = []

    def _refusal(self, code: ErrorCode) -> GroupError:
        return GroupError(code)

    def _empty(self) -> GroupState:
        config = self.context.config
        settings = GroupSettings(config.group_initial_rebalance_delay_ms, config.group_max_size)
        return GroupState(lambda group_id, wall_ms: ClassicGroup(group_id, settings, wall_ms))

    def moment(self) -> Moment:
        """Now."""
        clock = self.context.clock
        return Moment(clock.monotonic() * 1000, clock.now_ms())

    # ---- its life

    async def _load(self) -> None:
        state = self._empty()
        started = self.context.clock.monotonic()
        chunk = self.context.config.offsets_load_buffer_size
        async with self.lock:
            try:
                end = await self.context.in_thread(lambda: load(self.partition.log, state, chunk))
            except CompactdError as error:
                _LOGGER.error("the groups of %s can not be loaded: %s", self.partition, error)
                self._failed()
                return
            if self.phase is not Phase.LOADING:
                return
            for marker in self._markers:
                state.transaction_ended(*marker)
            self._markers.clear()
            self.state = state
            self.phase = Phase.READY
            now = self.moment()
            for number, count in state.unknown.items():
                _LOGGER.warning("%s: %d records of type %d are passed over", self.partition, count, number)
            for group in list(state.groups.values()):
                group.loaded(now)
                self.watch(group)
            self.consumers.loaded(now)
            self.streams.loaded(now)
        self.loaded.set()
        _LOGGER.debug(
            "%s: %d groups loaded up to %d in %.3f s",
            self.partition,
            len(state.ids()),
            end,
            self.context.clock.monotonic() - started,
        )

    def _clear(self) -> None:
        self._markers.clear()
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for group in self.state.groups.values():
            group.die(ErrorCode.NOT_COORDINATOR)
            _deliver(group.take_answers())
        self.state = self._empty()

    # ---- changes

    def group(self, group_id: str) -> ClassicGroup | None:
        return self.state.groups.get(group_id)

    def get_or_make(self, group_id: str, now: Moment) -> ClassicGroup:
        """GroupError for one of another protocol, which classic members can't join."""
        group = self.state.groups.get(group_id)
        if group is None and self.state.is_known(group_id):
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group is None:
            group = self.state.groups[group_id] = self.state.new_group(group_id, now.wall_ms)
        return group

    async def change(self, work: Callable[[Moment], tuple[ClassicGroup | None, _T]]) -> _T:
        """Runs `work`, which returns the group that it touched, and a result; stores and answers what came of it.

        GroupError as `check`, and those of `work`. The result is returned once it is durable, if the topic asks for that.
        """
        async with self.lock:
            self.check()
            group, result = work(self.moment())
            if group is None:
                return result
            flush, answers = await self._settle(group)
        try:
            await self.durable(flush)
        except GroupError as error:
            answers = [(ticket, refusal(answer, error.code)) for ticket, answer in answers]
        _deliver(answers)
        return result

    async def write(self, records: Sequence[KeyValue], producer: Producer | None = None) -> tuple[int, int]:
        """Appends one batch, with the lock held. Returns the first offset, and up to where to flush (0: not at all).

        `producer`: the batch is part of its transaction. GroupError: it does not fit, or the producer may not write it
        (nothing has changed), or the log is gone.
        """
        if not records:
            return -1, 0
        if len(records) > _MANY:
            data = await self.context.in_thread(lambda: self._batch(records, producer))
            self.check()
        else:
            data = self._batch(records, producer)
        if len(data) > self.partition.log.config.max_message_bytes:
            raise GroupError(ErrorCode.RECORD_LIST_TOO_LARGE)
        try:
            done = await self.partition.append(data, origin=Origin.COORDINATOR, wait_for_disk=False)
        except CompactdError as error:
            if producer is not None and isinstance(error, _PRODUCER_ERRORS):
                raise GroupError(error_of(error)) from error
            _LOGGER.error("%s: groups can not be stored: %s", self.partition, error)
            self._failed()
            raise GroupError(ErrorCode.NOT_COORDINATOR) from error
        return done.first_offset, done.last_offset + 1 if done.flush_due else 0

    def _batch(self, records: Sequence[KeyValue], producer: Producer | None) -> bytearray:
        now_ms = self.context.clock.now_ms()
        numbered = [Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(records)]
        # Kafka's coordinator writes the sequence 0, with and without a producer.
        if producer is None:
            return bytearray(build_batch(numbered, base_offset=0, base_sequence=0))
        producer_id, epoch = producer
        return bytearray(
            build_batch(
                numbered,
                base_offset=0,
                base_sequence=0,
                producer_id=producer_id,
                producer_epoch=epoch,
                transactional=True,
            )
        )

    async def _settle(self, group: ClassicGroup) -> tuple[int, list[tuple[Ticket, Answer]]]:
        """Stores a group as far as that is called for."""
        flush = 0
        answers = group.take_answers()
        while group.assigning is not None or group.unsaved:
            assigning = group.assigning
            try:
                _, flush = await self.write([*group.preface, group_record(group, assigning)])
            except GroupError as error:
                if error.code is not ErrorCode.RECORD_LIST_TOO_LARGE:
                    # The group has died. Those who wait are told by that; these were about to hear what is not so.
                    return 0, [(ticket, refusal(answer, error.code)) for ticket, answer in answers]
                _LOGGER.warning("group %s is too large for a record of %s", group.group_id, self.partition)
                group.unsaved = False
                if assigning is not None:
                    group.assignment_refused(ErrorCode.UNKNOWN_SERVER_ERROR, self.moment())
                continue
            group.unsaved = False
            group.preface.clear()
            if assigning is not None:
                group.assignment_stored(self.moment())
        if self.phase is Phase.READY:
            self.watch(group)
        return flush, answers + group.take_answers()

    @staticmethod
    def deliver(answers: Sequence[tuple[Ticket, Answer]]) -> None:
        """To whoever waits."""
        _deliver(answers)

    async def durable(self, offset: int) -> None:
        """Waits for the disk. A flush that fails takes the log dir offline, and with it this shard."""
        if offset:
            try:
                await self.partition.flushed_to(offset)
            except CompactdError as error:
                raise GroupError(ErrorCode.NOT_COORDINATOR) from error

    async def commit(
        self,
        work: Callable[[Moment], tuple[Sequence[KeyValue], Callable[[int], None], _T]],
        producer: Producer | None = None,
    ) -> _T:
        """Runs `work`, which returns records, what to do with their first offset once they are written, and a result.

        `producer`: in its transaction.
        """
        async with self.lock:
            self.check()
            records, apply, result = work(self.moment())
            first, flush = await self.write(records, producer)
            apply(first)
        await self.durable(flush)
        return result

    async def commit_in_turns(
        self,
        work: Callable[[Moment], Awaitable[tuple[Sequence[KeyValue], Callable[[int], Awaitable[None]], _T]]],
        producer: Producer | None = None,
    ) -> _T:
        """As `commit`, for what may be about very many things: both callables give others turns, with the lock held.

        So nothing of groups changes meanwhile, but for times of heartbeats; what is read meanwhile is what was before, as
        long as the second one changes everything at once, at its end.
        """
        async with self.lock:
            self.check()
            records, apply, result = await work(self.moment())
            self.check()
            first, flush = await self.write(records, producer)
            await apply(first)
        await self.durable(flush)
        return result

    async def transaction_ended(self, producer_id: int, commit: bool) -> None:
        """The marker of a producer's transaction is in the log."""
        if self.phase is Phase.LOADING:
            # The log may have been read up to a place in front of the marker.
            self._markers.append((producer_id, commit))
            return
        async with self.lock:  # who appended an offset before the marker has put it into the state by then
            self.state.transaction_ended(producer_id, commit)

    # ---- time

    def watch(self, group: AnyGroup, changed: float | None = None) -> None:
        """Has a group looked at when something is due. Later is not a reason to set the timer again: it looks, and waits on.

        `changed`: all that is new, if only that is: the deadline of one member.
        """
        known = self._timers.get(group.group_id)
        # Of a group of many, one look for each heartbeat would be too many.
        deadline = group.next_deadline() if changed is None or known is None else changed
        if known is not None:
            if known[0] <= deadline:
                return
            known[1].cancel()
            del self._timers[group.group_id]
        if deadline < NEVER:
            delay = max(0.0, deadline / 1000 - self.context.clock.monotonic())
            timer = self.context.loop.call_later(delay, self._due, group)
            self._timers[group.group_id] = (deadline, timer)

    def forget_timer(self, group_id: str) -> None:
        """Nothing is due of a group any more."""
        known = self._timers.pop(group_id, None)
        if known is not None:
            known[1].cancel()

    def _due(self, group: AnyGroup) -> None:
        self._timers.pop(group.group_id, None)
        state, group_id = self.state, group.group_id
        known = (state.groups.get(group_id), state.consumers.get(group_id), state.streams.get(group_id))
        if self.phase is not Phase.READY or group not in known:
            return
        if group.next_deadline() > self.moment().ticks:
            self.watch(group)
        else:
            self.context.spawn(self._expire(group))

    async def _expire(self, group: AnyGroup) -> None:
        try:
            if isinstance(group, ConsumerGroup):
                await self.consumers.expire(group)
            elif isinstance(group, StreamsGroup):
                await self.streams.expire(group)
            else:
                await self._expire_classic(group)
        except GroupError as error:
            _LOGGER.info("group %s: what was due is left: %s", group.group_id, error)

    async def _expire_classic(self, group: ClassicGroup) -> None:
        def work(now: Moment) -> tuple[ClassicGroup | None, None]:
            if self.state.groups.get(group.group_id) is not group:
                return None, None
            group.expire(now)
            return group, None

        await self.change(work)

    def drop(self, group_id: str) -> None:
        """A group has ended; its records are written."""
        group = self.state.groups.pop(group_id, None)
        if group is not None:
            group.die(ErrorCode.NOT_COORDINATOR)
        self.state.consumers.pop(group_id, None)
        self.state.streams.pop(group_id, None)
        self.state.offsets.pop(group_id, None)
        for offsets in self.state.pending.values():
            offsets.pop(group_id, None)
        self.forget_timer(group_id)


def _deliver(answers: Sequence[tuple[Any, Answer]]) -> None:
    for ticket, answer in answers:
        if not ticket.done():
            ticket.set_result(answer)
