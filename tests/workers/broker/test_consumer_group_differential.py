"""The same consumer groups in Kafka 4.4.0 and here, topics with the same ids: every answer and every record the same."""

from __future__ import annotations

import dataclasses
import enum
import random
import re
import shutil
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compactd.storage.metadata.offsets import decode_offsets_record, encode_offsets_record
from compactd.storage.names import uuid_text
from compactd.storage.records.batch import iter_batches
from compactd.workers.broker.groups.records import OFFSETS_TOPIC
from tests.oracle.broker import Broker
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_groups import create, found, join_body

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

FETCH, COMMIT, OFFSET_FETCH, JOIN, HEARTBEAT, LEAVE, SYNC, LIST, DELETE, BEAT, DESCRIBE = (
    1, 8, 9, 11, 12, 13, 14, 16, 42, 68, 69,
)  # fmt: skip
TOPICS = {"t": 4, "u": 2, "w": 7, "many": 21, "one": 1, "alpha": 3, "beta": 3}
SETTINGS = {
    # Part of the hash of what a group is subscribed to.
    "broker.rack": "rack-1",
    "group.coordinator.append.linger.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 1000,
    "group.consumer.heartbeat.interval.ms": 1000,
    # Nobody is out because a machine is slow.
    "group.consumer.max.session.timeout.ms": 3_600_000,
    "group.consumer.session.timeout.ms": 3_600_000,
}
OURS = {name: value for name, value in SETTINGS.items() if name != "group.coordinator.append.linger.ms"}
#: Fields that tell the time, or the place in the metadata log.
#: Ids that brokers make for members of the classic protocol.
_MADE_ID = re.compile(rb"[ij]-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OF_TIME = {"commitTimestamp", "assignmentTimestamp", "currentStateTimestamp", "timestamp", "version"}


@dataclass
class Twins:
    """Both brokers."""

    kafka: RawClient
    ours: RawClient
    ids: dict[str, uuid.UUID]
    history: list[str] = field(default_factory=list)

    def ask(self, api: int, version: int, body: Mapping[str, Any]) -> Any:
        """The answer of both; it is compared but for the time and ids that each makes for itself."""
        self.history.append(f"{api} v{version} {body}")
        theirs, mine = self.kafka.ask(api, version, body), self.ours.ask(api, version, body)
        expected, answered = plain(theirs), plain(mine)
        assert answered == expected, f"Kafka: {expected}\nhere:  {answered}\nafter\n" + "\n".join(self.history[-40:])
        return theirs

    def beat(self, group: str, member: str, epoch: int, *, version: int = 1, **more: Any) -> Any:
        body: dict[str, Any] = {"group_id": group, "member_id": member, "member_epoch": epoch, "topic_partitions": None}
        return self.ask(BEAT, version, body | more)

    def join(self, group: str, member: str, **more: Any) -> Any:
        body = {"rebalance_timeout": 300_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
        return self.beat(group, member, 0, **(body | more))

    def describe(self, *groups: str) -> Any:
        return self.ask(DESCRIBE, 1, {"group_ids": list(groups), "include_authorized_operations": True})

    def describe_raw(self, group: str) -> Any:
        """What Kafka says of a group."""
        return self.kafka.ask(DESCRIBE, 1, {"group_ids": [group], "include_authorized_operations": False}).groups[0]

    def resolved(self, group: str, pattern: str) -> None:
        """Returns when both have written down which topics an expression matches: they look beside."""
        key = b"\0\x10" + b"".join(struct.pack(">h", len(each)) + each.encode() for each in (group, pattern))
        end = time.monotonic() + 60
        while pattern and not all(
            any(
                key == each
                for part in range(2)
                for _, records in batches(client, self.ids, part)
                for each, _ in records
            )
            for client in (self.kafka, self.ours)
        ):
            assert time.monotonic() < end, (group, pattern)
            time.sleep(0.01)

    def compare_logs(self) -> None:
        """Batches, keys and values of the coordinator's topic."""
        for partition in range(2):
            theirs, mine = batches(self.kafka, self.ids, partition), batches(self.ours, self.ids, partition)
            for number, (expected, written) in enumerate(zip(theirs, mine, strict=False)):
                assert written == expected, f"batch {number} of {partition}: {differences(expected, written)}"
            assert len(mine) == len(theirs)


def differences(theirs: Any, mine: Any) -> str:
    """Records that one has and the other has not, decoded where that is possible."""
    rows = [f"header {theirs[0]} {mine[0]}"]
    for who, here, there in (("Kafka", theirs[1], mine[1]), ("here", mine[1], theirs[1])):
        for key, value in here:
            if (key, value) not in there:
                rows.append(
                    f"{who}: {key!r} {value!r}" if b"#" in key else f"{who}: {decode_offsets_record(key, value)}"
                )
    return "\n".join(rows) if len(rows) > 1 else f"another order: {theirs[1]}\n{mine[1]}"


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: plain(getattr(value, each.name))
            for each in dataclasses.fields(value)
            if each.name not in ("throttle_time", "port")
        }
    if isinstance(value, tuple):
        rows = [plain(each) for each in value]
        # Groups are listed, and members described, in the order of tables of a past state.
        return (
            sorted(rows, key=repr)
            if rows
            and isinstance(rows[0], (str, dict))
            and "partition_index" not in rows[0]
            and "partitions" not in rows[0]
            else rows
        )
    if isinstance(value, enum.Enum):
        return int(value.value)
    return value


def batches(client: RawClient, ids: Mapping[str, uuid.UUID], partition: int) -> list[Any]:
    """(what the header says, records) of every batch."""
    found: list[Any] = []
    offset = 0
    while True:
        asked = {
            "partition": partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 26,
        }
        body = {
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 26,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": OFFSETS_TOPIC, "partitions": [asked]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        data = client.ask(FETCH, 12, body).responses[0].partitions[0].records
        if not data:
            return found
        for batch in iter_batches(bytes(data)):
            header = batch.header
            said = (
                header.base_offset,
                header.attributes,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
            )
            records = [timeless(record.key or b"", record.value) for record in batch.records()]
            if any(_MADE_ID.search(key + (value or b"")) for key, value in records):
                # The id decides in which order members come.
                records = sorted((_MADE_ID.sub(b"#", key), _MADE_ID.sub(b"#", value or b"")) for key, value in records)
            found.append((said, records))
            offset = header.next_offset


def timeless(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
    if value is None:
        return key, None
    number, version = int.from_bytes(key[:2], "big"), int.from_bytes(value[:2], "big")
    decoded = decode_offsets_record(key, value)
    fields = {
        name: (1 if each > 0 else each) if name in _OF_TIME and isinstance(each, int) else each
        for name, each in decoded["value"].items()
    }
    assert encode_offsets_record(number, decoded["key"], version, decoded["value"]) == (key, value)
    return encode_offsets_record(number, decoded["key"], version, fields)


@pytest.fixture
def brokers(oracle_classpath: str, tmp_path: Path) -> Iterator[tuple[Broker, CatalogueBroker]]:
    home = tmp_path
    theirs, mine = home / "kafka", home / "ours"
    maker = Broker(oracle_classpath, home / "first", [theirs], SETTINGS)
    maker.format()
    with maker, RawClient(int(maker.bootstrap.split(":")[1])) as client:
        for name, partitions in TOPICS.items():
            create(client, name, partitions)
        found(client, "g")
        found(client, "h")
    shutil.copytree(theirs, mine)
    with Broker(oracle_classpath, home / "second", [theirs], SETTINGS) as kafka, CatalogueBroker([mine], OURS) as ours:
        yield kafka, ours


@pytest.fixture
def twins(brokers: tuple[Broker, CatalogueBroker]) -> Iterator[Twins]:
    kafka, ours = brokers
    ids: dict[str, uuid.UUID] = ours.in_loop(
        lambda context: {topic.name: topic.topic_id for topic in context.image.topics.values()}
    )
    with RawClient(int(kafka.bootstrap.split(":")[1])) as theirs, ours.connect() as mine:
        found(theirs, "g")
        found(theirs, "h")
        yield Twins(theirs, mine, ids)


def rows(twins: Twins, owned: Mapping[uuid.UUID, list[int]]) -> list[dict[str, Any]]:
    return [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in owned.items()]


def a_life(twins: Twins) -> None:
    group = "life"
    ids = twins.ids
    twins.describe(group)
    twins.join(group, "a")
    twins.join(group, "b", server_assignor="range")
    twins.beat(group, "a", 2)
    twins.describe(group)
    twins.beat(group, "b", 3)
    twins.beat(group, "a", 2, topic_partitions=rows(twins, {ids["t"]: [0, 1]}))
    twins.beat(group, "b", 3)
    twins.beat(group, "b", 3, subscribed_topic_names=["t", "u", "nowhere"])
    twins.beat(group, "b", 3, subscribed_topic_names=[])
    twins.beat(group, "a", 3, server_assignor="range", rack_id="r")
    for epoch in (-2, -1, 0, 1, 2, 9):
        twins.beat(group, "who", epoch)
        twins.beat(group, "a", epoch, instance_id="i")
    for body in (
        {"group_id": ""},
        {"member_id": ""},
        {"instance_id": " "},
        {"rack_id": ""},
        {"server_assignor": "sticky"},
        {"rebalance_timeout": -1},
        {"subscribed_topic_names": None},
        {"topic_partitions": None},
        {"member_epoch": -5},
    ):
        twins.beat(
            group, "c", 0, **{"rebalance_timeout": 9000, "subscribed_topic_names": [], "topic_partitions": [], **body}
        )
    twins.describe(group, "other", "")
    twins.ask(LIST, 5, {"states_filter": [], "types_filter": ["CONSUMER"]})
    twins.ask(15, 6, {"groups": [group], "include_authorized_operations": False})
    twins.ask(DELETE, 3, {"groups_names": [group, "other"]})
    twins.beat(group, "a", -1)
    twins.beat(group, "b", -1)
    twins.describe(group)
    twins.ask(DELETE, 3, {"groups_names": [group]})
    twins.compare_logs()


def static_members(twins: Twins) -> None:
    group = "static"
    twins.join(group, "a", instance_id="i")
    twins.join(group, "b", instance_id="j")
    twins.join(group, "c", instance_id="i")
    twins.beat(group, "c", 2, instance_id="i")
    twins.beat(group, "a", 2, instance_id="i")
    twins.beat(group, "a", -2, instance_id="i")
    twins.describe(group)
    twins.beat(group, "b", 3, instance_id="j")
    twins.join(group, "d", instance_id="i")
    twins.describe(group)
    twins.beat(group, "d", 3, instance_id="i")
    twins.beat(group, "a", -1, instance_id="i")
    twins.beat(group, "d", -2, instance_id="i")
    twins.join(group, "e", instance_id="i", subscribed_topic_names=["u", "t"])
    twins.beat(group, "e", -1, instance_id="i")
    twins.beat(group, "b", -1, instance_id="j")
    twins.compare_logs()


def regular_expressions(twins: Twins) -> None:
    patterns = [
        *(
            "a**",
            "(",
            ")",
            "[a",
            "*a",
            "a{1001}",
            "\\1",
            "\\",
            "(?=a)",
            "(?<!a)",
            "[z-a]",
            "a{2}{3}",
            "\\pX",
            "\\8",
            "a++",
        ),
        *(
            "(?P<n>a)(?P<n>b)",
            "(?P<n",
            "x{2,1}",
            "[[:foo:]]",
            "(?i",
            "(?z)",
            "\\x{",
            "\\Q",
            "\\C",
            "a|*",
            "(*a)",
            "(?P<>a)",
        ),
        *("\\p{Latin", "[a-\\d]", "[]a", "a{,2}b**", "\\e", "((((a)))", "(?i)(?s)(?U)a{0}**", "^*", "(|a)*+"),
    ]
    for number, pattern in enumerate(patterns):
        # A group's expressions are resolved once in ten seconds: each has a group of its own.
        group = f"patterns{number}"
        if not twins.join(group, "p", subscribed_topic_names=None, subscribed_topic_regex=pattern).error_code:
            twins.resolved(group, pattern)
    good = [
        "t|u.*",
        "^.{1,3}$",
        "(?i)ALPHA|[[:alpha:]]eta",
        "\\pL+",
        "\\Qw\\E",
        "[^a-z]*",
        "o(?:n|x)e\\b",
        "many{1}",
        "",
        "a{,2}",
    ]
    for number, pattern in enumerate(good):
        group = f"regex{number}"
        twins.join(group, "a", subscribed_topic_names=None, subscribed_topic_regex=pattern)
        twins.resolved(group, pattern)
        epoch = twins.describe(group).groups[0].members[0].member_epoch
        twins.beat(group, "a", epoch)
        twins.join(group, "b", subscribed_topic_names=None, subscribed_topic_regex=pattern)
        twins.beat(group, "a", twins.describe(group).groups[0].members[0].member_epoch)
        twins.join(group, "c", subscribed_topic_names=["w"], subscribed_topic_regex=pattern)
        twins.beat(group, "b", -1)
        twins.describe(group)
        twins.beat(group, "c", -1)
        twins.beat(group, "a", -1)
        twins.describe(group)
    twins.compare_logs()


class Member:
    """What a client knows."""

    def __init__(self, member_id: str, instance_id: str | None) -> None:
        self.member_id, self.instance_id = member_id, instance_id
        self.epoch = 0
        self.owned: dict[uuid.UUID, list[int]] = {}
        self.has_left = False
        self.classic = False

    def told(self, answer: Any) -> None:
        if answer.error_code:
            if answer.error_code in (110, 25):
                self.epoch, self.owned = 0, {}
            return
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {row.topic_id: list(row.partitions) for row in answer.assignment.topic_partitions}


def any_story(twins: Twins, seed: int) -> None:
    chance = random.Random(seed)
    group = f"story{seed}"
    members: list[Member] = []
    names = list(TOPICS)
    uniform = seed % 2 == 0
    # One for all: as many for one as for another, and Kafka bumps the epoch for ever (see `_prefers_another`).
    assignor = chance.choice(["uniform", "range"])

    def subscription() -> list[str]:
        if uniform:
            return ["t", "w", "many"] if chance.random() < 0.9 else ["t", "u"]
        return chance.sample(names, chance.randint(0, len(names))) + (["nowhere"] if chance.random() < 0.2 else [])

    def join() -> None:
        identity = uuid_text(uuid.UUID(int=chance.getrandbits(128)))
        instance = f"i{chance.randrange(4)}" if chance.random() < 0.25 else None
        member = Member(identity, instance)
        more: dict[str, Any] = {} if instance is None else {"instance_id": instance}
        if chance.random() < 0.3:
            more["server_assignor"] = assignor
        answer = twins.join(group, identity, subscribed_topic_names=subscription(), **more)
        if not answer.error_code:
            members[:] = [each for each in members if instance is None or each.instance_id != instance]
            members.append(member)
            member.told(answer)

    def beat(member: Member) -> None:
        more: dict[str, Any] = {"instance_id": member.instance_id}
        if chance.random() < 0.6:
            more["topic_partitions"] = rows(twins, member.owned)
        if chance.random() < 0.2:
            more["subscribed_topic_names"] = subscription()
        if chance.random() < 0.1:
            more["server_assignor"] = assignor
        if chance.random() < 0.1:
            more["rebalance_timeout"] = chance.choice([200_000, 300_000])
        epoch = member.epoch + chance.choice([-1, 1]) if chance.random() < 0.06 else member.epoch
        if epoch == 0 or member.epoch == 0:
            more |= {"rebalance_timeout": 300_000, "subscribed_topic_names": subscription(), "topic_partitions": []}
            epoch = 0
        member.told(twins.beat(group, member.member_id, epoch, **more))

    def leave(member: Member) -> None:
        for_a_while = member.instance_id is not None and chance.random() < 0.6
        twins.beat(group, member.member_id, -2 if for_a_while else -1, instance_id=member.instance_id)
        members.remove(member)

    def commit(member: Member) -> None:
        owned = [(topic_id, number) for topic_id, numbers in member.owned.items() for number in numbers]
        if not owned:
            return
        topic_id, number = chance.choice(owned)
        row = {"partition_index": number, "committed_offset": chance.randrange(99), "committed_metadata": "m"}
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": max(member.epoch - chance.choice([0, 0, 0, 1, -1]), 0),
            "member_id": member.member_id,
            "topics": [{"topic_id": topic_id, "partitions": [row]}],
        }
        twins.ask(COMMIT, 10, body)

    for _ in range(90):
        what = chance.random()
        if not members or (what < 0.15 and len(members) < 9):
            join()
        elif what < 0.22:
            leave(chance.choice(members))
        elif what < 0.3:
            commit(chance.choice(members))
        elif what < 0.36:
            twins.describe(group)
        else:
            beat(chance.choice(members))
    twins.describe(group)
    # Nobody is left to run into his session's end, at which the two would not be in step.
    for row in twins.describe_raw(group).members:
        twins.beat(group, row.member_id, -1, instance_id=row.instance_id)
    twins.compare_logs()


def subscribed(version: int, topics: list[str], owned: Mapping[str, list[int]] | None = None) -> bytes:
    """What a classic consumer sends."""
    out = version.to_bytes(2, "big") + len(topics).to_bytes(4, "big")
    for topic in topics:
        out += len(topic).to_bytes(2, "big") + topic.encode()
    out += b"\xff\xff\xff\xff"
    if version >= 1:
        out += len(owned or {}).to_bytes(4, "big")
        for topic, numbers in (owned or {}).items():
            out += len(topic).to_bytes(2, "big") + topic.encode() + len(numbers).to_bytes(4, "big")
            out += b"".join(number.to_bytes(4, "big") for number in numbers)
    if version >= 2:
        out += (1).to_bytes(4, "big")
    return out


def assigned(topics: Mapping[str, list[int]]) -> bytes:
    out = b"\0\1" + len(topics).to_bytes(4, "big")
    for topic, numbers in topics.items():
        out += len(topic).to_bytes(2, "big") + topic.encode() + len(numbers).to_bytes(4, "big")
        out += b"".join(number.to_bytes(4, "big") for number in numbers)
    return out + b"\xff\xff\xff\xff"


def both_protocols(twins: Twins) -> None:
    """A classic group of a static member is upgraded, and becomes a classic one again."""
    group = "both"

    def join(instance: str, member: str = "", owned: Mapping[str, list[int]] | None = None) -> Any:
        protocols = [{"name": "range", "metadata": subscribed(2, ["t", "u"], owned)}]
        body = join_body(group, member, group_instance_id=instance, protocols=protocols)
        return twins.kafka.ask(JOIN, 9, body), twins.ours.ask(JOIN, 9, body)

    kafka, ours = join("i")
    assert (kafka.error_code, ours.error_code) == (0, 0)
    parts = {"t": [0, 1, 2, 3], "u": [0, 1]}

    def on_both(call: Callable[[RawClient, str], Any]) -> Any:
        theirs, mine = call(twins.kafka, kafka.member_id), call(twins.ours, ours.member_id)
        expected = repr(plain(theirs)).replace(kafka.member_id, "#")
        assert repr(plain(mine)).replace(ours.member_id, "#") == expected
        return theirs

    def sync(client: RawClient, member: str, generation: int = 1) -> Any:
        body = {
            "group_id": group,
            "generation_id": generation,
            "member_id": member,
            "group_instance_id": "i",
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": member, "assignment": assigned(parts)}],
        }
        return client.ask(SYNC, 5, body)

    def heartbeat(client: RawClient, member: str, generation: int = 1) -> Any:
        body = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": "i"}
        return client.ask(HEARTBEAT, 4, body)

    on_both(sync)
    on_both(heartbeat)
    twins.join(group, "new", subscribed_topic_names=["t", "u"])
    on_both(lambda client, member: client.ask(DESCRIBE, 1, {"group_ids": [group]}))
    on_both(heartbeat)
    on_both(sync)
    twins.beat(group, "new", 2)

    def rejoin(owned: Mapping[str, list[int]], generation: int) -> None:
        def call(client: RawClient, member: str) -> Any:
            protocols = [{"name": "range", "metadata": subscribed(2, ["t", "u"], owned)}]
            body = join_body(group, member, group_instance_id="i", protocols=protocols)
            return client.ask(JOIN, 9, body)

        on_both(call)
        on_both(lambda client, member: sync(client, member, generation))
        on_both(lambda client, member: heartbeat(client, member, generation))

    rejoin(parts, 1)
    mine = twins.describe_raw(group)
    kept = {
        row.topic_name: list(row.partitions)
        for member in mine.members
        if member.instance_id == "i"
        for row in member.target_assignment.topic_partitions
    }
    rejoin(kept, 2)
    twins.beat(group, "new", 2)
    twins.beat(group, "new", 2, topic_partitions=[])
    on_both(lambda client, member: client.ask(DESCRIBE, 1, {"group_ids": [group]}))
    # Another classic one, for which ids are made; it is refused what does not fit.
    for protocols in ([{"name": "sticky", "metadata": b""}], [{"name": "range", "metadata": b"\0"}]):
        twins.ask(JOIN, 9, join_body(group, "x", protocols=protocols))
    twins.ask(JOIN, 9, join_body(group, "x", protocol_type="connect"))
    on_both(lambda client, member: client.ask(LEAVE, 5, {"group_id": group, "members": [{"member_id": "who"}]}))
    twins.beat(group, "new", -1)
    on_both(heartbeat)
    on_both(lambda client, member: client.ask(15, 6, {"groups": [group], "include_authorized_operations": False}))
    on_both(lambda client, member: client.ask(LIST, 5, {"states_filter": [], "types_filter": []}))
    leaving = {"group_id": group, "members": [{"member_id": "", "group_instance_id": "i"}]}
    on_both(lambda client, member: client.ask(LEAVE, 5, leaving))
    # An empty classic group, with offsets, is one of the new protocol at once; and the other way round.
    twins.join(group, "late")
    twins.beat(group, "late", -1)
    kafka, ours = join("j")
    assert (kafka.error_code, ours.error_code) == (0, 0)


def upgrades(twins: Twins) -> None:
    """Classic groups of one static member that a consumer would like to join: what becomes of it depends on what was said."""
    fine = assigned({"t": [0, 1, 2, 3], "nowhere": [0]})
    cases: list[tuple[str, bytes, bytes | None]] = [
        ("consumer", subscribed(0, ["t"]), fine),
        ("consumer", subscribed(1, ["t", "u"], {"t": [1]}), fine[:-4] + b"\0\0\0\0"),
        ("consumer", subscribed(3, ["t"], {}) + b"\0\1r", b"\0\x09" + fine[2:]),
        ("consumer", subscribed(2, ["t"]), None),  # never synced
        ("consumer", subscribed(2, ["t"]), b""),
        ("consumer", subscribed(2, ["t"]), fine[:-4] + b"\0\0\0\1x"),  # of a custom assignor
        ("consumer", subscribed(2, ["t"]), b"\0"),
        ("consumer", subscribed(2, ["t"]), b"\xff\xff" + fine[2:]),
        ("consumer", subscribed(2, ["t"])[:-6], fine),
        ("consumer", b"", fine),
        ("connect", b"any", b"thing"),
    ]
    for number, (kind, metadata, assignment) in enumerate(cases):
        group = f"upgrade{number}"
        for client in (twins.kafka, twins.ours):
            protocols = [{"name": "range", "metadata": metadata}]
            body = join_body(group, "", group_instance_id="i", protocols=protocols, protocol_type=kind)
            joined = client.ask(JOIN, 9, body)
            assert joined.error_code == 0
            if assignment is None:
                continue
            sync = {
                "group_id": group,
                "generation_id": 1,
                "member_id": joined.member_id,
                "group_instance_id": "i",
                "protocol_type": kind,
                "protocol_name": "range",
                "assignments": [{"member_id": joined.member_id, "assignment": assignment}],
            }
            assert client.ask(SYNC, 5, sync).error_code == 0
        twins.join(group, "new", subscribed_topic_names=["t", "u"])
        twins.ask(LIST, 5, {"states_filter": ["Empty", "Stable", "Reconciling"], "types_filter": []})


def deletions(twins: Twins) -> None:
    """Several groups at once, in both partitions, of both kinds; others are there no more, not yet, or not empty."""
    groups = [f"gone{number}" for number in range(6)]
    for group in groups:
        rows = [{"partition_index": number, "committed_offset": 7} for number in range(2)]
        topics = [{"name": "t", "partitions": rows}]
        body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        twins.ask(COMMIT, 9, body)
    for group in ("busy", "left"):
        twins.join(group, "m")
    twins.beat("left", "m", -1)
    twins.ask(DELETE, 2, {"groups_names": ["none", *groups[:4], "busy", "left", "none", groups[0]]})
    twins.ask(LIST, 5, {"states_filter": [], "types_filter": []})
    twins.ask(DELETE, 2, {"groups_names": [*groups[2:], "busy"]})
    twins.compare_logs()


def test_answers_and_records_are_kafkas(twins: Twins) -> None:
    for scenario in (a_life, deletions, static_members, both_protocols, upgrades, regular_expressions):
        scenario(twins)
    for seed in range(8):
        any_story(twins, seed)
