"""Changes of a streams group: each is one record of `__consumer_offsets` (Kafka's StreamsCoordinatorRecordHelpers).

As in `consumer.changes`, what is written and what is loaded pass through the same classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from compactd.storage.metadata.offsets import encode_offsets_record
from compactd.workers.broker.groups.records import KeyValue
from compactd.workers.broker.groups.streams.member import MemberState, StreamsMember
from compactd.workers.broker.groups.streams.tasks import OwnedTasks, OwnedTuple, Tasks, TaskTuple
from compactd.workers.broker.groups.streams.topology import Topology

#: Record types.
EPOCH, MEMBER, TARGET_EPOCH, TARGET, CURRENT, TOPOLOGY = 17, 19, 20, 21, 22, 23
TYPES = frozenset((EPOCH, MEMBER, TARGET_EPOCH, TARGET, CURRENT, TOPOLOGY))


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the group's epoch stands for."""

    epoch: int
    metadata_hash: int = 0
    #: Epoch of the topology whose topics are all there; -1: none.
    validated_topology_epoch: int = -1
    #: Settings that the assignment depends on, sorted.
    configs: tuple[tuple[str, str], ...] = ()
    #: Of what a plugin was told of the topology; -1: nothing. Kept for Kafka.
    stored_description_epoch: int = -1
    failed_description_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Epoch:
    """The group's epoch; None: the group ends."""

    metadata: Metadata | None

    @property
    def is_tombstone(self) -> bool:
        return self.metadata is None

    def record(self, group_id: str) -> KeyValue:
        value = None
        if self.metadata is not None:
            value = {
                "epoch": self.metadata.epoch,
                "metadataHash": self.metadata.metadata_hash,
                "validatedTopologyEpoch": self.metadata.validated_topology_epoch,
                "lastAssignmentConfigs": [{"key": key, "value": each} for key, each in self.metadata.configs],
                "storedDescriptionTopologyEpoch": self.metadata.stored_description_epoch,
                "failedDescriptionTopologyEpoch": self.metadata.failed_description_epoch,
            }
        return encode_offsets_record(EPOCH, {"groupId": group_id}, 0, value)


@dataclass(frozen=True, slots=True)
class MemberSaid:
    """What a member said of itself; member None: it is gone."""

    member_id: str
    member: StreamsMember | None = None

    @property
    def is_tombstone(self) -> bool:
        return self.member is None

    def record(self, group_id: str) -> KeyValue:
        value: dict[str, Any] | None = None
        if self.member is not None:
            member = self.member
            value = {
                "instanceId": member.instance_id,
                "rackId": member.rack_id,
                "clientId": member.client_id,
                "clientHost": member.client_host,
                "rebalanceTimeoutMs": member.rebalance_timeout_ms,
                "topologyEpoch": member.topology_epoch,
                "processId": member.process_id,
                "userEndpoint": None
                if member.endpoint is None
                else {"host": member.endpoint[0], "port": member.endpoint[1]},
                "clientTags": [{"key": key, "value": each} for key, each in sorted(member.client_tags.items())],
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
    tasks: TaskTuple | None = None

    @property
    def is_tombstone(self) -> bool:
        return self.tasks is None

    def record(self, group_id: str) -> KeyValue:
        value = None
        if self.tasks is not None:
            value = {
                "activeTasks": _rows(self.tasks.active),
                "standbyTasks": _rows(self.tasks.standby),
                "warmupTasks": _rows(self.tasks.warmup),
            }
        return encode_offsets_record(TARGET, {"groupId": group_id, "memberId": self.member_id}, 0, value)


@dataclass(frozen=True, slots=True)
class Current:
    """What a member has; None: nothing any more. Of `member` the epochs, the state and the tasks count."""

    member_id: str
    member: StreamsMember | None = None

    @property
    def is_tombstone(self) -> bool:
        return self.member is None

    def record(self, group_id: str) -> KeyValue:
        value = None
        if self.member is not None:
            assigned, revoking = self.member.assigned, self.member.revoking
            value = {
                "memberEpoch": self.member.epoch,
                "previousMemberEpoch": self.member.previous_epoch,
                "state": int(self.member.state),
                "activeTasks": _owned_rows(assigned.active),
                "standbyTasks": _epochless_rows(assigned.standby),
                "warmupTasks": _epochless_rows(assigned.warmup),
                "activeTasksPendingRevocation": _owned_rows(revoking.active),
                "standbyTasksPendingRevocation": _epochless_rows(revoking.standby),
                "warmupTasksPendingRevocation": _epochless_rows(revoking.warmup),
            }
        return encode_offsets_record(CURRENT, {"groupId": group_id, "memberId": self.member_id}, 0, value)


@dataclass(frozen=True, slots=True)
class TopologySaid:
    """The topology of the group's application; None: the group ends."""

    topology: Topology | None

    @property
    def is_tombstone(self) -> bool:
        return self.topology is None

    def record(self, group_id: str) -> KeyValue:
        value = None if self.topology is None else self.topology.record()
        return encode_offsets_record(TOPOLOGY, {"groupId": group_id}, 0, value)


Change = Epoch | MemberSaid | TargetEpoch | Target | Current | TopologySaid


def records_of(group_id: str, changes: Iterable[Change]) -> list[KeyValue]:
    """What is to be written."""
    return [change.record(group_id) for change in changes]


def change_of(number: int, key: Mapping[str, Any], value: Mapping[str, Any] | None) -> Change:
    """The change that a decoded record says."""
    return _READERS[number](key, value)


def _rows(tasks: Tasks) -> list[dict[str, Any]]:
    return [
        {"subtopologyId": subtopology, "partitions": sorted(partitions)}
        for subtopology, partitions in sorted(tasks.items())
    ]


def _epochless_rows(tasks: Tasks) -> list[dict[str, Any]]:
    return [{**row, "assignmentEpochs": []} for row in _rows(tasks)]


def _owned_rows(owned: OwnedTasks) -> list[dict[str, Any]]:
    return [
        {
            "subtopologyId": subtopology,
            "partitions": sorted(epochs),
            "assignmentEpochs": [epochs[partition] for partition in sorted(epochs)],
        }
        for subtopology, epochs in sorted(owned.items())
    ]


def _read_epoch(_: Mapping[str, Any], value: Mapping[str, Any] | None) -> Epoch:
    if value is None:
        return Epoch(None)
    configs = value["lastAssignmentConfigs"] or ()
    return Epoch(
        Metadata(
            value["epoch"],
            value["metadataHash"],
            value["validatedTopologyEpoch"],
            tuple(sorted((each["key"], each["value"]) for each in configs)),
            value["storedDescriptionTopologyEpoch"],
            value["failedDescriptionTopologyEpoch"],
        )
    )


def _read_member(key: Mapping[str, Any], value: Mapping[str, Any] | None) -> MemberSaid:
    member_id = key["memberId"]
    if value is None:
        return MemberSaid(member_id)
    endpoint = value["userEndpoint"]
    return MemberSaid(
        member_id,
        StreamsMember(
            member_id,
            instance_id=value["instanceId"],
            rack_id=value["rackId"],
            client_id=value["clientId"],
            client_host=value["clientHost"],
            rebalance_timeout_ms=value["rebalanceTimeoutMs"],
            topology_epoch=value["topologyEpoch"],
            process_id=value["processId"],
            endpoint=None if endpoint is None else (endpoint["host"], endpoint["port"]),
            client_tags={each["key"]: each["value"] for each in value["clientTags"]},
        ),
    )


def _read_target_epoch(_: Mapping[str, Any], value: Mapping[str, Any] | None) -> TargetEpoch:
    return TargetEpoch(None) if value is None else TargetEpoch(value["assignmentEpoch"], value["assignmentTimestamp"])


def _read_target(key: Mapping[str, Any], value: Mapping[str, Any] | None) -> Target:
    if value is None:
        return Target(key["memberId"])
    tasks = TaskTuple(*(_read_tasks(value[name]) for name in ("activeTasks", "standbyTasks", "warmupTasks")))
    return Target(key["memberId"], tasks)


def _read_current(key: Mapping[str, Any], value: Mapping[str, Any] | None) -> Current:
    member_id = key["memberId"]
    if value is None:
        return Current(member_id)
    epoch = value["memberEpoch"]
    try:
        state = MemberState(value["state"])
    except ValueError:
        state = MemberState.UNKNOWN

    def read(suffix: str) -> OwnedTuple:
        return OwnedTuple(
            _read_owned(value[f"activeTasks{suffix}"], epoch),
            _read_tasks(value[f"standbyTasks{suffix}"]),
            _read_tasks(value[f"warmupTasks{suffix}"]),
        )

    return Current(
        member_id,
        StreamsMember(
            member_id,
            epoch=epoch,
            previous_epoch=value["previousMemberEpoch"],
            state=state,
            assigned=read(""),
            revoking=read("PendingRevocation"),
        ),
    )


def _read_tasks(rows: Iterable[Mapping[str, Any]]) -> Tasks:
    return {row["subtopologyId"]: frozenset(row["partitions"]) for row in rows}


def _read_owned(rows: Iterable[Mapping[str, Any]], epoch: int) -> OwnedTasks:
    """Where epochs are missing, or are too many or too few, that of the member stands in."""
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        partitions, epochs = row["partitions"], row["assignmentEpochs"]
        if epochs is None or len(epochs) != len(partitions):
            epochs = [epoch] * len(partitions)
        found[row["subtopologyId"]] = dict(zip(partitions, epochs, strict=True))
    return found


def _read_topology(_: Mapping[str, Any], value: Mapping[str, Any] | None) -> TopologySaid:
    return TopologySaid(None if value is None else Topology.of_record(value))


_READERS: dict[int, Callable[[Mapping[str, Any], Mapping[str, Any] | None], Change]] = {
    EPOCH: _read_epoch,
    MEMBER: _read_member,
    TARGET_EPOCH: _read_target_epoch,
    TARGET: _read_target,
    CURRENT: _read_current,
    TOPOLOGY: _read_topology,
}
