"""Requests of streams groups for tests, and what their answers say in short."""

from __future__ import annotations

from typing import Any

from tests.workers.broker.harness import RawClient

BEAT, DESCRIBE_STREAMS, UPDATE_DESCRIPTION = 88, 89, 93

#: Nothing is waited for.
QUICK = {
    "group.streams.min.session.timeout.ms": 500,
    "group.streams.session.timeout.ms": 45_000,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.heartbeat.interval.ms": 100,
    "group.streams.assignment.interval.ms": 0,
    "group.streams.initial.rebalance.delay.ms": 0,
}


def subtopology(number: str = "0", *sources: str, **more: Any) -> dict[str, Any]:
    return {
        "subtopology_id": number,
        "source_topics": list(sources or ("t",)),
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
        **more,
    }


def topology(*subtopologies: dict[str, Any], epoch: int = 0) -> dict[str, Any]:
    return {"epoch": epoch, "subtopologies": list(subtopologies or (subtopology(),))}


def internal(name: str, partitions: int = 0, replication_factor: int = 0, **configs: str) -> dict[str, Any]:
    rows = [{"key": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {
        "name": name,
        "partitions": partitions,
        "replication_factor": replication_factor,
        "topic_configs": rows,
    }


def beat(client: RawClient, member: str, epoch: int, *, group: str = "g", version: int = 1, **more: Any) -> Any:
    body: dict[str, Any] = {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "endpoint_information_epoch": -1,
        "active_tasks": None,
        "standby_tasks": None,
        "warmup_tasks": None,
        "client_tags": None,
        "task_offsets": None,
        "task_end_offsets": None,
    }
    if epoch == 0:
        body |= {
            "rebalance_timeout": 300_000,
            "topology": topology(),
            "process_id": f"process-of-{member}",
            "client_tags": [],
            **owned(),
        }
    return client.ask(BEAT, version, body | more)


def tasks(**subtopologies: list[int]) -> list[dict[str, Any]]:
    """Of `s0=[1, 2]`: tasks 1 and 2 of subtopology "0"."""
    return [{"subtopology_id": name[1:], "partitions": numbers} for name, numbers in subtopologies.items()]


def owned(
    active: list[dict[str, Any]] | None = None, standby: list[dict[str, Any]] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """What a member says that it has."""
    return {"active_tasks": active or [], "standby_tasks": standby or [], "warmup_tasks": []}


def told(answer: Any) -> tuple[int, dict[str, list[int]] | None]:
    """Epoch, and active tasks by subtopology; None: as before."""
    assert answer.error_code == 0, answer
    if answer.active_tasks is None:
        return answer.member_epoch, None
    return answer.member_epoch, {row.subtopology_id: list(row.partitions) for row in answer.active_tasks}


def codes(answer: Any) -> list[int]:
    """The statuses."""
    return [row.status_code for row in answer.status]


def describe(client: RawClient, group: str = "g", version: int = 1, **more: Any) -> Any:
    body = {"group_ids": [group], "include_authorized_operations": False, **more}
    return client.ask(DESCRIBE_STREAMS, version, body).groups[0]
