"""Streams groups (KIP-1071): what is refused, a member that comes and goes, and what is described of it."""

from __future__ import annotations

from typing import Any

from tests.integration.answers.recording import Recording, span
from tests.workers.broker.streams_requests import internal, owned, subtopology, tasks, topology

STREAMS_GROUP_HEARTBEAT, STREAMS_GROUP_DESCRIBE, STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = APIS = (88, 89, 93)
_FIND_COORDINATOR, _DESCRIBE_GROUPS, _LIST_GROUPS, _DELETE_GROUPS = 10, 15, 16, 42


def streams(script: Recording) -> None:
    script.create("read-by-streams", 2)
    found = {"key_type": 0, "coordinator_keys": ["s0"]}
    script.until(_FIND_COORDINATOR, 6, found, lambda answer: answer.coordinators[0].error_code == 0, "a coordinator")
    asked = {"group_ids": ["s0"], "include_authorized_operations": False}
    script.until(
        STREAMS_GROUP_DESCRIBE, 1, asked, lambda answer: answer.groups[0].error_code == 69, "its groups are loaded"
    )  # fmt: skip
    for version in span(STREAMS_GROUP_HEARTBEAT):
        _refused(script, version)
        _life(script, version)
    for kind in ("streams", "Streams"):
        script.each(f"of {kind}", _LIST_GROUPS, {"types_filter": [kind]}, lowest=5)
    description = {"subtopologies": [], "global_stores": []}
    for group in ("s0", "none"):
        body = {"group_id": group, "member_id": "m", "topology_epoch": 0, "topology_description": description}
        script.each(f"of {group}", STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, body)
    script.ask("streams groups", _DELETE_GROUPS, 3, {"groups_names": ["s0", "s1"]})


def _beat(group: str, member: str, epoch: int, **more: Any) -> dict[str, Any]:
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
        reads = topology(subtopology("0", "read-by-streams"))
        body |= {"rebalance_timeout": 10_000, "topology": reads, "process_id": "p", "client_tags": [], **owned()}
    return body | more


def _refused(script: Recording, version: int) -> None:
    for change in (
        {"group_id": ""}, {"member_id": ""}, {"rebalance_timeout": -1}, {"topology": None}, {"active_tasks": None},
        {"active_tasks": tasks(s0=[0])}, {"instance_id": ""}, {"rack_id": ""}, {"member_epoch": 5},
        {"member_epoch": 5, "topology": None}, {"member_epoch": -1, "topology": None},
        {"member_epoch": -2, "topology": None}, {"member_epoch": -3, "topology": None},
        {"topology": topology(subtopology(source_topic_regex=["a.*"]))},
        {"topology": topology(subtopology(state_changelog_topics=[internal("c", 2)]))},
        {"topology": topology(subtopology("0", "__consumer_offsets"))}, {"topology": topology(subtopology("0", "a b"))},
    ):  # fmt: skip
        body = {**_beat(f"bad{version}", "m", 0), **change}
        script.ask(f"join {change}", STREAMS_GROUP_HEARTBEAT, version, body)
    lost = {"topology": topology(subtopology("0", "nowhere")), "user_endpoint": {"host": "h", "port": 1}}
    group = f"lost{version}"
    script.ask("endpoint without topics", STREAMS_GROUP_HEARTBEAT, version, _beat(group, "m", 0, **lost))
    # Where it could join.
    script.quietly(STREAMS_GROUP_HEARTBEAT, version, _beat(group, "m", -1))
    script.quietly(_DELETE_GROUPS, 3, {"groups_names": [group]})


def _life(script: Recording, version: int) -> None:
    group, member = f"s{version}", f"member-{version}"

    def ask(label: str, body: dict[str, Any]) -> Any:
        return script.ask(label, STREAMS_GROUP_HEARTBEAT, version, body)

    def described(label: str) -> None:
        body = {
            "group_ids": [group, "none", ""],
            "include_authorized_operations": True,
            "include_topology_description": True,
        }
        script.ask(label, STREAMS_GROUP_DESCRIBE, version, body)
        script.each(label, _DESCRIBE_GROUPS, {"groups": [group]})

    endpoint = {"user_endpoint": {"host": "h", "port": 8080}}
    tags = {"client_tags": [{"key": "zone", "value": "z"}]}
    ask("join", _beat(group, member, 0, **endpoint, **tags))
    described("waits")
    ask("heartbeat", _beat(group, member, 1))
    described("waits on")
    body = {"group_ids": [group], "include_authorized_operations": False}
    script.until(
        STREAMS_GROUP_DESCRIBE, 1, body, lambda answer: answer.groups[0].assignment_epoch > 1, "an assignment"
    )  # fmt: skip
    epoch = ask("assigned", _beat(group, member, 1)).member_epoch
    offset = {"subtopology_id": "0", "partition": 1, "offset": 7}
    ask("owns", _beat(group, member, epoch, task_offsets=[offset], **owned(tasks(s0=[0, 1]))))
    ask("knows where", _beat(group, member, epoch, endpoint_information_epoch=1))
    described("works")
    ask("joins again", _beat(group, member, 0, **tags))
    for more in ({"member_epoch": epoch + 5}, {"member_id": "nobody"}, {"group_id": "none"}, {"instance_id": "i"}):
        ask(f"heartbeat {sorted(more)}", _beat(group, member, epoch) | more)
    ask("owns too much", _beat(group, member, epoch, **owned(tasks(s0=[2]))))
    ask("another topology", _beat(group, "other", 0, topology=topology(subtopology("0", "nowhere"))))
    ask("leave", _beat(group, member, -1))
    ask("leave again", _beat(group, member, -1))
    described("is empty")
