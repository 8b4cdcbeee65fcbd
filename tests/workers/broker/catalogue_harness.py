"""A broker under test with a real catalogue behind it, in the same process: what clients change, changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from compactd.config.settings import CleanerConfig, DaemonConfig, StorageConfig, TopicConfig
from compactd.coordinator.catalogue.catalogue import Catalogue
from compactd.coordinator.interfaces import CatalogueSetup, Settings
from compactd.workers.catalogue_update import CatalogueChange, CatalogueChanged, CatalogueTopic, CatalogueUpdate
from compactd.workers.message import Message
from compactd.workers.messages import Failed, GivenSettings
from compactd.workers.partition_messages import (
    AssignPartitions,
    PartitionAssignment,
    PartitionsReady,
    ReleasePartitions,
)
from tests.workers.broker.harness import NODE_ID, InProcessBroker

#: Quick groups: nobody waits for others to come.
QUICK = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 2}


class CatalogueBroker(InProcessBroker):
    """`with CatalogueBroker(log_dirs) as broker:` with topics, partitions and settings as the log dirs hold them."""

    def __init__(
        self,
        log_dirs: Sequence[Path],
        settings: Mapping[str, object] | None = None,
        clean: bool = True,
        topic_defaults: Mapping[str, str] | None = None,
        log_config: Mapping[str, str] | None = None,
    ) -> None:
        """`topic_defaults`: broker-level settings of topics, which the broker only tells of.

        `log_config`: topic-level settings that every log has which does not say otherwise.
        """
        super().__init__(log_dirs, {"auto.create.topics.enable": "false", **QUICK, **(settings or {})}, clean)
        given = GivenSettings(broker={**(topic_defaults or {}), **self.channel.welcome.given.broker})
        self.channel.welcome = msgspec.structs.replace(self.channel.welcome, given=given)
        daemon = {"auto.create.topics.enable": "false", **QUICK, **(settings or {}), "node.id": NODE_ID}
        daemon.pop("cordoned.log.dirs", None)
        parts = Settings(
            storage=StorageConfig.from_strings({"log.dirs": ",".join(self.log_dirs)}),
            cleaner=CleanerConfig.from_strings({}),
            daemon=DaemonConfig.from_strings(daemon),
        )
        self.catalogue = Catalogue.open(CatalogueSetup(tuple(map(Path, self.log_dirs)), {}, parts, self.clock))
        self._log_config = dict(log_config or {})
        self._assigned: set[tuple[str, str, int]] = set()
        #: Changes whose new partitions are being loaded, by the request that has them loaded.
        self._unanswered: dict[int, CatalogueChanged] = {}

    def __enter__(self) -> CatalogueBroker:
        super().__enter__()
        request_id = self._assign(self.catalogue.full_update())
        if request_id:
            self.answer_to(request_id, PartitionsReady)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self.catalogue.close()

    def _update(self, full: bool = False, topics: Sequence[CatalogueTopic] = (), deleted: Sequence[str] = ()) -> None:
        """The port is known: the catalogue starts, and tells everything."""
        self.channel.put(self.catalogue.start(((NODE_ID, "127.0.0.1", self.port),), self._endpoints()))

    def _assign(self, update: CatalogueUpdate) -> int:
        """Has the broker own partitions that are new to it; 0: there are none."""
        wanted = [
            PartitionAssignment(
                topic=topic.name,
                partition=each.partition,
                topic_id=topic.topic_id,
                log_dir=each.log_dir,
                config=TopicConfig.from_strings({**self._log_config, **topic.configs}),
                leader_epoch=each.leader_epoch,
            )
            for topic in update.topics
            for each in topic.partitions
            if (topic.name, topic.topic_id, each.partition) not in self._assigned
        ]
        self._assigned |= {(each.topic, each.topic_id, each.partition) for each in wanted}
        if not wanted:
            return 0
        request_id = self.next_id()
        clean = tuple(self.log_dirs) if self.clean else ()
        self.channel.put(AssignPartitions(request_id=request_id, partitions=tuple(wanted), clean_log_dirs=clean))
        return request_id

    def _catalogue(self, message: Message) -> None:
        """Answers what the broker asks of the catalogue; called in the broker's thread."""
        if isinstance(message, PartitionsReady) and message.request_id in self._unanswered:
            self.channel.put(self._unanswered.pop(message.request_id))
        if not isinstance(message, CatalogueChange):
            return
        try:
            outcome = self.catalogue.change(message.operation, message.arguments)
        except Exception as error:
            self.channel.put(Failed(request_id=message.request_id, error=type(error).__name__, message=str(error)))
            raise
        answer, loading = CatalogueChanged(request_id=message.request_id, results=outcome.results), 0
        if outcome.update is not None:
            gone = [key for key in self._assigned if key[0] in outcome.update.deleted]
            self._assigned.difference_update(gone)
            if gone:
                names = tuple(f"{topic}-{partition}" for topic, _, partition in gone)
                self.channel.put(ReleasePartitions(request_id=self.next_id(), partitions=names))
            self.channel.put(outcome.update)
            loading = self._assign(outcome.update)
        # As the coordinator does: whoever asked is answered when the new partitions are loaded.
        if loading:
            self._unanswered[loading] = answer
        else:
            self.channel.put(answer)
