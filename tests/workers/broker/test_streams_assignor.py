"""Who gets which tasks in a streams group (KIP-1071): rules that hold always, and Kafka's StickyTaskAssignor task by task."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.workers.broker.groups.consumer.java import hash_map
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.streams.assignor import ASSIGNORS, GroupSpec, MemberSpec, assign
from compactd.workers.broker.groups.streams.configured import ConfiguredSubtopology, InternalTopic
from compactd.workers.broker.groups.streams.priority_queue import PriorityQueue
from compactd.workers.broker.groups.streams.tasks import Tasks, TaskTuple
from compactd.workers.broker.transactions.java_order import string_hash
from tests.oracle.driver import Oracle

Task = tuple[str, int]
Subtopologies = dict[str, ConfiguredSubtopology]


def group_of(members: dict[str, MemberSpec], standby_replicas: int = 0) -> GroupSpec:
    return GroupSpec(hash_map(members, string_hash), standby_replicas)


def subtopology(tasks: int, stateful: bool = False) -> ConfiguredSubtopology:
    return ConfiguredSubtopology(
        tasks, state_changelog_topics={"store": InternalTopic("store", tasks)} if stateful else {}
    )


def flat(tasks: Tasks) -> list[Task]:
    return sorted((subtopology_id, number) for subtopology_id, numbers in tasks.items() for number in numbers)


def chance_world(chance: random.Random) -> tuple[GroupSpec, Subtopologies]:
    """Members with what they had of this topology and of another, as rebalances leave them."""
    subtopologies = {
        subtopology_id: subtopology(chance.choice([1, 2, 4, 7, 16]), chance.random() < 0.6)
        for subtopology_id in sorted(chance.sample(["0", "1", "10", "2", "a-b", "z"], chance.choice([1, 1, 2, 4])))
    }
    processes = [f"p-{chance.randrange(10**6)}" for _ in range(chance.choice([1, 2, 3, 9]))]
    names = [f"m-{chance.randrange(10**6)}" for _ in range(chance.choice([1, 2, 3, 5, 13, 40]))]
    tasks = [(name, number) for name, each in subtopologies.items() for number in range(each.tasks)]
    tasks += [("gone", 0), (chance.choice(tasks)[0], 99)]
    active: dict[str, list[Task]] = {}
    standby: dict[str, list[Task]] = {}
    offsets: dict[str, dict[Task, int]] = {}
    has_run, spread = chance.random() < 0.8, chance.choice([0.3, 0.9, 1.0])
    for task in tasks if has_run else ():
        if chance.random() < spread:
            active.setdefault(chance.choice(names[: chance.choice([1, 2, 50])]), []).append(task)
        for _ in range(chance.choice([0, 1, 1, 2])):
            standby.setdefault(chance.choice(names), []).append(task)
        for _ in range(chance.choice([0, 0, 1, 3])):
            offsets.setdefault(chance.choice(names), {})[task] = chance.choice([0, 5, 5, 1000, 1 << 40])
    members = {
        name: MemberSpec(
            process_id=chance.choice(processes),
            active=grouped(active.get(name, ())),
            standby=grouped(standby.get(name, ())),
            task_offsets=by_id(offsets.get(name, {})),
        )
        for name in names
    }
    return group_of(members, chance.choice([0, 0, 1, 2])), subtopologies


def grouped(tasks: Iterable[Task]) -> dict[str, frozenset[int]]:
    rows: dict[str, set[int]] = {}
    for name, number in tasks:
        rows.setdefault(name, set()).add(number)
    return {name: frozenset(numbers) for name, numbers in rows.items()}


def by_id(offsets: Mapping[Task, int]) -> dict[str, dict[int, int]]:
    rows: dict[str, dict[int, int]] = {}
    for (name, number), offset in offsets.items():
        rows.setdefault(name, {})[number] = offset
    return rows


@given(st.integers(0, 1 << 32))
def test_every_task_runs_once_and_copies_are_elsewhere(seed: int) -> None:
    group, subtopologies = chance_world(random.Random(seed))
    found = ASSIGNORS["sticky"](group, subtopologies)
    assert list(found) == list(group.members)
    tasks = [(name, number) for name, each in subtopologies.items() for number in range(each.tasks)]
    assert sorted(task for each in found.values() for task in flat(each.active)) == sorted(tasks)
    processes = len({member.process_id for member in group.members.values()})
    seen: Counter[tuple[str, Task]] = Counter()
    copies: Counter[Task] = Counter()
    for name, each in found.items():
        assert not each.warmup
        copies.update(flat(each.standby))
        seen.update((group.members[name].process_id, task) for task in flat(each.active) + flat(each.standby))
    assert set(seen.values()) == {1}
    wanted = min(group.standby_replicas, processes - 1)
    assert copies == {task: wanted for task in tasks if subtopologies[task[0]].is_stateful and wanted}


@given(st.integers(0, 1 << 32))
def test_a_settled_group_stays_as_it_is(seed: int) -> None:
    """One process a member, so that loads are those of members; what was given out is given out again."""
    chance = random.Random(seed)
    subtopologies = {str(number): subtopology(chance.choice([1, 3, 8])) for number in range(chance.choice([1, 2, 3]))}
    members = {f"m{number}": MemberSpec(process_id=f"p{number}") for number in range(chance.choice([1, 2, 5]))}
    first = assign(group_of(members), subtopologies)
    counts = [len(flat(each.active)) for each in first.values()]
    assert max(counts) - min(counts) <= 1
    settled = {
        name: MemberSpec(process_id=members[name].process_id, active=each.active) for name, each in first.items()
    }
    assert assign(group_of(settled), subtopologies) == first


def test_state_draws_tasks() -> None:
    subtopologies = {"0": subtopology(4, stateful=True)}
    members = {
        "a": MemberSpec(process_id="p", active={"0": frozenset([0, 1, 2, 3])}),
        "b": MemberSpec(process_id="q", standby={"0": frozenset([3, 2])}),
    }
    found = assign(group_of(members, 1), subtopologies)
    assert found == {
        "a": TaskTuple({"0": frozenset([0, 1])}, {"0": frozenset([2, 3])}),
        "b": TaskTuple({"0": frozenset([2, 3])}, {"0": frozenset([0, 1])}),
    }
    # A member that comes back and says how far its state is has it before one that has none.
    back = {"a": MemberSpec(process_id="p"), "b": MemberSpec(process_id="q", task_offsets={"0": {0: 10, 1: 10}})}
    assert assign(group_of(back), subtopologies)["b"].active == {"0": frozenset([0, 1])}


def test_nobody_can_take_a_task() -> None:
    with pytest.raises(GroupError):
        assign(group_of({}), {"0": subtopology(1)})


def test_a_queue_is_javas() -> None:
    """Among equals the last one that came takes the place of the one that went."""
    queue: PriorityQueue[int] = PriorityQueue()
    for place in range(9):
        queue.add(1.0, place)
    assert [queue.poll() for _ in range(9)] == [0, 8, 7, 6, 5, 4, 3, 2, 1]
    with pytest.raises(IndexError):
        queue.poll()


# ---- Kafka's own


def request(group: GroupSpec, subtopologies: Subtopologies) -> dict[str, Any]:
    return {
        "op": "streamsAssign",
        "standbyReplicas": group.standby_replicas,
        "subtopologies": [
            {"id": name, "tasks": each.tasks, "stateful": each.is_stateful} for name, each in subtopologies.items()
        ],
        "members": [
            {
                "id": name,
                "process": member.process_id,
                "active": {key: sorted(numbers) for key, numbers in member.active.items()},
                "standby": {key: sorted(numbers) for key, numbers in member.standby.items()},
                "offsets": {
                    key: {str(number): offset for number, offset in row.items()}
                    for key, row in member.task_offsets.items()
                },
            }
            for name, member in group.members.items()
        ],
    }


@pytest.mark.kafka
@pytest.mark.parametrize("seed", range(4))
def test_kafka_gives_out_the_same_tasks(oracle: Oracle, seed: int) -> None:
    chance = random.Random(seed)
    worlds = [chance_world(chance) for _ in range(500)]
    answers = oracle.many([request(*world) for world in worlds])
    moved = 0
    for (group, subtopologies), answer in zip(worlds, answers, strict=True):
        found = {
            name: {
                "active": {key: sorted(numbers) for key, numbers in each.active.items()},
                "standby": {key: sorted(numbers) for key, numbers in each.standby.items()},
            }
            for name, each in assign(group, subtopologies).items()
        }
        assert found == answer["members"], (group, subtopologies)
        moved += any(flat(each.active) for each in group.members.values())
    assert moved > 200


@pytest.mark.kafka
def test_kafka_gives_out_the_same_tasks_over_a_life(oracle: Oracle) -> None:
    """A large group: members come and go, and everybody has what it was given before."""
    chance = random.Random(5)
    subtopologies = {"0": subtopology(100, stateful=True), "1": subtopology(60), "2": subtopology(7, stateful=True)}
    members = {f"member-{number}": MemberSpec(process_id=f"process-{number % 11}") for number in range(30)}
    for turn in range(40):
        if turn % 3 == 0:
            del members[chance.choice(list(members))]
        else:
            members[f"late-{turn}"] = MemberSpec(process_id=f"process-{chance.randrange(14)}")
        group = group_of(members, turn % 3)
        found = assign(group, subtopologies)
        answer = oracle.request(**request(group, subtopologies))["members"]
        assert {name: flat(each.active) for name, each in found.items()} == {
            name: flat({key: frozenset(numbers) for key, numbers in each["active"].items()})
            for name, each in answer.items()
        }
        assert {name: flat(each.standby) for name, each in found.items()} == {
            name: flat({key: frozenset(numbers) for key, numbers in each["standby"].items()})
            for name, each in answer.items()
        }
        members = {
            name: MemberSpec(process_id=members[name].process_id, active=each.active, standby=each.standby)
            for name, each in found.items()
        }
