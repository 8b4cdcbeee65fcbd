"""The order in which Java lists the keys of its hash tables.

Kafka's assignors go through members and topics in it, so it decides who gets the odd partition; and it is the order
within records. Followed: the size of a table, which only grows, and within a bucket the order of insertion. Not followed:
a bucket that Java turns into a tree, which takes eight keys of one bucket.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, TypeVar

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


def text_order(text: str) -> bytes:
    """A key that sorts strings as Java does, by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")


def capacity_of(size: int) -> int:
    """Of a HashMap that was made for `size`: the next power of two."""
    return 1 << (size - 1).bit_length() if size > 1 else 1


def copied_capacity(count: int) -> int:
    """Of a HashMap that was made from another one with `count` entries."""
    return capacity_of(int(count / 0.75 + 1.0)) if count else DEFAULT_CAPACITY


def hash_set_capacity(count: int) -> int:
    """Of a HashSet that was made from a collection with `count` elements."""
    return capacity_of(max(int(count / 0.75) + 1, DEFAULT_CAPACITY))


class HashTable(Generic[K]):
    """The keys of a HashMap or HashSet, to know in which order it lists them."""

    __slots__ = ("_capacity", "_first", "_hash_of", "_last", "_ranks")

    def __init__(self, hash_of: Callable[[K], int], capacity: int = DEFAULT_CAPACITY) -> None:
        self._hash_of = hash_of
        self._capacity = capacity
        #: Places within a bucket.
        self._ranks: dict[K, int] = {}
        self._first = self._last = 0

    def put(self, key: K) -> None:
        """`put`, `add`: at the end of its bucket."""
        if key not in self._ranks:
            self._last += 1
            self._ranks[key] = self._last
            if len(self._ranks) > self._capacity * 3 // 4:
                self._capacity *= 2

    def compute(self, key: K) -> None:
        """`computeIfAbsent`, `compute`, `merge`: in front of its bucket; the table grows at the next one, of any key."""
        if len(self._ranks) > self._capacity * 3 // 4:
            self._capacity *= 2
        if key not in self._ranks:
            self._first -= 1
            self._ranks[key] = self._first

    def put_all(self, keys: Collection[K]) -> None:
        """`putAll`: first the table grows so far that they alone would fit."""
        while len(keys) > self._capacity * 3 // 4:
            self._capacity *= 2
        for key in keys:
            self.put(key)

    def remove(self, key: K) -> None:
        """The table stays as large as it is."""
        self._ranks.pop(key, None)

    def listed(self) -> list[K]:
        """Bucket by bucket."""
        mask = self._capacity - 1

        def place(key: K) -> tuple[int, int]:
            value = self._hash_of(key)
            return (value ^ value >> 16) & mask, self._ranks[key]

        return sorted(self._ranks, key=place)


def listed(keys: Iterable[K], hash_of: Callable[[K], int], capacity: int = DEFAULT_CAPACITY) -> list[K]:
    """Different keys, put in this order into a HashMap of this capacity, as it lists them."""
    table = HashTable(hash_of, capacity)
    for key in keys:
        table.put(key)
    return table.listed()


def hash_map(items: Mapping[K, V], hash_of: Callable[[K], int], capacity: int = DEFAULT_CAPACITY) -> dict[K, V]:
    """The same mapping, in the order of a HashMap that it was put into."""
    return {key: items[key] for key in listed(items, hash_of, capacity)}


class JavaHashMap(dict[str, V]):
    """A dict that knows the order of a HashMap with these keys; iterated, it has the order in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self._table: HashTable[str] = HashTable(string_hash)
        #: Keys as they are listed, the last one first; those that went are still in it. None: another one came.
        self._reversed: list[str] | None = None

    def __setitem__(self, key: str, value: V) -> None:
        if key not in self:
            self._table.put(key)
            self._reversed = None
        super().__setitem__(key, value)

    def remove(self, key: str) -> V | None:
        """The value, which is gone now; None: there is no such key."""
        self._table.remove(key)
        return super().pop(key, None)

    def clear(self) -> None:
        """The table stays as large as it is."""
        for key in self:
            self._table.remove(key)
        super().clear()

    def listed(self) -> list[str]:
        """Keys bucket by bucket."""
        return self._table.listed()

    def first(self) -> str | None:
        """The first of them. Cheap also for all, one after another: members that lead may leave by the thousand."""
        if self._reversed is None:
            self._reversed = self._table.listed()
            self._reversed.reverse()
        while self._reversed and self._reversed[-1] not in self:
            self._reversed.pop()
        return self._reversed[-1] if self._reversed else None


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
