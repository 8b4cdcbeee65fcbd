"""The assignor "sticky": tasks stay where they run or where their state is, and loads are even (StickyTaskAssignor)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.java import HashTable, capacity_of
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.streams.configured import ConfiguredSubtopology
from compactd.workers.broker.groups.streams.priority_queue import PriorityQueue
from compactd.workers.broker.groups.streams.process import Process, Task
from compactd.workers.broker.groups.streams.tasks import Tasks, TaskTuple
from compactd.workers.broker.transactions.java_order import string_hash

Offsets = Mapping[str, Mapping[int, int]]
#: Process id and member id.
_Member = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A member, what it has now, and how far it says its state is, by subtopology and partition."""

    process_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)
    task_offsets: Offsets = field(default_factory=dict)
    task_end_offsets: Offsets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group."""

    #: In the order of a HashMap of their ids.
    members: Mapping[str, MemberSpec]
    standby_replicas: int = 0
    rack_aware_tags: tuple[str, ...] = ()


Assignor = Callable[[GroupSpec, Mapping[str, ConfiguredSubtopology]], Mapping[str, TaskTuple]]


def assign(group: GroupSpec, subtopologies: Mapping[str, ConfiguredSubtopology]) -> dict[str, TaskTuple]:
    """What every member is to have; `subtopologies` in the order of their ids. GroupError: nobody can take a task."""
    shares = _Shares(group, subtopologies)
    shares.assign_active()
    if group.standby_replicas > 0:
        shares.assign_standby()
    return shares.finished()


class _Quota:
    """How many tasks a member may have that has not got its share yet: what is left by those who are left."""

    __slots__ = ("_members", "_tasks", "each")

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self._share()

    def _share(self) -> None:
        self.each = -(-self._tasks // self._members) if self._members else 0

    def reached(self, count: int) -> None:
        """A member has this many now."""
        if count == self.each:
            self._members -= 1
            self._tasks -= count
            self._share()


class _Shares:
    """The work of one assignment."""

    def __init__(self, group: GroupSpec, subtopologies: Mapping[str, ConfiguredSubtopology]) -> None:
        self._group = group
        self._ids = list(subtopologies)
        self._places = {subtopology_id: place for place, subtopology_id in enumerate(self._ids)}
        self._tasks = [
            (place, number) for place, each in enumerate(subtopologies.values()) for number in range(each.tasks)
        ]
        stateful = {place for place, each in enumerate(subtopologies.values()) if each.is_stateful}
        self._stateful = [task for task in self._tasks if task[0] in stateful]
        copies = len(self._stateful) * group.standby_replicas
        self._active_quota = _Quota(len(self._tasks), len(group.members))
        self._quota = _Quota(len(self._tasks) + copies, len(group.members))
        self._processes: dict[str, Process] = {}
        self._order: HashTable[str] = HashTable(string_hash, capacity_of(len(group.members)))
        #: Who ran it.
        self._ran: dict[Task, _Member] = {}
        #: Who has state of it, the best first.
        self._copied: dict[Task, list[_Member]] = {}
        self._look_back()

    def _look_back(self) -> None:
        #: Not a standby, offset negated: what Kafka ranks by; equals in the order of members.
        candidates: dict[Task, list[tuple[bool, int, _Member]]] = {}
        for member_id, member in self._group.members.items():
            who = (member.process_id, member_id)
            self._order.compute(member.process_id)
            self._processes.setdefault(member.process_id, Process()).add_member(member_id)
            self._ran.update(dict.fromkeys(self._known(member.active), who))
            standby = set(self._known(member.standby))
            offsets = {
                (self._places[subtopology_id], number): offset
                for subtopology_id, row in member.task_offsets.items()
                if subtopology_id in self._places
                for number, offset in row.items()
            }
            for task in standby:
                candidates.setdefault(task, []).append((False, -offsets.get(task, 0), who))
            for task, offset in offsets.items():
                if task not in standby:
                    candidates.setdefault(task, []).append((True, -offset, who))
        for task, rows in candidates.items():
            rows.sort(key=lambda row: row[:2])
            self._copied[task] = [who for _, _, who in rows]

    def _known(self, tasks: Tasks) -> Iterable[Task]:
        """Those of subtopologies that there still are."""
        for subtopology_id, numbers in tasks.items():
            if (place := self._places.get(subtopology_id)) is not None:
                for number in numbers:
                    yield place, number

    # ---- active tasks

    def assign_active(self) -> None:
        """To whom ran it, then to whom has its state, then to the least loaded. GroupError: there is nobody."""
        left: list[Task] = []
        for task in sorted(self._tasks, key=_by_partition):
            if not self._runs_on(self._ran.get(task), task):
                left.append(task)
        orphans = [task for task in left if not self._runs_on(self._least(self._copied.get(task, ())), task)]
        by_load = self._by_load()
        for task in sorted(orphans):
            if not by_load:
                raise GroupError(ErrorCode.UNKNOWN_SERVER_ERROR)
            process = by_load.poll()
            self._counted(process.add_to_least(task, active=True), active=True)
            by_load.add(process.load, process)

    def _runs_on(self, who: _Member | None, task: Task) -> bool:
        """Gives the task to the member if that has room for it."""
        if who is None or self._count(who) >= self._active_quota.each:
            return False
        self._counted(self._processes[who[0]].add(who[1], task, active=True), active=True)
        return True

    def _counted(self, count: int, *, active: bool) -> None:
        if active:
            self._active_quota.reached(count)
        self._quota.reached(count)

    def _count(self, who: _Member) -> int:
        return self._processes[who[0]].counts[who[1]]

    def _least(self, members: Iterable[_Member], without: Task | None = None) -> _Member | None:
        """The first, or a later one where process and member both have less; not in a process that has this task."""
        found: _Member | None = None
        least: tuple[float, int] = (0.0, 0)
        for who in members:
            process = self._processes[who[0]]
            if without is not None and process.has(without):
                continue
            load, count = process.load, self._count(who)
            if found is None or (load < least[0] and count < least[1]):
                found, least = who, (load, count)
        return found

    def _by_load(self) -> PriorityQueue[Process]:
        queue: PriorityQueue[Process] = PriorityQueue()
        for process_id in self._order.listed():
            process = self._processes[process_id]
            queue.add(process.load, process)
        return queue

    # ---- copies

    def assign_standby(self) -> None:
        """To whom ran it, then to whom has its state, then to the least loaded process that doesn't have the task."""
        replicas = self._group.standby_replicas
        left: list[tuple[Task, int]] = []
        for task in sorted(self._stateful, key=_by_partition, reverse=True):
            for number in range(replicas):
                if not self._stays(task):
                    left.append((task, replicas - number))
                    break
        by_load = self._by_load()
        for task, count in sorted(left, reverse=True):
            for _ in range(count):
                if not self._copy_to_least(by_load, task):
                    break

    def _stays(self, task: Task) -> bool:
        """Gives a copy to a member that knows the task, if that has room."""
        ran = self._ran.get(task)
        if ran is not None and not self._processes[ran[0]].has(task) and self._count(ran) < self._quota.each:
            who = ran
        else:
            known = self._least(self._copied.get(task, ()), without=task)
            if known is None or self._count(known) >= self._quota.each:
                return False
            who = known
        self._counted(self._processes[who[0]].add(who[1], task, active=False), active=False)
        return True

    def _copy_to_least(self, queue: PriorityQueue[Process], task: Task) -> bool:
        """False: every process has the task."""
        passed: list[Process] = []
        is_given = False
        while queue and not is_given:
            process = queue.poll()
            passed.append(process)
            if not process.has(task):
                self._counted(process.add_to_least(task, active=False), active=False)
                is_given = True
        # The order in which Kafka's calls return.
        for process in reversed(passed):
            queue.add(process.load, process)
        return is_given

    # ---- the outcome

    def finished(self) -> dict[str, TaskTuple]:
        """By member, also those without tasks."""
        found: dict[str, TaskTuple] = {}
        for member_id, member in self._group.members.items():
            process = self._processes[member.process_id]
            found[member_id] = TaskTuple(
                self._compacted(process.active.get(member_id, ())), self._compacted(process.standby.get(member_id, ()))
            )
        return found

    def _compacted(self, tasks: Iterable[Task]) -> dict[str, frozenset[int]]:
        by_id: dict[str, list[int]] = {}
        for place, number in tasks:
            by_id.setdefault(self._ids[place], []).append(number)
        return {subtopology_id: frozenset(numbers) for subtopology_id, numbers in by_id.items()}


def _by_partition(task: Task) -> Task:
    return task[1], task[0]


ASSIGNORS: Mapping[str, Assignor] = {"sticky": assign}
