"""Latest offset of each key: what pass one fills and pass two asks (Kafka's SkimpyOffsetMap, facts 5.3).

Only "full after so many distinct keys" can be seen from outside, so a dict with a capacity is the whole rule. It holds the
keys themselves: no two keys can be taken for one.
"""

from __future__ import annotations

from compactd.config.errors import SettingError

#: Bytes of a slot: MD5 and offset in Kafka, fingerprint and ordinal in the native kernel.
KAFKA_SLOT_BYTES = 24
SLOT_BYTES = 16


class OffsetMap:
    """Keys to offsets, and the offset up to which the map speaks."""

    def __init__(self, memory_bytes: int, load_factor: float, kafka: bool) -> None:
        """Raises SettingError when not even one key fits, as then no round would make progress."""
        self.slots = memory_bytes // (KAFKA_SLOT_BYTES if kafka else SLOT_BYTES)
        self.capacity = int(self.slots * load_factor)
        if self.capacity < 1:
            raise SettingError(
                source="offset map",
                name="log.cleaner.dedupe.buffer.size",
                value=memory_bytes,
                reason=f"{self.slots} slots at a load factor of {load_factor} hold no key",
            )
        #: Last offset that was mapped, or passed over; -1 at the start. Records beyond it are always kept.
        self.latest_offset = -1
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, key: bytes) -> bool:
        return key in self._offsets

    @property
    def is_full(self) -> bool:
        """True from `capacity` keys on; a key that is in the map already does not fit any more either."""
        return len(self._offsets) >= self.capacity

    def put(self, key: bytes, offset: int) -> None:
        self._offsets[key] = self.latest_offset = offset

    def get(self, key: bytes) -> int:
        """The latest offset of the key, -1 where it was not mapped."""
        return self._offsets.get(key, -1)

    def clear(self) -> None:
        self._offsets = {}
        self.latest_offset = -1
