"""What the coordinators of groups and of transactions have in common: shards, the partitions of a topic of their own.

A broker coordinates the ids whose partition it owns. What is stored there is loaded when the partition comes, and given up
when it goes or fails.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Generic, TypeVar

from compactd.config.errors import CompactdError
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.partition import Partition
from compactd.workers.broker.transactions.java_order import partition_of
from compactd.workers.catalogue_messages import CreateTopics, NewTopic, TopicResults

_LOGGER = logging.getLogger(__name__)

#: A partition that could not be loaded is tried again after this long.
_RETRY_SECONDS = 10.0


class Phase(Enum):
    """Of a shard's life."""

    LOADING = 1
    READY = 2
    FAILED = 3
    GONE = 4


class CoordinatorShard(ABC):
    """One partition of a coordinator's topic, and what is in it. Belongs to the broker's loop; a `partition.Watcher`."""

    def __init__(self, context: Context, partition: Partition) -> None:
        self.context = context
        self.partition = partition
        self.number = partition.topic_partition.partition
        self.phase = Phase.LOADING
        #: It is ready, or will not be soon.
        self.loaded = asyncio.Event()

    def begin(self) -> None:
        """Everything of it is there: it may be loaded."""
        self.partition.watchers.add(self)
        self.context.spawn(self._load())

    @abstractmethod
    async def _load(self) -> None:
        """Reads the log. To READY, if it is LOADING still; or `_failed`."""

    @abstractmethod
    def _clear(self) -> None:
        """What was loaded counts no more; whoever waits is told."""

    @abstractmethod
    def _refusal(self, code: ErrorCode) -> Exception:
        """What is raised where nothing can be asked here."""

    def check(self) -> None:
        """Raises the refusal where nothing can be asked here now."""
        if self.phase is Phase.LOADING:
            raise self._refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if self.phase is not Phase.READY or self.partition.error:
            raise self._refusal(ErrorCode.NOT_COORDINATOR)

    def gone(self) -> None:
        """The partition is not this broker's any more."""
        self._give_up(Phase.GONE)
        self.partition.watchers.discard(self)

    def appended(self, size: int) -> None:
        """Our own records: nothing to look at."""
        del size

    def changed(self) -> None:
        """The partition may have gone offline."""
        if self.partition.error and self.phase in (Phase.LOADING, Phase.READY):
            self._give_up(Phase.FAILED)

    def _failed(self) -> None:
        """What is in memory may not be what is in the log: to be loaded anew."""
        if self.phase is Phase.GONE:
            return
        self._give_up(Phase.FAILED)
        if not self.partition.error:
            self.context.loop.call_later(_RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        if self.phase is Phase.FAILED and not self.partition.error:
            self.phase = Phase.LOADING
            self.loaded.clear()
            self.context.spawn(self._load())

    def _give_up(self, phase: Phase) -> None:
        self.phase = phase
        self._clear()
        self.loaded.set()


S = TypeVar("S", bound=CoordinatorShard)


class Coordinator(ABC, Generic[S]):
    """The shards of one topic."""

    #: The coordinator's topic.
    topic: str

    def __init__(self, context: Context) -> None:
        self.context = context
        self._shards: dict[int, S] = {}
        self._creating: asyncio.Task[None] | None = None
        #: A shard has come.
        self._arrived = asyncio.Event()

    def begin(self) -> None:
        """From now on partitions of the topic become shards."""
        partitions = self.context.partitions
        partitions.on_ready.append(self._ready)
        partitions.on_gone.append(self._gone)
        for partition in partitions:
            self._ready(partition)

    @abstractmethod
    def _made(self, partition: Partition) -> S:
        """A shard of the partition."""

    @abstractmethod
    def _refusal(self, code: ErrorCode) -> Exception:
        """What is raised where an id is not coordinated here."""

    @abstractmethod
    def _topic_shape(self) -> tuple[int, Sequence[tuple[str, str]]]:
        """Partitions and settings that the topic is created with."""

    # ---- which partitions

    def _ready(self, partition: Partition) -> None:
        if partition.topic_partition.topic == self.topic:
            shard = self._shards[partition.topic_partition.partition] = self._made(partition)
            shard.begin()
            self._arrived.set()

    def _gone(self, partition: Partition) -> None:
        if partition.topic_partition.topic == self.topic:
            shard = self._shards.pop(partition.topic_partition.partition, None)
            if shard is not None:
                shard.gone()

    def __iter__(self) -> Iterator[S]:
        """Those that are loaded."""
        return iter([shard for shard in self._shards.values() if shard.phase is Phase.READY])

    @property
    def is_loading(self) -> bool:
        return any(shard.phase is Phase.LOADING for shard in self._shards.values())

    def partition_of(self, identity: str) -> int | None:
        """The partition that holds an id; None: the topic is not there yet."""
        topic = self.context.image.topic(self.topic)
        return None if topic is None else partition_of(identity, len(topic.partitions))

    def shard(self, identity: str) -> S:
        """Where an id is coordinated. Raises the refusal: not here, not yet, or not now."""
        number = self.partition_of(identity)
        if number is None:
            raise self._refusal(ErrorCode.NOT_COORDINATOR)
        shard = self._shards.get(number)
        if shard is None:
            known = self.context.image.partition(self.topic, number)
            is_ours = known is not None and known.online and known.worker == self.context.worker
            raise self._refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_ours else ErrorCode.NOT_COORDINATOR)
        shard.check()
        return shard

    # ---- the topic

    async def create_topic(self) -> None:
        """Creates the topic as Kafka does at first need; whether that succeeded is seen in the image."""
        if self._creating is None or self._creating.done():
            self._creating = self.context.spawn(self._create_topic())
        await asyncio.shield(self._creating)

    async def _create_topic(self) -> None:
        count, configs = self._topic_shape()
        topic = NewTopic(name=self.topic, num_partitions=count, replication_factor=1, configs=tuple(configs))
        try:
            outcome = await self.context.catalogue.change("create_topics", CreateTopics(topics=(topic,)), TopicResults)
        except (CompactdError, TimeoutError) as error:
            _LOGGER.warning("%s could not be created: %s", self.topic, error or "no answer in time")
            return
        for result in outcome.results:
            if result.error and result.error != ErrorCode.TOPIC_ALREADY_EXISTS:
                _LOGGER.warning("%s could not be created: %s", self.topic, result.message)
        await self._created()

    async def _created(self) -> None:
        """The catalogue has the topic."""
