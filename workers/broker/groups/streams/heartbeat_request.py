"""What members of streams groups ask in a heartbeat and are told, and what is refused at first sight."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.heartbeat_request import check_not_empty, invalid
from compactd.workers.broker.groups.consumer.member import JOINING, LEAVING_STATIC
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.streams.configured import InternalTopic
from compactd.workers.broker.groups.streams.member import Endpoint
from compactd.workers.broker.groups.streams.tasks import OwnedTuple, Tasks, TaskTuple, in_java_order, task_rows
from compactd.workers.broker.groups.streams.topology import Topology

#: (subtopology id, partition, offset)
TaskOffset = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A request. None: nothing changed, or nothing said; -1 for the timeout."""

    group_id: str
    member_id: str
    epoch: int
    endpoint_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Topology | None = None
    #: Each as it was said: a role may be missing, and be refused for that.
    active: Tasks | None = None
    standby: Tasks | None = None
    warmup: Tasks | None = None
    process_id: str | None = None
    endpoint: Endpoint | None = None
    client_tags: Sequence[tuple[str, str]] | None = None
    task_offsets: Sequence[TaskOffset] | None = None
    task_end_offsets: Sequence[TaskOffset] | None = None
    shutdown: bool = False
    client_id: str = ""
    client_host: str = ""
    #: Whether the client knows all that it may be told: version 1.
    knows_tags: bool = False

    @property
    def owned(self) -> TaskTuple | None:
        """What it says that it has; None: it did not say."""
        if self.active is None or self.standby is None or self.warmup is None:
            return None
        return TaskTuple(self.active, self.standby, self.warmup)


@dataclass(slots=True)
class HeartbeatAnswer:
    """What the member is told; `assigned` None: as before. Times in ms."""

    member_id: str
    epoch: int
    interval_ms: int = 0
    task_offset_interval_ms: int = 0
    #: -1: not told.
    acceptable_lag: int = -1
    assigned: OwnedTuple | None = None
    endpoint_epoch: int = 0
    #: Rows of members that may be asked for their state; None: as before.
    endpoints: list[dict[str, Any]] | None = None
    #: (code, text)
    status: list[tuple[int, str]] = field(default_factory=list)
    #: Internal topics that the topology needs still.
    missing: Mapping[str, InternalTopic] = field(default_factory=dict)


def check(request: Heartbeat) -> None:
    """What no group has to be looked at for. GroupError."""
    topology = request.topology
    if topology is not None and any(each.source_topic_regex for each in topology.subtopologies):
        raise invalid("Regular expressions for source topics are not supported yet.")
    check_not_empty(request.member_id, "MemberId")
    check_not_empty(request.group_id, "GroupId")
    check_not_empty(request.instance_id, "InstanceId")
    check_not_empty(request.rack_id, "RackId")
    if request.epoch == JOINING:
        if request.rebalance_timeout_ms == -1:
            raise invalid("RebalanceTimeoutMs must be provided in first request.")
        _check_no_tasks(request.active, "ActiveTasks")
        _check_no_tasks(request.standby, "StandbyTasks")
        _check_no_tasks(request.warmup, "WarmupTasks")
        if topology is None:
            raise invalid("Topology must be non-null when (re-)joining.")
        _check_changelogs(topology)
    elif request.epoch == LEAVING_STATIC:
        if request.instance_id is None:
            raise invalid("InstanceId can't be null.")
    elif request.epoch < LEAVING_STATIC:
        raise invalid(f"MemberEpoch is {request.epoch}, but must be greater than or equal to -2.")
    roles = (request.active, request.standby, request.warmup)
    if any(role is not None for role in roles) and any(role is None for role in roles):
        raise invalid("If one task-type is non-null, all must be non-null.")
    if request.epoch != JOINING and topology is not None:
        raise invalid("Topology can only be provided when (re-)joining.")


def _check_no_tasks(tasks: Collection[str] | None, name: str) -> None:
    if tasks is None or tasks:
        raise invalid(f"{name} must be empty when (re-)joining.")


def _check_changelogs(topology: Topology) -> None:
    for subtopology in topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
            if topic.partitions != 0:
                raise GroupError(
                    ErrorCode.STREAMS_INVALID_TOPOLOGY,
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}.",
                )


def answer_rows(answer: HeartbeatAnswer, version: int) -> dict[str, Any]:
    """The answer's fields."""
    rows: dict[str, Any] = {
        "error_code": ErrorCode.NONE,
        "member_id": answer.member_id,
        "member_epoch": answer.epoch,
        "heartbeat_interval": answer.interval_ms,
        "task_offset_interval": answer.task_offset_interval_ms,
        # Version 0 has a field of this name that Kafka does not fill any more.
        "acceptable_recovery_lag": answer.acceptable_lag if version >= 1 else 0,
        "status": [{"status_code": code, "status_detail": text} for code, text in answer.status],
        "active_tasks": None,
        "standby_tasks": None,
        "warmup_tasks": None,
        "endpoint_information_epoch": answer.endpoint_epoch,
        "partitions_by_user_endpoint": answer.endpoints,
    }
    if answer.assigned is not None:
        rows["active_tasks"] = task_rows(in_java_order(answer.assigned.active))
        rows["standby_tasks"] = task_rows(in_java_order(answer.assigned.standby))
        rows["warmup_tasks"] = task_rows(in_java_order(answer.assigned.warmup))
    return rows
