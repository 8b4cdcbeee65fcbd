"""Fetch v4 to v18: reading, waiting for data, sessions (KIP-74, 98, 227, 516; facts: kafka-protocol 7)."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Collection

from compactd.config.errors import CompactdError, OffsetOutOfRangeError, StorageIOError
from compactd.storage.log import Fetched
from compactd.storage.reader import Isolation, Range
from compactd.workers.broker.api_keys import FETCH
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode, error_of
from compactd.workers.broker.fetch_codec import (
    SMALL,
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    decode_fetch,
    encode_fetch,
)
from compactd.workers.broker.fetch_sessions import FetchPlan, FetchSessions, Wanted
from compactd.workers.broker.leader_epochs import check_epoch, end_of_epoch
from compactd.workers.broker.partition import Partition
from compactd.workers.broker.quotas.clients import ClientQuotas
from compactd.workers.broker.requests import CLOSE, Answer, Encoded, Peer, RequestHeader, handles, total_size
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource

_COMMITTED = 1
#: Neither of these ends the wait for the other partitions.
_NOT_ALONE = (ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
#: One answer holds this many files open at most; what more there is comes with the next.
_MOST_FILES = 200
#: Whether a page is in memory is asked at these distances.
_PROBE_EVERY = 128 << 10
_READ_AHEAD = 1 << 20
_INT_MAX = (1 << 31) - 1
#: What is refused before anything is read is told last, unknown ids first (KafkaApis.handleFetchRequest).
_TOLD_LAST: dict[int, int] = {
    ErrorCode.UNKNOWN_TOPIC_ID: 1,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 2,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 2,
}
#: More partitions than this are read, and told of, in a thread.
_MANY = 1000


@handles(FETCH, 4, 18, decoder=decode_fetch)
async def fetch(context: Context, header: RequestHeader, request: FetchRequest) -> Answer:
    """Answers at once with what there is if that is enough, or something is wrong; else when there is, or time is up."""
    sessions = context.part(FetchSessions)
    quotas = context.part(ClientQuotas)
    plan = sessions.plan(header.version, request)
    if plan.error:
        return encode_fetch(header.version, [], error=plan.error, throttle_ms=quotas.answered(header, 0, inside=True))
    reading = _Reading(context, header, request, plan)
    if not await reading.read():
        await reading.wait()
        if header.peer.is_gone:
            reading.close()
            return CLOSE
    is_long = len(plan.wanted) > _MANY
    answer = await context.in_thread(reading.answer) if is_long else reading.answer()
    # As Kafka counts it: with four bytes for the size, without the header.
    throttle_ms = quotas.fetched(header, total_size(answer.parts) + 4)
    if throttle_ms:
        answer.close()
        session_id = sessions.throttled(plan)
        return encode_fetch(header.version, [], session_id=session_id, throttle_ms=throttle_ms)
    reading.told()
    return answer


class _Reading:
    """One fetch."""

    __slots__ = (
        "context",
        "denied",
        "found",
        "header",
        "is_follower",
        "isolation",
        "leaders",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "peer",
        "plan",
        "refuses",
        "results",
        "size",
        "told_of",
        "version",
        "was_in_thread",
    )

    def __init__(self, context: Context, header: RequestHeader, request: FetchRequest, plan: FetchPlan) -> None:
        self.context = context
        self.header = header
        self.version = header.version
        self.peer: Peer = header.peer
        self.plan = plan
        most = context.part(ClientQuotas).most_fetched(header)
        self.max_bytes = max(
            0, min(request.max_bytes, context.config.fetch_max_bytes, _INT_MAX if most is None else most)
        )
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self.max_wait_ms = request.max_wait_ms
        self.isolation: Isolation = "committed" if request.isolation_level == _COMMITTED else "high_watermark"
        #: Followers read here from nobody: this is the only replica.
        self.is_follower = request.replica_id >= 0
        #: Topic and partition of each that is wanted, and names of topics that the client may not read; looked up before
        #: each reading, which may happen in a thread.
        self.found: list[tuple[str, Partition | None]] = []
        self.denied: Collection[str] = ()
        self.leaders: set[int] = set()
        self.results: list[FetchedPartition] = []
        #: Whether any of them is refused before it is read.
        self.refuses = False
        self.size = 0
        self.was_in_thread = False
        #: What the answer tells: for the session to remember.
        self.told_of: list[tuple[Wanted, FetchedPartition]] = []

    def close(self) -> None:
        """Gives back the files of an answer that is not sent."""
        for result in self.results:
            result.close()
        self.results = []

    # ---- reading

    async def read(self) -> bool:
        """Reads all partitions once; whether that is an answer already. Old segments may not be in memory: in a thread."""
        self.close()
        wanted = self.plan.wanted
        self.found = [self._find(each) for each in wanted]
        self.denied = self._denied()
        self.was_in_thread = len(wanted) > _MANY or any(map(_is_cold, wanted, self.found))
        if self.was_in_thread:
            is_enough = await self.context.in_thread(lambda: self._read_all(warm=True))
        else:
            is_enough = self._read_all(warm=False)
        return is_enough or self.max_wait_ms <= 0 or not wanted

    def _denied(self) -> Collection[str]:
        authorizer = self.context.part(Authorizer)
        if not authorizer.enabled:
            return ()
        names = {name for name, _ in self.found}
        if self.is_follower:
            return () if authorizer.allows(self.header, Operation.CLUSTER_ACTION, Resource.CLUSTER) else names
        return {
            name for name in names if name and not authorizer.allows(self.header, Operation.READ, Resource.TOPIC, name)
        }

    def _find(self, wanted: Wanted) -> tuple[str, Partition | None]:
        """The topic's name, "" for an unknown id, and the partition if it is served here."""
        name = wanted.topic
        if not isinstance(name, str):
            known = self.context.image.topic_of_id(name)
            if known is None:
                return "", None
            name = known.name
        return name, self.context.partitions.get(name, wanted.number)

    def _read_all(self, warm: bool) -> bool:
        """Whether the bytes are enough, or there is a reason not to wait."""
        left = self.max_bytes
        self.size = 0
        at_once = False
        files = 0
        results = []
        try:
            for wanted, (name, partition) in zip(self.plan.wanted, self.found, strict=True):
                result, is_rest_of_segment = self._read_one(wanted, name, partition, left, self.size == 0)
                results.append(result)
                size = result.size
                files += size >= SMALL
                left = max(0, left - size) if files < _MOST_FILES else 0
                self.size += size
                at_once |= result.error not in _NOT_ALONE or is_rest_of_segment or result.diverging is not None
                if warm and result.records is not None and size >= SMALL:
                    _warm(result.records)
        finally:
            self.results = results
        return at_once or self.size >= self.min_bytes or all(result.error for result in results)

    def _read_one(
        self, wanted: Wanted, name: str, partition: Partition | None, left: int, at_least_one: bool
    ) -> tuple[FetchedPartition, bool]:
        """The answer, and whether it ends with a segment that is not the last."""
        result = FetchedPartition(wanted.number)
        if name in self.denied:
            result.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            self.refuses = True
            return result, False
        if partition is None:
            result.error = self._absent(name, wanted, result)
            self.refuses = True
            return result, False
        # What the log itself refuses comes without a list, as in Kafka.
        result.aborted = None
        if self.is_follower:
            result.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._name_leader(name, wanted.number, result)
            return result, False
        if partition.error:
            is_old = self.version <= 5 and partition.error == ErrorCode.KAFKA_STORAGE_ERROR
            result.error = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_old else partition.error
            return result, False
        # Below 0 the client does not know it.
        epoch_error = check_epoch(partition, wanted.leader_epoch) if wanted.leader_epoch >= 0 else ErrorCode.NONE
        if epoch_error:
            result.error = epoch_error
            if epoch_error == ErrorCode.FENCED_LEADER_EPOCH:  # one that knows a later epoch knows more than we do
                self._name_leader(name, wanted.number, result)
            return result, False
        log = partition.log
        offsets = log.offsets()
        upper = offsets.last_stable if self.isolation == "committed" else offsets.high_watermark
        try:
            if wanted.last_epoch >= 0 and self._diverges(partition, wanted, result):
                return result, False
            is_inside = offsets.log_start <= wanted.fetch_offset <= offsets.log_end
            if is_inside and (wanted.fetch_offset >= upper or (left <= 0 and not at_least_one)):
                fetched: Fetched | None = None
            else:
                fetched = log.read(wanted.fetch_offset, min(wanted.max_bytes, left), self.isolation, at_least_one)
        except OffsetOutOfRangeError:
            result.error = ErrorCode.OFFSET_OUT_OF_RANGE
            return result, False
        except StorageIOError as error:
            _report(self.context, partition, error)
            result.error = ErrorCode.KAFKA_STORAGE_ERROR
            return result, False
        except CompactdError as error:
            result.error = error_of(error)
            return result, False
        result.aborted = () if self.isolation == "committed" else None
        if fetched is None:
            result.high_watermark, result.last_stable = offsets.high_watermark, offsets.last_stable
            result.log_start = offsets.log_start
            return result, False
        result.high_watermark, result.last_stable = fetched.high_watermark, fetched.last_stable_offset
        result.log_start = fetched.log_start_offset
        if fetched.length == 0 or (fetched.first_batch_incomplete and not at_least_one):
            # Consumers must not get a part of a first batch.
            fetched.close()
            return result, False
        result.records = fetched.range
        if fetched.aborted is not None:
            result.aborted = fetched.aborted
        return result, fetched.segment_base != log.active_segment.base_offset

    def _absent(self, name: str, wanted: Wanted, result: FetchedPartition) -> ErrorCode:
        if not name:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if self.context.image.partition(name, wanted.number) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self._name_leader(name, wanted.number, result)
        result.aborted = None
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _name_leader(self, name: str, number: int, result: FetchedPartition) -> None:
        known = self.context.image.partition(name, number)
        leader = None if known is None else self.context.image.leader(known, self.peer.listener)
        if known is not None and leader is not None:
            result.leader = (leader.node_id, known.leader_epoch)
            if not self.is_follower:  # a follower knows where its leader is
                self.leaders.add(leader.node_id)

    def _diverges(self, partition: Partition, wanted: Wanted, result: FetchedPartition) -> bool:
        """Whether the reader's log has another history than ours (KIP-595); OffsetOutOfRangeError for an unknown epoch."""
        found = end_of_epoch(partition, wanted.last_epoch)
        if found is None:
            raise OffsetOutOfRangeError(path=str(partition), offset=wanted.fetch_offset, detail="has no such epoch")
        epoch, end = found
        if epoch >= wanted.last_epoch and end >= wanted.fetch_offset:
            return False
        offsets = partition.log.offsets()
        result.high_watermark, result.last_stable = offsets.high_watermark, offsets.last_stable
        result.log_start = offsets.log_start
        result.diverging = found
        return True

    # ---- waiting

    async def wait(self) -> None:
        """Returns when there is an answer, the time is up, or the client is gone."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.max_wait_ms / 1000
        found = map(self._find, self.plan.wanted)
        partitions = [each for name, each in found if each is not None and name not in self.denied]
        waiter = _Waiter(loop.create_future(), self.min_bytes - self.size)
        timer = loop.call_at(end, waiter.changed)
        self.peer.on_gone = waiter.changed
        for partition in partitions:
            partition.watchers.add(waiter)
        try:
            # While a thread read, more may have come that nobody told of.
            is_enough = self.was_in_thread and await self.read()
            while not is_enough and loop.time() < end and not self.peer.is_gone:
                self.close()
                waiter.needed = self.min_bytes - self.size
                await waiter.future
                waiter.future = loop.create_future()
                is_enough = await self.read()
        finally:
            timer.cancel()
            self.peer.on_gone = None
            for partition in partitions:
                partition.watchers.discard(waiter)

    # ---- answering

    def answer(self) -> Encoded:
        """Encodes what was read, as far as the session lets it be told. Nothing is remembered before `told`."""
        topics: list[FetchedTopic] = []
        session = self.plan.session
        only_news = session is not None and self.plan.incremental
        rows = zip(self.plan.wanted, self.results, strict=True)
        for wanted, result in sorted(rows, key=_place) if self.refuses else rows:
            if only_news and not _is_news(wanted, result):
                continue
            if session is not None:
                self.told_of.append((wanted, result))
            is_id = not isinstance(wanted.topic, str)
            if not topics or (topics[-1].topic_id if is_id else topics[-1].name) != wanted.topic:
                topics.append(FetchedTopic("", wanted.topic, []) if is_id else FetchedTopic(wanted.topic, None, []))  # type: ignore[arg-type]
            topics[-1].partitions.append(result)
        endpoints = self.context.leaders_told(self.leaders, self.peer.listener) if self.leaders else ()
        return encode_fetch(self.version, topics, session_id=self.plan.session_id, endpoints=endpoints)

    def told(self) -> None:
        """The answer is sent: the session remembers what it told."""
        session = self.plan.session
        for wanted, result in self.told_of:
            wanted.high_watermark = -1 if result.error else result.high_watermark
            wanted.log_start = result.log_start
        if session is not None and self.plan.incremental:
            session.told([(wanted.topic, wanted.number) for wanted, result in self.told_of if result.size])


def _place(row: tuple[Wanted, FetchedPartition]) -> int:
    return _TOLD_LAST.get(row[1].error, 0)


class _Waiter:
    """A fetch that waits, as partitions see it."""

    __slots__ = ("future", "needed")

    def __init__(self, future: asyncio.Future[None], needed: int) -> None:
        self.future = future
        self.needed = needed

    def appended(self, size: int) -> None:
        self.needed -= size
        if self.needed <= 0:
            self.changed()

    def changed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


def _is_cold(wanted: Wanted, found: tuple[str, Partition | None]) -> bool:
    """Whether it is read from a segment that is not the last."""
    partition = found[1]
    return partition is not None and wanted.fetch_offset < partition.log.active_segment.base_offset


def _is_news(wanted: Wanted, result: FetchedPartition) -> bool:
    """Whether there is something to tell (CachedPartition.maybeUpdateResponseData)."""
    return (
        bool(result.size or result.error)
        or result.diverging is not None
        or result.high_watermark != wanted.high_watermark
        or result.log_start != wanted.log_start
    )


def _report(context: Context, partition: Partition, error: StorageIOError) -> None:
    """Tells of an I/O error from whichever thread reads."""
    context.loop.call_soon_threadsafe(context.partitions.failed, partition, error)


def _warm(records: Range) -> None:
    """Has the bytes in memory before the loop sends them: reading them from a disk there would hold everybody up."""
    probe = bytearray(1)
    fd, end = records.fileno(), records.position + records.length
    try:
        for position in range(records.position, end, _PROBE_EVERY):
            os.preadv(fd, [probe], position, os.RWF_NOWAIT)
        return
    except BlockingIOError:
        pass
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return  # this file system cannot tell
        raise
    scratch = bytearray(min(_READ_AHEAD, records.length))
    for position in range(records.position, end, len(scratch)):
        os.preadv(fd, [scratch], position)
