"""The groups that this broker coordinates: those whose partition of `__consumer_offsets` it owns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from compactd.storage.names import uuid_text
from compactd.workers.broker.context import Context
from compactd.workers.broker.coordinating import Coordinator
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.expiry import expire_offsets, forget_topics
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.records import NO_ID, OFFSETS_TOPIC
from compactd.workers.broker.groups.shard import Shard
from compactd.workers.broker.partition import Partition

_MINUTE_MS = 60_000


class GroupCoordinator(Coordinator[Shard]):
    """`context.part(GroupCoordinator)` has it."""

    topic = OFFSETS_TOPIC

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        context.on_topics_gone(self._topics_gone)
        self.begin()
        context.spawn(self._expire_offsets())

    def _made(self, partition: Partition) -> Shard:
        return Shard(self.context, partition)

    def _refusal(self, code: ErrorCode) -> GroupError:
        return GroupError(code)

    def _topic_shape(self) -> tuple[int, Sequence[tuple[str, str]]]:
        config = self.context.config
        return config.offsets_topic_num_partitions, (
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("segment.bytes", str(config.offsets_topic_segment_bytes)),
        )

    def transaction_marker(self, partition_number: int, producer_id: int, commit: bool) -> asyncio.Task[None]:
        """A transaction's marker was appended to a partition of `__consumer_offsets`: what it committed counts, or never will.

        To be called right after the append; the task is done when readers see the outcome.
        """

        async def ended() -> None:
            shard = self._shards.get(partition_number)
            if shard is not None:
                await shard.transaction_ended(producer_id, commit)

        return self.context.spawn(ended())

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
