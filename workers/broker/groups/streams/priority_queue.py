"""Java's PriorityQueue: among equals it matters how the heap is laid out."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class PriorityQueue(Generic[T]):
    """Items with a rank each; the least rank comes first, and equal ranks in the order that Java's heap has them."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, T]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, rank: float, item: T) -> None:
        """`offer`: from the last place up."""
        heap = self._heap
        place = len(heap)
        heap.append((rank, item))
        while place:
            parent = (place - 1) >> 1
            if rank >= heap[parent][0]:
                break
            heap[place] = heap[parent]
            place = parent
        heap[place] = (rank, item)

    def poll(self) -> T:
        """The first, taken out. IndexError: there is none."""
        heap = self._heap
        last = heap.pop()
        if not heap:
            return last[1]
        first = heap[0]
        place, size = 0, len(heap)
        while place < size >> 1:
            child = 2 * place + 1
            if child + 1 < size and heap[child][0] > heap[child + 1][0]:
                child += 1
            if last[0] <= heap[child][0]:
                break
            heap[place] = heap[child]
            place = child
        heap[place] = last
        return first[1]
