"""One step of a streams member towards its target: what holds always, and Kafka's CurrentAssignmentBuilder step by step."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.streams.group import StreamsGroup, TaskKey
from compactd.workers.broker.groups.streams.member import MemberState, StreamsMember
from compactd.workers.broker.groups.streams.reconcile import Step
from compactd.workers.broker.groups.streams.tasks import OwnedTuple, TaskTuple
from tests.oracle.driver import Oracle

_TASKS = [(subtopology, number) for subtopology in ("0", "1") for number in range(3)]
_PROCESSES = ("p", "q")


def test_a_copy_stays_until_the_task_is_free() -> None:
    """Another process runs the task that this member is to run: it keeps its copy, and waits."""
    group = StreamsGroup("g")
    group.active["0", 0] = "q"
    group.standby["0", 0] = {"p"}
    member = StreamsMember("m", 3, process_id="p", assigned=OwnedTuple(standby={"0": frozenset((0,))}))
    target = TaskTuple(active={"0": frozenset((0,))})
    waiting = Step(group, 4, target, None).of(member)
    assert (waiting.epoch, waiting.state) == (4, MemberState.UNRELEASED)
    assert waiting.assigned == member.assigned
    del group.active["0", 0]
    promoted = Step(group, 4, target, None).of(waiting)
    assert (promoted.state, promoted.assigned) == (MemberState.STABLE, OwnedTuple(active={"0": {0: 4}}))


def test_a_task_becomes_a_copy_at_once() -> None:
    group = StreamsGroup("g")
    group.active["0", 0] = "p"
    member = StreamsMember("m", 3, process_id="p", assigned=OwnedTuple(active={"0": {0: 3}}))
    target = TaskTuple(standby={"0": frozenset((0,))})
    step = Step(group, 4, target, None).of(member)
    assert (step.epoch, step.state) == (3, MemberState.UNREVOKED)
    assert step.assigned == OwnedTuple(standby={"0": frozenset((0,))})
    assert step.revoking == OwnedTuple(active={"0": {0: 3}})
    done = Step(group, 4, target, TaskTuple()).of(step)
    assert (done.epoch, done.previous_epoch, done.state) == (4, 3, MemberState.STABLE)


def test_a_member_of_a_later_kafka_has_to_begin_anew() -> None:
    member = StreamsMember("m", 3, state=MemberState.UNKNOWN)
    for reported in (None, TaskTuple(active={"0": frozenset((0,))})):
        with pytest.raises(GroupError, match="unknown state"):
            Step(StreamsGroup("g"), 4, TaskTuple(), reported).of(member)
    assert Step(StreamsGroup("g"), 4, TaskTuple(), TaskTuple()).of(member).state is MemberState.STABLE


@pytest.mark.kafka
def test_steps_are_kafkas(oracle: Oracle) -> None:
    chance = random.Random(1071)
    cases = [_chance_step(chance) for _ in range(4000)]
    answers = oracle.many([{"op": "streamsStep", **_question(*case)} for case in cases])
    for (step, member), answer in zip(cases, answers, strict=True):
        try:
            made = step.of(member)
        except GroupError as error:
            assert answer["fenced"] == error.message
            continue
        assert "fenced" not in answer
        assert (made.epoch, made.previous_epoch, int(made.state)) == (
            answer["epoch"],
            answer["previous"],
            answer["state"],
        ), (step, member)
        assert _row(made.assigned) == answer["assigned"], (step, member)
        assert _row(made.revoking) == answer["revoking"], (step, member)


def _chance_step(chance: random.Random) -> tuple[Step, StreamsMember]:
    epoch = chance.choice([3, 4, 5])
    assigned = _chance_tasks(chance, epoch)
    state = chance.choice([MemberState.STABLE, MemberState.UNREVOKED, MemberState.UNRELEASED, MemberState.UNKNOWN])
    revoking = _chance_tasks(chance, epoch) if state is MemberState.UNREVOKED else OwnedTuple()
    member = StreamsMember("m", epoch, 2, state, process_id="p", assigned=assigned, revoking=revoking)
    group = StreamsGroup("g")
    for key in _TASKS:
        if chance.random() < 0.3:
            group.active[key] = chance.choice(_PROCESSES)
        for holders in (group.standby, group.warmup):
            if chance.random() < 0.3:
                holders[key] = set(chance.sample(_PROCESSES, chance.choice([1, 2])))
    target = _chance_tasks(chance, 0).without_epochs()
    reported = chance.choice([None, assigned.without_epochs(), _chance_tasks(chance, 0).without_epochs(), TaskTuple()])
    return Step(group, chance.choice([4, 5]), target, reported), member


def _chance_tasks(chance: random.Random, epoch: int) -> OwnedTuple:
    """A task in at most one role, mostly."""
    roles: tuple[list[TaskKey], list[TaskKey], list[TaskKey]] = ([], [], [])
    for key in _TASKS:
        if chance.random() < 0.6:
            chance.choice(roles).append(key)
        if chance.random() < 0.05:
            chance.choice(roles).append(key)
    active: dict[str, dict[int, int]] = {}
    for subtopology, number in roles[0]:
        active.setdefault(subtopology, {})[number] = max(epoch - chance.randrange(3), 0)
    return OwnedTuple(active, _grouped(roles[1]), _grouped(roles[2]))


def _grouped(keys: Iterable[TaskKey]) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for subtopology, number in keys:
        found[subtopology] = found.get(subtopology, frozenset()) | {number}
    return found


def _question(step: Step, member: StreamsMember) -> dict[str, Any]:
    group = step.group
    return {
        "member": {
            "process": member.process_id,
            "epoch": member.epoch,
            "previous": member.previous_epoch,
            "state": int(member.state),
            "assigned": _row(member.assigned),
            "revoking": _row(member.revoking),
        },
        "holders": {
            "active": {f"{name}/{number}": process for (name, number), process in group.active.items()},
            "standby": {f"{name}/{number}": sorted(each) for (name, number), each in group.standby.items()},
            "warmup": {f"{name}/{number}": sorted(each) for (name, number), each in group.warmup.items()},
        },
        "targetEpoch": step.target_epoch,
        "target": _row(step.target),
        "owned": None if step.reported is None else _row(step.reported),
    }


def _row(tasks: OwnedTuple | TaskTuple) -> dict[str, Any]:
    active: Mapping[str, Any]
    if isinstance(tasks, OwnedTuple):
        active = {
            name: {str(number): epoch for number, epoch in epochs.items()} for name, epochs in tasks.active.items()
        }
    else:
        active = {name: sorted(numbers) for name, numbers in tasks.active.items()}
    return {
        "active": active,
        "standby": {name: sorted(numbers) for name, numbers in tasks.standby.items()},
        "warmup": {name: sorted(numbers) for name, numbers in tasks.warmup.items()},
    }
