"""The records of `__consumer_offsets` as Kafka 4.4.0 writes them (facts: kraft-and-coordinators B2), and Kafka's hash of ids."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compactd.storage.metadata.encode import write_uvarint
from compactd.storage.metadata.offsets import encode_offsets_record
from compactd.storage.metadata.schema import read_uvarint
from compactd.storage.names import parse_uuid, uuid_text
from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.groups.group import ClassicGroup

OFFSETS_TOPIC = "__consumer_offsets"

#: Key and value; value None is a tombstone.
KeyValue = tuple[bytes, bytes | None]

OFFSET_COMMIT = 1
GROUP_METADATA = 2

#: Versions that 4.4.0 writes: of offsets, of offsets with a time at which they expire, of groups.
_OFFSET_VERSION, _EXPIRING_OFFSET_VERSION, _GROUP_VERSION = 4, 1, 3

#: Topic id "none".
NO_ID = "A" * 22


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset. Times of day in ms; -1: none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1
    #: 22 characters; NO_ID where it was not known.
    topic_id: str = NO_ID
    #: Offset of the record that says so; -1: of this process, so newer than any that was loaded.
    record_offset: int = -1


def offset_record(group_id: str, topic: str, partition: int, committed: Committed | None) -> KeyValue:
    """A committed offset; None: its tombstone. Written without the tables, which take ten times as long."""
    key = _INT16.pack(OFFSET_COMMIT) + _text(group_id) + _text(topic) + _INT32.pack(partition)
    if committed is None:
        return key, None
    if committed.expire_ms >= 0:
        # Only this version has room for it, and none for the epoch.
        version = _INT16.pack(_EXPIRING_OFFSET_VERSION)
        times = _INT64.pack(committed.commit_ms) + _INT64.pack(committed.expire_ms)
        return key, version + _INT64.pack(committed.offset) + _text(committed.metadata) + times
    metadata = committed.metadata.encode("utf-8", "replace")
    value = _OFFSET_HEAD.pack(_OFFSET_VERSION, committed.offset, committed.leader_epoch)
    value += write_uvarint(len(metadata) + 1) + metadata + _INT64.pack(committed.commit_ms)
    if committed.topic_id == NO_ID:
        return key, value + b"\0"
    # One tagged field: number 0, 16 bytes.
    return key, value + b"\1\0\x10" + parse_uuid(committed.topic_id).bytes


def read_offset(key: bytes, value: bytes | None) -> tuple[str, str, int, Committed | None] | None:
    """What `offset_record` wrote in the version that 4.4.0 writes mostly; None: not that, or damaged, see the tables."""
    try:
        group_id, position = _read_text(key, _INT16.size)
        topic, position = _read_text(key, position)
        (partition,) = _INT32.unpack_from(key, position)
        if position + _INT32.size != len(key):
            return None
        if value is None:
            return group_id, topic, partition, None
        version, offset, leader_epoch = _OFFSET_HEAD.unpack_from(value)
        if version != _OFFSET_VERSION:
            return None
        size, position = read_uvarint(value, _OFFSET_HEAD.size)
        end = position + size - 1
        if size < 1 or end > len(value):
            return None
        metadata = value[position:end].decode()
        (commit_ms,) = _INT64.unpack_from(value, end)
        tags = value[end + _INT64.size :]
    except (struct.error, ValueError, MalformedError):
        return None
    topic_id = NO_ID
    if len(tags) == _TAGGED_ID_SIZE and tags.startswith(b"\1\0\x10"):
        topic_id = uuid_text(uuid.UUID(bytes=tags[3:]))
    elif tags != b"\0":
        return None
    return group_id, topic, partition, Committed(offset, leader_epoch, metadata, commit_ms, -1, topic_id)


_INT16, _INT32, _INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
#: Version, offset, leader epoch.
_OFFSET_HEAD = struct.Struct(">hqi")
#: Count of tags, number, size, id.
_TAGGED_ID_SIZE = 3 + 16


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return _INT16.pack(len(data)) + data


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    (size,) = _INT16.unpack_from(data, position)
    end = position + _INT16.size + size
    if size < 0 or end > len(data):
        raise ValueError("cut off")
    return data[position + _INT16.size : end].decode(), end


def group_record(group: ClassicGroup, assignments: Mapping[str, bytes] | None = None) -> KeyValue:
    """A group with its members; `assignments` by member id in place of those that they have.

    A group that has had no generation yet is nobody's, whoever is about to join.
    """
    if group.generation == 0:
        value: dict[str, Any] = {"protocolType": "", "generation": 0, "protocol": None, "leader": None, "members": ()}
        value["currentStateTimestamp"] = group.state_ms
        return encode_offsets_record(GROUP_METADATA, {"group": group.group_id}, _GROUP_VERSION, value)
    members = [
        {
            "memberId": member.member_id,
            "groupInstanceId": member.instance_id,
            "clientId": member.client_id,
            "clientHost": member.client_host,
            "rebalanceTimeout": member.rebalance_timeout_ms,
            "sessionTimeout": member.session_timeout_ms,
            "subscription": member.metadata(group.protocol_name),
            "assignment": member.assignment if assignments is None else assignments.get(member.member_id, b""),
        }
        # As Kafka's table of them lists them.
        for member in map(group.members.__getitem__, group.members.listed())
    ]
    value = {
        "protocolType": group.protocol_type or "",
        "generation": group.generation,
        "protocol": group.protocol_name,
        "leader": group.leader,
        "currentStateTimestamp": group.state_ms,
        "members": members,
    }
    return encode_offsets_record(GROUP_METADATA, {"group": group.group_id}, _GROUP_VERSION, value)


def group_tombstone(group_id: str) -> KeyValue:
    """Ends a classic group, also one that never had a record."""
    return encode_offsets_record(GROUP_METADATA, {"group": group_id})
