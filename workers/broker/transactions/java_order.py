"""The order in which Java's hash tables list topics and partitions: that of Kafka's records of transactions.

Nothing reads meaning into it; it makes records of ours and of Kafka's the same bytes. Followed: the size of the table,
which only grows, and within a bucket the order of insertion. Not followed: a bucket that Java turns into a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

_SMALLEST = 16

Key = tuple[str, int]


def _string_hash(text: str) -> int:
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return value


#: String.hashCode as an unsigned number: h = 31 h + UTF-16 unit.
string_hash: Callable[[str], int] = lru_cache(maxsize=1024)(_string_hash)


def partition_of(identity: str, partitions: int) -> int:
    """The partition of a coordinator's topic that holds an id: its hash made positive (the smallest counts as 0)."""
    value = string_hash(identity)
    if value & 0x80000000:
        value = (-value) & 0x7FFFFFFF
    return value % partitions


def ordered_union(old: Sequence[Key], added: Iterable[Key]) -> tuple[Key, ...]:
    """`new HashSet(old)` and then `addAll(added)`, as listed; `added` comes out of a HashSet of its own."""
    present = set(old)
    size = _SMALLEST
    while size < int(len(old) / 0.75) + 1:
        size *= 2
    new = [key for key in _listed(list(dict.fromkeys(added)), _SMALLEST) if key not in present]
    return tuple(_listed([*old, *new], size))


def by_topic(partitions: Iterable[Key]) -> Mapping[str, list[int]]:
    """Partition numbers by topic, as `Collectors.groupingBy` lists them."""
    grouped: dict[str, list[int]] = {}
    for topic, number in partitions:
        grouped.setdefault(topic, []).append(number)
    mask = _table(len(grouped), _SMALLEST) - 1
    return {topic: grouped[topic] for topic in sorted(grouped, key=lambda topic: _spread(string_hash(topic)) & mask)}


def _listed(keys: Sequence[Key], size: int) -> list[Key]:
    mask = _table(len(keys), size) - 1
    return sorted(keys, key=lambda key: _spread(_hash(*key)) & mask)


def _table(count: int, size: int) -> int:
    while count > size * 3 // 4:
        size *= 2
    return size


def _hash(topic: str, partition: int) -> int:
    """TopicPartition.hashCode."""
    return (31 * (31 + partition) + string_hash(topic)) & 0xFFFFFFFF


def _spread(value: int) -> int:
    """HashMap.hash."""
    return value ^ value >> 16
