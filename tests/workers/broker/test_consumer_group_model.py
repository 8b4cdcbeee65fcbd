"""Consumers of both protocols do anything at any time: nothing has two owners, and in the end everything has one (KIP-848)."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compactd.workers.broker.errors import ErrorCode as E
from compactd.workers.broker.groups.consumer.group import ConsumerGroup, GroupPhase
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.subscription import CONSUMER
from tests.workers.broker.consumer_world import World, look

GROUP = "g"
SESSION_MS, REBALANCE_MS = 45_000, 20_000
NAMES = st.lists(st.sampled_from(["t", "u", "v", "nowhere"]), unique=True, max_size=4)
REGEXES = st.sampled_from(["t|u", "[tuv]", "v.*", "nothing"])

Owned = dict[uuid.UUID, set[int]]


class Client:
    """What a consumer knows, and does: it gives back what it is not told of any more."""

    def __init__(self, member_id: str, instance_id: str | None, is_classic: bool) -> None:
        self.member_id, self.instance_id, self.is_classic = member_id, instance_id, is_classic
        self.epoch = 0
        self.owned: Owned = {}
        self.names: list[str] = []
        self.is_joined = False
        #: Of a classic one: it was told to join again.
        self.rejoins = False

    @property
    def reported(self) -> dict[uuid.UUID, list[int]]:
        return {topic_id: sorted(partitions) for topic_id, partitions in self.owned.items()}

    def partitions(self) -> set[tuple[uuid.UUID, int]]:
        return {(topic_id, number) for topic_id, numbers in self.owned.items() for number in numbers}

    def lost(self) -> None:
        """It is not in the group any more: it gives everything back."""
        self.epoch, self.owned, self.is_joined = 0, {}, False


class ConsumerMachine(RuleBasedStateMachine):
    """Clients by their place."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.clients: list[Client] = []
        self._ids = itertools.count()

    @initialize(sizes=st.tuples(st.integers(1, 5), st.integers(1, 3)))
    def topics(self, sizes: tuple[int, int]) -> None:
        self.world.topic("t", sizes[0])
        self.world.topic("u", sizes[1])

    # ---- the protocol of consumers

    @rule(
        names=NAMES,
        instance=st.sampled_from([None, None, None, "i", "j"]),
        assignor=st.sampled_from([None, "uniform", "range"]),
        regex=st.none() | REGEXES,
    )
    def join(self, names: list[str], instance: str | None, assignor: str | None, regex: str | None) -> None:
        if len(self.clients) < 6:
            client = Client(f"m{next(self._ids)}", instance, is_classic=False)
            client.names = names
            self.clients.append(client)
            self._join(client, assignor=assignor, topic_regex=regex)

    def _join(self, client: Client, **more: Any) -> None:
        before = self._of_instance(client)
        client.lost()
        self._beat(
            client,
            epoch=0,
            topic_names=client.names,
            rebalance_timeout_ms=REBALANCE_MS,
            instance_id=client.instance_id,
            owned={},
            **more,
        )
        if client.is_joined and before is not None and before is not client:
            before.lost()  # it was away, or is told so at its next heartbeat
            self.clients.remove(before)

    def _of_instance(self, client: Client) -> Client | None:
        if client.instance_id is None:
            return None
        return next(
            (each for each in self.clients if each.instance_id == client.instance_id and each is not client), None
        )

    def _beat(self, client: Client, *, epoch: int | None = None, hears: bool = True, **more: Any) -> None:
        try:
            answer = self.world.beat(GROUP, client.member_id, client.epoch if epoch is None else epoch, **more)
        except GroupError as error:
            if error.code in (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND, E.FENCED_INSTANCE_ID):
                client.lost()
            else:
                assert error.code in (E.UNRELEASED_INSTANCE_ID,), error.code
            return
        if hears:
            client.is_joined = True
            client.epoch = answer.epoch
            if answer.assigned is not None:
                client.owned = {topic_id: set(each) for topic_id, each in answer.assigned.items()}

    def _some(self, index: int, is_classic: bool = False) -> Client | None:
        fitting = [each for each in self.clients if each.is_classic is is_classic]
        return fitting[index % len(fitting)] if fitting else None

    @rule(index=st.integers(0, 5), reports=st.booleans(), hears=st.sampled_from([True, True, True, False]))
    def heartbeat(self, index: int, reports: bool, hears: bool) -> None:
        client = self._some(index)
        if client is None:
            return
        if not client.is_joined:
            self._join(client)
            return
        more = {"owned": client.reported} if reports or not hears else {}
        self._beat(client, hears=hears, instance_id=client.instance_id, **more)
        if not hears and client.is_joined:
            # It asks again with what it knows, as a client does that had no answer.
            self._beat(
                client,
                instance_id=client.instance_id,
                owned=client.reported,
                rebalance_timeout_ms=REBALANCE_MS,
                topic_names=client.names,
            )

    @rule(index=st.integers(0, 5), names=NAMES)
    def subscribe(self, index: int, names: list[str]) -> None:
        client = self._some(index)
        if client is not None and client.is_joined:
            client.names = names
            self._beat(client, topic_names=names, owned=client.reported, instance_id=client.instance_id)

    @rule(index=st.integers(0, 5), for_a_while=st.booleans())
    def leave(self, index: int, for_a_while: bool) -> None:
        client = self._some(index)
        if client is None or not client.is_joined:
            return
        stays = for_a_while and client.instance_id is not None
        try:
            self.world.beat(GROUP, client.member_id, -2 if stays else -1, instance_id=client.instance_id)
        except GroupError as error:
            assert error.code in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID, E.GROUP_ID_NOT_FOUND)
        client.lost()
        if not stays:
            self.clients.remove(client)

    # ---- the classic protocol, in the same group

    @precondition(lambda self: bool(self._group() and self._group().members))
    @rule(names=NAMES.filter(bool))
    def join_classic(self, names: list[str]) -> None:
        if len(self.clients) < 6:
            client = Client(f"c{next(self._ids)}", None, is_classic=True)
            client.names = names
            self.clients.append(client)
            self._join_classic(client)

    def _join_classic(self, client: Client) -> None:
        """Join, and sync: as a cooperative consumer, which keeps what it has meanwhile."""
        group = self._group()
        if group is None or not group.members:
            client.lost()
            return
        owned = {self.world.topics.name_of(topic_id): each for topic_id, each in client.reported.items()}
        metadata = subscription(client.names, {name: each for name, each in owned.items() if name is not None})
        try:
            joined = self.world.join(
                GROUP,
                member_id=client.member_id,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                protocol_type=CONSUMER,
                protocols=(("range", metadata),),
            )
            client.epoch, client.is_joined, client.rejoins = joined.generation, True, False
            self._sync(client)
        except GroupError as error:
            assert error.code is E.UNKNOWN_MEMBER_ID, error.code
            client.lost()

    def _sync(self, client: Client) -> None:
        group = self._group()
        if group is None:
            client.lost()
            return
        who = (client.member_id, None, client.epoch, CONSUMER, "range")
        try:
            answer = self.world.do(self.world.groups.sync(group, *who))
        except GroupError as error:
            if error.code is E.REBALANCE_IN_PROGRESS:
                client.rejoins = True
            else:
                client.lost()
            return
        told = assigned(answer.assignment)
        client.owned = {
            topic_id: numbers
            for name, numbers in told.items()
            if (topic_id := self.world.topics.id_of(name)) is not None
        }

    @rule(index=st.integers(0, 5))
    def heartbeat_classic(self, index: int) -> None:
        client = self._some(index, is_classic=True)
        if client is None:
            return
        if not client.is_joined or client.rejoins:
            self._join_classic(client)
            return
        group = self._group()
        try:
            if group is None:
                raise GroupError(E.UNKNOWN_MEMBER_ID)
            self.world.groups.classic_heartbeat(group, client.member_id, None, client.epoch)
        except GroupError as error:
            if error.code is E.REBALANCE_IN_PROGRESS:
                client.rejoins = True
            else:
                client.lost()

    @rule(index=st.integers(0, 5))
    def leave_classic(self, index: int) -> None:
        client, group = self._some(index, is_classic=True), self._group()
        if client is not None and group is not None:
            self.world.do(self.world.groups.leave(group, [(client.member_id, None)]))
            self.clients.remove(client)

    # ---- the world

    @rule(name=st.sampled_from(["t", "u", "v"]), more=st.integers(1, 2))
    def grow(self, name: str, more: int) -> None:
        known = self.world.image.topic(name)
        self.world.topic(name, more + (0 if known is None else len(known.partitions)))

    @rule(name=st.sampled_from(["t", "u", "v"]))
    def delete(self, name: str) -> None:
        known = self.world.image.topic(name)
        if known is not None:
            self.world.drop(name)
            for client in self.clients:
                client.owned.pop(known.topic_id, None)

    @rule(seconds=st.sampled_from([1, 11, 21, 46]))
    def wait(self, seconds: int) -> None:
        self.world.pass_time(seconds * 1000)
        for client in self.clients:
            # Who was put out learns of it at the next heartbeat, and has stopped by then.
            group = self._group()
            if group is None or client.member_id not in group.members:
                client.lost()

    @rule()
    def restart(self) -> None:
        """The log is all that stays."""
        self.world.state = self.world.replayed()
        self.world.groups.loaded(self.world.moment())

    # ---- what has to be so

    def _group(self) -> ConsumerGroup | None:
        return self.world.state.consumers.get(GROUP)

    @invariant()
    def nothing_has_two_owners(self) -> None:
        seen: set[tuple[uuid.UUID, int]] = set()
        for client in self.clients:
            assert not seen & client.partitions(), [(each.member_id, each.reported) for each in self.clients]
            seen |= client.partitions()
        group = self._group()
        if group is None:
            return
        owners: set[tuple[uuid.UUID, int]] = set()
        for member in group.members.values():
            has = {(t, p) for owned in (member.assigned, member.revoking) for t, each in owned.items() for p in each}
            assert not owners & has
            owners |= has
            assert member.epoch <= group.assignment_epoch <= group.epoch
        assert set(group.owners) == owners

    @invariant()
    def a_target_gives_each_partition_once(self) -> None:
        group = self._group()
        if group is None:
            return
        given = [(t, p) for target in group.targets.values() for t, each in target.items() for p in each]
        assert len(given) == len(set(given))

    @invariant()
    def the_log_says_it_all(self) -> None:
        for records in (self.world.log, self.world.compacted()):
            state = self.world.replayed(records)
            assert set(state.consumers) == set(self.world.state.consumers)
            for group_id, group in state.consumers.items():
                assert look(group) == look(self.world.consumers(group_id))
            assert set(state.groups) == set(self.world.state.groups)

    @invariant()
    def a_classic_group_took_over_what_there_was(self) -> None:
        """The last member of the new protocol went: its story ends here, another begins."""
        classic = self.world.group(GROUP)
        if classic is None:
            return
        has = [
            (name, number)
            for member in classic.members.values()
            for name, each in assigned(member.assignment).items()
            for number in each
        ]
        assert len(has) == len(set(has))
        assert {each.member_id for each in self.clients if each.is_classic and each.is_joined} <= set(classic.members)
        assert not any(each.is_joined for each in self.clients if not each.is_classic)
        self.world.state.groups.clear()
        self.world.log.clear()
        self.clients.clear()

    def teardown(self) -> None:
        """Everybody goes on until all is settled."""
        for client in list(self.clients):
            if client.instance_id is not None and not client.is_joined:
                self.clients.remove(client)  # who else has its instance id keeps it
        self.world.pass_time(11_000)
        for _ in range(40):
            for client in list(self.clients):
                if client not in self.clients:
                    continue
                if client.is_classic:
                    if client.is_joined and not client.rejoins:
                        self.heartbeat_classic(self._place(client))
                    if not client.is_joined or client.rejoins:
                        self._join_classic(client)
                elif client.is_joined:
                    self._beat(client, owned=client.reported, instance_id=client.instance_id)
                else:
                    self._join(client)
            self.nothing_has_two_owners()
            self.world.pass_time(1000)
        group = self._group()
        if group is None or not group.members:
            return
        members = {client.member_id for client in self.clients if client.is_joined}
        if set(group.members) <= members:
            assert group.phase is GroupPhase.STABLE
            self._all_is_had(group)

    def _place(self, client: Client) -> int:
        return [each for each in self.clients if each.is_classic].index(client)

    def _all_is_had(self, group: ConsumerGroup) -> None:
        topics = self.world.topics
        wanted = {
            (topic_id, number)
            for name in group.subscriptions.names()
            if (topic_id := topics.id_of(name)) is not None
            for number in range(topics.partitions_of(topic_id))
        }
        assert {each for client in self.clients for each in client.partitions()} == wanted


def subscription(names: list[str], owned: dict[str, list[int]]) -> bytes:
    out = b"\0\1" + len(names).to_bytes(4, "big")
    out += b"".join(len(name).to_bytes(2, "big") + name.encode() for name in names)
    out += b"\xff\xff\xff\xff" + len(owned).to_bytes(4, "big")
    for name, numbers in owned.items():
        out += len(name).to_bytes(2, "big") + name.encode() + len(numbers).to_bytes(4, "big")
        out += b"".join(number.to_bytes(4, "big") for number in numbers)
    return out


def assigned(data: bytes) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    at = 6
    for _ in range(int.from_bytes(data[2:6], "big") if data else 0):
        size = int.from_bytes(data[at : at + 2], "big")
        name = data[at + 2 : at + 2 + size].decode()
        at += 2 + size
        count = int.from_bytes(data[at : at + 4], "big")
        at += 4
        found[name] = {int.from_bytes(data[at + 4 * k : at + 4 * k + 4], "big") for k in range(count)}
        at += 4 * count
    return found


TestConsumerMachine = ConsumerMachine.TestCase
TestConsumerMachine.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
