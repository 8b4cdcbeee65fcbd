"""What OffsetCommit and TxnOffsetCommit have in common: rows of partitions, and who may commit (facts: kafka-protocol 13.6)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from compactd.storage.names import parse_uuid, uuid_text
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.group import ConsumerGroup
from compactd.workers.broker.groups.member import GroupError, Moment
from compactd.workers.broker.groups.records import Committed, KeyValue, offset_record
from compactd.workers.broker.groups.shard import Shard
from compactd.workers.broker.groups.state import TopicPartitionKey
from compactd.workers.broker.groups.streams.group import StreamsGroup
from compactd.workers.broker.turns import Turns

#: (topic, partition) and what is committed.
Offset = tuple[str, int, Committed]

#: From this version of OffsetCommit on, members of the consumer protocol may commit.
_FOR_CONSUMERS = 9

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class CommitRows:
    """The partitions of a request, and what is answered for each of them."""

    def __init__(self, topics: Sequence[Any], with_ids: bool) -> None:
        """Of nothing yet: see `of`."""
        self._topics = topics
        self._with_ids = with_ids
        self._turns = Turns()
        #: Of the topics, as the catalogue has them.
        self._names: list[str | None] = []
        self._errors: dict[tuple[int, int], ErrorCode] = {}
        self._offsets: dict[tuple[int, int], Offset] = {}

    @classmethod
    async def of(
        cls, context: Context, topics: Sequence[Any], with_ids: bool, retention_ms: int = -1
    ) -> CommitRows:  # fmt: skip
        """`with_ids`: topics are named by their ids. `retention_ms`: the offsets expire so much later; -1: as all do."""
        rows = cls(topics, with_ids)
        await rows._read(context, retention_ms)
        return rows

    async def _read(self, context: Context, retention_ms: int) -> None:
        now_ms, others = context.clock.now_ms(), self._turns.others
        for row, topic in enumerate(self._topics):
            image = context.image
            known = image.topic_of_id(topic.topic_id) if self._with_ids else image.topic(topic.name)
            unnamed = None if self._with_ids else topic.name
            self._names.append(unnamed if known is None else known.name)
            topic_id = "" if known is None else uuid_text(known.topic_id)
            for column, asked in enumerate(topic.partitions):
                await others()
                metadata = asked.committed_metadata or ""
                if known is None:
                    error = ErrorCode.UNKNOWN_TOPIC_ID if self._with_ids else _UNKNOWN
                elif asked.partition_index not in known.partitions:
                    error = _UNKNOWN
                elif _utf16_length(metadata) > context.config.offset_metadata_max_bytes:
                    error = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    error = ErrorCode.NONE
                    self._offsets[row, column] = (
                        known.name,
                        asked.partition_index,
                        Committed(
                            asked.committed_offset,
                            getattr(asked, "committed_leader_epoch", -1),
                            metadata,
                            now_ms,
                            now_ms + retention_ms if retention_ms >= 0 else -1,
                            topic_id,
                        ),
                    )
                self._errors[row, column] = error

    @property
    def offsets(self) -> list[Offset]:
        """What is to be committed."""
        return list(self._offsets.values())

    @property
    def reach_the_group(self) -> bool:
        """Whether the group is asked at all: what is too long is told only to those who may commit."""
        return bool(self._offsets) or ErrorCode.OFFSET_METADATA_TOO_LARGE in self._errors.values()

    def refuse(self, error: ErrorCode) -> None:
        """The group's answer, for all partitions that reached it; NONE: it took them."""
        if error:
            for place, known in self._errors.items():
                if known in (ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE):
                    self._errors[place] = error

    def refuse_all(self, error: ErrorCode) -> None:
        """Nothing is looked at."""
        self._errors = dict.fromkeys(self._errors, error)
        self._offsets.clear()

    async def refuse_topics(self, refused: Callable[[str], bool], error: ErrorCode) -> None:
        """Topics by name, also those that are not there; of an id that is unknown there is no name to ask for."""
        for row, name in enumerate(self._names):
            await self._turns.others()
            if name is None or not refused(name):
                continue
            for column in range(len(self._topics[row].partitions)):
                await self._turns.others()
                self._errors[row, column] = error
                self._offsets.pop((row, column), None)

    async def answer(self) -> dict[str, Any]:
        """The answer's topics."""
        topics: list[dict[str, Any]] = []
        for row, topic in enumerate(self._topics):
            partitions = []
            for column, asked in enumerate(topic.partitions):
                await self._turns.others()
                error = self._errors[row, column]
                partitions.append({"partition_index": asked.partition_index, "error_code": error})
            named = {"topic_id": topic.topic_id} if self._with_ids else {"name": topic.name}
            topics.append({**named, "partitions": partitions})
            await self._turns.others()
        return {"topics": topics}


async def records_of_commit(group_id: str, offsets: Sequence[Offset]) -> list[KeyValue]:
    """What is written of a commit."""
    turns = Turns()
    records = []
    for each in offsets:
        await turns.others()
        records.append(offset_record(group_id, *each))
    return records


async def written_at(first: int, offsets: Sequence[Offset]) -> dict[TopicPartitionKey, Committed]:
    """What is remembered of a commit whose first record has this offset."""
    turns = Turns()
    placed = {}
    for index, (topic, partition, committed) in enumerate(offsets):
        await turns.others()
        placed[topic, partition] = replace(committed, record_offset=first + index)
    return placed


def check_commit(
    shard: Shard,
    request: Any,
    offsets: Sequence[Offset],
    now: Moment,
    unknown: ErrorCode,
    *,
    version: int,
    transactional: bool = False,
) -> None:
    """Whether the group takes offsets of this member; makes the group where nobody needs to be in it. GroupError.

    `unknown`: the code for a group that is not there, asked for by one of its members. `version`: of the request.
    """
    group_id = request.group_id
    member_id, instance_id = getattr(request, "member_id", ""), getattr(request, "group_instance_id", None)
    generation = getattr(request, "generation_id_or_member_epoch", getattr(request, "generation_id", -1))
    other = shard.state.others.get(group_id)
    group = shard.group(group_id)
    consumers = shard.state.consumers.get(group_id)
    streams = shard.state.streams.get(group_id)
    if consumers is not None or streams is not None:
        if transactional and generation == -1 and not member_id and instance_id is None:
            return
        is_old = not transactional and version < _FOR_CONSUMERS
        if consumers is not None:
            _check_consumer_commit(consumers, member_id, generation, offsets, is_old)
        elif streams is not None:
            _check_streams_commit(streams, member_id, generation, offsets, is_old)
    elif other is not None:
        # Nobody of another protocol is served here; an offset may be set while nobody reads.
        if generation >= 0 or other.members:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
    elif group is not None:
        group.check_commit(member_id, instance_id, generation, now, transactional=transactional)
    elif generation >= 0:
        raise GroupError(unknown)
    else:
        shard.get_or_make(group_id, now)


def _check_consumer_commit(
    group: ConsumerGroup, member_id: str, epoch: int, offsets: Sequence[Offset], is_old: bool
) -> None:  # fmt: skip
    """A member commits with its epoch, or with an older one what it has had since then (facts: kafka-protocol 14.4)."""
    if epoch < 0 and not group.members:
        return
    member = group.member(member_id)
    if is_old and member.classic is None:
        raise GroupError(ErrorCode.UNSUPPORTED_VERSION)
    if epoch == member.epoch:
        return
    stale = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
    if epoch > member.epoch:
        raise GroupError(stale)
    ids: dict[str, uuid.UUID] = {}
    for _, partition, committed in offsets:
        topic_id = ids.get(committed.topic_id)
        if topic_id is None:
            topic_id = ids[committed.topic_id] = parse_uuid(committed.topic_id)
        since = member.assigned.get(topic_id, {}).get(partition)
        if since is None:
            since = member.revoking.get(topic_id, {}).get(partition)
        if since is None or epoch < since:
            raise GroupError(stale)


def _check_streams_commit(
    group: StreamsGroup, member_id: str, epoch: int, offsets: Sequence[Offset], is_old: bool
) -> None:  # fmt: skip
    """The same of a streams group: topics are those that the member's active tasks read."""
    if epoch < 0 and not group.members:
        return
    member = group.member(member_id)
    if is_old:
        raise GroupError(ErrorCode.UNSUPPORTED_VERSION)
    if epoch == member.epoch:
        return
    if epoch > member.epoch or group.topology is None:
        raise GroupError(ErrorCode.STALE_MEMBER_EPOCH)
    for topic, partition, _ in offsets:
        subtopology = group.topology.subtopology_of(topic)
        if subtopology is None:
            raise GroupError(ErrorCode.STALE_MEMBER_EPOCH)
        since = member.assigned.active.get(subtopology.subtopology_id, {}).get(partition)
        if since is None:
            since = member.revoking.active.get(subtopology.subtopology_id, {}).get(partition)
        if since is None or epoch < since:
            raise GroupError(ErrorCode.STALE_MEMBER_EPOCH)


def commit_error(error: GroupError) -> ErrorCode:
    """What a client is told."""
    return ErrorCode.UNKNOWN_SERVER_ERROR if error.code is ErrorCode.RECORD_LIST_TOO_LARGE else error.code


def _utf16_length(text: str) -> int:
    """As Java counts it."""
    return len(text) + sum(char > "\uffff" for char in text)
