"""Changes of a consumer group: each is one record of `__consumer_offsets`, and what it makes of the group (facts B2.3).

What is written and what is loaded pass through the same classes, so that a group after a restart is the group before.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from compactd.storage.metadata.offsets import encode_offsets_record
from compactd.storage.names import parse_uuid, uuid_text
from compactd.workers.broker.groups.consumer.java import hash_map, hash_set_capacity, int_hash, listed, uuid_hash
from compactd.workers.broker.groups.consumer.member import (
    Assignment,
    ClassicMetadata,
    ConsumerMember,
    MemberState,
    Owned,
)
from compactd.workers.broker.groups.records import KeyValue

#: Record types.
EPOCH, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX = 3, 4, 5, 6, 7, 8, 16
TYPES = frozenset((EPOCH, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX))


class Change(Protocol):
    """One record."""

    def record(self, group_id: str) -> KeyValue: ...

    @property
    def is_tombstone(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Epoch:
    """The group's epoch, and the hash of the topics that its members read; None: the group ends."""

    epoch: int | None
    metadata_hash: int = 0

    @property
    def is_tombstone(self) -> bool:
        return self.epoch is None

    def record(self, group_id: str) -> KeyValue:
        value = None if self.epoch is None else {"epoch": self.epoch, "metadataHash": self.metadata_hash}
        return encode_offsets_record(EPOCH, {"groupId": group_id}, 0, value)


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """What groups had before 4.1 in place of the hash; only its tombstone is written."""

    is_there: bool = False

    @property
    def is_tombstone(self) -> bool:
        return not self.is_there

    def record(self, group_id: str) -> KeyValue:
        return encode_offsets_record(PARTITION_METADATA, {"groupId": group_id})


@dataclass(frozen=True, slots=True)
class MemberSaid:
    """What a member said of itself; member None: it is gone."""

    member_id: str
    member: ConsumerMember | None = None

    @property
    def is_tombstone(self) -> bool:
        return self.member is None

    def record(self, group_id: str) -> KeyValue:
        value: dict[str, Any] | None = None
        if self.member is not None:
            member, classic = self.member, self.member.classic
            value = {
                "instanceId": member.instance_id,
                "rackId": member.rack_id,
                "clientId": member.client_id,
                "clientHost": member.client_host,
                "subscribedTopicNames": sorted(member.topic_names),
                "subscribedTopicRegex": member.topic_regex,
                "rebalanceTimeoutMs": member.rebalance_timeout_ms,
                "serverAssignor": member.assignor,
                "classicMemberMetadata": None
                if classic is None
                else {
                    "sessionTimeoutMs": classic.session_timeout_ms,
                    "supportedProtocols": [{"name": name, "metadata": data} for name, data in classic.protocols],
                },
            }
        return encode_offsets_record(MEMBER, {"groupId": group_id, "memberId": self.member_id}, 0, value)


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """The epoch that the target assignment is of, and when (ms) it was computed; None: the group ends."""

    epoch: int | None
    computed_ms: int = 0

    @property
    def is_tombstone(self) -> bool:
        return self.epoch is None

    def record(self, group_id: str) -> KeyValue:
        value = None
        if self.epoch is not None:
            value = {"assignmentEpoch": self.epoch, "assignmentTimestamp": self.computed_ms}
        return encode_offsets_record(TARGET_EPOCH, {"groupId": group_id}, 0, value)


@dataclass(frozen=True, slots=True)
class Target:
    """What a member is to have; None: it is gone."""

    member_id: str
    partitions: Assignment | None = None

    @property
    def is_tombstone(self) -> bool:
        return self.partitions is None

    def record(self, group_id: str) -> KeyValue:
        value = None
        if self.partitions is not None:
            topics = [
                {"topicId": uuid_text(topic_id), "partitions": partitions}
                for topic_id, partitions in self.partitions.items()
            ]
            value = {"topicPartitions": topics}
        return encode_offsets_record(TARGET, {"groupId": group_id, "memberId": self.member_id}, 0, value)


@dataclass(frozen=True, slots=True)
class Current:
    """What a member has; None: nothing any more. Of `member` the epochs, the state and the partitions count."""

    member_id: str
    member: ConsumerMember | None = None

    @property
    def is_tombstone(self) -> bool:
        return self.member is None

    def record(self, group_id: str) -> KeyValue:
        value = None
        if self.member is not None:
            value = {
                "memberEpoch": self.member.epoch,
                "previousMemberEpoch": self.member.previous_epoch,
                "state": int(self.member.state),
                "assignedPartitions": _owned_rows(self.member.assigned),
                "partitionsPendingRevocation": _owned_rows(self.member.revoking),
            }
        return encode_offsets_record(CURRENT, {"groupId": group_id, "memberId": self.member_id}, 0, value)


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a regular expression stands for, at a version of the catalogue and a time (ms)."""

    topics: frozenset[str] = frozenset()
    version: int = -1
    resolved_ms: int = -1

    def only(self, allowed: Callable[[str], bool]) -> ResolvedRegex:
        """Without topics that whoever asks may not know of."""
        return ResolvedRegex(frozenset(filter(allowed, self.topics)), self.version, self.resolved_ms)


@dataclass(frozen=True, slots=True)
class Regex:
    """What a regular expression was resolved to; None: nobody subscribes to it any more."""

    regex: str
    resolved: ResolvedRegex | None = None

    @property
    def is_tombstone(self) -> bool:
        return self.resolved is None

    def record(self, group_id: str) -> KeyValue:
        value = None
        if self.resolved is not None:
            value = {
                "topics": sorted(self.resolved.topics),
                "version": self.resolved.version,
                "timestamp": self.resolved.resolved_ms,
            }
        return encode_offsets_record(REGEX, {"groupId": group_id, "regularExpression": self.regex}, 0, value)


def records_of(group_id: str, changes: Iterable[Change]) -> list[KeyValue]:
    """What is to be written."""
    return [change.record(group_id) for change in changes]


def change_of(number: int, key: Mapping[str, Any], value: Mapping[str, Any] | None) -> Change:
    """The change that a decoded record says."""
    return _READERS[number](key, value)


def _read_member(key: Mapping[str, Any], value: Mapping[str, Any] | None) -> MemberSaid:
    member_id = key["memberId"]
    if value is None:
        return MemberSaid(member_id)
    classic = value["classicMemberMetadata"]
    metadata = None
    if classic is not None:
        protocols = [(each["name"], base64.b64decode(each["metadata"])) for each in classic["supportedProtocols"]]
        metadata = ClassicMetadata(classic["sessionTimeoutMs"], tuple(protocols))
    return MemberSaid(
        member_id,
        ConsumerMember(
            member_id,
            instance_id=value["instanceId"],
            rack_id=value["rackId"],
            rebalance_timeout_ms=value["rebalanceTimeoutMs"],
            client_id=value["clientId"],
            client_host=value["clientHost"],
            topic_names=frozenset(value["subscribedTopicNames"]),
            topic_regex=value["subscribedTopicRegex"],
            assignor=value["serverAssignor"],
            classic=metadata,
        ),
    )


def _read_target(key: Mapping[str, Any], value: Mapping[str, Any] | None) -> Target:
    if value is None:
        return Target(key["memberId"])
    found = {parse_uuid(each["topicId"]): tuple(each["partitions"]) for each in value["topicPartitions"]}
    return Target(key["memberId"], as_stored(found))


def as_stored(partitions: Assignment) -> Assignment:
    """In the order in which Kafka has it once the record is applied."""
    ordered = {
        topic_id: tuple(listed(dict.fromkeys(numbers), int_hash, hash_set_capacity(len(numbers))))
        for topic_id, numbers in partitions.items()
    }
    return hash_map(ordered, uuid_hash)


def _read_current(key: Mapping[str, Any], value: Mapping[str, Any] | None) -> Current:
    member_id = key["memberId"]
    if value is None:
        return Current(member_id)
    epoch = value["memberEpoch"]
    try:
        state = MemberState(value["state"])
    except ValueError:
        state = MemberState.UNKNOWN
    return Current(
        member_id,
        ConsumerMember(
            member_id,
            epoch=epoch,
            previous_epoch=value["previousMemberEpoch"],
            state=state,
            assigned=_read_owned(value["assignedPartitions"], epoch),
            revoking=_read_owned(value["partitionsPendingRevocation"], epoch),
        ),
    )


def _read_owned(rows: Iterable[Mapping[str, Any]], epoch: int) -> Owned:
    """Records of before 4.4 have no epochs of assignment."""
    found: dict[uuid.UUID, dict[int, int]] = {}
    for row in rows:
        partitions, epochs = row["partitions"], row["assignmentEpochs"]
        if epochs is None or len(epochs) != len(partitions):
            epochs = [max(epoch, 0)] * len(partitions)
        found[parse_uuid(row["topicId"])] = hash_map(dict(zip(partitions, epochs, strict=True)), int_hash)
    return hash_map(found, uuid_hash)


def owned_as_stored(owned: Owned) -> Owned:
    """In the order in which Kafka has it once the record is applied."""
    return hash_map({topic_id: hash_map(each, int_hash) for topic_id, each in owned.items()}, uuid_hash)


def _owned_rows(owned: Owned) -> list[dict[str, Any]]:
    return [
        {"topicId": uuid_text(topic_id), "partitions": list(epochs), "assignmentEpochs": list(epochs.values())}
        for topic_id, epochs in owned.items()
    ]


def _read_epoch(key: Mapping[str, Any], value: Mapping[str, Any] | None) -> Epoch:
    return Epoch(None) if value is None else Epoch(value["epoch"], value["metadataHash"])


def _read_target_epoch(key: Mapping[str, Any], value: Mapping[str, Any] | None) -> TargetEpoch:
    return TargetEpoch(None) if value is None else TargetEpoch(value["assignmentEpoch"], value["assignmentTimestamp"])


def _read_partition_metadata(key: Mapping[str, Any], value: Mapping[str, Any] | None) -> PartitionMetadata:
    return PartitionMetadata(value is not None)


def _read_regex(key: Mapping[str, Any], value: Mapping[str, Any] | None) -> Regex:
    regex = key["regularExpression"]
    if value is None:
        return Regex(regex)
    return Regex(regex, ResolvedRegex(frozenset(value["topics"]), value["version"], value["timestamp"]))


_READERS: dict[int, Callable[[Mapping[str, Any], Mapping[str, Any] | None], Change]] = {
    EPOCH: _read_epoch,
    PARTITION_METADATA: _read_partition_metadata,
    MEMBER: _read_member,
    TARGET_EPOCH: _read_target_epoch,
    TARGET: _read_target,
    CURRENT: _read_current,
    REGEX: _read_regex,
}
