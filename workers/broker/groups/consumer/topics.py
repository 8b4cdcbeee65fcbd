"""The catalogue, as groups look at it: topics by name and id, their partitions, a hash that tells when they change."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from compactd.workers.broker.context import Context
from compactd.workers.broker.groups.consumer.xxh3 import xxh3_64
from compactd.workers.broker.image import CatalogueImage, Topic

_MASK = (1 << 64) - 1


def _hashed_rack(rack: str) -> bytes:
    data = rack.encode("utf-16-le", "surrogatepass")
    size = (len(data) // 2).to_bytes(4, "little")
    return size + data + size


class Topics:
    """`context.part(Topics)`. Always as the catalogue is now."""

    def __init__(self, context: Context) -> None:
        self._image: CatalogueImage = context.image
        #: The rack of every partition, as the hash takes it in.
        self._rack = b"" if context.config.broker_rack is None else _hashed_rack(context.config.broker_rack)
        #: Topic id to number of partitions and hash.
        self._hashes: dict[uuid.UUID, tuple[int, int]] = {}
        self._looked_at = -1
        self._known: set[uuid.UUID] = set()
        self._version_with_new = -1

    @property
    def version(self) -> int:
        """Grows with every change of the catalogue."""
        return self._image.metadata_offset

    @property
    def version_with_new(self) -> int:
        """The version at which topics were created last, as far as anybody asked."""
        if self._looked_at != self.version:
            now = set(self._image.by_id)
            if self._looked_at < 0 or not now <= self._known:
                self._version_with_new = self.version
            self._known = now
            self._looked_at = self.version
        return self._version_with_new

    @property
    def names(self) -> Iterable[str]:
        """Of all topics."""
        return self._image.topics

    def id_of(self, name: str) -> uuid.UUID | None:
        """None: there is no such topic."""
        found = self._image.topic(name)
        return None if found is None else found.topic_id

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """None: there is no such topic."""
        found = self._image.topic_of_id(topic_id)
        return None if found is None else found.name

    def ids_of(self, names: Iterable[str]) -> list[uuid.UUID]:
        """Of those that there are, in this order."""
        return [found.topic_id for name in names if (found := self._image.topic(name)) is not None]

    def partitions_of(self, topic_id: uuid.UUID) -> int:
        """How many there are; 0: there is no such topic."""
        found = self._image.topic_of_id(topic_id)
        return 0 if found is None else len(found.partitions)

    def hash_of(self, names: Iterable[str]) -> int:
        """Kafka's metadata hash of what is subscribed to, signed; topics that are not there do not count."""
        known = [topic for name in sorted(names) if (topic := self._image.topic(name)) is not None]
        if not known:
            return 0
        data = b"".join(self._topic_hash(topic).to_bytes(8, "little") for topic in known)
        return _signed(xxh3_64(data))

    def _topic_hash(self, topic: Topic) -> int:
        count = len(topic.partitions)
        cached = self._hashes.get(topic.topic_id)
        if cached is None or cached[0] != count:
            if len(self._hashes) > 2 * len(self._image.topics) + 100:
                self._hashes.clear()  # of topics that were deleted
            name = topic.name.encode("utf-16-le", "surrogatepass")
            data = bytearray(b"\0")  # version of the hash
            data += (topic.topic_id.int >> 64).to_bytes(8, "little") + (topic.topic_id.int & _MASK).to_bytes(
                8, "little"
            )
            data += name + (len(name) // 2).to_bytes(4, "little") + count.to_bytes(4, "little")
            for number in range(count):
                data += number.to_bytes(4, "little") + self._rack
            cached = self._hashes[topic.topic_id] = (count, xxh3_64(bytes(data)))
        return cached[1]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
