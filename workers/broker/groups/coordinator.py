"""The groups that this broker coordinates: those whose partition of `__consumer_offsets` it owns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from compactd.config.errors import CompactdError
from compactd.storage.names import uuid_text
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.expiry import expire_offsets, forget_topics
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.records import NO_ID, OFFSETS_TOPIC, partition_of
from compactd.workers.broker.groups.shard import Phase, Shard
from compactd.workers.broker.partition import Partition
from compactd.workers.catalogue_messages import CreateTopics, NewTopic, TopicResults

_LOGGER = logging.getLogger(__name__)
_MINUTE_MS = 60_000


class GroupCoordinator:
    """`context.part(GroupCoordinator)` has it."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._shards: dict[int, Shard] = {}
        self._creating: asyncio.Task[None] | None = None
        context.partitions.on_ready.append(self._ready)
        context.partitions.on_gone.append(self._gone)
        context.on_topics_gone(self._topics_gone)
        for partition in context.partitions:
            self._ready(partition)
        context.spawn(self._expire_offsets())

    # ---- which partitions

    def _ready(self, partition: Partition) -> None:
        if partition.topic_partition.topic == OFFSETS_TOPIC:
            self._shards[partition.topic_partition.partition] = Shard(self.context, partition)

    def _gone(self, partition: Partition) -> None:
        if partition.topic_partition.topic == OFFSETS_TOPIC:
            shard = self._shards.pop(partition.topic_partition.partition, None)
            if shard is not None:
                shard.gone()

    def __iter__(self) -> Iterator[Shard]:
        """Those that are loaded."""
        return iter([shard for shard in self._shards.values() if shard.phase is Phase.READY])

    @property
    def is_loading(self) -> bool:
        return any(shard.phase is Phase.LOADING for shard in self._shards.values())

    def partition_of(self, group_id: str) -> int | None:
        """The partition that holds a group; None: the topic is not there yet."""
        topic = self.context.image.topic(OFFSETS_TOPIC)
        return None if topic is None else partition_of(group_id, len(topic.partitions))

    def shard(self, group_id: str) -> Shard:
        """Where a group is coordinated. GroupError: not here, not yet, or not now."""
        number = self.partition_of(group_id)
        if number is None:
            raise GroupError(ErrorCode.NOT_COORDINATOR)
        shard = self._shards.get(number)
        if shard is None:
            known = self.context.image.partition(OFFSETS_TOPIC, number)
            is_ours = known is not None and known.online and known.worker == self.context.worker
            raise GroupError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_ours else ErrorCode.NOT_COORDINATOR)
        shard.check()
        return shard

    def transaction_marker(self, partition_number: int, producer_id: int, commit: bool) -> asyncio.Task[None]:
        """A transaction's marker was appended to a partition of `__consumer_offsets`: what it committed counts, or never will.

        To be called right after the append; the task is done when readers see the outcome.
        """

        async def ended() -> None:
            shard = self._shards.get(partition_number)
            if shard is not None:
                await shard.transaction_ended(producer_id, commit)

        return self.context.spawn(ended())

    # ---- the topic

    async def create_topic(self) -> None:
        """Creates `__consumer_offsets` as Kafka does at first need; whether that succeeded is seen in the image."""
        if self._creating is None or self._creating.done():
            self._creating = self.context.spawn(self._create_topic())
        await asyncio.shield(self._creating)

    async def _create_topic(self) -> None:
        config = self.context.config
        topic = NewTopic(
            name=OFFSETS_TOPIC,
            num_partitions=config.offsets_topic_num_partitions,
            replication_factor=1,
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(config.offsets_topic_segment_bytes)),
            ),
        )
        try:
            outcome = await self.context.catalogue.change("create_topics", CreateTopics(topics=(topic,)), TopicResults)
        except (CompactdError, TimeoutError) as error:
            _LOGGER.warning("%s could not be created: %s", OFFSETS_TOPIC, error or "no answer in time")
            return
        for result in outcome.results:
            if result.error and result.error != ErrorCode.TOPIC_ALREADY_EXISTS:
                _LOGGER.warning("%s could not be created: %s", OFFSETS_TOPIC, result.message)

    # ---- offsets that nobody needs any more

    def _topics_gone(self, names: list[str]) -> None:
        image = self.context.image
        now = {name: topic.topic_id for name in names if (topic := image.topic(name)) is not None}
        kept = {name: uuid_text(topic_id) for name, topic_id in now.items()}

        def is_gone(name: str, topic_id: str) -> bool:
            return name in names and (topic_id == NO_ID or topic_id != kept.get(name))

        async def forget() -> None:
            for shard in list(self._shards.values()):
                await shard.loaded.wait()
                await forget_topics(shard, is_gone)

        self.context.spawn(forget())

    async def _expire_offsets(self) -> None:
        while True:
            config = self.context.config
            await asyncio.sleep(config.offsets_retention_check_interval_ms / 1000)
            for shard in self:
                await expire_offsets(shard, config.offsets_retention_minutes * _MINUTE_MS)
