"""A streams group (KIP-1071): members, the topology they run, what they are to have and what they have (Kafka's StreamsGroup).

Changed by `apply`, with the changes that are in the log; what Kafka keeps in memory only is kept so here, too, and is
gone after a restart: what members told of their progress, that they asked to shut down, the epoch of their endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.java import TimelineMap
from compactd.workers.broker.groups.consumer.member import LEAVING
from compactd.workers.broker.groups.deadlines import Deadlines, MemberDeadlines
from compactd.workers.broker.groups.member import NEVER, GroupError
from compactd.workers.broker.groups.streams import changes
from compactd.workers.broker.groups.streams.changes import Change, Metadata
from compactd.workers.broker.groups.streams.configured import ConfiguredTopology
from compactd.workers.broker.groups.streams.member import StreamsMember, TaskOffsets
from compactd.workers.broker.groups.streams.tasks import NO_TASKS, OWNS_NOTHING, OwnedTuple, TaskTuple
from compactd.workers.broker.groups.streams.topology import Topology

#: (subtopology id, partition)
TaskKey = tuple[str, int]


class GroupPhase(StrEnum):
    """States of a group, by the names that clients are told."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


def state_filter_name(state: str) -> str:
    """A state of any group as ListGroups is asked for it."""
    return "not_ready" if state == GroupPhase.NOT_READY else state.lower()


class StreamsGroup:
    """One group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.metadata = Metadata(1)
        self.assignment_epoch = 1
        #: When the target was computed; 0: that does not keep anybody waiting.
        self.assignment_ms = 0
        self.members: TimelineMap[StreamsMember] = TimelineMap()
        #: Instance id to member id.
        self.static: dict[str, str] = {}
        self.targets: TimelineMap[TaskTuple] = TimelineMap()
        self.topology: Topology | None = None
        #: None: to be found out.
        self._phase: GroupPhase | None = GroupPhase.EMPTY
        #: Processes that have a task.
        self.active: dict[TaskKey, str] = {}
        self.standby: dict[TaskKey, set[str]] = {}
        self.warmup: dict[TaskKey, set[str]] = {}
        # ---- of memory alone
        self.configured: ConfiguredTopology | None = None
        #: What describing it shows: up to this end of the log what `configured` was before.
        self._shown: tuple[int, ConfiguredTopology | None] = (-1, None)
        #: Version of the catalogue with which the hash was compared last; -1: compare it.
        self.checked_version = -1
        self.task_offsets: dict[str, TaskOffsets] = {}
        #: The member that asked for the whole application to be shut down.
        self.shutdown_member: str | None = None
        self.endpoint_epoch = 0
        self.deadlines = MemberDeadlines()
        #: A new group waits so long (ticks) for members before it assigns anything.
        self.initial_delay = NEVER

    # ---- what it is

    @property
    def epoch(self) -> int:
        return self.metadata.epoch

    @property
    def topology_epoch(self) -> int:
        """-1: there is none."""
        return -1 if self.topology is None else self.topology.epoch

    @property
    def phase(self) -> GroupPhase:
        if self._phase is None:
            self._phase = self._found_phase()
        return self._phase

    def _found_phase(self) -> GroupPhase:
        if not self.members:
            return GroupPhase.EMPTY
        if self.topology is None or self.topology.epoch != self.metadata.validated_topology_epoch:
            return GroupPhase.NOT_READY
        if self.epoch > self.assignment_epoch:
            return GroupPhase.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return GroupPhase.STABLE
        return GroupPhase.RECONCILING

    def member(self, member_id: str) -> StreamsMember:
        """GroupError: UNKNOWN_MEMBER_ID."""
        found = self.members.get(member_id)
        if found is None:
            raise GroupError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return found

    def static_member(self, instance_id: str | None) -> StreamsMember | None:
        """The member that has an instance id."""
        member_id = None if instance_id is None else self.static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def is_subscribed(self, topic: str) -> bool:
        """Whether the topology reads the topic, as long as somebody runs it."""
        return bool(self.members) and self.topology is not None and self.topology.subtopology_of(topic) is not None

    def target_of(self, member_id: str) -> TaskTuple:
        return self.targets.get(member_id, NO_TASKS)

    def shown_topology(self, log_end: int) -> ConfiguredTopology | None:
        """Kafka describes what was there when the last record of the partition was written, which ends at `log_end`."""
        until, before = self._shown
        return before if log_end <= until else self.configured

    def configure(self, configured: ConfiguredTopology, log_end: int) -> None:
        """Takes in what the topology comes to with the topics that there are; the log ends at `log_end`."""
        self._shown = (log_end, self.shown_topology(log_end))
        self.configured = configured

    # ---- changes

    def apply(self, change: Change) -> None:
        """Takes a record in. MalformedError: Kafka would not load a log that says so."""
        self._phase = None
        match change:
            case changes.Epoch(metadata):
                if metadata is None:
                    self._end()
                else:
                    self.metadata = metadata
            case changes.TargetEpoch(epoch, computed_ms):
                if epoch is None and self.targets:
                    raise MalformedError(f"the assignment of group {self.group_id} ends, but members have some still")
                self.assignment_epoch, self.assignment_ms = (-1, 0) if epoch is None else (epoch, computed_ms)
            case changes.MemberSaid(member_id, said):
                self._member_said(member_id, said)
            case changes.Target(member_id, tasks):
                if tasks is None:
                    self.targets.pop(member_id, None)
                else:
                    self.targets[member_id] = tasks
            case changes.Current(member_id, current):
                self._current(member_id, current)
            case changes.TopologySaid(topology):
                self.topology = topology
        if not self.members:
            self.shutdown_member = None

    def _end(self) -> None:
        if self.members or self.assignment_epoch != -1:
            raise MalformedError(f"group {self.group_id} ends, but it has members or an assignment still")

    def _member_said(self, member_id: str, said: StreamsMember | None) -> None:
        old = self.members.get(member_id)
        if said is None:
            if old is None:
                return
            if old.epoch != LEAVING or member_id in self.targets:
                raise MalformedError(f"member {member_id} of group {self.group_id} is gone, but has tasks still")
            self._put(old, None)
            return
        before = StreamsMember(member_id) if old is None else old
        new = replace(
            said,
            epoch=before.epoch,
            previous_epoch=before.previous_epoch,
            state=before.state,
            assigned=before.assigned,
            revoking=before.revoking,
        )
        self._put(old, new)

    def _current(self, member_id: str, current: StreamsMember | None) -> None:
        old = self.members.get(member_id)
        if current is None:
            if old is not None:
                gone = replace(
                    old, epoch=LEAVING, previous_epoch=LEAVING, assigned=OWNS_NOTHING, revoking=OWNS_NOTHING
                )  # fmt: skip
                self._put(old, gone)
            return
        before = StreamsMember(member_id) if old is None else old
        new = replace(
            before,
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            state=current.state,
            assigned=current.assigned,
            revoking=current.revoking,
        )
        self._put(old, new)

    def _put(self, old: StreamsMember | None, new: StreamsMember | None) -> None:
        if old is not None:
            self._disown(old.assigned, old.process_id)
            self._disown(old.revoking, old.process_id)
            if old.instance_id is not None:
                self.static.pop(old.instance_id, None)
        if new is None:
            if old is not None:
                self.members.pop(old.member_id, None)
                self.deadlines.pop(old.member_id, None)
                self.task_offsets.pop(old.member_id, None)
            return
        self._own(new.assigned, new.process_id)
        self._own(new.revoking, new.process_id)
        if new.instance_id is not None:
            self.static[new.instance_id] = new.member_id
        self.members[new.member_id] = new

    def _own(self, tasks: OwnedTuple, process_id: str) -> None:
        for key in _keys(tasks.active):
            self.active[key] = process_id
        for holders, each in ((self.standby, tasks.standby), (self.warmup, tasks.warmup)):
            for key in _keys(each):
                holders.setdefault(key, set()).add(process_id)

    def _disown(self, tasks: OwnedTuple, process_id: str) -> None:
        """Not an active task that another process has by now."""
        for key in _keys(tasks.active):
            if self.active.get(key) == process_id:
                del self.active[key]
        for holders, each in ((self.standby, tasks.standby), (self.warmup, tasks.warmup)):
            for key in _keys(each):
                holders.get(key, set()).discard(process_id)
                if not holders.get(key):
                    holders.pop(key, None)

    # ---- time

    def deadline(self, member_id: str) -> Deadlines:
        """To be set."""
        return self.deadlines.of(member_id)

    def next_deadline(self) -> float:
        """When something is due next, in ticks."""
        return min(self.initial_delay, self.deadlines.next())


def end_of(group: StreamsGroup) -> list[Change]:
    """Tombstones of all that a group has, in the order that Kafka asks for."""
    ids = group.members.listed()
    found: list[Change] = [changes.Current(member_id) for member_id in ids]
    found += [changes.Target(member_id) for member_id in ids]
    found.append(changes.TargetEpoch(None))
    found += [changes.MemberSaid(member_id) for member_id in ids]
    found += [changes.Epoch(None), changes.TopologySaid(None)]
    return found


def _keys(tasks: Mapping[str, Iterable[int]]) -> list[TaskKey]:
    return [(subtopology, partition) for subtopology, partitions in tasks.items() for partition in partitions]
