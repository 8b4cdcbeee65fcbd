"""One step of a member towards its target (Kafka's streams CurrentAssignmentBuilder).

A task runs in one process at a time, and a process holds one copy of a task's state: a member waits for what is still
held elsewhere in a way that would clash. What a member has already in another role it is given at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.streams.group import StreamsGroup, TaskKey
from compactd.workers.broker.groups.streams.member import MemberState, StreamsMember
from compactd.workers.broker.groups.streams.tasks import OwnedTuple, Tasks, TaskTuple


@dataclass(slots=True)
class _Role:
    """Standby or warmup tasks between what a member has and what it is to have."""

    had: frozenset[TaskKey]
    kept: set[TaskKey] = field(default_factory=set)
    revoking: set[TaskKey] = field(default_factory=set)
    adding: set[TaskKey] = field(default_factory=set)
    is_waiting: bool = False

    @classmethod
    def between(cls, had: Tasks, target: Tasks, is_held: Callable[[TaskKey], bool]) -> _Role:
        before, after = frozenset(_keys(had)), frozenset(_keys(target))
        missing = after - before
        free = {key for key in missing if not is_held(key)}
        return cls(before, set(before & after), set(before - after), free, len(free) < len(missing))

    def take_at_once(self, keys: Iterable[TaskKey]) -> set[TaskKey]:
        """Those of `keys` that are to be added are the member's now."""
        taken = self.adding.intersection(keys)
        self.adding -= taken
        self.kept |= taken
        return taken


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is taken by."""

    group: StreamsGroup
    target_epoch: int
    target: TaskTuple
    #: What the client says that it has; None: it did not say.
    reported: TaskTuple | None

    def of(self, member: StreamsMember) -> StreamsMember:
        """The member after it; the same one where there is none to take. GroupError: it has to join anew."""
        if member.state is MemberState.STABLE:
            return member if member.epoch == self.target_epoch else self._next(member, member.epoch)
        if member.state is MemberState.UNREVOKED:
            return member if self._has(member.revoking) else self._next(member, member.epoch + 1)
        if member.state is MemberState.UNKNOWN:
            if self.reported is None or not self.reported.is_empty:
                raise GroupError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
                )
            return self._next(member, self.target_epoch)
        return self._next(member, member.epoch)

    def _has(self, tasks: OwnedTuple) -> bool:
        """Whether the client may have one of these still."""
        return self.reported is None or self.reported.has_any(tasks)

    def _next(self, member: StreamsMember, epoch: int) -> StreamsMember:
        had, group, process = member.assigned, self.group, member.process_id
        active_had = {(subtopology, number): since for subtopology, number, since in _epochs(had.active)}
        active_target = frozenset(_keys(self.target.active))
        standby_had, warmup_had = frozenset(_keys(had.standby)), frozenset(_keys(had.warmup))

        def others_hold(holders: Mapping[TaskKey, set[str]], mine: frozenset[TaskKey], key: TaskKey) -> bool:
            """Another member of the process has a copy."""
            return process in holders.get(key, ()) and key not in mine

        def active_is_held(key: TaskKey) -> bool:
            return (
                key in group.active
                or others_hold(group.standby, standby_had, key)
                or others_hold(group.warmup, warmup_had, key)
            )

        def standby_is_held(key: TaskKey) -> bool:
            return (
                (group.active.get(key) == process and key not in active_had)
                or process in group.standby.get(key, ())
                or others_hold(group.warmup, warmup_had, key)
            )

        def warmup_is_held(key: TaskKey) -> bool:
            return (
                group.active.get(key) == process
                or others_hold(group.standby, standby_had, key)
                or process in group.warmup.get(key, ())
            )

        active_kept = {key: since for key, since in active_had.items() if key in active_target}
        active_revoking = {key: since for key, since in active_had.items() if key not in active_target}
        active_missing = active_target - active_had.keys()
        active_adding = {key for key in active_missing if not active_is_held(key)}
        standby = _Role.between(had.standby, self.target.standby, standby_is_held)
        warmup = _Role.between(had.warmup, self.target.warmup, warmup_is_held)
        is_waiting = len(active_adding) < len(active_missing) or standby.is_waiting or warmup.is_waiting

        standby.take_at_once(active_had)
        standby.revoking -= warmup.take_at_once(standby.had)
        warmup.revoking -= standby.take_at_once(warmup.had)
        for role in (standby, warmup):
            role.revoking -= active_target
        revoking = OwnedTuple(_by_epoch(active_revoking), _grouped(standby.revoking), _grouped(warmup.revoking))
        must_revoke = not revoking.is_empty and self._has(revoking)
        for role in (standby, warmup):
            # What is to become active stays a copy until it does.
            promoted = set() if must_revoke else active_adding
            role.kept |= (role.had & active_target) - promoted

        if must_revoke:
            kept = OwnedTuple(_by_epoch(active_kept), _grouped(standby.kept), _grouped(warmup.kept))
            return member.moved_to(epoch, MemberState.UNREVOKED, kept, revoking)
        assigned = OwnedTuple(
            _by_epoch(active_kept | dict.fromkeys(active_adding, self.target_epoch)),
            _grouped(standby.kept | standby.adding),
            _grouped(warmup.kept | warmup.adding),
        )
        state = MemberState.UNRELEASED if is_waiting else MemberState.STABLE
        return member.moved_to(self.target_epoch, state, assigned)


def _keys(tasks: Mapping[str, Iterable[int]]) -> list[TaskKey]:
    return [(subtopology, number) for subtopology, partitions in tasks.items() for number in partitions]


def _epochs(tasks: Mapping[str, Mapping[int, int]]) -> list[tuple[str, int, int]]:
    return [
        (subtopology, number, since)
        for subtopology, partitions in tasks.items()
        for number, since in partitions.items()
    ]


def _grouped(keys: Iterable[TaskKey]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for subtopology, number in keys:
        found.setdefault(subtopology, set()).add(number)
    return {subtopology: frozenset(numbers) for subtopology, numbers in found.items()}


def _by_epoch(epochs: Mapping[TaskKey, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (subtopology, number), since in epochs.items():
        found.setdefault(subtopology, {})[number] = since
    return found
