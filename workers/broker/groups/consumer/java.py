"""The order in which Java lists the keys of its hash tables.

Kafka's assignors go through members and topics in it, so it decides who gets the odd partition; and it is the order
within records. Followed: the size of a table, which only grows, and within a bucket the order of insertion. Not followed:
a bucket that Java turns into a tree, which takes eight keys of one bucket.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from compactd.workers.broker.transactions.java_order import string_hash

K = TypeVar("K")
V = TypeVar("V")

#: A HashMap that was made without a size.
DEFAULT_CAPACITY = 16

_M32, _M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_FIBONACCI = -7046029254386353131 & _M64


def uuid_hash(value: uuid.UUID) -> int:
    """Kafka's Uuid.hashCode as an unsigned number."""
    both = value.int >> 64 ^ value.int & _M64
    return (both >> 32 ^ both) & _M32


def int_hash(value: int) -> int:
    """Integer.hashCode."""
    return value & _M32


def capacity_of(size: int) -> int:
    """Of a HashMap that was made for `size`: the next power of two."""
    return 1 << (size - 1).bit_length() if size > 1 else 1


def copied_capacity(count: int) -> int:
    """Of a HashMap that was made from another one with `count` entries."""
    return capacity_of(int(count / 0.75 + 1.0)) if count else DEFAULT_CAPACITY


def hash_set_capacity(count: int) -> int:
    """Of a HashSet that was made from a collection with `count` elements."""
    return capacity_of(max(int(count / 0.75) + 1, DEFAULT_CAPACITY))


def listed(keys: Iterable[K], hash_of: Callable[[K], int], capacity: int = DEFAULT_CAPACITY) -> list[K]:
    """Different keys, inserted in this order into a HashMap of this capacity, as it lists them."""
    found = list(keys)
    while len(found) > capacity * 3 // 4:
        capacity *= 2
    mask = capacity - 1

    def bucket(key: K) -> int:
        value = hash_of(key)
        return (value ^ value >> 16) & mask

    return sorted(found, key=bucket)


def hash_map(items: Mapping[K, V], hash_of: Callable[[K], int], capacity: int = DEFAULT_CAPACITY) -> dict[K, V]:
    """The same mapping, in the order of a HashMap that it was put into."""
    return {key: items[key] for key in listed(items, hash_of, capacity)}


class TimelineMap(dict[str, V]):
    """A dict that knows the order of Kafka's TimelineHashMap with these keys (BaseHashTable, expected size 0)."""

    def __init__(self) -> None:
        super().__init__()
        self._capacity = 2

    def __setitem__(self, key: str, value: V) -> None:
        if (len(self) + 1) * 0.75 > self._capacity:
            self._capacity *= 2
        super().__setitem__(key, value)

    def listed(self) -> list[str]:
        """Keys slot by slot; in a slot the last one that came is the first."""
        shift = 65 - self._capacity.bit_length()

        def slot(key: str) -> int:
            value = string_hash(key)
            signed = value - (1 << 32) if value >> 31 else value
            return (signed * _FIBONACCI & _M64) >> shift

        keys = list(self)
        keys.reverse()
        return sorted(keys, key=slot)
