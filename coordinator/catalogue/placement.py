"""Which log dir takes a new partition, and which broker worker owns one (Kafka's LogManager.nextLogDirs; issue: JBOD)."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogDirLoad:
    """A log dir as placement sees it. `order`: its place in log.dirs, which decides between equally full ones."""

    directory_id: str
    order: int
    #: Partitions that lie there, or are to.
    partitions: int
    #: Readable and writable.
    online: bool = True
    #: cordoned.log.dirs names it: it keeps what it has and takes nothing new.
    cordoned: bool = False


def place(count: int, dirs: Sequence[LogDirLoad]) -> list[str] | None:
    """Log dir ids for `count` new partitions, each into the one with the fewest; None when no dir takes any."""
    heap = [(load.partitions, load.order, load.directory_id) for load in dirs if load.online and not load.cordoned]
    if not heap:
        return None
    heapq.heapify(heap)
    placed = []
    for _ in range(count):
        partitions, order, directory_id = heap[0]
        placed.append(directory_id)
        heapq.heapreplace(heap, (partitions + 1, order, directory_id))
    return placed


def worker_of(topic_id: str, partition: int, workers: int) -> int:
    """Number of the broker worker that owns a partition, the same at every start with as many workers.

    The partitions of one topic are dealt out in turn, so that even a single busy topic keeps all workers busy.
    """
    return (zlib.crc32(topic_id.encode()) + partition) % workers
