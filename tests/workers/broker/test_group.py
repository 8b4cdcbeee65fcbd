"""The state machine of a classic group, step by step: what each call answers, and when (facts: kafka-protocol 13)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from compactd.workers.broker.errors import ErrorCode as E
from compactd.workers.broker.groups.group import ClassicGroup
from compactd.workers.broker.groups.joining import NEW_MEMBER_JOIN_MS
from compactd.workers.broker.groups.member import (
    Answer,
    GroupError,
    GroupSettings,
    Join,
    JoinAnswer,
    Moment,
    State,
    SyncAnswer,
)

RANGE = (("range", b"r"),)
WALL = 1_800_000_000_000


class Driver:
    """A group, a clock, and everything that was answered, by ticket."""

    def __init__(self, delay_ms: int = 0, max_size: int = 100) -> None:
        numbers = itertools.count(1)
        self.group = ClassicGroup("g", GroupSettings(delay_ms, max_size), WALL, lambda: str(next(numbers)))
        self.ticks = 0.0
        self.answers: dict[Any, Answer] = {}
        self.stored = 0
        self.refuse_assignments = False

    @property
    def now(self) -> Moment:
        return Moment(self.ticks, WALL + int(self.ticks))

    def settle(self) -> None:
        group = self.group
        while group.assigning is not None or group.unsaved:
            group.unsaved = False
            if group.assigning is not None:
                if self.refuse_assignments:
                    group.assignment_refused(E.UNKNOWN_SERVER_ERROR, self.now)
                    continue
                group.assignment_stored(self.now)
            self.stored += 1
        for ticket, answer in group.take_answers():
            assert ticket not in self.answers, f"{ticket} is answered twice"
            self.answers[ticket] = answer

    def at(self, ticks: float) -> None:
        """Time goes on, and everything that is due happens when it is."""
        while (deadline := self.group.next_deadline()) <= ticks:
            self.ticks = max(self.ticks, deadline)
            self.group.expire(self.now)
            self.settle()
        self.ticks = ticks

    def join(self, ticket: str, member_id: str = "", protocols: Any = RANGE, **more: Any) -> None:
        join = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 30_000, "client_id": "c", **more}
        self.group.join(Join(member_id=member_id, protocols=protocols, **join), ticket, self.now)
        self.settle()

    def enter(self, ticket: str, **more: Any) -> str:
        """Joins as a client does that learns its id first; the id."""
        self.join(ticket + " id", **more)
        answer = self.joined(ticket + " id")
        assert answer.error is E.MEMBER_ID_REQUIRED
        self.join(ticket, answer.member_id, **more)
        return answer.member_id

    def sync(self, ticket: str, member_id: str, generation: int, assignments: dict[str, bytes] | None = None) -> None:
        self.group.sync(member_id, None, generation, "consumer", "range", assignments or {}, ticket, self.now)
        self.settle()

    def joined(self, ticket: str) -> JoinAnswer:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, ticket: str) -> SyncAnswer:
        answer = self.answers[ticket]
        assert isinstance(answer, SyncAnswer)
        return answer

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> E:
        try:
            self.group.heartbeat(member_id, instance_id, generation, self.now)
        except GroupError as error:
            return error.code
        return E.NONE

    def commit(self, member_id: str, generation: int, instance_id: str | None = None) -> E:
        try:
            self.group.check_commit(member_id, instance_id, generation, self.now)
        except GroupError as error:
            return error.code
        return E.NONE

    def leave(self, *who: tuple[str, str | None]) -> list[E]:
        errors = self.group.leave(who, self.now)
        self.settle()
        return errors


def stable(count: int = 2) -> tuple[Driver, list[str]]:
    """A stable group in generation 1; the first member leads."""
    driver = Driver()
    members = [driver.enter(f"enter{number}") for number in range(count)]
    driver.at(0)
    for number, member in enumerate(members[1:], 1):
        driver.sync(f"assigned{number}", member, 1)
    driver.sync("assigned0", members[0], 1, {member: member.encode() for member in members})
    assert driver.group.state is State.STABLE
    return driver, members


def test_a_group_of_two_from_the_first_join_to_the_assignment() -> None:
    driver = Driver(delay_ms=3000)
    first = driver.enter("j1")
    driver.at(1000)
    second = driver.enter("j2", protocols=(("range", b"s"), ("other", b"")))
    assert driver.group.state is State.PREPARING
    driver.at(6000)
    leader, follower = driver.joined("j1"), driver.joined("j2")
    assert (leader.generation, leader.protocol_type, leader.protocol_name) == (1, "consumer", "range")
    assert leader.leader == follower.leader == first
    assert [(each.member_id, each.metadata) for each in leader.members] == [(first, b"r"), (second, b"s")]
    assert not follower.members
    driver.sync("s2", second, 1)
    assert "s2" not in driver.answers
    assert driver.heartbeat(second, 1) is E.NONE  # before the assignment, too
    driver.sync("s1", first, 1, {first: b"a", second: b"b"})
    assert driver.synced("s1") == SyncAnswer(E.NONE, "consumer", "range", b"a")
    assert driver.synced("s2").assignment == b"b"
    assert driver.group.state is State.STABLE
    assert driver.stored == 1


def test_the_first_rebalance_waits_longer_while_members_come() -> None:
    """Observed on Kafka: joins at 0, 1.5 and 4 s are all answered at 9 s."""
    driver = Driver(delay_ms=3000)
    for ticks, ticket in ((0, "j1"), (1500, "j2"), (4000, "j3")):
        driver.at(ticks)
        driver.enter(ticket)
    driver.at(8999)
    assert "j1" not in driver.answers
    driver.at(9000)
    assert {driver.joined(ticket).generation for ticket in ("j1", "j2", "j3")} == {1}


def test_one_member_waits_for_the_delay_only() -> None:
    driver = Driver(delay_ms=3000)
    driver.enter("j1")
    driver.at(2999)
    assert "j1" not in driver.answers
    driver.at(3000)
    assert driver.joined("j1").error is E.NONE


def test_the_delay_ends_with_the_rebalance_timeout() -> None:
    driver = Driver(delay_ms=3000)
    driver.enter("j0", rebalance_timeout_ms=7000)
    for number in range(1, 8):
        driver.at(number * 1000 - 1)
        driver.enter(f"j{number}", rebalance_timeout_ms=7000)
    driver.at(7000)
    assert driver.joined("j0").generation == 1


def test_old_versions_join_without_knowing_their_id() -> None:
    driver = Driver()
    driver.join("j1", needs_known_id=False)
    driver.at(0)
    assert driver.joined("j1").member_id == "c-1"


def test_an_id_that_was_told_holds_the_rebalance_up_until_its_session_ends() -> None:
    driver, (first, second) = stable()
    driver.join("id")
    driver.join("j1", first)
    driver.join("j2", second)
    assert driver.group.state is State.PREPARING
    driver.at(9_999)
    assert "j1" not in driver.answers
    driver.at(10_000)
    assert driver.joined("j1").generation == 2


@pytest.mark.parametrize(
    ("join", "error"),
    [
        ({"protocol_type": ""}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_what_an_empty_group_refuses(join: dict[str, Any], error: E) -> None:
    driver = Driver()
    driver.join("j", **join)
    assert driver.joined("j").error is error
    assert driver.joined("j").member_id == join.get("member_id", "")


@pytest.mark.parametrize(
    ("join", "error"),
    [
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("sticky", b""),)}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "instance_id": "i"}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_what_a_stable_group_refuses(join: dict[str, Any], error: E) -> None:
    driver, _ = stable()
    driver.join("j", **join)
    assert driver.joined("j").error is error
    assert driver.group.state is State.STABLE


def test_a_full_group_takes_nobody_else() -> None:
    driver = Driver(max_size=1)
    first = driver.enter("j1")
    driver.join("j2", needs_known_id=False)
    assert driver.joined("j2") == JoinAnswer(E.GROUP_MAX_SIZE_REACHED)
    driver.at(0)
    driver.sync("s1", first, 1)
    driver.join("j3")
    assert driver.joined("j3").error is E.GROUP_MAX_SIZE_REACHED
    driver.join("j4", first)
    assert driver.joined("j4").generation == 2


def test_the_protocol_that_most_prefer_among_those_that_all_know() -> None:
    driver = Driver()
    a, b = (("a", b""), ("b", b"")), (("b", b""), ("a", b""))
    for ticket, protocols in (("j1", a), ("j2", b), ("j3", b)):
        driver.join(ticket, protocols=protocols, needs_known_id=False)
    driver.at(0)
    assert driver.joined("j1").protocol_name == "b"


def test_a_third_member_has_all_join_again() -> None:
    driver, (first, second) = stable()
    third = driver.enter("j3")
    assert driver.heartbeat(first, 1) is E.REBALANCE_IN_PROGRESS
    assert driver.commit(first, 1) is E.NONE
    driver.join("j1 again", first)
    assert "j1 again" not in driver.answers
    driver.join("j2 again", second)
    assert {driver.joined(ticket).generation for ticket in ("j1 again", "j2 again", "j3")} == {2}
    assert driver.commit(first, 2) is E.REBALANCE_IN_PROGRESS
    assert driver.commit(first, 1) is E.ILLEGAL_GENERATION
    assert len(driver.joined("j1 again").members) == 3
    assert driver.joined("j3").member_id == third


def test_who_does_not_join_in_time_is_out_and_another_leads() -> None:
    driver, (first, second) = stable()
    driver.join("j2 again", second, protocols=(("range", b"new"),))
    for ticks in range(5_000, 30_000, 5_000):
        driver.at(ticks)
        assert driver.heartbeat(first, 1) is E.REBALANCE_IN_PROGRESS
    driver.at(30_000)
    answer = driver.joined("j2 again")
    assert (answer.generation, answer.leader) == (2, second)
    assert [each.member_id for each in answer.members] == [second]
    assert driver.heartbeat(first, 1) is E.UNKNOWN_MEMBER_ID


def test_a_follower_that_joins_as_it_was_changes_nothing() -> None:
    driver, (first, second) = stable()
    driver.join("again", second)
    assert driver.joined("again").generation == 1
    assert driver.group.state is State.STABLE
    driver.sync("sync again", second, 1)
    assert driver.synced("sync again").assignment == second.encode()
    driver.join("leader again", first)
    assert driver.group.state is State.PREPARING


def test_a_join_that_is_sent_twice_is_answered_twice() -> None:
    driver, (first, second) = stable()
    driver.join("lost", first)
    driver.join("repeated", first)
    assert driver.joined("lost").error is E.REBALANCE_IN_PROGRESS
    driver.join("second", second)
    assert driver.joined("repeated").generation == 2


def test_sessions_end_exactly_after_their_timeout() -> None:
    driver, (first, second) = stable()
    driver.at(5_000)
    assert driver.heartbeat(first, 1) is E.NONE
    driver.at(9_999)
    assert set(driver.group.members) == {first, second}
    driver.at(10_000)
    assert set(driver.group.members) == {first}
    assert driver.group.state is State.PREPARING
    driver.at(15_000)
    assert driver.group.state is State.EMPTY
    assert driver.group.generation == 2
    assert driver.group.protocol_name is None
    assert driver.stored == 2


def test_who_waits_for_an_answer_is_alive() -> None:
    driver, (first, second) = stable()
    driver.join("parked", second, protocols=(("range", b"new"),))
    for ticks in range(8_000, 30_000, 8_000):
        driver.at(ticks)
        driver.heartbeat(first, 1)
        assert "parked" not in driver.answers
    driver.join("leader", first)
    assert driver.joined("parked").error is E.NONE
    driver.at(driver.ticks + 9_999)
    assert second in driver.group.members


def test_a_new_member_that_is_never_let_in_is_dropped_after_five_minutes() -> None:
    driver = Driver()
    patient = {"session_timeout_ms": 10 * NEW_MEMBER_JOIN_MS, "rebalance_timeout_ms": 10 * NEW_MEMBER_JOIN_MS}
    first = driver.enter("j1", **patient)
    driver.at(0)
    driver.sync("s1", first, 1)
    driver.enter("j2", **patient)
    driver.at(NEW_MEMBER_JOIN_MS - 1)
    assert "j2" not in driver.answers
    driver.at(NEW_MEMBER_JOIN_MS)
    assert driver.joined("j2").error is E.UNKNOWN_MEMBER_ID


def test_members_that_joined_and_never_sync_are_removed() -> None:
    driver = Driver()
    first, second = driver.enter("j1"), driver.enter("j2")
    driver.at(0)
    driver.sync("s2", second, 1)
    for ticks in range(5_000, 30_000, 5_000):
        driver.at(ticks)
        driver.heartbeat(first, 1)
    driver.at(30_000)
    assert driver.synced("s2").error is E.REBALANCE_IN_PROGRESS
    assert set(driver.group.members) == {second}
    driver.join("j2 again", second)
    assert driver.joined("j2 again").leader == second


def test_an_assignment_that_cannot_be_stored_is_refused_and_all_join_again() -> None:
    driver = Driver()
    first, second = driver.enter("j1"), driver.enter("j2")
    driver.at(0)
    driver.sync("s2", second, 1)
    driver.refuse_assignments = True
    driver.sync("s1", first, 1, {first: b"x"})
    assert driver.synced("s1").error is driver.synced("s2").error is E.UNKNOWN_SERVER_ERROR
    assert driver.group.state is State.PREPARING
    assert not driver.group.members[first].assignment


def test_what_sync_and_heartbeat_refuse() -> None:
    driver, (first, _) = stable()
    driver.sync("unknown", "nobody", 1)
    driver.sync("old", first, 0)
    assert driver.synced("unknown").error is E.UNKNOWN_MEMBER_ID
    assert driver.synced("old").error is E.ILLEGAL_GENERATION
    driver.group.sync(first, None, 1, "consumer", "sticky", {}, "other", driver.now)
    driver.group.sync(first, None, 1, "connect", "range", {}, "type", driver.now)
    driver.settle()
    assert driver.synced("other").error is driver.synced("type").error is E.INCONSISTENT_GROUP_PROTOCOL
    assert driver.heartbeat("nobody", 1) is E.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(first, 2) is E.ILLEGAL_GENERATION
    driver.enter("j3")
    driver.sync("rebalancing", first, 1)
    assert driver.synced("rebalancing").error is E.REBALANCE_IN_PROGRESS


def test_who_leaves_is_gone_and_the_last_one_leaves_an_empty_group() -> None:
    driver, (first, second) = stable()
    assert driver.leave(("nobody", None), (second, None)) == [E.UNKNOWN_MEMBER_ID, E.NONE]
    assert driver.group.state is State.PREPARING
    driver.join("j1", first)
    assert driver.joined("j1").generation == 2
    driver.sync("s1", first, 2)
    assert driver.leave((first, None)) == [E.NONE]
    assert driver.group.state is State.EMPTY
    assert driver.group.generation == 3
    assert driver.commit("", -1) is E.NONE


def test_a_leave_that_removes_nobody_is_no_rebalance() -> None:
    driver, _ = stable()
    assert driver.leave(("nobody", None), ("", "instance"), ("", None)) == [E.UNKNOWN_MEMBER_ID] * 3
    assert driver.group.state is State.STABLE


def test_who_leaves_while_waiting_is_told() -> None:
    driver, (first, second) = stable()
    driver.join("parked", second, protocols=(("range", b"new"),))
    driver.leave((second, None))
    assert driver.joined("parked").error is E.UNKNOWN_MEMBER_ID
    driver.join("j1", first)
    assert driver.joined("j1").generation == 2


def test_an_id_that_was_told_can_leave_before_it_joins() -> None:
    driver, (first, second) = stable()
    driver.join("id")
    driver.join("j1", first)
    driver.join("j2", second)
    assert "j1" not in driver.answers
    assert driver.leave((driver.joined("id").member_id, None)) == [E.NONE]
    assert driver.joined("j1").generation == 2


def test_commits_by_state() -> None:
    driver = Driver()
    assert driver.commit("", -1) is E.NONE
    assert driver.commit("nobody", 0) is E.UNKNOWN_MEMBER_ID
    driver, (first, _) = stable()
    assert driver.commit("", -1) is E.UNKNOWN_MEMBER_ID
    assert driver.commit(first, 1) is E.NONE
    assert driver.commit(first, 2) is E.ILLEGAL_GENERATION
    assert driver.commit("nobody", 1) is E.UNKNOWN_MEMBER_ID
    driver.at(6_000)
    driver.commit(first, 1)
    driver.at(15_999)
    assert first in driver.group.members


# ---- static members


def static(rejoin: str = "again", **more: Any) -> tuple[Driver, str, str]:
    """A stable group of two static members; the leader "i1" is replaced. The driver, the old id, the new one."""
    driver = Driver()
    for number in (1, 2):
        driver.join(f"enter{number}", instance_id=f"i{number}")
    driver.at(0)
    old, other = driver.joined("enter1").member_id, driver.joined("enter2").member_id
    driver.sync("assigned2", other, 1)
    driver.sync("assigned1", old, 1, {old: b"one", other: b"two"})
    driver.join(rejoin, instance_id="i1", **more)
    return driver, old, driver.group.static["i1"]


def test_a_static_member_that_comes_back_keeps_its_assignment_without_a_rebalance() -> None:
    driver, old, new = static()
    answer = driver.joined("again")
    assert driver.group.state is State.STABLE
    assert old.startswith("i1-") and new.startswith("i1-") and old != new
    assert (answer.member_id, answer.generation, answer.leader, answer.skip_assignment) == (new, 1, new, True)
    assert len(answer.members) == 2
    assert driver.stored == 2
    driver.sync("sync", new, 1)
    assert driver.synced("sync").assignment == b"one"


def test_before_v9_the_static_leader_is_told_that_the_old_one_leads() -> None:
    driver, old, new = static(may_skip_assignment=False)
    answer = driver.joined("again")
    assert (answer.member_id, answer.leader, answer.members, answer.skip_assignment) == (new, old, (), False)


def test_the_old_id_of_a_static_member_is_fenced() -> None:
    driver, old, new = static()
    assert driver.heartbeat(old, 1, "i1") is E.FENCED_INSTANCE_ID
    assert driver.heartbeat(old, 1) is E.UNKNOWN_MEMBER_ID
    assert driver.commit(old, 1, "i1") is E.FENCED_INSTANCE_ID
    assert driver.heartbeat(new, 1, "i1") is E.NONE
    driver.join("old", old, instance_id="i1")
    assert driver.joined("old") == JoinAnswer(E.FENCED_INSTANCE_ID, old)


def test_a_static_member_with_another_protocol_brings_a_rebalance() -> None:
    driver, _, _ = static(protocols=(("sticky", b""), ("range", b"")))
    assert driver.group.state is State.STABLE  # the other one does not know it: range stays
    driver = Driver()
    driver.join("j1", instance_id="i1", protocols=(("a", b""), ("b", b"")))
    driver.at(0)
    driver.group.sync(driver.joined("j1").member_id, None, 1, "consumer", "a", {}, "s1", driver.now)
    driver.settle()
    driver.join("again", instance_id="i1", protocols=(("b", b""), ("a", b"")))
    assert (driver.joined("again").generation, driver.joined("again").protocol_name) == (2, "b")


def test_a_waiting_static_member_that_is_replaced_is_fenced_at_once() -> None:
    driver = Driver(delay_ms=3000)
    driver.join("old", instance_id="i1")
    driver.join("new", instance_id="i1")
    assert driver.joined("old").error is E.FENCED_INSTANCE_ID
    driver.at(6000)
    assert driver.joined("new").generation == 1


def test_a_static_member_stays_through_a_rebalance_that_it_misses() -> None:
    driver, _, new = static()
    other = driver.group.static["i2"]
    driver.join("j2", other, instance_id="i2", protocols=(("range", b"new"),))
    for ticks in range(5_000, 30_000, 5_000):
        driver.at(ticks)
        driver.heartbeat(new, 1, "i1")
    driver.at(30_000)
    answer = driver.joined("j2")
    assert (answer.generation, answer.leader) == (2, other)
    assert {each.member_id for each in answer.members} == {new, other}


def test_when_nobody_joins_in_time_static_members_have_another_time() -> None:
    driver, _, new = static()
    driver.group.prepare_rebalance(driver.now)
    driver.settle()
    for ticks in range(5_000, 50_000, 5_000):
        driver.at(ticks)
        for instance in ("i1", "i2"):
            driver.heartbeat(driver.group.static[instance], 1, instance)
    assert driver.group.state is State.PREPARING
    driver.join("back", new, instance_id="i1")
    driver.at(60_000)
    assert driver.joined("back").generation == 2


def test_an_instance_can_be_removed_by_its_name() -> None:
    driver, _, _ = static()
    assert driver.leave(("", "i1"), ("", "i3")) == [E.NONE, E.UNKNOWN_MEMBER_ID]
    assert set(driver.group.static) == {"i2"}
    assert driver.group.state is State.PREPARING


# ---- from the log, and the end


def test_a_loaded_group_has_fresh_sessions_and_rebalances_when_it_is_too_large() -> None:
    driver, (first, second) = stable()
    driver.ticks = 1_000_000.0
    driver.group.loaded(driver.now)
    driver.at(1_009_999)
    assert set(driver.group.members) == {first, second}
    driver.group.settings = GroupSettings(0, 1)
    driver.group.loaded(driver.now)
    assert driver.group.state is State.PREPARING


def test_everybody_who_waits_is_told_when_the_coordinator_moves() -> None:
    driver, (first, second) = stable()
    driver.join("j", first)
    driver.group.die(E.NOT_COORDINATOR)
    driver.settle()
    assert driver.joined("j").error is E.NOT_COORDINATOR
    assert driver.commit(second, 1) is E.COORDINATOR_NOT_AVAILABLE
    assert driver.group.next_deadline() == float("inf")


def test_what_members_read_is_known_from_their_metadata() -> None:
    def metadata(*topics: str) -> bytes:
        names = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in topics)
        return b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"

    driver = Driver()
    driver.join("j1", protocols=(("range", metadata("a", "b")),), needs_known_id=False)
    driver.join("j2", protocols=(("range", metadata("c")),), needs_known_id=False)
    driver.at(0)
    assert driver.group.subscribed == {"a", "b", "c"}
    assert not driver.group.is_subscribed("d")
    driver, _ = stable()
    assert driver.group.subscribed is None
    assert driver.group.is_subscribed("anything")
    driver.leave(*((each, None) for each in list(driver.group.members)))
    assert not driver.group.is_subscribed("anything")
