"""Which log dir holds which partition of the catalogue, and which takes the next (issue: JBOD).

Where a partition really lies counts for more than what its record says; the record follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from compactd.coordinator.catalogue.adoption import Identity
from compactd.coordinator.catalogue.placement import LogDirLoad, place
from compactd.coordinator.catalogue.topic_changes import Place
from compactd.storage.metadata.image import MetadataImage

#: Wishes for partitions that are not there yet; beyond it none is remembered.
_MOST_PREFERENCES = 100_000

#: Topic id and partition.
Key = tuple[str, int]


class Places:
    """Log dirs by their ids, and the partitions in them."""

    def __init__(self, identities: Sequence[Identity], by_partition: dict[Key, str]) -> None:
        self.identities = {identity.directory_id: identity for identity in identities}
        #: To the id of the log dir that holds it, or is to hold it.
        self.by_partition = by_partition
        #: Where partitions were wanted that are not there yet: (topic, partition) to a log dir's id.
        self._preferred: dict[tuple[str, int], str] = {}
        #: Log dirs that failed since the start.
        self._failed: set[str] = set()

    # ---- log dirs

    def at(self, path: str | Path) -> Identity | None:
        """The log dir of this path."""
        return next((identity for identity in self.identities.values() if identity.path == Path(path)), None)

    def fail(self, path: Path) -> set[Key] | None:
        """This dir takes no new partitions from now on. What it holds; None where that is known, or no such dir."""
        identity = self.at(path)
        if identity is None or identity.directory_id in self._failed:
            return None
        self._failed.add(identity.directory_id)
        return {key for key, directory in self.by_partition.items() if directory == identity.directory_id}

    def has_failed(self, directory_id: str) -> bool:
        return directory_id in self._failed

    # ---- partitions

    def path_of(self, key: Key) -> str:
        """Path of a partition's log dir; "" where that is not to be had."""
        identity = self.identities.get(self.by_partition.get(key, ""))
        return "" if identity is None else str(identity.path)

    def is_online(self, key: Key) -> bool:
        directory = self.by_partition.get(key)
        return directory in self.identities and directory not in self._failed

    def put(self, places: Iterable[Place]) -> None:
        """Partitions lie there from now on."""
        for topic_id, partition, directory in places:
            self.by_partition[topic_id, partition] = directory

    def forget(self, topic_ids: Collection[str]) -> None:
        """Topics are gone."""
        if topic_ids:
            gone = set(topic_ids)
            self.by_partition = {key: directory for key, directory in self.by_partition.items() if key[0] not in gone}

    # ---- new ones

    def choose(self, count: int, cordoned: Collection[str], more: Counter[str]) -> list[str] | None:
        """Dirs for new partitions, in their order, counted into `more`; None: no dir takes any."""
        chosen = place(count, self._loads(cordoned, more))
        more.update(chosen or ())
        return chosen

    def prefer(self, topic: str, partition: int, log_dir: str) -> None:
        """Remembered until the partition is made or the daemon stops, as by Kafka's broker."""
        identity = self.at(log_dir)
        if identity is not None and len(self._preferred) < _MOST_PREFERENCES:
            self._preferred[topic, partition] = identity.directory_id

    def preferred(self, topic: str, partition: int) -> str | None:
        """The dir that was asked for, if it can be had."""
        directory = self._preferred.get((topic, partition))
        return None if directory in self._failed else directory

    def made(self, topic: str, partition: int) -> None:
        """The partition is there: what was preferred for it has served."""
        self._preferred.pop((topic, partition), None)

    def place_homeless(self, image: MetadataImage, node_id: int, cordoned: Collection[str], guess: bool) -> None:
        """Gives partitions that no directory was found for the dir of their record, or else, where `guess`, a new one.

        Where a configured log dir is offline, one whose dir is unknown may lie there: it stays without a leader.
        """
        homeless: list[Key] = []
        for topic in image.topics.values():
            for number, state in topic.partitions.items():
                key = (topic.topic_id, number)
                if key in self.by_partition or node_id not in state.replicas:
                    continue
                recorded = state.directories[0] if state.directories else ""
                if recorded in self.identities:
                    self.by_partition[key] = recorded
                elif guess:
                    homeless.append(key)
        # Cordoned dirs are for what clients make anew; these partitions exist.
        count, none = len(homeless), Counter[str]()
        chosen = place(count, self._loads(cordoned, none)) or place(count, self._loads((), none))
        self.by_partition.update(zip(homeless, chosen or (), strict=False))

    def _loads(self, cordoned: Collection[str], more: Counter[str]) -> list[LogDirLoad]:
        counts = Counter(self.by_partition.values()) + more
        return [
            LogDirLoad(
                identity.directory_id,
                identity.order,
                counts[identity.directory_id],
                identity.directory_id not in self._failed,
                "*" in cordoned or str(identity.path) in cordoned,
            )
            for identity in self.identities.values()
        ]
