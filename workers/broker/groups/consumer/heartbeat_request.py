"""What members ask in a heartbeat and are told, and what is refused at first sight (facts: kafka-protocol 14.2)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.member import JOINING, LEAVING, LEAVING_STATIC, Owned
from compactd.workers.broker.groups.member import GroupError


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A request. None: nothing changed; -1 for the timeout."""

    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: Sequence[str] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Mapping[uuid.UUID, Sequence[int]] | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """It says everything, as a member does that is not sure what was heard of it."""
        has_subscription = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What the member is told; `assigned` None: as before."""

    member_id: str
    epoch: int
    interval_ms: int = 0
    assigned: Owned | None = None


def check(request: Heartbeat, version: int, assignors: Sequence[str]) -> None:
    """What no group has to be looked at for. GroupError."""
    if version >= 1 or request.epoch > 0 or request.epoch == LEAVING:
        check_not_empty(request.member_id, "MemberId")
    check_not_empty(request.group_id, "GroupId")
    check_not_empty(request.instance_id, "InstanceId")
    check_not_empty(request.rack_id, "RackId")
    if request.epoch == JOINING:
        if request.rebalance_timeout_ms == -1:
            raise invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise invalid("TopicPartitions must be empty when (re-)joining.")
        if request.topic_names is None and request.topic_regex is None:
            raise invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )  # fmt: skip
    elif request.epoch == LEAVING_STATIC:
        if request.instance_id is None:
            raise invalid("InstanceId can't be null.")
    elif request.epoch < LEAVING_STATIC:
        raise invalid("MemberEpoch is invalid.")
    if request.assignor is not None and request.assignor not in assignors:
        raise GroupError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def check_not_empty(value: str | None, name: str) -> None:
    """GroupError where a text is there, but blank."""
    # Java's trim takes away everything up to the space.
    if value is not None and not value.strip("".join(map(chr, range(33)))):
        raise invalid(f"{name} can't be empty.")


def invalid(message: str) -> GroupError:
    """INVALID_REQUEST."""
    return GroupError(ErrorCode.INVALID_REQUEST, message)


def answer_rows(answer: HeartbeatAnswer) -> dict[str, Any]:
    """The answer's fields."""
    assignment = None
    if answer.assigned is not None:
        assignment = {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": list(partitions)}
                for topic_id, partitions in answer.assigned.items()
            ]
        }
    return {
        "error_code": ErrorCode.NONE,
        "member_id": answer.member_id,
        "member_epoch": answer.epoch,
        "heartbeat_interval": answer.interval_ms,
        "assignment": assignment,
    }
