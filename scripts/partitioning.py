"""Which partition a record goes to: as Kafka's own clients choose, so that a key of theirs and one of ours meet."""

from __future__ import annotations

from collections.abc import Sequence

_M = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 (org.apache.kafka.common.utils.Utils), unsigned."""
    h = _SEED ^ len(data)
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


class Partitioner:
    """Keys by their hash over all partitions; records without a key in turns, one partition for each batch."""

    def __init__(self, partitions: Sequence[int]) -> None:
        self._partitions = sorted(partitions)
        self._turn = 0

    def of(self, key: bytes | None) -> int:
        if key is None:
            return self._partitions[self._turn]
        return self._partitions[(murmur2(key) & 0x7FFFFFFF) % len(self._partitions)]

    def batch_sent(self) -> None:
        """From now on records without a key go to the next partition."""
        self._turn = (self._turn + 1) % len(self._partitions)
