"""The records of `__consumer_offsets` as Kafka 4.4.0 writes them (facts: kraft-and-coordinators B2), and Kafka's hash of ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compactd.storage.metadata.offsets import encode_offsets_record
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


def partition_of(group_id: str, partitions: int) -> int:
    """The partition of the coordinator's topic that holds an id: Java's String.hashCode, made positive."""
    value = 0
    data = group_id.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    if value >= 1 << 31:
        value = (1 << 32) - value
    # Utils.abs: the smallest int has no positive counterpart and becomes 0.
    return 0 if value == 1 << 31 else value % partitions


def offset_record(group_id: str, topic: str, partition: int, committed: Committed | None) -> KeyValue:
    """A committed offset; None: its tombstone."""
    key = {"group": group_id, "topic": topic, "partition": partition}
    if committed is None:
        return encode_offsets_record(OFFSET_COMMIT, key)
    value: dict[str, Any] = {
        "offset": committed.offset,
        "metadata": committed.metadata,
        "commitTimestamp": committed.commit_ms,
    }
    if committed.expire_ms >= 0:
        # Only this version has room for it, and none for the epoch.
        value["expireTimestamp"] = committed.expire_ms
        return encode_offsets_record(OFFSET_COMMIT, key, _EXPIRING_OFFSET_VERSION, value)
    value["leaderEpoch"] = committed.leader_epoch
    value["topicId"] = committed.topic_id
    return encode_offsets_record(OFFSET_COMMIT, key, _OFFSET_VERSION, value)


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
        for member in group.members.values()
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
