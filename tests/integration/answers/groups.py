"""Groups: coordinators, members of both protocols, offsets, administration."""

from __future__ import annotations

import uuid
from typing import Any

from tests.integration.answers.recording import Recording, span
from tests.workers.broker.test_groups import join_body, sync_body

(OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, DESCRIBE_GROUPS,
 LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE, CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE) = (
    8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47, 68, 69
)  # fmt: skip
APIS = (
    OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, DESCRIBE_GROUPS,
    LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE, CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE,
)  # fmt: skip
_NOWHERE = uuid.UUID(int=5)


def groups(script: Recording) -> None:
    script.create("read", 2)
    everywhere = [f"g{version}" for version in span(JOIN_GROUP)] + ["simple", "none", ""]
    # The one that asks where a coordinator is has its topic made.
    found = {"key_type": 0, "coordinator_keys": ["g"]}
    script.until(FIND_COORDINATOR, 6, found, lambda answer: answer.coordinators[0].error_code == 0, "a coordinator")
    asked = {"groups": [{"group_id": group, "topics": None} for group in everywhere]}
    script.until(
        OFFSET_FETCH, 9, asked, lambda answer: not any(each.error_code for each in answer.groups), "all coordinators"
    )
    for kind in (0, 9):

        def find(version: int, kind: int = kind) -> dict[str, Any]:
            keys = {"coordinator_keys": ["g", ""]} if version >= 4 else {"key": "g"}
            return {"key_type": kind, **keys}

        script.each(f"kind {kind}", FIND_COORDINATOR, find)

    offsets(script)
    for version in span(JOIN_GROUP):
        life(script, version)
    script.each("all", LIST_GROUPS, {})
    script.each("by state", LIST_GROUPS, {"states_filter": ["stable", "Empty"]}, lowest=4)
    script.each("by type", LIST_GROUPS, {"types_filter": ["CLASSIC"]}, lowest=5)
    script.each("by no state", LIST_GROUPS, {"states_filter": ["nonsense"]}, lowest=4)
    consumers(script)
    rows = [{"name": name, "partitions": [{"partition_index": 0}, {"partition_index": 7}]} for name in ("read", "no")]
    for group in ("simple", "none", "", "g9"):
        script.each(f"of {group!r}", OFFSET_DELETE, {"group_id": group, "topics": rows})
    for version in span(DELETE_GROUPS):
        names = [f"g{version}", "none", "simple", "k1", ""]
        script.ask("some", DELETE_GROUPS, version, {"groups_names": names})


def offsets(script: Recording) -> None:
    """Of groups without members."""

    def commit(group: str, member: str = "", generation: int = -1, **more: Any) -> Any:
        def make(version: int) -> dict[str, Any]:
            row = {"partition_index": 0, "committed_offset": 3, "committed_metadata": f"v{version}", **more}
            topics = [
                {
                    "name": name,
                    "topic_id": script.ids.get(name, _NOWHERE),
                    "partitions": [row, {**row, "partition_index": 7}],
                }
                for name in ("read", "no")
            ]
            given = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": member}
            return {**given, "retention_time": -1, "topics": topics}

        return make

    def fetch(*group: str, topics: Any = "some", **more: Any) -> Any:
        def make(version: int) -> dict[str, Any]:
            rows = None if topics is None else [
                {"name": name, "topic_id": script.ids.get(name, _NOWHERE), "partition_indexes": [0, 1, 7]}
                for name in ("read", "no")
            ]  # fmt: skip
            if version >= 8:
                return {"groups": [{"group_id": each, "topics": rows, **more} for each in group]}
            return {"group_id": group[0], "topics": rows}

        return make

    for group, member, generation in (("simple", "", -1), ("none", "m", 3), ("none", "", 3), ("", "", -1)):
        script.each(f"{group!r} {member!r} {generation}", OFFSET_COMMIT, commit(group, member, generation))
    script.each("large metadata", OFFSET_COMMIT, commit("simple", committed_metadata="x" * 4097))
    for group in (("simple",), ("none",), ("",), ("simple", "none")):
        script.each(f"of {group}", OFFSET_FETCH, fetch(*group))
        script.each(f"all of {group}", OFFSET_FETCH, fetch(*group, topics=None), lowest=2)
    script.each("of a member", OFFSET_FETCH, fetch("simple", member_id="m", member_epoch=3), lowest=9)


def life(script: Recording, version: int) -> None:
    """A member of a classic group, with version of JoinGroup and what goes with it."""
    group = f"g{version}"

    def ask(label: str, api: int, body: dict[str, Any]) -> Any:
        return script.ask(f"{group}, {label}", api, min(version, span(api)[-1]), body)

    for change in (
        {"group_id": ""}, {"session_timeout": 5999}, {"session_timeout": 1_800_001}, {"member_id": "nobody"},
        {"protocols": []}, {"protocol_type": ""},
    ):  # fmt: skip
        ask(f"join {change}", JOIN_GROUP, {**join_body(group), **change})
    joined = ask("join", JOIN_GROUP, join_body(group))
    if joined.error_code == 79:
        joined = ask("join with id", JOIN_GROUP, join_body(group, joined.member_id))
    member, generation = joined.member_id, joined.generation_id
    for more in ({"generation_id": 9}, {"member_id": "nobody"}, {"protocol_name": "x"}, {"group_id": "none"}, {}):
        ask(f"sync {more}", SYNC_GROUP, {**sync_body(group, member, generation, it=b"mine"), **more})
    for who in ((member, generation), (member, generation + 1), ("nobody", generation), ("", -1)):
        body = {"group_id": group, "member_id": who[0], "generation_id": who[1]}
        ask(f"heartbeat {who[1]} {who[0][:3]}", HEARTBEAT, body)
        rows = [{"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}]
        topics = [{"name": "read", "topic_id": script.ids["read"], "partitions": rows}]
        given = {"group_id": group, "member_id": who[0], "generation_id_or_member_epoch": who[1]}
        script.ask(
            f"{group}, commit {who[1]} {who[0][:3]}",
            OFFSET_COMMIT,
            max(2, version),
            {**given, "retention_time": -1, "topics": topics},
        )
    ask("describe", DESCRIBE_GROUPS, {"groups": [group, "none", ""], "include_authorized_operations": True})
    script.each(f"{group}, delete", DELETE_GROUPS, {"groups_names": [group]})
    for name in ("nobody", member):
        ask(f"leave {name[:3]}", LEAVE_GROUP, {"group_id": group, "member_id": name, "members": [{"member_id": name}]})
    ask("leave none", LEAVE_GROUP, {"group_id": "none", "member_id": member, "members": [{"member_id": member}]})
    ask("describe after", DESCRIBE_GROUPS, {"groups": [group]})


def consumers(script: Recording) -> None:
    """Members of the new protocol."""

    def beat(group: str, member: str, epoch: int, **more: Any) -> dict[str, Any]:
        return {"group_id": group, "member_id": member, "member_epoch": epoch, **more}

    join = {"rebalance_timeout": 10_000, "subscribed_topic_names": ["read"], "topic_partitions": []}
    for version in span(CONSUMER_GROUP_HEARTBEAT):
        group, member = f"k{version}", f"member-{version}"

        def ask(label: str, body: dict[str, Any], version: int = version) -> Any:
            return script.ask(label, CONSUMER_GROUP_HEARTBEAT, version, body)

        for change in (
            {"group_id": ""}, {"member_id": ""}, {"rebalance_timeout": -1}, {"subscribed_topic_names": None},
            {"topic_partitions": None}, {"server_assignor": "nosuch"}, {"instance_id": ""}, {"rack_id": ""},
            {"member_epoch": 5}, {"member_epoch": -1}, {"member_epoch": -2}, {"member_epoch": -3},
            {"subscribed_topic_regex": "("}, {"subscribed_topic_names": [], "topic_partitions": []},
        ):  # fmt: skip
            if version == 0 and change.get("member_id") == "":
                continue  # version 0 takes it: the broker makes an id
            ask(f"join {change}", {**beat(f"bad{version}", member, 0, **join), **change})
        # Some of these may join.
        ask("leave what was joined so", beat(f"bad{version}", member, -1))
        joined = ask("join", beat(group, member, 0, **join))
        epoch = joined.member_epoch
        ask("heartbeat", beat(group, member, epoch))
        mine = [{"topic_id": script.ids["read"], "partitions": [0, 1]}]
        ask("owns", beat(group, member, epoch, topic_partitions=mine))
        for more in (
            {"member_epoch": epoch + 5},
            {"member_id": "nobody"},
            {"group_id": "none"},
            {"group_id": "simple"},
        ):
            ask(f"heartbeat {sorted(more)}", {**beat(group, member, epoch), **more})
        body = {"group_ids": [group, "none", "simple", ""], "include_authorized_operations": True}
        script.ask("describe", CONSUMER_GROUP_DESCRIBE, version, body)
        script.each(f"{group}", DESCRIBE_GROUPS, {"groups": [group]})
        ask("leave", beat(group, member, -1))
        ask("leave again", beat(group, member, -1))
    script.each("with types", LIST_GROUPS, {"types_filter": ["consumer"]}, lowest=5)
