"""Who leads a classic group once its leader has left: the first in the table of members that Kafka has (ClassicGroup)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactd.workers.broker.groups.consumer.java import JavaHashMap
from compactd.workers.broker.groups.group import ClassicGroup
from compactd.workers.broker.groups.member import GroupSettings
from compactd.workers.broker.groups.records import group_record
from compactd.workers.broker.groups.state import GroupState
from tests.oracle.broker import Broker
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_group import Driver, stable
from tests.workers.broker.test_groups import found, join_body

JOIN, LEAVE, DESCRIBE = 11, 13, 15
SETTINGS = {"group.initial.rebalance.delay.ms": 1500, "offsets.topic.num.partitions": 1}


def table(ids: Sequence[str]) -> JavaHashMap[None]:
    """Of ids that came in this order."""
    made: JavaHashMap[None] = JavaHashMap()
    for each in ids:
        made[each] = None
    return made


@pytest.fixture(params=["compactd", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.timeout(600)])])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """A broker's."""
    logs = tmp_path / "logs"
    if request.param == "compactd":
        logs.mkdir()
        with CatalogueBroker([logs], SETTINGS) as ours, ours.connect() as client:
            found(client, "g")
            yield client.socket.getpeername()[1]
        return
    kafka = Broker(request.getfixturevalue("oracle_classpath"), tmp_path, [logs], SETTINGS)
    kafka.format()
    with kafka:
        number = int(kafka.bootstrap.rsplit(":", 1)[1])
        with RawClient(number) as client:
            found(client, "g")
        yield number


def joined(clients: dict[str, RawClient], group: str, watching: RawClient | None = None) -> dict[str, Any]:
    """The answers to all, who join one after another: each when the group is seen to have the one before."""
    for number, (member_id, client) in enumerate(clients.items(), 1):
        client.send(JOIN, 9, join_body(group, member_id))
        while watching and len(watching.ask(DESCRIBE, 5, {"groups": [group]}).groups[0].members) < number:
            time.sleep(0.002)
    return {member_id: client.receive(JOIN, 9) for member_id, client in clients.items()}


@pytest.mark.parametrize("count", [3, 7, 14])
def test_the_next_leader_is_the_first_of_the_table(port: int, count: int) -> None:
    """14 are more than the table begins with."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(RawClient(port)) for _ in range(count)]
        watching = stack.enter_context(RawClient(port))
        clients = {client.ask(JOIN, 9, join_body("g")).member_id: client for client in made}
        members = table(list(clients))
        answers = joined(clients, "g", watching)
        leader = answers[next(iter(clients))].leader
        while True:
            told = {each.leader for each in answers.values()}
            assert told == {leader}
            # In the order of the table it is told who there is.
            assert [each.member_id for each in answers[leader].members] == members.listed()
            if len(clients) == 1:
                break
            gone = clients.pop(leader)
            left = gone.ask(LEAVE, 5, {"group_id": "g", "members": [{"member_id": leader}]})
            assert left.members[0].error_code == 0
            members.remove(leader)
            leader = str(members.first())
            answers = joined(clients, "g")


def test_the_leader_stays_while_it_is_there_and_is_not_the_next_in_order_of_arrival() -> None:
    driver, members = stable(6)
    rest = table(members)
    for _ in range(5):
        leader = str(driver.group.leader)
        assert driver.leave((leader, None))
        rest.remove(leader)
        assert driver.group.leader == rest.first() == rest.listed()[0]
    assert members[1:] != table(members[1:]).listed()


def test_one_that_does_not_join_again_is_followed_by_the_first_that_does() -> None:
    """Static members stay in the group meanwhile."""
    driver = Driver(delay_ms=100)
    times = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 5000}
    for number in range(6):
        driver.join(f"j{number}", instance_id=f"i{number}", **times)
    driver.at(1000)
    members = list(driver.group.members)
    absent = {members[0], table(members[1:]).listed()[0]}
    assert driver.group.leader == members[0]
    for number, member_id in enumerate(members):
        if member_id not in absent:
            other = (("range", b"other"),)
            driver.join(f"again {number}", member_id, protocols=other, instance_id=f"i{number}", **times)
    driver.at(6000)
    present = [each for each in table(members).listed() if each not in absent]
    assert (driver.group.leader, list(driver.group.members)) == (present[0], members)
    assert {answer.leader for ticket, answer in driver.answers.items() if "again" in ticket} == {present[0]}  # type: ignore[union-attr]


def test_a_group_that_was_loaded_goes_on_in_the_order_of_its_record() -> None:
    driver, members = stable(6)
    state = GroupState(lambda group_id, wall_ms: ClassicGroup(group_id, GroupSettings(0, 100), wall_ms))
    state.replay(0, *group_record(driver.group))
    loaded = state.groups["g"]
    assert loaded.leader == members[0]
    assert list(loaded.members) == table(members).listed() == loaded.members.listed()
    again = Driver()
    again.group = loaded
    loaded.loaded(again.now)
    assert again.leave((members[0], None))
    assert loaded.leader == table(members[1:]).first()


def test_leaders_that_leave_one_after_another_cost_no_more_than_members() -> None:
    """Each of them is the first of what is left: the table is sorted once."""
    members = table([f"m{number}" for number in range(20_000)])
    order = members.listed()
    sorts = 0
    listed = members._table.listed

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(table_of_members, name)

        def listed(self) -> list[str]:
            nonlocal sorts
            sorts += 1
            return listed()

    table_of_members = members._table
    members._table = Counting()  # type: ignore[assignment]
    for member_id in order:
        assert members.first() == member_id
        members.remove(member_id)
    assert (members.first(), sorts) == (None, 1)
    members["late"] = None
    members["later"] = None
    assert members.first() in ("late", "later")
    members.clear()
    assert members.first() is None


def test_of_protocols_with_as_many_votes_the_first_of_the_table_is_taken() -> None:
    """Not the one that was voted for first."""
    both = (("sticky", b"s"), ("range", b"r"))
    chosen = []
    for first, second in ((both, both[::-1]), (both[::-1], both)):
        driver = Driver(delay_ms=100)
        driver.enter("j1", protocols=first)
        driver.enter("j2", protocols=second)
        driver.at(1000)
        chosen.append(driver.joined("j1").protocol_name)
    assert chosen == [table(["sticky", "range"]).first()] * 2
