"""Members of a streams group do anything at any time: no task runs twice, and in the end each one runs (KIP-1071)."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compactd.workers.broker.errors import ErrorCode as E
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.streams.group import GroupPhase, StreamsGroup
from compactd.workers.broker.groups.streams.heartbeat_request import Heartbeat, HeartbeatAnswer
from compactd.workers.broker.groups.streams.running import StreamsGroups
from compactd.workers.broker.groups.streams.tasks import NO_TASKS, TaskTuple
from compactd.workers.broker.groups.streams.topology import Subtopology, TopicInfo, Topology
from tests.workers.broker.consumer_world import World

GROUP = "g"
SESSION_MS, REBALANCE_MS, DELAY_MS = 45_000, 20_000, 3000
TOPOLOGY = Topology(
    0,
    (
        Subtopology("0", ("t",), state_changelog_topics=(TopicInfo("store"),)),
        Subtopology("1", ("u",)),
    ),
)


class StreamsWorld(World):
    """With streams groups in place of consumer groups."""

    def __init__(self) -> None:
        super().__init__(
            group_streams_assignment_interval_ms=0, group_streams_initial_rebalance_delay_ms=DELAY_MS,
            group_streams_num_standby_replicas=1,
        )  # fmt: skip
        self.streams = StreamsGroups(self)  # type: ignore[arg-type]

    @property
    def partition(self) -> Any:
        return SimpleNamespace(log=SimpleNamespace(log_end_offset=len(self.log)))

    def tell(self, **more: Any) -> HeartbeatAnswer:
        """A heartbeat. GroupError."""
        request = Heartbeat(group_id=GROUP, client_id="c", client_host="/h", knows_tags=True, **more)
        answer: HeartbeatAnswer = self.do(self.streams.heartbeat(request))
        return answer

    def pass_time(self, ms: int) -> None:
        end = self.ms + ms
        while (due := min((each.next_deadline() for each in self.state.streams.values()), default=end + 1)) <= end:
            self.ms = max(self.ms, int(due))
            for group in list(self.state.streams.values()):
                self.do(self.streams.expire(group))
        self.ms = end


class Client:
    """What a member knows, and does: it gives back what it is not told of any more."""

    def __init__(self, member_id: str, instance_id: str | None, process_id: str) -> None:
        self.member_id, self.instance_id, self.process_id = member_id, instance_id, process_id
        self.epoch = 0
        self.has = NO_TASKS
        self.is_joined = False
        #: The answer was lost that told it of its tasks: it is told once, as by Kafka.
        self.has_missed = False

    def heard(self, answer: HeartbeatAnswer) -> None:
        self.epoch, self.is_joined = answer.epoch, True
        if answer.assigned is not None:
            self.has, self.has_missed = answer.assigned.without_epochs(), False

    def lost(self) -> None:
        """It is not in the group any more: it gives everything back."""
        self.epoch, self.has, self.is_joined, self.has_missed = 0, NO_TASKS, False, False


class StreamsMachine(RuleBasedStateMachine):
    """Clients by their place."""

    def __init__(self) -> None:
        super().__init__()
        self.world = StreamsWorld()
        self.clients: list[Client] = []
        self._ids = itertools.count()

    @initialize(sizes=st.tuples(st.integers(1, 5), st.integers(1, 3)))
    def topics(self, sizes: tuple[int, int]) -> None:
        self.world.topic("t", sizes[0])
        self.world.topic("store", sizes[0])
        self.world.topic("u", sizes[1])

    @property
    def group(self) -> StreamsGroup | None:
        return self.world.state.streams.get(GROUP)

    @property
    def joined(self) -> list[Client]:
        return [client for client in self.clients if client.is_joined]

    # ---- what members do

    @rule(instance=st.sampled_from([None, None, None, "i", "j"]), process=st.sampled_from(["p", "p", "q", "r"]))
    def join(self, instance: str | None, process: str) -> None:
        if len(self.clients) < 6:
            client = Client(f"m{next(self._ids)}", instance, process)
            self.clients.append(client)
            self._join(client)

    def _join(self, client: Client, *, hears: bool = True) -> None:
        said = {
            "epoch": 0, "rebalance_timeout_ms": REBALANCE_MS, "topology": TOPOLOGY, "process_id": client.process_id,
            "active": {}, "standby": {}, "warmup": {}, "client_tags": [],
        }  # fmt: skip
        try:
            answer = self.world.tell(member_id=client.member_id, instance_id=client.instance_id, **said)
        except GroupError as error:
            assert error.code is E.UNRELEASED_INSTANCE_ID
            self.clients.remove(client)
            return
        if hears:
            client.heard(answer)
        # Who had the instance id before has left, or it would not have been free.
        self.clients = [
            each
            for each in self.clients
            if each is client or client.instance_id is None or each.instance_id != client.instance_id
        ]

    @precondition(lambda self: self.joined)
    @rule(place=st.integers(0, 5), says=st.booleans(), hears=st.integers(0, 4))
    def beat(self, place: int, says: bool, hears: int) -> None:
        """Answers are lost now and then, and members do not always say what they have."""
        client = self.joined[place % len(self.joined)]
        self._beat(client, says=says, hears=hears > 0)

    def _beat(self, client: Client, *, says: bool = True, hears: bool = True) -> None:
        has = {"active": client.has.active, "standby": client.has.standby, "warmup": {}} if says else {}
        try:
            answer = self.world.tell(
                member_id=client.member_id, instance_id=client.instance_id, epoch=client.epoch, **has
            )  # fmt: skip
        except GroupError as error:
            assert error.code in (
                E.UNKNOWN_MEMBER_ID,
                E.FENCED_MEMBER_EPOCH,
                E.FENCED_INSTANCE_ID,
                E.GROUP_ID_NOT_FOUND,
                E.INVALID_REQUEST,
            )
            if error.code is E.INVALID_REQUEST:
                # A task of a topic that came back with fewer partitions: its application ends.
                self.world.tell(member_id=client.member_id, instance_id=client.instance_id, epoch=-1)
            client.lost()
            if error.code is E.FENCED_MEMBER_EPOCH:
                self._join(client)
            else:
                self.clients.remove(client)
            return
        if hears:
            client.heard(answer)
        else:
            client.has_missed |= answer.assigned is not None

    @precondition(lambda self: self.joined)
    @rule(place=st.integers(0, 5), for_a_while=st.booleans())
    def leave(self, place: int, for_a_while: bool) -> None:
        client = self.joined[place % len(self.joined)]
        for_a_while &= client.instance_id is not None
        try:
            self.world.tell(
                member_id=client.member_id, instance_id=client.instance_id, epoch=-2 if for_a_while else -1
            )  # fmt: skip
        except GroupError as error:
            assert error.code in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID, E.GROUP_ID_NOT_FOUND)
        self.clients.remove(client)

    @rule(ms=st.sampled_from([1, 1000, DELAY_MS, 15_000]))
    def time_passes(self, ms: int) -> None:
        """Too little for anybody's session, with all others being heard of."""
        self.world.pass_time(ms)
        for client in self.joined:
            self._beat(client, says=False)

    @precondition(lambda self: self.joined)
    @rule(place=st.integers(0, 5))
    def die(self, place: int) -> None:
        """One is not heard of any more; the others are."""
        dead = self.joined[place % len(self.joined)]
        self.clients.remove(dead)
        for _ in range(5):
            self.world.pass_time(10_000)
            for client in self.joined:
                self._beat(client)

    @rule(name=st.sampled_from(["u"]), count=st.integers(1, 4))
    def topics_change(self, name: str, count: int) -> None:
        """More partitions; or it goes, and comes back with as many as it likes."""
        topic_id = self.world.topics.id_of(name)
        if topic_id is None or count > self.world.topics.partitions_of(topic_id):
            self.world.topic(name, count)
        elif count == 1:
            self.world.drop(name)

    @rule()
    def restart(self) -> None:
        """What is only in memory is lost; who waits for the first assignment waits no more."""
        self.world.state = self.world.replayed()
        self.world.streams.loaded(self.world.moment())

    # ---- what holds

    @invariant()
    def nothing_runs_twice(self) -> None:
        group = self.group
        if group is None:
            return
        running: Counter[tuple[str, int]] = Counter()
        held: Counter[tuple[str, str, int]] = Counter()
        for member in group.members.values():
            has, gives = member.assigned.without_epochs(), member.revoking.without_epochs()
            for tasks in (has.active, gives.active):
                running.update((name, number) for name, numbers in tasks.items() for number in numbers)
            for tasks in (has.active, has.standby):
                held.update((member.process_id, name, number) for name, numbers in tasks.items() for number in numbers)
        assert max(running.values(), default=1) == 1, running
        assert max(held.values(), default=1) == 1, held

    @invariant()
    def no_client_runs_what_another_runs(self) -> None:
        running = Counter(
            (name, number)
            for client in self.joined
            for name, numbers in client.has.active.items()
            for number in numbers
        )  # fmt: skip
        assert max(running.values(), default=1) == 1, running

    @invariant()
    def the_log_says_it_all(self) -> None:
        group = self.group
        for state in (self.world.replayed(), self.world.replayed(self.world.compacted())):
            again = state.streams.get(GROUP)
            assert (again is None) == (group is None)
            if group is not None and again is not None:
                assert _look(again) == _look(group)

    def teardown(self) -> None:
        """Left to themselves, they come to have everything, and each of it once."""
        for name, count in (("t", 1), ("store", 1), ("u", 1)):
            if self.world.topics.id_of(name) is None:
                self.world.topic(name, count)
        for _ in range(12):
            self.world.pass_time(DELAY_MS + 1)
            for client in self.joined:
                self._beat(client)
        self.world.pass_time(1)
        group = self.group
        if group is None or not self.joined:
            return
        away = [member for member in group.members.values() if member.epoch == -2]
        if away:
            return
        assert group.phase is GroupPhase.STABLE
        wanted = {("0", number) for number in range(self._count("t"))} | {("1", n) for n in range(self._count("u"))}
        found = [
            group.members[client.member_id].assigned.without_epochs() if client.has_missed else client.has
            for client in self.joined
        ]
        given = [(name, n) for each in found for name, numbers in each.active.items() for n in numbers]
        assert sorted(given) == sorted(wanted)
        processes = {client.process_id for client in self.joined}
        copies = [(name, n) for each in found for name, numbers in each.standby.items() for n in numbers]
        assert len(copies) == (self._count("t") if len(processes) > 1 else 0)

    def _count(self, topic: str) -> int:
        topic_id = self.world.topics.id_of(topic)
        assert topic_id is not None
        return self.world.topics.partitions_of(topic_id)


def _look(group: StreamsGroup) -> dict[str, Any]:
    """All that the log has to say of a group."""
    return {
        "metadata": group.metadata,
        "assignment": (group.assignment_epoch, group.assignment_ms),
        "members": dict(group.members),
        "targets": dict(group.targets),
        "static": dict(group.static),
        "topology": group.topology,
        "active": group.active,
        "standby": group.standby,
        "phase": group.phase,
    }


def test_what_one_has_another_has_not() -> None:
    """The model's own measure: it would see a task that runs twice."""
    machine = StreamsMachine()
    machine.topics((2, 1))
    machine.join(None, "p")
    machine.join(None, "q")
    machine.world.pass_time(DELAY_MS)
    for client in machine.joined:
        machine._beat(client)
    first, second = machine.clients
    assert not first.has.is_empty
    second.has = TaskTuple(active=first.has.active)
    try:
        machine.no_client_runs_what_another_runs()
    except AssertionError:
        return
    raise AssertionError("not seen")


TestStreamsMachine = StreamsMachine.TestCase
TestStreamsMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)  # fmt: skip
