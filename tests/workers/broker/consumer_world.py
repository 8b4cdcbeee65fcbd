"""The consumer groups of one partition without a broker: a catalogue, a clock and a log in memory."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

from compactd.config.settings import DaemonConfig
from compactd.storage.names import uuid_text
from compactd.workers.broker.context import Context
from compactd.workers.broker.groups.consumer.group import ConsumerGroup
from compactd.workers.broker.groups.consumer.heartbeat_request import Heartbeat
from compactd.workers.broker.groups.consumer.running import ConsumerGroups
from compactd.workers.broker.groups.consumer.topics import Topics
from compactd.workers.broker.groups.group import ClassicGroup
from compactd.workers.broker.groups.member import GroupSettings, Join, Moment
from compactd.workers.broker.groups.records import KeyValue
from compactd.workers.broker.groups.state import GroupState
from compactd.workers.broker.image import CatalogueImage
from compactd.workers.catalogue_update import CataloguePartition, CatalogueTopic, CatalogueUpdate

NOW_MS = 1_800_000_000_000


def new_state() -> GroupState:
    settings = GroupSettings(0)
    return GroupState(lambda group_id, wall_ms: ClassicGroup(group_id, settings, wall_ms))


class World:
    """Stands in for a Shard, and for what it has of the broker."""

    def __init__(self, **settings: object) -> None:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        self.image = CatalogueImage()
        self.config = DaemonConfig.from_strings({"group.consumer.assignment.interval.ms": 0, **names})
        self.state = new_state()
        self.ms = 0
        self.log: list[KeyValue] = []
        self.batches: list[list[KeyValue]] = []
        #: Ids of topics, the same in every run.
        self._made = 0
        self._later: list[Coroutine[Any, Any, Any]] = []
        self.lock = asyncio.Lock()
        parts: dict[type[Any], Any] = {}
        world = self

        class Fake:
            image = self.image

            @property
            def config(self) -> DaemonConfig:
                return world.config

            def part(self, kind: type[Any]) -> Any:
                if kind not in parts:
                    parts[kind] = kind(self)
                return parts[kind]

            def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
                world._later.append(work)

            async def in_thread(self, work: Any) -> Any:
                return work()

        self.context: Context = Fake()  # type: ignore[assignment]
        self.topics = self.context.part(Topics)
        self.groups = ConsumerGroups(self)  # type: ignore[arg-type]

    # ---- the catalogue

    def _update(self, *topics: CatalogueTopic, deleted: Sequence[str] = ()) -> None:
        update = CatalogueUpdate(
            full=False,
            metadata_offset=self.image.metadata_offset + 1,
            cluster_id="c",
            topics=topics,
            deleted=tuple(deleted),
        )
        self.image.apply(update)

    def topic(self, name: str, partitions: int, topic_id: uuid.UUID | None = None) -> None:
        """Makes a topic, or gives it more partitions."""
        known = self.image.topic(name)
        if known is None:
            self._made += 1
            identity = topic_id or uuid.uuid5(uuid.NAMESPACE_URL, f"{name} {self._made}")
        else:
            identity = known.topic_id
        rows = tuple(
            CataloguePartition(partition=number, leader_epoch=0, partition_epoch=0, log_dir="d", worker=0)
            for number in range(partitions)
        )
        self._update(CatalogueTopic(name=name, topic_id=uuid_text(identity), partitions=rows, configs={}))

    def drop(self, name: str) -> None:
        """Deletes a topic."""
        self._update(deleted=(name,))

    # ---- Shard

    def group(self, group_id: str) -> ClassicGroup | None:
        return self.state.groups.get(group_id)

    def moment(self) -> Moment:
        return Moment(float(self.ms), NOW_MS + self.ms)

    def check(self) -> None:
        """Always there."""

    async def write(self, records: Sequence[KeyValue]) -> tuple[int, int]:
        if records:
            self.batches.append(list(records))
        self.log += records
        return len(self.log) - len(records), 0

    async def durable(self, offset: int) -> None:
        """At once."""

    def watch(self, group: Any, changed: float | None = None) -> None:
        """Time is moved by hand."""

    def forget_timer(self, group_id: str) -> None:
        """As `watch`."""

    def deliver(self, answers: Any) -> None:
        self.delivered = list(answers)

    # ---- what clients do

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """And what that brings with it. GroupError."""

        async def run() -> Any:
            self.lock = asyncio.Lock()
            try:
                return await work
            finally:
                while self._later:
                    await self._later.pop(0)

        return asyncio.run(run())

    def beat(self, group_id: str, member_id: str, epoch: int, **more: Any) -> Any:
        if epoch == 0:
            more = {"rebalance_timeout_ms": 300_000, "topic_names": ["t"], "owned": {}, **more}
        request = Heartbeat(
            group_id=group_id, member_id=member_id, epoch=epoch, client_id="c", client_host="/h", **more
        )
        return self.do(self.groups.heartbeat(request, lambda _: True))

    def join(self, group_id: str, **more: Any) -> Any:
        """A member of the classic protocol, into a consumer group."""
        return self.do(self.groups.join(Join(**more), self.consumers(group_id), lambda _: True))

    def consumers(self, group_id: str) -> ConsumerGroup:
        return self.state.consumers[group_id]

    def pass_time(self, ms: int) -> None:
        """And does what is due."""
        end = self.ms + ms
        while True:
            due = min((group.next_deadline() for group in self.state.consumers.values()), default=float("inf"))
            if due > end:
                break
            self.ms = max(self.ms, int(due))
            for group in list(self.state.consumers.values()):
                self.do(self.groups.expire(group))
        self.ms = end

    # ---- the log

    def replayed(self, records: Sequence[KeyValue] | None = None) -> GroupState:
        """What a restart makes of the log."""
        state = new_state()
        for offset, (key, value) in enumerate(self.log if records is None else records):
            state.replay(offset, key, value)
        return state

    def compacted(self) -> list[KeyValue]:
        """The last record of each key, in their order."""
        last = {key: index for index, (key, _) in enumerate(self.log)}
        return [record for index, record in enumerate(self.log) if last[record[0]] == index]


def look(group: ConsumerGroup) -> SimpleNamespace:
    """All that the log has to say of a group, so that it can be compared."""
    return SimpleNamespace(
        epochs=(group.epoch, group.assignment_epoch, group.assignment_ms, group.metadata_hash),
        members=dict(group.members),
        targets=dict(group.targets),
        regexes=dict(group.regexes),
        static=dict(group.static),
        owners=dict(group.owners),
        names=group.subscriptions.names(),
        by_name=+group.subscriptions.by_name,
        by_regex=+group.subscriptions.by_regex,
        regex_members=dict(group.regex_members),
        assignors=dict(group.assignors),
        phase=group.phase,
    )
