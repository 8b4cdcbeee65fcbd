"""The parts of consumer groups one by one: hash, order of tables, expressions, assignors, records (KIP-848)."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.storage.metadata.offsets import decode_offsets_record
from compactd.storage.names import parse_uuid
from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.groups.consumer import changes, protocol, range_assignor, uniform_assignor
from compactd.workers.broker.groups.consumer.assignment import Assignor, GroupSpec, MemberSpec
from compactd.workers.broker.groups.consumer.java import HashTable
from compactd.workers.broker.groups.consumer.member import ClassicMetadata, ConsumerMember, MemberState
from compactd.workers.broker.groups.consumer.reconcile import Step
from compactd.workers.broker.groups.consumer.regex import TopicPattern
from compactd.workers.broker.groups.consumer.regex_syntax import RegexError
from compactd.workers.broker.groups.consumer.xxh3 import xxh3_64
from compactd.workers.broker.groups.records import group_record
from compactd.workers.broker.transactions.java_order import string_hash
from tests.workers.broker.consumer_world import World

# ---- the hash


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 0x2D06800538D394C2),
        (1, 0xC44BDFF4074EECDB),
        (3, 0xC3489259E968AD9E),
        (4, 0xD3D60C1519014E89),
        (8, 0xB88DEE77F6BF6980),
        (9, 0x03688DCAD730D826),
        (16, 0x9DA23836ADF2BE1E),
        (17, 0xF34C3C9CF5A112D1),
        (128, 0x65F3C2C00FA93185),
        (129, 0x28065C6EC25F5B25),
        (240, 0x4917A75C0EF8EED7),
        (241, 0x541B19226F0052E8),
        (1024, 0xDC5ACF0B043C445B),
        (1025, 0xE1D9CD946277AE26),
        (5000, 0x6ABE8BE5ABCB2760),
    ],
)
def test_xxh3_is_that_of_the_reference(size: int, expected: int) -> None:
    assert xxh3_64(bytes(number * 7 % 256 for number in range(size))) == expected


def test_the_hash_of_a_group_is_kafkas() -> None:
    """Of the topic in facts kraft-and-coordinators B2.3, from a running broker."""
    world = World()
    world.topic("alpha", 3, parse_uuid("6Uj_rraSRxmXbTfDP7kXfA"))
    assert world.topics.hash_of(["alpha", "nowhere"]) == -1583172472802459887
    assert world.topics.hash_of(["nowhere"]) == 0
    world.topic("alpha", 4)
    assert world.topics.hash_of(["alpha"]) != -1583172472802459887


# ---- the order of Java's tables


@pytest.mark.parametrize(
    ("calls", "capacity", "order"),
    [
        (
            "p92 p424 p605 p691 c321 p303 c560 p90 c215 c17 p165 c356",
            16,
            "560 165 321 92 605 90 17 691 356 215 424 303",
        ),
        (
            "p180 c715 c689 p557 c707 p946 p569 p884 c870 p541 c452 p53 c925",
            1,
            "452 870 541 715 946 925 707 689 557 569 180 884 53",
        ),
        (
            "p637 p912 c900 p431 p251 p326 p965 p697 c518 c236 c30",
            16,
            "431 518 251 326 965 900 637 912 697 236 30",
        ),
        (
            "c769 p413 c665 p684 c156 p388 c891 c843 p200 c600 p27 c54",
            1,
            "891 156 684 200 27 843 769 388 54 665 600 413",
        ),
        ("p253 c968 p149 c470 c179 p55", 16, "253 968 470 179 55 149"),
        ("p98 p388 p443 c253 p824", 1, "253 824 388 443 98"),
    ],
)
def test_a_hash_map_lists_its_keys_as_javas(calls: str, capacity: int, order: str) -> None:
    """Orders that a JDK printed; p: put, c: computeIfAbsent."""
    table: HashTable[str] = HashTable(string_hash, capacity)
    for call in calls.split():
        (table.put if call[0] == "p" else table.compute)(f"member-{call[1:]}")
    assert table.listed() == [f"member-{each}" for each in order.split()]


# ---- regular expressions


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("a.*", "a ab a.b", "b ba"),
        ("^a$|b", "a b", "ab"),
        ("(?i)ALPHA", "alpha ALPHA aLpHa", "alph"),
        ("\\Qa.b\\E+", "a.b a.bb", "axb"),
        ("[^a-c]{2,3}x?", "dd ddx ddd", "ad d ddddd"),
        ("[[:alpha:]]+_\\w*", "a_ ab_c", "1_ a"),
        ("(?:foo|bar)-[0-9]{1,3}", "foo-1 bar-123", "foo- bar-1234"),
        ("\\pL+\\d", "a1 Bc2", "1 a"),
        ("\\p{Latin}|\\p{Greek}", "a Z", "1"),
        ("a\\b.*", "a a-b a.", "ab"),
        ("[a-c-e]", "a b c - e", "d"),
        ("\\x41\\x{42}\\103", "ABC", "abc"),
        ("(a|b)*c", "c abac", "a"),
        ("", "", "a"),
        ("(?P<n>a)(?<m>b)", "ab", "a"),
        ("a{0}b", "b", "ab"),
    ],
)
def test_an_expression_stands_for_whole_names(pattern: str, matches: str, others: str) -> None:
    compiled = TopicPattern(pattern)
    assert [name for name in matches.split(" ") if not compiled.matches(name)] == []
    assert [name for name in others.split(" ") if compiled.matches(name)] == []


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a**", "invalid nested repetition operator"),
        ("(", "missing closing )"),
        (")", "regexp/syntax: internal error"),
        ("[a", "missing closing ]"),
        ("*a", "missing argument to repetition operator"),
        ("a{1001}", "invalid repeat count"),
        ("x{2,1}", "invalid repeat count"),
        ("\\1", "invalid escape sequence"),
        ("\\", "trailing backslash at end of expression"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?<!a)", "invalid named capture"),
        ("[z-a]", "invalid character class range"),
        ("(?P<n>a)(?P<n>b)", "duplicate capture group name"),
        ("\\p{Klingon}", "invalid character class range"),
        ("(" * 300 + ")" * 300, "expression nests too deeply"),
        ("((a{1000}){1000}){1000}", "expression too large"),
    ],
)
def test_an_expression_that_is_none(pattern: str, reason: str) -> None:
    """With the words of RE2/J."""
    with pytest.raises(RegexError) as caught:
        TopicPattern(pattern)
    assert str(caught.value) == reason


def test_no_expression_takes_longer_than_its_names() -> None:
    """What makes a backtracking matcher try for ages takes a state for each letter here."""
    compiled = TopicPattern("(a+)+(a|aa)*$b?")
    started = time.process_time()
    assert compiled.matches("a" * 249)
    assert not compiled.matches("a" * 248 + "c")
    assert time.process_time() - started < 10


@given(st.text("ab|*+?()[]{}^$.\\dwQE1,-:i", max_size=12))
def test_any_text_is_an_expression_or_refused(pattern: str) -> None:
    try:
        TopicPattern(pattern).topics(["a", "b", "ab", "a-b", ""])
    except RegexError as error:
        assert str(error)


# ---- assignors

ASSIGNORS: dict[str, Assignor] = {"uniform": uniform_assignor.assign, "range": range_assignor.assign}
TOPICS = [uuid.UUID(int=number) for number in range(1, 6)]


@st.composite
def groups(draw: Any, homogeneous: bool | None = None) -> GroupSpec:
    """A group with any present assignment."""
    counts = dict(zip(TOPICS, draw(st.lists(st.integers(1, 9), min_size=5, max_size=5)), strict=True))
    same = draw(st.booleans()) if homogeneous is None else homogeneous
    shared = draw(st.lists(st.sampled_from(TOPICS), unique=True))
    ids = draw(st.lists(st.text("abcdef", min_size=1, max_size=5), min_size=1, max_size=6, unique=True))
    owners: dict[tuple[uuid.UUID, int], str] = {}
    for topic_id, count in counts.items():
        for number in range(count):
            owner = draw(st.none() | st.sampled_from(ids))
            if owner is not None:
                owners[topic_id, number] = owner
    members = {}
    for member_id in ids:
        topics = shared if same else draw(st.lists(st.sampled_from(TOPICS), unique=True))
        has: dict[uuid.UUID, list[int]] = {}
        for (topic_id, number), owner in owners.items():
            if owner == member_id:
                has.setdefault(topic_id, []).append(number)
        instance = draw(st.none() | st.just(f"i{member_id}"))
        assignment = changes.as_stored({topic_id: tuple(each) for topic_id, each in has.items()})
        members[member_id] = MemberSpec(instance, tuple(topics), len(topics), assignment)
    return GroupSpec(members, same, frozenset(owners), lambda topic_id: counts[topic_id])


def given_out(group: GroupSpec, assignor: Assignor) -> dict[str, set[tuple[uuid.UUID, int]]]:
    found = assignor(group)
    sets: dict[str, set[tuple[uuid.UUID, int]]] = {
        member_id: {(t, p) for t, each in found.get(member_id, {}).items() for p in each} for member_id in group.members
    }
    wanted = {
        (topic_id, number)
        for member in group.members.values()
        for topic_id in member.topics
        for number in range(group.partitions_of(topic_id))
    }
    everything = Counter(each for owned in sets.values() for each in owned)
    assert set(everything) == wanted and set(everything.values()) <= {1}
    for member_id, owned in sets.items():
        assert {topic_id for topic_id, _ in owned} <= set(group.members[member_id].topics)
    return sets


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=groups())
def test_every_partition_goes_to_one_subscriber(name: str, group: GroupSpec) -> None:
    given_out(group, ASSIGNORS[name])


@given(groups(homogeneous=True))
def test_uniform_is_even_and_keeps_what_it_can(group: GroupSpec) -> None:
    sets = given_out(group, uniform_assignor.assign)
    sizes = [len(owned) for owned in sets.values()]
    assert max(sizes) - min(sizes) <= 1
    for member_id, owned in sets.items():
        topics = set(group.members[member_id].topics)
        had = {(t, p) for t, each in group.members[member_id].assignment.items() if t in topics for p in each}
        # Either it keeps all that it had, or it has nothing else.
        assert had <= owned or owned <= had


@given(groups(homogeneous=False))
def test_uniform_is_even_among_the_subscribers_of_a_topic(group: GroupSpec) -> None:
    """No partition could be moved so that the two become more even."""
    sets = given_out(group, uniform_assignor.assign)
    for member_id, owned in sets.items():
        for topic_id in {topic_id for topic_id, _ in owned}:
            for other_id, other in group.members.items():
                if topic_id in other.topics:
                    assert len(owned) - len(sets[other_id]) <= 1, (member_id, other_id)


@given(groups())
def test_uniform_does_not_move_what_is_even(group: GroupSpec) -> None:
    """The assignment of its own assignment is the same."""
    found = uniform_assignor.assign(group)
    members = {
        member_id: MemberSpec(each.instance_id, each.topics, each.subscribed, found.get(member_id, {}))
        for member_id, each in group.members.items()
    }
    assigned = frozenset((t, p) for each in found.values() for t, numbers in each.items() for p in numbers)
    again = uniform_assignor.assign(GroupSpec(members, group.homogeneous, assigned, group.partitions_of))
    plain = [
        {m: {t: set(p) for t, p in each.items() if p} for m, each in one.items() if each} for one in (found, again)
    ]
    assert plain[0] == plain[1]


def test_range_gives_neighbours_in_the_order_of_instances() -> None:
    topic = TOPICS[0]
    members = {
        member_id: MemberSpec(instance, (topic,), 1, {})
        for member_id, instance in (("b", None), ("z", "first"), ("a", None))
    }
    found = range_assignor.assign(GroupSpec(members, True, frozenset(), lambda _: 7))
    assert {member_id: each[topic] for member_id, each in found.items()} == {"z": (0, 1, 2), "a": (3, 4), "b": (5, 6)}


# ---- records

TOPIC = parse_uuid("6Uj_rraSRxmXbTfDP7kXfA")


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (
            changes.MemberSaid(
                "m",
                ConsumerMember(
                    "m",
                    client_id="cons3",
                    client_host="/127.0.0.1",
                    topic_names=frozenset({"alpha"}),
                    rebalance_timeout_ms=300_000,
                ),
            ),
            "0000000006636f6e73330b2f3132372e302e302e310206616c70686101000493e00001000100",
        ),
        (
            changes.MemberSaid(
                "m",
                ConsumerMember(
                    "m",
                    client_id="cons4",
                    client_host="/127.0.0.1",
                    topic_regex="(^al.*)",
                    rebalance_timeout_ms=300_000,
                    assignor="range",
                ),
            ),
            "0000000006636f6e73340b2f3132372e302e302e310108285e616c2e2a29000493e00672616e676501000100",
        ),
        (
            changes.MemberSaid(
                "m",
                ConsumerMember(
                    "m",
                    topic_regex="",
                    classic=ClassicMetadata(45_000, (("range", b"\1\2\3"),)),
                ),
            ),
            "0000000001010101ffffffff0001001201" + "0000afc8020672616e6765040102030000",
        ),
        (changes.Epoch(2, -1583172472802459887), "000000000002010008ea077106246ebf11"),
        (changes.Epoch(6), "00000000000600"),
        (changes.TargetEpoch(2, 0x1A22A859EBB), "000000000002010008000001a22a859ebb"),
        (
            changes.Target("m", {TOPIC: (0, 1, 2)}),
            "000002e948ffaeb6924719976d37c33fb9177c040000000000000001000000020000",
        ),
        (
            changes.Current("m", ConsumerMember("m", 2, 0, assigned={TOPIC: {0: 2, 1: 2, 2: 2}})),
            "000000000002000000000002e948ffaeb6924719976d37c33fb9177c0400000000000000010000000201000d04"
            "0000000200000002000000020100",
        ),
        (
            changes.Current(
                "m",
                ConsumerMember(
                    "m", 2, 2, MemberState.UNREVOKED, assigned={TOPIC: {0: 2, 1: 2}}, revoking={TOPIC: {2: 2}}
                ),
            ),
            "000000000002000000020102e948ffaeb6924719976d37c33fb9177c03000000000000000101000903"
            "000000020000000202e948ffaeb6924719976d37c33fb9177c0200000002010005020000000200",
        ),
        (
            changes.Regex("(^al.*)", changes.ResolvedRegex(frozenset({"alpha"}), 0x111, 0x1A22A859FF0)),
            "00000206616c7068610000000000000111000001a22a859ff000",
        ),
    ],
)
def test_records_are_kafkas(change: changes.Change, value: str | None) -> None:
    """The golden bytes of facts kraft-and-coordinators B6; and each reads back as what it was."""
    key, written = change.record("new-g")
    assert written is not None
    if value is not None:
        assert written.hex() == value
    decoded = decode_offsets_record(key, written)
    again = changes.change_of(int.from_bytes(key[:2], "big"), decoded["key"], decoded["value"])
    assert again.record("new-g") == (key, written)
    tombstone = changes.change_of(int.from_bytes(key[:2], "big"), decoded["key"], None)
    assert tombstone.is_tombstone and tombstone.record("new-g") == (key, None)


def test_a_member_whose_record_lacks_the_tag_uses_the_classic_protocol() -> None:
    """Kafka writes null; what is left out reads as an empty struct (facts B2.3)."""
    key, value = changes.MemberSaid("m", ConsumerMember("m", client_id="c")).record("g")
    assert value is not None and value.endswith(b"\1\0\1\0")
    decoded = decode_offsets_record(key, value[:-4] + b"\0")
    read = changes.change_of(5, decoded["key"], decoded["value"])
    assert isinstance(read, changes.MemberSaid) and read.member is not None
    assert read.member.classic == ClassicMetadata()


def test_partitions_of_before_have_the_epoch_of_their_member() -> None:
    """A record of Kafka 4.3 has no epochs of assignment; of a member that is away they count as 0."""
    key = {"memberId": "m"}
    rows = [{"topicId": "6Uj_rraSRxmXbTfDP7kXfA", "partitions": [0, 1], "assignmentEpochs": None}]
    value = {
        "memberEpoch": 7,
        "previousMemberEpoch": 6,
        "state": 9,
        "assignedPartitions": rows,
        "partitionsPendingRevocation": [],
    }
    for epoch, expected in ((7, 7), (-2, 0)):
        read = changes.change_of(8, key, {**value, "memberEpoch": epoch})
        assert isinstance(read, changes.Current) and read.member is not None
        assert read.member.assigned == {TOPIC: {0: expected, 1: expected}}
        assert read.member.state is MemberState.UNKNOWN


@pytest.mark.parametrize("early", ["member", "target epoch", "group"])
def test_a_log_whose_tombstones_are_out_of_order_is_not_loaded(early: str) -> None:
    world = World()
    world.topic("t", 2)
    world.beat("g", "m", 0)
    ends: dict[str, changes.Change] = {
        "member": changes.MemberSaid("m"),
        "target epoch": changes.TargetEpoch(None),
        "group": changes.Epoch(None),
    }
    with pytest.raises(MalformedError):
        world.replayed([*world.log, ends[early].record("g")])


def test_a_record_of_a_consumer_group_that_is_a_classic_one_is_not_loaded() -> None:
    world = World()
    group = world.state.new_group("g", 1)
    group.generation, group.protocol_type = 1, "consumer"
    with pytest.raises(MalformedError):
        world.replayed([group_record(group), changes.Epoch(2).record("g")])


# ---- what classic consumers say


def test_subscriptions_of_every_version() -> None:
    owned = b"\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\5"
    topics = b"\0\0\0\2\0\1t\0\1u\xff\xff\xff\xff"
    assert protocol.read_subscription(b"\0\0" + topics) == protocol.Subscription(("t", "u"))
    expected = protocol.Subscription(("t", "u"), {"t": (0, 5)})
    assert protocol.read_subscription(b"\0\1" + topics + owned) == expected
    assert protocol.read_subscription(b"\0\2" + topics + owned + b"\0\0\0\7") == expected
    with_rack = protocol.read_subscription(b"\0\3" + topics + owned + b"\0\0\0\7\0\1r")
    assert with_rack == protocol.Subscription(("t", "u"), {"t": (0, 5)}, "r")
    # One of a version to come begins as the last one that is known.
    assert protocol.read_subscription(b"\0\x09" + topics + owned + b"\0\0\0\7\xff\xffmore") == expected
    assert protocol.version_of(b"\0\x09") == 3


@given(st.binary(max_size=40))
def test_any_bytes_are_a_subscription_or_refused(data: bytes) -> None:
    for read in (protocol.read_subscription, protocol.read_assignment, protocol.version_of):
        try:
            read(data)
        except protocol.ProtocolError as error:
            assert str(error)


def test_an_assignment_reads_back() -> None:
    data = protocol.write_assignment(1, {"t": (0, 2), "u": ()})
    assert protocol.read_assignment(data) == ({"t": (0, 2), "u": ()}, None)
    assert data.startswith(b"\0\1\0\0\0\2\0\1t\0\0\0\2")


def test_what_stays_of_a_smaller_subscription_is_told_in_kafkas_order() -> None:
    one, two, three, gone = (
        uuid.UUID(text)
        for text in (
            "ebc04cac-0b1c-41e6-b3fe-351acbd71603",
            "d1bb7cf4-fd06-4816-a27e-b60f5dab730d",
            "4c98bf68-d5bf-4621-aa45-1b513eaa6e7e",
            "eabff600-8fc2-4126-9915-7e1365c74dd0",
        )
    )
    member = ConsumerMember("m", 8, 8, assigned={one: {0: 8}, two: {0: 8}, gone: {1: 8}, three: {0: 8}})
    step = Step(8, {}, frozenset({one, two, three}), True, lambda _, __: 8, None)
    after = step.of(member)
    assert after.state is MemberState.UNREVOKED
    # As Kafka 4.4.0 answered: the copy of a table with four keys has eight buckets.
    assert list(after.assigned) == [two, one, three]
    assert after.revoking == {gone: {1: 8}}
