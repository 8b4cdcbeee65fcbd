"""Refusals of the StandardAuthorizer: the same requests to Kafka 4.4.0 and to us, from an address that ACLs say nothing of.

Both know their clients by address only: everybody is User:ANONYMOUS. Who comes from 127.0.0.1 may do everything (so may
Kafka's own connections), the guest from 127.0.0.2 what a test allows. Ids, ports, texts and the order of rows may differ;
whether there is a text may not.
"""

from __future__ import annotations

import dataclasses
import enum
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from compactd.workers.acl_messages import Operation as Op
from compactd.workers.acl_messages import Permission
from compactd.workers.acl_messages import Resource as Res
from compactd.workers.broker.requests import load_handlers
from tests.oracle.broker import Broker
from tests.workers.broker.acl_requests import (
    ANY,
    BATCH,
    FILTERS,
    GRANTS,
    NO_DIFFERENCE,
    REQUESTS,
    WEIRD_ACLS,
    Body,
    grant,
    new_acl,
    on_cluster,
)
from tests.workers.broker.batches import produce_body
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Until there are ACLs; then they cover every type of resource.
    "allow.everyone.if.no.acl.found": "true",
    "auto.create.topics.enable": "true",
    "group.streams.initial.rebalance.delay.ms": 0,
}
ADMIN, GUEST = "127.0.0.1", "127.0.0.2"
TOPICS = ("open", "shut")
_UNTOLD = {"throttle_time", "port", "host", "node_id", "documentation", "cluster_id"}
_TEXTS = {"error_message", "message"}


class Side:
    """One of the two brokers: somebody who may do everything, and the guest."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.admin = RawClient(port)
        self._guest: RawClient | None = None
        self.ids: dict[str, uuid.UUID] = {}
        self.told: Any = None

    def guest_leaves(self) -> None:
        """It connects when it asks again."""
        if self._guest is not None:
            self._guest.close()
            self._guest = None

    def plain(self, value: Any, name: str = "") -> Any:
        """An answer without what is each broker's own."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {
                field.name: self.plain(getattr(value, field.name), field.name)
                for field in dataclasses.fields(value)
                if field.name not in _UNTOLD
            }
        if isinstance(value, tuple):
            return sorted((self.plain(each) for each in value), key=repr)
        if isinstance(value, enum.Enum):
            return int(value.value)
        if isinstance(value, uuid.UUID):
            known = {topic_id: topic for topic, topic_id in self.ids.items()}
            return known.get(value, "unknown")
        if name in _TEXTS and value:
            return "text"
        if name == "producer_id" and isinstance(value, int) and value >= 0:
            return "some"
        return value

    def ask(self, api: int, version: int, body: Body) -> Any:
        """What the guest is answered; "closed" where the connection is closed instead."""
        given = body(self.ids) if callable(body) else body
        if self._guest is None:
            self._guest = RawClient(self.port, GUEST)
        try:
            return self.plain(self._guest.ask(api, version, given))
        except (ConnectionError, TimeoutError) as error:
            self.guest_leaves()
            return "closed" if isinstance(error, ConnectionError) else "no answer"

    # ---- ACLs

    def hosts(self) -> list[str]:
        """Of all ACLs."""
        return [acl.host for resource in self.admin.ask(29, 3, ANY).resources for acl in resource.acls]

    def allow(self, grants: Sequence[Mapping[str, Any]]) -> None:
        """Makes ACLs of the guest, all of them new; they count when this returns."""
        before = len(self.hosts())
        rows = [{"principal": "User:ANONYMOUS", "host": GUEST, **grant} for grant in grants]
        answer = self.admin.ask(30, 3, {"creations": rows})
        assert [int(result.error_code) for result in answer.results] == [0] * len(grants)
        self.wait(before + len(grants))

    def forbid(self) -> None:
        """Deletes all ACLs but those of whoever may do everything."""
        hosts = self.hosts()
        others = {host for host in hosts if host != ADMIN}
        self.admin.ask(31, 3, {"filters": [{**ANY, "host_filter": host} for host in others]})
        self.wait(hosts.count(ADMIN))

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.hosts()) != count:
            assert time.monotonic() < deadline
            time.sleep(0.01)


class Pair:
    """Both."""

    def __init__(self, kafka: Broker, ours: CatalogueBroker) -> None:
        self._connections = lambda: ours.in_loop(lambda _: ours._broker.server.connections)
        self.sides = [Side(int(kafka.bootstrap.split(":")[1])), Side(ours.port)]

    def close(self) -> None:
        for side in self.sides:
            side.guest_leaves()
            side.admin.close()

    def guests_leave(self) -> None:
        """Returns when our broker, which shares this process's descriptors, has closed its end."""
        for side in self.sides:
            side.guest_leaves()
        deadline = time.monotonic() + 60
        while self._connections() > 1:
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def same(self, api: int, version: int, body: Body) -> Any:
        """Asserts that both answer the guest alike; returns the answer."""
        # Kafka's controller has ACLs of its own, which may be a little older than those that its broker tells of.
        deadline = time.monotonic() + 60
        while True:
            kafka, ours = (side.ask(api, version, body) for side in self.sides)
            found = "\n".join(_differences(kafka, ours))
            if not found:
                return ours
            assert time.monotonic() < deadline, found
            time.sleep(0.1)

    def allow(self, *grants: Mapping[str, Any]) -> None:
        for side in self.sides:
            side.allow(grants)

    def forbid(self) -> None:
        for side in self.sides:
            side.forbid()


def _differences(kafka: Any, ours: Any, place: str = "") -> Iterator[str]:
    if isinstance(kafka, dict) and isinstance(ours, dict):
        for name in {**kafka, **ours}:
            yield from _differences(kafka.get(name), ours.get(name), f"{place}.{name}")
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for index, (left, right) in enumerate(zip(kafka, ours, strict=True)):
            yield from _differences(left, right, f"{place}[{index}]")
    elif kafka != ours:
        yield f"{place}: Kafka {kafka!r}, compactd {ours!r}"


@pytest.fixture(scope="module")
def brokers(oracle_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("acls-against-kafka")
    dirs = [home / "kafka", home / "ours"]
    for each in dirs:
        each.mkdir()
    kafka = Broker(oracle_classpath, home, [dirs[0]], SETTINGS)
    kafka.format()
    # As tests.oracle.broker sets it.
    defaults = {"log.index.size.max.bytes": "65536"}
    with kafka, CatalogueBroker([dirs[1]], SETTINGS, topic_defaults=defaults) as ours:
        pair = Pair(kafka, ours)
        try:
            for side in pair.sides:
                _furnish(side)
            yield pair
        finally:
            pair.close()


@pytest.fixture
def pair(brokers: Pair) -> Iterator[Pair]:
    """Nothing is allowed to the guest."""
    brokers.forbid()
    yield brokers
    brokers.guests_leave()


def _furnish(side: Side) -> None:
    everything = [
        {**grant(kind, name, Op.ALL), "principal": "User:ANONYMOUS", "host": ADMIN}
        for kind, name in (
            (Res.CLUSTER, "kafka-cluster"), (Res.TOPIC, "*"), (Res.GROUP, "*"), (Res.TRANSACTIONAL_ID, "*"),
            (Res.DELEGATION_TOKEN, "*"), (Res.USER, "*"),
        )
    ]  # fmt: skip
    answer = side.admin.ask(30, 3, {"creations": everything})
    assert [int(each.error_code) for each in answer.results] == [0] * len(everything)
    deadline = time.monotonic() + 60
    while sum(len(each.acls) for each in side.admin.ask(29, 3, ANY).resources) < len(everything):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    rows = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in TOPICS]
    made = side.admin.ask(19, 7, {"topics": rows, "timeout": 30_000})
    assert [int(topic.error_code) for topic in made.topics] == [0] * len(TOPICS)
    side.ids = {topic.name: topic.topic_id for topic in made.topics}
    find = {"key_type": 0, "coordinator_keys": ["g"]}
    while side.admin.ask(10, 6, find).coordinators[0].error_code:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while side.admin.ask(10, 6, {"key_type": 1, "coordinator_keys": ["tx"]}).coordinators[0].error_code:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    commit = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [
            {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}]}
            for name in TOPICS
        ],
    }
    while any(each.error_code for topic in side.admin.ask(8, 9, commit).topics for each in topic.partitions):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while side.admin.ask(22, 4, {"transactional_id": None, "transaction_timeout": 60_000}).error_code:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for name in TOPICS:
        while side.admin.ask(0, 9, produce_body(BATCH, name)).responses[0].partition_responses[0].error_code:
            assert time.monotonic() < deadline
            time.sleep(0.05)


VERSIONS = [
    pytest.param(label, version, id=f"{label} v{version}")
    for label, (_, versions, _) in REQUESTS.items()
    for version in versions
]


@pytest.mark.parametrize(("label", "version"), VERSIONS)
def test_what_a_guest_without_permission_is_told(pair: Pair, label: str, version: int) -> None:
    api, _, body = REQUESTS[label]
    if api not in load_handlers().apis:
        pytest.skip("not there yet")
    pair.same(api, version, body)


def test_settings_of_the_authorizer_are_told_alike(pair: Pair) -> None:
    names = ["authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"]
    for name in ("1", ""):
        resource = {"resource_type": 4, "resource_name": name, "configuration_keys": names}
        body = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
        kafka, ours = (side.plain(side.admin.ask(32, 4, body)) for side in pair.sides)
        assert not list(_differences(kafka, ours))


@pytest.mark.parametrize("changed", WEIRD_ACLS, ids=str)
def test_acls_as_anybody_may_write_them(pair: Pair, changed: dict[str, Any]) -> None:
    pair.allow(on_cluster(Op.ALL))
    pair.same(30, 3, {"creations": [new_acl(**changed), new_acl(), new_acl(**changed)]})
    pair.same(29, 3, ANY)
    principals = {"User:x", changed.get("principal", "User:x")}
    pair.same(31, 2, {"filters": [{**ANY, "principal_filter": each} for each in sorted(principals)]})


@pytest.mark.parametrize("changed", FILTERS, ids=str)
def test_filters(pair: Pair, changed: dict[str, Any]) -> None:
    pair.allow(on_cluster(Op.ALL))
    acls = [
        new_acl(resource_name="abc"), new_acl(resource_name="ab", resource_pattern_type=4), new_acl(resource_name="*"),
        new_acl(resource_name="abc", host="10.0.0.0/8", permission_type=2), new_acl(operation=2),
        new_acl(principal="User:*", host="9.9.9.9"), new_acl(resource_type=3, resource_name="abc"),
        new_acl(resource_name="a", resource_pattern_type=4, host="9.9.9.9"),
    ]  # fmt: skip
    pair.same(30, 3, {"creations": acls})
    wanted = {**ANY, **changed}
    pair.same(29, 3, wanted)
    # Those by which the two know who may do what have to stay.
    hosts = [changed["host_filter"]] if "host_filter" in changed else ["*", "9.9.9.9"]
    pair.same(31, 3, {"filters": [{**wanted, "host_filter": host} for host in hosts]})
    pair.same(31, 3, {"filters": [{**ANY, "host_filter": host} for host in ("*", "9.9.9.9", "10.0.0.0/8")]})


def test_random_acls_come_to_the_same(pair: Pair) -> None:
    chance = random.Random(18)
    for _ in range(25):
        pair.forbid()
        grants = {}
        for _ in range(chance.randint(1, 7)):
            kind = chance.choice([Res.TOPIC, Res.TOPIC, Res.GROUP, Res.CLUSTER])
            name = (
                "kafka-cluster"
                if kind is Res.CLUSTER
                else chance.choice(["open", "op", "o", "shut", "*", "g", "nowhere"])
            )
            made = grant(kind, name, chance.choice(list(Op)[2:13]), chance.choice([*[Permission.ALLOW] * 3, Permission.DENY]),
                         kind is not Res.CLUSTER and chance.random() < 0.4)  # fmt: skip
            made["host"] = chance.choice([GUEST, "127.0.0.0/30", "*", "128.0.0.0/1"])
            made["principal"] = chance.choice(["User:ANONYMOUS", "User:*", "User:x"])
            grants[repr(made)] = made
        # Whoever may do everything must still be able to take these back.
        harmless = [each for each in grants.values() if each["host"] == GUEST or each["permission_type"] == 3]
        pair.allow(*harmless)
        pair.same(*_asked("Metadata", 8))
        pair.same(*_asked("DescribeGroups", 5))
        pair.same(*_asked("InitProducerId", 4))
        pair.same(*_asked("DescribeConfigs", 4))
        pair.same(*_asked("ListGroups", 5))


def _asked(label: str, version: int) -> tuple[int, int, Body]:
    api, _, body = REQUESTS[label]
    return api, version, body


@pytest.mark.parametrize(
    ("label", "version", "grants"),
    [pytest.param(*each, id=f"{number} {each[0]} v{each[1]}") for number, each in enumerate(GRANTS)],
)
def test_what_permission_is_needed_for(pair: Pair, label: str, version: int, grants: list[dict[str, Any]]) -> None:
    api, _, body = REQUESTS[label]
    if api not in load_handlers().apis:
        pytest.skip("not there yet")
    answers = [pair.same(api, version, body)]
    for each in grants:
        pair.allow(each)
        answers.append(pair.same(api, version, body))
    assert answers[-1] != answers[0] or (label, version) in NO_DIFFERENCE
