"""Tasks of a streams application, as members are to have them and as they have them (Kafka's TasksTuple, TasksTupleWithEpochs).

A task is a partition of a subtopology. One member runs it (it is active there), others may keep copies of its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from compactd.workers.broker.groups.consumer.java import listed
from compactd.workers.broker.transactions.java_order import string_hash

#: Subtopology id to partitions; nothing of what has none.
Tasks = Mapping[str, frozenset[int]]
#: Subtopology id to partition to the epoch at which it was assigned.
OwnedTasks = Mapping[str, Mapping[int, int]]

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class TaskTuple:
    """What a member is to have, or says that it has."""

    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def has_any(self, other: OwnedTuple) -> bool:
        """Whether a task of the other one is here, too, in the same role."""
        return (
            _overlap(self.active, other.active)
            or _overlap(self.standby, other.standby)
            or _overlap(self.warmup, other.warmup)
        )


@dataclass(frozen=True, slots=True)
class OwnedTuple:
    """What a member has; active tasks with their epochs."""

    active: OwnedTasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def without_epochs(self) -> TaskTuple:
        """The tasks alone."""
        active = {subtopology: frozenset(partitions) for subtopology, partitions in self.active.items()}
        return TaskTuple(active, self.standby, self.warmup)


NO_TASKS = TaskTuple()
OWNS_NOTHING = OwnedTuple()


def in_java_order(by_subtopology: Mapping[str, _V]) -> dict[str, _V]:
    """The same mapping in the order of a HashMap that was filled in the order of a record."""
    return {subtopology: by_subtopology[subtopology] for subtopology in listed(sorted(by_subtopology), string_hash)}


def task_rows(tasks: Mapping[str, Iterable[int]]) -> list[dict[str, Any]]:
    """Of an answer: task ids in the order of `tasks`, partitions sorted."""
    return [
        {"subtopology_id": subtopology, "partitions": sorted(partitions)} for subtopology, partitions in tasks.items()
    ]


def _overlap(first: Mapping[str, Iterable[int]], second: Mapping[str, Iterable[int]]) -> bool:
    return any(
        not set(partitions).isdisjoint(second[subtopology])
        for subtopology, partitions in first.items()
        if subtopology in second
    )
