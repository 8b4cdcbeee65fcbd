"""`__consumer_offsets`: records to the byte as Kafka 4.4.0 wrote them, and what a log says when it is read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.config.errors import CorruptBatchError
from compactd.config.settings import TopicConfig
from compactd.storage.log import Origin, PartitionLog
from compactd.storage.metadata.offsets import decode_offsets_record, encode_offsets_record
from compactd.storage.records.builder import build_batch, control_batch
from compactd.storage.records.record import Record
from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.groups.group import ClassicGroup
from compactd.workers.broker.groups.loading import load
from compactd.workers.broker.groups.member import GroupSettings, Member, State
from compactd.workers.broker.groups.records import (
    NO_ID,
    Committed,
    group_record,
    group_tombstone,
    offset_record,
    read_offset,
)
from compactd.workers.broker.groups.state import GroupState
from compactd.workers.broker.transactions.java_order import partition_of

ALPHA = "6Uj_rraSRxmXbTfDP7kXfA"
NOW = 1_800_000_000_000
CHUNK = 4 << 20


def new_group(group_id: str, wall_ms: int) -> ClassicGroup:
    return ClassicGroup(group_id, GroupSettings(), wall_ms)


def new_state() -> GroupState:
    return GroupState(new_group)


# ---- bytes of 4.4.0


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [("classic-g", 36), ("new-g", 8), ("tx-1", 20), ("grüppe", 12), ("😀", 49), ("", 0), ("polygenelubricants", 0)],
)
def test_groups_are_where_kafka_looks_for_them(group_id: str, partition: int) -> None:
    """The last one's hash is -2^31, which has no absolute value."""
    assert partition_of(group_id, 50) == partition


def test_an_offset_to_the_byte() -> None:
    key, value = offset_record("classic-g", "alpha", 0, Committed(8, -1, "", 0x1A22A858572, -1, ALPHA))
    assert key.hex() == "00010009636c61737369632d670005616c70686100000000"
    assert value is not None
    assert value.hex() == (
        "00040000000000000008ffffffff01000001a22a858572010010e948ffaeb6924719976d37c33fb9177c"
    )  # fmt: skip


def test_a_whole_batch_to_the_byte() -> None:
    committed = Committed(3, -1, "", 0x1A22A85C7A8, -1, ALPHA)
    key, value = offset_record("simple-g", "alpha", 2, committed)
    batch = build_batch(
        [Record(0x2E, 0x1A22A85C7A8, key, value)], base_offset=0x2E, base_sequence=0, leader_epoch=0
    )  # fmt: skip
    assert batch.hex() == (
        "000000000000002e0000007a0000000002fb837da3000000000000000001a22a85c7a8000001a22a85c7a8ffffffffffffffffffff"
        "00000000000000018e010000002e0001000873696d706c652d670005616c706861000000025400040000000000000003ffffffff01"
        "000001a22a85c7a8010010e948ffaeb6924719976d37c33fb9177c00"
    )


def test_an_offset_that_expires_has_an_older_version() -> None:
    _, value = offset_record("g", "t", 0, Committed(8, 5, "m", NOW, NOW + 1, ALPHA))
    assert value is not None and value[:2] == b"\0\1"
    record = decode_offsets_record(*offset_record("g", "t", 0, Committed(8, 5, "m", NOW, NOW + 1, ALPHA)))
    assert record["value"] == {
        "offset": 8,
        "metadata": "m",
        "commitTimestamp": NOW,
        "expireTimestamp": NOW + 1,
    }


def test_a_new_group_and_an_emptied_one_to_the_byte() -> None:
    group = new_group("classic-g", 0x1A22A858442)
    key, value = group_record(group)
    assert (key.hex(), value and value.hex()) == (
        "00020009636c61737369632d67",
        "0003000000000000ffffffff000001a22a85844200000000",
    )
    group = new_group("g", 0x1A22A8585C2)
    group.generation, group.protocol_type = 2, "consumer"
    _, value = group_record(group)
    assert value is not None
    assert value.hex() == "00030008636f6e73756d657200000002ffffffff000001a22a8585c200000000"


def test_a_group_of_one_to_the_byte() -> None:
    member_id = "cons1-940671a4-74a4-4db9-ddbd-db4276c98143"
    subscription = "0003000000020005616c706861000567616d6d610000000000000000ffffffff0000"
    assignment = "000000000002000567616d6d6100000001000000000005616c7068610000000300000000000000010000000200000000"
    expected = (
        "00030008636f6e73756d657200000001000572616e6765002a636f6e73312d39343036373161342d373461342d346462392d646462"
        "642d646234323736633938313433000001a22a85847e00000001002a636f6e73312d39343036373161342d373461342d346462392d"
        "646462642d646234323736633938313433ffff0005636f6e7331000a2f3132372e302e302e31000493e00000afc8"
        f"{len(subscription) // 2:08x}{subscription}{len(assignment) // 2:08x}{assignment}"
    )
    group = new_group("classic-g", 0x1A22A85847E)
    group.generation, group.protocol_name = 1, "range"
    protocols = (("other", b""), ("range", bytes.fromhex(subscription)))
    member = Member(member_id, None, "cons1", "/127.0.0.1", 300_000, 45_000, protocols)
    group.insert(member, "consumer")
    _, value = group_record(group, {member_id: bytes.fromhex(assignment)})
    assert value is not None
    assert value.hex() == expected


def test_tombstones_of_a_deleted_group_to_the_byte() -> None:
    assert offset_record("simple-g", "alpha", 2, None) == (
        bytes.fromhex("0001000873696d706c652d670005616c70686100000002"),
        None,
    )
    assert group_tombstone("simple-g") == (bytes.fromhex("0002000873696d706c652d67"), None)


_TEXT = st.text(max_size=8)


@given(
    _TEXT, _TEXT, st.integers(0, (1 << 31) - 1), st.integers(-1, (1 << 63) - 1), st.integers(-1, (1 << 31) - 1), _TEXT,
    st.integers(-1, (1 << 62)), st.sampled_from([NO_ID, ALPHA]), st.one_of(st.just(-1), st.integers(0, 1 << 62)),
)  # fmt: skip
def test_the_quick_ways_are_those_of_the_tables(
    group_id: str, topic: str, partition: int, offset: int, epoch: int, metadata: str, commit_ms: int, topic_id: str,
    expire_ms: int,
) -> None:  # fmt: skip
    key = {"group": group_id, "topic": topic, "partition": partition}
    value: dict[str, Any] = {"offset": offset, "metadata": metadata, "commitTimestamp": commit_ms}
    committed = Committed(offset, epoch, metadata, commit_ms, expire_ms, topic_id)
    written = offset_record(group_id, topic, partition, committed)
    if expire_ms >= 0:
        assert written == encode_offsets_record(1, key, 1, {**value, "expireTimestamp": expire_ms})
        assert read_offset(*written) is None
    else:
        assert written == encode_offsets_record(1, key, 4, {**value, "leaderEpoch": epoch, "topicId": topic_id})
        assert read_offset(*written) == (group_id, topic, partition, committed)
    tombstone = offset_record(group_id, topic, partition, None)
    assert tombstone == encode_offsets_record(1, key)
    assert read_offset(*tombstone) == (group_id, topic, partition, None)


@given(st.data())
def test_what_the_quick_way_takes_is_what_the_tables_read(data: st.DataObject) -> None:
    """Any damage: either it is left to the tables, or both say the same."""
    key, value = offset_record(
        "g", "t", 3, Committed(8, 1, "meta", NOW, -1, data.draw(st.sampled_from([NO_ID, ALPHA])))
    )
    assert value is not None
    both = bytearray(key + value)
    for _ in range(data.draw(st.integers(1, 3))):
        both[data.draw(st.integers(0, len(both) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(both)))
    key, value = bytes(both[: len(key)]), bytes(both[len(key) :][: cut or None])
    if key[:2] != b"\0\1":
        return
    found = read_offset(key, value)
    if found is not None:
        record = decode_offsets_record(key, value)
        group_id, topic, partition, committed = found
        assert record["key"] == {"group": group_id, "topic": topic, "partition": partition}
        assert committed is not None
        assert record["value"] == {
            "offset": committed.offset, "leaderEpoch": committed.leader_epoch, "metadata": committed.metadata,
            "commitTimestamp": committed.commit_ms, "topicId": committed.topic_id,
        }  # fmt: skip


# ---- replay


def replayed(*records: tuple[bytes, bytes | None]) -> GroupState:
    state = new_state()
    for offset, (key, value) in enumerate(records):
        state.replay(offset, key, value)
    return state


def members_of(generation: int = 1) -> ClassicGroup:
    group = new_group("g", NOW)
    group.generation, group.protocol_name = generation, "range"
    for number, instance in ((1, None), (2, "i2")):
        group.insert(
            Member(f"m{number}", instance, f"c{number}", "/h", 30_000, 10_000, (("range", b"r"),), b"a%d" % number),
            "consumer",
        )
    group.leader = "m2"
    return group


def test_a_group_comes_back_as_it_was() -> None:
    state = replayed(group_record(new_group("g", NOW)), group_record(members_of()))
    group = state.groups["g"]
    assert (group.state, group.generation, group.protocol_type, group.protocol_name, group.leader, group.state_ms) == (
        State.STABLE, 1, "consumer", "range", "m2", NOW,
    )  # fmt: skip
    assert list(group.members) == ["m1", "m2"]
    assert group.static == {"i2": "m2"}
    second = group.members["m2"]
    assert (second.client_id, second.client_host, second.session_timeout_ms, second.rebalance_timeout_ms) == (
        "c2", "/h", 10_000, 30_000,
    )  # fmt: skip
    assert (second.assignment, second.metadata("range")) == (b"a2", b"r")
    emptied = new_group("g", NOW + 1)
    emptied.generation, emptied.protocol_type = 2, "consumer"
    state.replay(9, *group_record(emptied))
    assert state.groups["g"].state is State.EMPTY
    state.replay(10, *group_tombstone("g"))
    assert not state.groups


def test_old_versions_of_a_group_have_one_timeout() -> None:
    member = {"memberId": "m", "clientId": "c", "clientHost": "/h", "sessionTimeout": 7, "subscription": b"",
              "assignment": b""}  # fmt: skip
    value = {"protocolType": "consumer", "generation": 3, "protocol": "range", "leader": "m", "members": [member]}
    state = replayed(encode_offsets_record(2, {"group": "g"}, 0, value))
    assert state.groups["g"].members["m"].rebalance_timeout_ms == 7
    assert state.groups["g"].state_ms == -1


def test_later_offsets_win_and_tombstones_end_them() -> None:
    first, second = Committed(1, commit_ms=NOW, topic_id=ALPHA), Committed(2, 3, "m", NOW, -1, ALPHA)
    state = replayed(offset_record("g", "t", 0, first), offset_record("g", "t", 0, second))
    assert state.offsets["g"]["t", 0] == Committed(2, 3, "m", NOW, -1, ALPHA, 1)
    assert state.groups["g"].protocol_type is None  # nobody ever joined
    state.replay(2, *offset_record("g", "t", 0, None))
    assert not state.offsets
    state.replay(3, *offset_record("g", "other", 0, None))  # of what compaction had removed already


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_offsets_of_every_version(version: int) -> None:
    value: dict[str, Any] = {"offset": 7, "metadata": "m", "commitTimestamp": NOW}
    if version == 1:
        value["expireTimestamp"] = NOW + 5
    if version >= 3:
        value["leaderEpoch"] = 4
    state = replayed(encode_offsets_record(1, {"group": "g", "topic": "t", "partition": 0}, version, value))
    expected = Committed(7, 4 if version >= 3 else -1, "m", NOW, NOW + 5 if version == 1 else -1, NO_ID, 0)
    assert state.offsets["g"]["t", 0] == expected


def test_offsets_of_the_oldest_type() -> None:
    key = {"group": "g", "topic": "t", "partition": 0}
    value = {"offset": 7, "metadata": "", "commitTimestamp": NOW}
    state = replayed(encode_offsets_record(0, key, 0, value))
    assert state.offsets["g"]["t", 0].offset == 7
    state.replay(1, *encode_offsets_record(0, key))
    assert not state.offsets


def test_offsets_of_a_transaction_count_with_its_end() -> None:
    state = new_state()
    state.replay(0, *offset_record("g", "t", 0, Committed(1)))
    state.replay(1, *offset_record("g", "t", 0, Committed(5)), 77)
    state.replay(2, *offset_record("g", "t", 1, Committed(6)), 77)
    state.replay(3, *offset_record("g", "t", 2, Committed(7)), 78)
    assert state.offsets["g"]["t", 0].offset == 1
    assert state.is_pending("g", ("t", 0)) and set(state.pending_of("g")) == {("t", 0), ("t", 1), ("t", 2)}
    state.replay(4, *offset_record("g", "t", 0, Committed(9)))
    state.transaction_ended(77, commit=True)
    state.transaction_ended(78, commit=False)
    assert {where: each.offset for where, each in state.offsets["g"].items()} == {("t", 0): 9, ("t", 1): 6}
    assert not state.pending
    state.replay(5, *offset_record("g", "t", 1, Committed(8)), 79)
    state.replay(6, *offset_record("g", "t", 1, None))
    state.transaction_ended(79, commit=True)
    assert ("t", 1) not in state.offsets["g"]


def test_groups_of_other_protocols_are_remembered_and_types_to_come_are_passed_over() -> None:
    member = {"rackId": None, "clientId": "c", "clientHost": "/h", "subscribedTopicNames": []}
    of_member = {"groupId": "shares", "memberId": "m"}
    state = replayed(
        encode_offsets_record(10, of_member, 0, member),
        encode_offsets_record(11, {"groupId": "shares"}, 0, {"epoch": 1, "metadataHash": 0}),
        (b"\0\x63whatever", b"\0\0"),
    )
    assert {name: (other.kind, other.members) for name, other in state.others.items()} == {"shares": ("share", {"m"})}
    assert state.unknown == {99: 1}
    state.replay(9, *encode_offsets_record(10, of_member))
    assert not state.others["shares"].members
    state.replay(10, *encode_offsets_record(11, {"groupId": "shares"}))
    assert "shares" not in state.others


@given(
    st.lists(
        st.tuples(st.sampled_from("gh"), st.integers(0, 2), st.one_of(st.none(), st.integers(0, 9)), st.booleans())
    ),
    st.data(),
)
def test_a_compacted_log_says_the_same(events: list[tuple[str, int, int | None, bool]], data: st.DataObject) -> None:
    """Any records but the last of their key may be missing, and tombstones, too, once what they end is gone."""
    records: list[tuple[bytes, bytes | None]] = []
    for group_id, partition, offset, is_group in events:
        if is_group:
            group = new_group(group_id, NOW)
            group.generation, group.protocol_type = partition + 1, "consumer"
            records.append(group_tombstone(group_id) if offset is None else group_record(group))
        else:
            committed = None if offset is None else Committed(offset)
            records.append(offset_record(group_id, "t", partition, committed))
    last = {key: index for index, (key, _) in enumerate(records)}
    whole, compacted = new_state(), new_state()
    horizon = data.draw(st.integers(0, len(records)))
    for index, (key, value) in enumerate(records):
        whole.replay(index, key, value)
        if (last[key] == index and (value is not None or index >= horizon)) or index >= horizon:
            compacted.replay(index, key, value)
    assert compacted.offsets == whole.offsets
    known = {name: group for name, group in whole.groups.items() if group.protocol_type}
    assert {name: group.generation for name, group in compacted.groups.items() if group.protocol_type} == {
        name: group.generation for name, group in known.items()
    }


# ---- reading logs


@pytest.fixture
def log(fast_dir: Path) -> PartitionLog:
    return PartitionLog.create(
        fast_dir / "__consumer_offsets-0", TopicConfig.from_strings({"segment.bytes": 1 << 20}), now_ms=NOW
    )


def append(log: PartitionLog, *records: tuple[bytes, bytes | None], **more: Any) -> None:
    numbered = [Record(offset, NOW, key, value) for offset, (key, value) in enumerate(records)]
    batch = build_batch(numbered, base_offset=0, **{"base_sequence": 0, **more})
    log.append_as_leader(bytearray(batch), leader_epoch=0, now_ms=NOW, origin=Origin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)


def test_a_log_of_several_segments_is_read_to_its_end(log: PartitionLog) -> None:
    for number in range(300):
        append(log, *(offset_record(f"g{number % 7}", "t", each, Committed(number)) for each in range(20)))
        if number % 100 == 99:
            log.roll(now_ms=NOW)
    append(log, offset_record("g0", "t", 0, Committed(5)), producer_id=4, producer_epoch=0, transactional=True)
    log.append_as_leader(
        bytearray(control_batch("commit", 0, NOW, 4, 0)), leader_epoch=0, now_ms=NOW, origin=Origin.COORDINATOR
    )
    state = new_state()
    assert load(log, state, CHUNK) == log.log_end_offset
    assert {name: each["t", 19].offset for name, each in state.offsets.items()} == {
        f"g{number % 7}": number for number in range(293, 300)
    }
    assert state.offsets["g0"]["t", 0].offset == 5
    assert not state.pending


def test_an_empty_log_has_no_groups(log: PartitionLog) -> None:
    state = new_state()
    assert load(log, state, CHUNK) == 0
    assert not state.groups


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: b"\0\x09" + value[2:],  # a version to come
        lambda value: value[:5],
        lambda value: value + b"!",
    ],
)
def test_a_record_that_cannot_be_understood_fails_the_partition(
    log: PartitionLog, damage: Callable[[bytes], bytes]
) -> None:  # fmt: skip
    key, value = offset_record("g", "t", 0, Committed(1))
    append(log, (key, damage(value or b"")))
    with pytest.raises(CorruptBatchError, match="record of groups"):
        load(log, new_state(), CHUNK)


def test_a_key_that_is_cut_off_is_refused() -> None:
    for size in (0, 1, 5):
        with pytest.raises(MalformedError):
            new_state().replay(0, offset_record("g", "t", 0, None)[0][:size], None)
