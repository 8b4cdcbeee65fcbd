"""A streams group as StreamsGroupDescribe shows it (Kafka's StreamsGroup.asDescribedGroup)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.java import listed
from compactd.workers.broker.groups.streams.group import StreamsGroup
from compactd.workers.broker.groups.streams.member import StreamsMember, TaskOffsets
from compactd.workers.broker.groups.streams.planning import server_error
from compactd.workers.broker.groups.streams.tasks import TaskTuple, task_rows
from compactd.workers.broker.transactions.java_order import string_hash


def described(group: StreamsGroup, log_end: int, assignor: str) -> dict[str, Any]:
    """The group's fields; `log_end`: of its partition. GroupError: it has no topology, as a damaged log may have it."""
    configured = group.shown_topology(log_end)
    if configured is not None and configured.is_ready:
        topology = configured.described()
    elif group.topology is not None:
        topology = group.topology.described()
    else:
        raise server_error()
    return {
        "error_code": ErrorCode.NONE,
        "group_id": group.group_id,
        "group_state": str(group.phase),
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "topology": topology,
        "members": [_member(group, group.members[member_id]) for member_id in group.members.listed()],
        "assignor_name": assignor,
    }


def topics_of(group: Mapping[str, Any]) -> set[str]:
    """All topics of a described group."""
    topology = group.get("topology")
    if topology is None:
        return set()
    return {
        name
        for each in topology["subtopologies"]
        for name in (
            *each["source_topics"],
            *each["repartition_sink_topics"],
            *(topic["name"] for topic in (*each["repartition_source_topics"], *each["state_changelog_topics"])),
        )
    }


def _member(group: StreamsGroup, member: StreamsMember) -> dict[str, Any]:
    offsets = group.task_offsets.get(member.member_id, TaskOffsets())
    endpoint = member.endpoint
    return {
        "member_id": member.member_id,
        "member_epoch": member.epoch,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "topology_epoch": member.topology_epoch,
        "process_id": member.process_id,
        "user_endpoint": None if endpoint is None else {"host": endpoint[0], "port": endpoint[1]},
        "client_tags": [
            {"key": key, "value": member.client_tags[key]} for key in listed(sorted(member.client_tags), string_hash)
        ],
        "task_offsets": _offset_rows(offsets.reached),
        "task_end_offsets": _offset_rows(offsets.ends),
        "assignment": _assignment(member.assigned.without_epochs()),
        "target_assignment": _assignment(group.target_of(member.member_id)),
        "is_classic": False,
    }


def _assignment(tasks: TaskTuple) -> dict[str, Any]:
    return {
        "active_tasks": task_rows(dict(sorted(tasks.active.items()))),
        "standby_tasks": task_rows(dict(sorted(tasks.standby.items()))),
        "warmup_tasks": task_rows(dict(sorted(tasks.warmup.items()))),
    }


def _offset_rows(offsets: Mapping[str, Mapping[int, int]]) -> list[dict[str, Any]]:
    return [
        {"subtopology_id": subtopology, "partition": partition, "offset": offset}
        for subtopology, by_partition in sorted(offsets.items())
        for partition, offset in sorted(by_partition.items())
    ]
