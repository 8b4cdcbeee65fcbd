"""Clients do anything at any time: whatever happens, each is answered once, and all agree on each generation."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from compactd.workers.broker.errors import ErrorCode as E
from compactd.workers.broker.groups.member import JoinAnswer, State, SyncAnswer
from tests.workers.broker.test_group import Driver

PROTOCOLS = st.sampled_from(
    [(("range", b"r"),), (("range", b"r2"),), (("sticky", b"s"), ("range", b"r")), (("range", b"r"), ("sticky", b"s"))]
)
INSTANCES = st.sampled_from(["i1", "i2"])
SESSION_MS, REBALANCE_MS = 10_000, 30_000
#: In which time everything that can happen by itself has: each time that a member falls out may start another.
LONG_MS = 1_000_000


class GroupMachine(RuleBasedStateMachine):
    """Members by the ids they were told, as clients know them: possibly of the past."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(delay_ms=3000, max_size=4)
        self.tickets: dict[str, str] = {}
        self.generations: dict[int, list[JoinAnswer]] = {}
        #: What the leader of a generation gave, by member.
        self.given: dict[int, dict[str, bytes]] = {}
        self.seen: set[str] = set()
        self.last_generation = 0

    def ticket(self, member_id: str = "") -> str:
        name = f"t{len(self.tickets)}"
        self.tickets[name] = member_id
        return name

    # ---- what clients do

    @rule(target=ids, protocols=PROTOCOLS, old=st.booleans())
    def join_as_newcomer(self, protocols: Any, old: bool) -> Any:
        ticket = self.ticket()
        self.driver.join(ticket, protocols=protocols, needs_known_id=not old)
        answer = self.driver.answers.get(ticket)
        if isinstance(answer, JoinAnswer) and answer.error is E.MEMBER_ID_REQUIRED:
            return (answer.member_id, None)
        return multiple()

    @rule(target=ids, protocols=PROTOCOLS, instance=INSTANCES, version=st.booleans())
    def join_as_static(self, protocols: Any, instance: str, version: bool) -> Any:
        self.driver.join(self.ticket(), protocols=protocols, instance_id=instance, may_skip_assignment=version)
        member_id = self.driver.group.static.get(instance)
        return multiple() if member_id is None else (member_id, instance)

    @rule(who=ids, protocols=PROTOCOLS)
    def join_again(self, who: tuple[str, str | None], protocols: Any) -> None:
        self.driver.join(self.ticket(who[0]), who[0], protocols=protocols, instance_id=who[1])

    @rule(who=ids, behind=st.integers(0, 1))
    def sync(self, who: tuple[str, str | None], behind: int) -> None:
        group = self.driver.group
        generation = group.generation - behind
        before = group.state
        assignments = {each: f"{each}@{generation}".encode() for each in group.members}
        ticket = self.ticket(who[0])
        self.driver.group.sync(who[0], who[1], generation, None, None, assignments, ticket, self.driver.now)
        if group.assigning is not None:
            assert before is State.COMPLETING and who[0] == group.leader and not behind
            self.given[generation] = assignments
        self.driver.settle()

    @rule(who=ids)
    def heartbeat(self, who: tuple[str, str | None]) -> None:
        group = self.driver.group
        found = self.driver.heartbeat(who[0], group.generation, who[1])
        if found is E.NONE:
            assert group.state in (State.COMPLETING, State.STABLE) and who[0] in group.members
        else:
            assert found in (E.REBALANCE_IN_PROGRESS, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID)

    @rule(who=ids)
    def commit(self, who: tuple[str, str | None]) -> None:
        group = self.driver.group
        found = self.driver.commit(who[0], group.generation, who[1])
        assert (found is E.NONE) <= (who[0] in group.members and group.state in (State.PREPARING, State.STABLE))

    @rule(who=consumes(ids))
    def leave(self, who: tuple[str, str | None]) -> None:
        assert self.driver.leave(who)[0] in (E.NONE, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID)
        assert who[0] not in self.driver.group.members or who[1] is not None

    @rule(instance=INSTANCES)
    def remove_instance(self, instance: str) -> None:
        was_there = instance in self.driver.group.static
        assert self.driver.leave(("", instance)) == [E.NONE if was_there else E.UNKNOWN_MEMBER_ID]

    @rule(milliseconds=st.sampled_from([1, 2999, 3000, 9_999, 10_000, 30_000, 300_000]))
    def time_goes_on(self, milliseconds: int) -> None:
        self.driver.at(self.driver.ticks + milliseconds)

    # ---- what always holds

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """A ticket is answered, or somebody waits with it."""
        members = self.driver.group.members.values()
        parked = {member.join for member in members} | {member.sync for member in members}
        assert set(self.tickets) - set(self.driver.answers) == parked - {None}

    @invariant()
    def the_group_makes_sense(self) -> None:
        group = self.driver.group
        assert group.generation >= self.last_generation
        self.last_generation = group.generation
        assert (group.leader in group.members) if group.members else group.leader is None
        assert group.static == {m.instance_id: m.member_id for m in group.members.values() if m.instance_id is not None}
        assert group.pending_sync <= set(group.members)
        assert not set(group.pending) & set(group.members)
        if group.state is State.EMPTY:
            assert not group.members
        elif group.state is not State.PREPARING:
            assert group.members and len(group.members) <= 4
            assert all(member.join is None for member in group.members.values())
            assert group.protocol_name in group._common()
        if group.state is State.STABLE:
            assert all(member.sync is None for member in group.members.values())
        if group.state is State.PREPARING:
            assert group.join_deadline < float("inf") and all(m.sync is None for m in group.members.values())

    @invariant()
    def all_agree(self) -> None:
        """Answers of one generation name one leader and one protocol, and only the leader hears of all."""
        for ticket in set(self.driver.answers) - self.seen:
            self.seen.add(ticket)
            answer = self.driver.answers[ticket]
            if answer.error is not E.NONE:
                continue
            if isinstance(answer, SyncAnswer):
                # The id may be that of a predecessor whose assignment it has.
                assert not answer.assignment or answer.assignment in {
                    each for given in self.given.values() for each in given.values()
                }
                continue
            assert answer.generation > 0
            assert bool(answer.members) <= (answer.leader == answer.member_id)
            for other in self.generations.setdefault(answer.generation, []):
                assert other.protocol_name == answer.protocol_name
            self.generations[answer.generation].append(answer)
            if answer.members:
                assert answer.member_id in {each.member_id for each in answer.members}

    def teardown(self) -> None:
        """Left alone, everybody gets an answer, and the group ends empty."""
        self.driver.at(self.driver.ticks + LONG_MS)
        self.nobody_is_forgotten()
        assert set(self.tickets) == set(self.driver.answers)
        assert self.driver.group.state is State.EMPTY
        assert self.driver.group.next_deadline() == float("inf")


GroupMachine.TestCase.settings = settings(
    stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestGroup = GroupMachine.TestCase
