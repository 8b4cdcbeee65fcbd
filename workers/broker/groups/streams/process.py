"""A process of a streams application while tasks are given out: its members and what they have (Kafka's ProcessState)."""

from __future__ import annotations

from compactd.workers.broker.groups.consumer.java import HashTable
from compactd.workers.broker.groups.streams.priority_queue import PriorityQueue
from compactd.workers.broker.transactions.java_order import string_hash

#: Place of a subtopology among the sorted ids, and partition.
Task = tuple[int, int]


class Process:
    """Its load is what it has by the number of its members; a task may be there only once."""

    __slots__ = ("_by_load", "_count", "_tasks", "active", "counts", "members", "standby")

    def __init__(self) -> None:
        #: In the order of a HashMap.
        self.members: HashTable[str] = HashTable(string_hash)
        #: Tasks by member.
        self.counts: dict[str, int] = {}
        self.active: dict[str, list[Task]] = {}
        self.standby: dict[str, list[Task]] = {}
        self._tasks: set[Task] = set()
        self._count = 0
        #: Members that have least; None: to be made anew.
        self._by_load: PriorityQueue[str] | None = None

    @property
    def load(self) -> float:
        """Tasks a member."""
        return self._count / len(self.counts)

    def has(self, task: Task) -> bool:
        """Whether one of its members has the task, in whichever role."""
        return task in self._tasks

    def add_member(self, member_id: str) -> None:
        """One without tasks."""
        self.members.put(member_id)
        self.counts[member_id] = 0

    def add(self, member_id: str, task: Task, *, active: bool) -> int:
        """Gives a member a task; how many it has now."""
        self._by_load = None
        return self._add(member_id, task, active)

    def add_to_least(self, task: Task, *, active: bool) -> int:
        """Gives the task to the member that has least; how many it has now."""
        if len(self.counts) == 1:
            return self._add(next(iter(self.counts)), task, active)
        if self._by_load is None:
            self._by_load = PriorityQueue()
            for member_id in self.members.listed():
                self._by_load.add(self.counts[member_id], member_id)
        member_id = self._by_load.poll()
        count = self._add(member_id, task, active)
        self._by_load.add(count, member_id)
        return count

    def _add(self, member_id: str, task: Task, active: bool) -> int:
        self._count += 1
        self._tasks.add(task)
        (self.active if active else self.standby).setdefault(member_id, []).append(task)
        self.counts[member_id] += 1
        return self.counts[member_id]
