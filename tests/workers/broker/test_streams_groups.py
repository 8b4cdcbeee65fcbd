"""Streams groups (KIP-1071) over the wire, and what the log holds after each of their heartbeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.streams_requests import (
    QUICK,
    UPDATE_DESCRIPTION,
    beat,
    codes,
    describe,
    internal,
    owned,
    subtopology,
    tasks,
    told,
    topology,
)
from tests.workers.broker.test_consumer_groups import beat as consumer_beat
from tests.workers.broker.test_consumer_groups import log_of, types, until
from tests.workers.broker.test_groups import (
    DELETE,
    DELETE_TOPICS,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST,
    OFFSET_DELETE,
    SYNC,
    commit,
    create,
    fetched,
    found,
    join_body,
    stable,
)

ALL = [0, 1, 2, 3]


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir], QUICK) as running:
        with running.connect() as client:
            create(client, "t", 4)
            create(client, "u", 2)
            found(client, "g")
        yield running


@pytest.fixture
def client(broker: CatalogueBroker) -> Iterator[RawClient]:
    with broker.connect() as connected:
        yield connected


def test_two_members_share_a_topology(broker: CatalogueBroker, client: RawClient) -> None:
    assert told(beat(client, "a", 0)) == (2, {"0": ALL})
    assert told(beat(client, "b", 0)) == (3, {})
    assert told(beat(client, "a", 2)) == (2, {"0": [0, 1]})
    assert describe(client).group_state == "Reconciling"
    assert told(beat(client, "b", 3)) == (3, None)
    # Revoked are the tasks once it says that it has them no more; then the epochs of steps differ from those of consumers.
    assert told(beat(client, "a", 2, **owned(tasks(s0=[0, 1])))) == (3, None)
    assert told(beat(client, "b", 3)) == (3, {"0": [2, 3]})
    assert describe(client).group_state == "Stable"
    left = beat(client, "b", -1)
    assert (left.error_code, left.member_epoch, left.status, left.active_tasks) == (0, -1, (), None)
    assert told(beat(client, "a", 3)) == (4, {"0": ALL})


def test_the_first_batch_and_the_last(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "a", 0, user_endpoint={"host": "h", "port": 8080}, client_tags=[{"key": "zone", "value": "z"}])
    rows = log_of(broker)
    assert types(rows) == [19, 23, 17, 21, 20, 22]
    values = dict(zip(types(rows), [value for _, _, value in rows], strict=True))
    assert values[19] | {"clientHost": "", "clientId": ""} == {
        "instanceId": None,
        "rackId": None,
        "clientId": "",
        "clientHost": "",
        "rebalanceTimeoutMs": 300_000,
        "topologyEpoch": 0,
        "processId": "process-of-a",
        "userEndpoint": {"host": "h", "port": 8080},
        "clientTags": [{"key": "zone", "value": "z"}],
    }
    assert values[17] | {"metadataHash": 0} == {
        "epoch": 2,
        "metadataHash": 0,
        "validatedTopologyEpoch": 0,
        "lastAssignmentConfigs": [{"key": "num.standby.replicas", "value": "0"}],
        "storedDescriptionTopologyEpoch": -1,
        "failedDescriptionTopologyEpoch": -1,
    }
    assert values[17]["metadataHash"] != 0
    assert values[21]["activeTasks"] == [{"subtopologyId": "0", "partitions": ALL}]
    assert values[20]["assignmentEpoch"] == 2 and values[20]["assignmentTimestamp"] > 0
    assert (values[22]["memberEpoch"], values[22]["previousMemberEpoch"], values[22]["state"]) == (2, 0, 1)
    assert values[22]["activeTasks"] == [{"subtopologyId": "0", "partitions": ALL, "assignmentEpochs": [2, 2, 2, 2]}]
    beat(client, "a", -1)
    rows = log_of(broker)[6:]
    assert types(rows) == [-22, -21, -19, 17, 20]
    assert (rows[3][2]["epoch"], rows[3][2]["metadataHash"]) == (3, values[17]["metadataHash"])
    assert rows[4][2] == {"assignmentEpoch": 3, "assignmentTimestamp": 0}
    assert describe(client).group_state == "Empty"
    assert client.ask(DELETE, 3, {"groups_names": ["g"]}).results[0].error_code == 0
    assert types(log_of(broker)[11:]) == [-20, -17, -23]
    assert describe(client).error_code == 69


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"member_id": ""}, 42),
        ({"group_id": ""}, 42),
        ({"instance_id": " "}, 42),
        ({"rack_id": ""}, 42),
        ({"rebalance_timeout": -1}, 42),
        ({"active_tasks": None}, 42),
        ({"active_tasks": tasks(s0=[0])}, 42),
        ({"standby_tasks": tasks(s0=[0])}, 42),
        ({"warmup_tasks": tasks(s0=[0])}, 42),
        ({"topology": None}, 42),
        ({"topology": topology(subtopology(source_topic_regex=["a.*"]))}, 42),
        ({"topology": topology(subtopology(state_changelog_topics=[internal("c", 2)]))}, 130),
        ({"topology": topology(subtopology("0", "__consumer_offsets"))}, 130),
        ({"topology": topology(subtopology("0", "a b"))}, 130),
        ({"member_epoch": -2, "topology": None}, 42),
        ({"member_epoch": -3, "topology": None}, 42),
        ({"member_epoch": 5}, 42),
        ({"member_epoch": 5, "topology": None, "standby_tasks": None}, 42),
        ({"member_epoch": 5, "topology": None}, 69),
        ({"member_epoch": -1, "topology": None}, 69),
    ],
)
def test_what_is_refused(client: RawClient, change: Mapping[str, Any], error: int) -> None:
    answer = beat(client, "a", 0, **change)
    assert answer.error_code == error
    assert answer.error_message
    assert answer.status == ()
    assert describe(client).error_code == 69


def test_members_that_are_fenced(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "a", 0)
    assert beat(client, "who", 2).error_code == 25
    assert beat(client, "a", 3).error_code == 110
    assert beat(client, "a", 1).error_code == 110
    # It joins anew: all is told again.
    assert told(beat(client, "a", 0)) == (2, {"0": ALL})
    beat(client, "b", 0)
    beat(client, "a", 2)
    has = owned(tasks(s0=[0, 1]))
    assert told(beat(client, "a", 2, **has)) == (3, None)
    # The answer with epoch 3 was lost: the one before is as good, with what it has.
    assert told(beat(client, "a", 2, **has)) == (3, None)
    assert beat(client, "a", 2, **owned(tasks(s0=[0, 1, 2]))).error_code == 110
    assert beat(client, "a", 2).error_code == 110


@pytest.mark.parametrize("said", [{"s0": [4]}, {"s0": [-1]}, {"s1": [0]}])
def test_tasks_that_are_none(client: RawClient, said: dict[str, list[int]]) -> None:
    beat(client, "a", 0)
    assert beat(client, "a", 2, **owned(tasks(**said))).error_code == 42
    assert beat(client, "a", 2, **owned(standby=tasks(**said))).error_code == 42


def test_a_topology_stays_what_it_is(client: RawClient) -> None:
    beat(client, "a", 0, topology=topology(epoch=3))
    other = topology(subtopology("0", "u"), epoch=3)
    assert beat(client, "b", 0, topology=other).error_code == 42
    assert beat(client, "b", 0, topology=topology(epoch=4)).error_code == 42
    stale = beat(client, "b", 0, topology=topology(subtopology("0", "u"), epoch=2))
    assert (stale.error_code, codes(stale)) == (0, [0])
    assert stale.status[0].status_detail == "The member's topology epoch 2 is behind the group's topology epoch 3."
    assert describe(client).topology.subtopologies[0].source_topics == ("t",)


def test_a_new_group_waits_for_members(log_dir: Path) -> None:
    settings = {**QUICK, "group.streams.initial.rebalance.delay.ms": 1500}
    with CatalogueBroker([log_dir], settings) as running, running.connect() as client:
        create(client, "t", 4)
        found(client, "g")
        first = beat(client, "a", 0)
        assert (told(first), codes(first)) == ((1, {}), [5])
        assert first.status[0].status_detail == "Assignment delayed due to the configured initial rebalance delay."
        assert codes(beat(client, "b", 0)) == [5]
        assert told(beat(client, "a", 1)) == (1, None)
        assert describe(client).group_state == "Assigning"
        # Nobody has to be heard of for the assignment to be made.
        until(lambda: describe(client).assignment_epoch == 3)
        assert types(log_of(running))[-3:] == [21, 21, 20]
        assert told(beat(client, "a", 1)) == (3, {"0": [0, 2]})
        assert told(beat(client, "b", 1)) == (3, {"0": [1, 3]})


def test_the_assignment_waits_for_its_interval(log_dir: Path) -> None:
    settings = {**QUICK, "group.streams.assignment.interval.ms": 10_000}
    with CatalogueBroker([log_dir], settings) as running, running.connect() as client:
        create(client, "t", 4)
        found(client, "g")
        assert told(beat(client, "a", 0)) == (2, {"0": ALL})
        late = beat(client, "b", 0)
        assert (told(late), codes(late)) == ((2, {}), [5])
        assert late.status[0].status_detail == "Assignment delayed due to the configured assignment interval."
        assert describe(client).group_state == "Assigning"
        running.clock.moved_ms = 11_000
        assert told(beat(client, "a", 2)) == (2, {"0": [0, 1]})
        assert describe(client).assignment_epoch == 3


def test_topics_that_come_and_go(broker: CatalogueBroker, client: RawClient) -> None:
    asked = topology(subtopology("0", "later"))
    missing = beat(client, "a", 0, topology=asked)
    assert (told(missing), codes(missing)) == ((2, {}), [1])
    assert missing.status[0].status_detail == "Source topics later are missing."
    assert describe(client).group_state == "NotReady"
    create(client, "later", 2)
    until(lambda: told(beat(client, "a", describe(client).members[0].member_epoch))[1] == {"0": [0, 1]})
    assert describe(client).group_state == "Stable"
    client.ask(DELETE_TOPICS, 6, {"topics": [{"name": "later", "topic_id": None}], "timeout": 9000})
    until(lambda: codes(beat(client, "a", describe(client).members[0].member_epoch)) == [1])
    assert describe(client).group_state == "NotReady"


def test_internal_topics_are_made(broker: CatalogueBroker, client: RawClient) -> None:
    through = internal("app-through-repartition", retention_ms="-1")
    asked = topology(
        subtopology("0", "t", repartition_sink_topics=["app-through-repartition"]),
        subtopology(
            "1",
            source_topics=[],
            repartition_source_topics=[through],
            state_changelog_topics=[internal("app-store-changelog", cleanup_policy="compact")],
        ),
    )
    answer = beat(client, "a", 0, topology=asked)
    assert codes(answer) == [3]
    assert answer.status[0].status_detail.startswith("Internal topics are missing: ")
    assert describe(client).topology.subtopologies[1].repartition_source_topics[0].partitions == 0
    until(lambda: told(beat(client, "a", describe(client).members[0].member_epoch))[1] is not None)
    group = describe(client)
    assert group.group_state == "Stable"
    assert [row.partitions for row in group.topology.subtopologies[1].state_changelog_topics] == [4]
    assert broker.in_loop(lambda context: len(context.image.topics["app-through-repartition"].partitions)) == 4
    assert broker.catalogue.image.topic_configs("app-store-changelog") == {"cleanup.policy": "compact"}


def test_a_static_member_comes_back(broker: CatalogueBroker, client: RawClient) -> None:
    assert told(beat(client, "a", 0, instance_id="i", process_id="p")) == (2, {"0": ALL})
    assert beat(client, "b", 0, instance_id="i").error_code == 111
    assert beat(client, "b", 2, instance_id="i").error_code == 82
    assert beat(client, "a", 2, instance_id="other").error_code == 25
    left = beat(client, "a", -2, instance_id="i")
    assert (left.error_code, left.member_epoch) == (0, -2)
    assert log_of(broker)[-1][2]["activeTasks"][0]["assignmentEpochs"] == [0, 0, 0, 0]
    assert describe(client).members[0].member_epoch == -2
    assert told(beat(client, "b", 0, instance_id="i", process_id="p")) == (2, {"0": ALL})
    assert types(log_of(broker)[7:]) == [-22, -21, -19, 19, 21, 22, 22]
    assert describe(client).group_epoch == 2
    assert beat(client, "a", -1, instance_id="i").error_code == 82
    assert beat(client, "b", -1, instance_id="i").error_code == 0


def test_a_static_member_comes_back_from_elsewhere(broker: CatalogueBroker, client: RawClient) -> None:
    """In another process: the assignment is made anew."""
    beat(client, "a", 0, instance_id="i")
    beat(client, "a", -2, instance_id="i")
    assert told(beat(client, "b", 0, instance_id="i")) == (3, {"0": ALL})
    assert types(log_of(broker)[7:]) == [-22, -21, -19, 19, 21, 22, 19, 17, 20, 22]


def test_a_member_that_is_not_heard_of_is_out(log_dir: Path) -> None:
    settings = {**QUICK, "group.streams.session.timeout.ms": 600}
    with CatalogueBroker([log_dir], settings) as running, running.connect() as client:
        create(client, "t", 4)
        found(client, "g")
        beat(client, "a", 0)
        until(lambda: describe(client).group_state == "Empty")
        assert beat(client, "a", 2).error_code == 25
        assert types(log_of(running)[6:]) == [-22, -21, -19, 17, 20]


def test_a_member_that_does_not_give_back_is_out(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "a", 0, rebalance_timeout=300)
    beat(client, "b", 0)
    assert told(beat(client, "a", 2)) == (2, {"0": [0, 1]})
    until(lambda: len(describe(client).members) == 1)
    assert beat(client, "a", 2).error_code == 25
    epoch = describe(client).members[0].member_epoch
    assert told(beat(client, "b", epoch)) == (4, {"0": ALL})


def test_a_group_has_room_for_so_many(log_dir: Path) -> None:
    with CatalogueBroker([log_dir], {**QUICK, "group.streams.max.size": 1}) as running, running.connect() as client:
        create(client, "t", 4)
        found(client, "g")
        beat(client, "a", 0)
        assert beat(client, "b", 0).error_code == 81
        assert told(beat(client, "a", 2)) == (2, None)


def test_all_are_asked_to_shut_down(client: RawClient) -> None:
    beat(client, "a", 0)
    beat(client, "b", 0)
    assert codes(beat(client, "a", 2, shutdown_application=True)) == [4]
    answer = beat(client, "b", 3)
    assert answer.status[0].status_detail == (
        "Streams group member a encountered a fatal error and requested a shutdown for the entire application."
    )
    beat(client, "a", -1)
    assert codes(beat(client, "b", 3)) == [4]
    beat(client, "b", -1)
    # Whoever begins anew is asked no more.
    assert codes(beat(client, "c", 0)) == []


def test_where_members_may_be_asked(client: RawClient) -> None:
    """The epoch of a group that is not there yet is not told; from then on it grows with what may be asked where."""
    first = beat(client, "a", 0, user_endpoint={"host": "a", "port": 1})
    assert first.endpoint_information_epoch == 0
    assert [row.user_endpoint.host for row in first.partitions_by_user_endpoint] == ["a"]
    again = beat(client, "a", 2)
    assert [
        (row.topic, row.partitions) for row in again.partitions_by_user_endpoint[0].active_partitions
    ] == [("t", (0, 1, 2, 3))]  # fmt: skip
    assert beat(client, "a", 2, endpoint_information_epoch=0).partitions_by_user_endpoint is None
    other = beat(client, "b", 0, user_endpoint={"host": "b", "port": 65_535})
    assert other.endpoint_information_epoch == 1
    assert beat(client, "a", 2, endpoint_information_epoch=1).endpoint_information_epoch == 2
    assert describe(client).members[0].user_endpoint.port in (1, 65_535)


def test_a_topology_without_its_topics_has_no_partitions_to_ask_for(client: RawClient) -> None:
    asked = {"topology": topology(subtopology("0", "later")), "user_endpoint": {"host": "a", "port": 1}}
    answer = beat(client, "a", 0, **asked)
    assert answer.error_code == 0
    assert answer.partitions_by_user_endpoint[0].active_partitions == ()


def test_copies_of_state(log_dir: Path) -> None:
    """Standby tasks; a setting of the group asks for another assignment."""
    with CatalogueBroker([log_dir], QUICK) as running, running.connect() as client:
        create(client, "t", 2)
        create(client, "store", 2)
        found(client, "g")
        stateful = topology(subtopology(state_changelog_topics=[internal("store")]))
        assert told(beat(client, "a", 0, topology=stateful)) == (2, {"0": [0, 1]})
        beat(client, "b", 0, topology=stateful)
        assert told(beat(client, "a", 2)) == (2, {"0": [0]})
        beat(client, "a", 2, **owned(tasks(s0=[0])))
        assert told(beat(client, "b", 3)) == (3, {"0": [1]})
        change = {"name": "streams.num.standby.replicas", "config_operation": 0, "value": "1"}
        resource = {"resource_type": 32, "resource_name": "g", "configs": [change]}
        answer = client.ask(44, 1, {"resources": [resource], "validate_only": False})
        assert answer.responses[0].error_code == 0, answer
        until(lambda: running.in_loop(lambda context: "g" in context.image.group_configs))
        moved = beat(client, "a", 3)
        assert told(moved) == (4, {"0": [0]})
        assert [(row.subtopology_id, row.partitions) for row in moved.standby_tasks] == [("0", (1,))]
        assert log_of(running)[-5][2]["lastAssignmentConfigs"] == [{"key": "num.standby.replicas", "value": "1"}]


def test_tags_that_a_member_lacks(log_dir: Path) -> None:
    settings = {**QUICK, "group.streams.rack.aware.assignment.tags": "zone,rack"}
    with CatalogueBroker([log_dir], settings) as running, running.connect() as client:
        create(client, "t", 2)
        found(client, "g")
        tagged = [{"key": "zone", "value": "z"}]
        answer = beat(client, "a", 0, client_tags=tagged)
        assert codes(answer) == [6]
        assert answer.status[0].status_detail == (
            "Missing required client tags for rack-aware standby assignment: [rack]. "
            "Configure them via 'client.tag.<tagKey>' in your Streams config."
        )
        assert codes(beat(client, "b", 0, version=0, client_tags=tagged)) == []
        assert [row.key for row in describe(client).members[0].client_tags] == ["zone"]


def test_what_members_tell_of_their_progress(client: RawClient) -> None:
    beat(client, "a", 0)
    offset = {"subtopology_id": "0", "partition": 1, "offset": 7}
    beat(client, "a", 2, task_offsets=[offset])
    beat(client, "a", 2, task_end_offsets=[{**offset, "offset": 9}])
    member = describe(client).members[0]
    assert [(row.partition, row.offset) for row in member.task_offsets] == [(1, 7)]
    assert [(row.partition, row.offset) for row in member.task_end_offsets] == [(1, 9)]
    assert beat(client, "a", 2, task_offsets=[offset, offset]).error_code == 42


def test_offsets_of_members(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "a", 0)
    assert commit(client, "g", {("t", 0): 5}, "a", 2) == {("t", 0): 0}
    assert commit(client, "g", {("t", 0): 5}, "a", 3) == {("t", 0): 113}
    assert commit(client, "g", {("t", 0): 5}, "a", 2, version=8) == {("t", 0): 35}
    assert commit(client, "g", {("t", 0): 5}, "who", 2) == {("t", 0): 25}
    assert commit(client, "g", {("t", 0): 5}) == {("t", 0): 25}
    # With an older epoch: what it has had since then.
    beat(client, "b", 0)
    beat(client, "a", 2)
    assert told(beat(client, "a", 2, **owned(tasks(s0=[0, 1])))) == (3, None)
    assert commit(client, "g", {("t", 0): 6}, "a", 2) == {("t", 0): 0}
    assert commit(client, "g", {("t", 0): 6, ("t", 2): 1}, "a", 2) == {("t", 0): 113, ("t", 2): 113}
    assert commit(client, "g", {("u", 0): 1}, "a", 2) == {("u", 0): 113}
    assert commit(client, "g", {("t", 2): 1}, "a", 3) == {("t", 2): 0}
    asked = {"group_id": "g", "member_id": "a", "member_epoch": 3, "topics": None}
    for change, error in (({}, 0), ({"member_epoch": 2}, 113), ({"member_id": "who"}, 25)):
        answer = client.ask(9, 9, {"groups": [asked | change], "require_stable": False})
        assert answer.groups[0].error_code == error
    assert fetched(client, "g", None) == {("t", 0): 6, ("t", 2): 1}
    gone = {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}
    assert client.ask(OFFSET_DELETE, 0, gone).topics[0].partitions[0].error_code == 86
    beat(client, "a", -1)
    beat(client, "b", -1)
    assert commit(client, "g", {("t", 1): 5}) == {("t", 1): 0}
    assert client.ask(OFFSET_DELETE, 0, gone).topics[0].partitions[0].error_code == 0
    assert fetched(client, "g", None) == {("t", 1): 5, ("t", 2): 1}
    assert client.ask(DELETE, 3, {"groups_names": ["g"]}).results[0].error_code == 0
    assert fetched(client, "g", None) == {}


def test_lists_and_other_protocols(broker: CatalogueBroker, client: RawClient) -> None:
    beat(client, "a", 0)
    listed = client.ask(LIST, 5, {"states_filter": [], "types_filter": []}).groups
    assert [(row.group_id, row.protocol_type, row.group_state, row.group_type) for row in listed] == [
        ("g", "streams", "Stable", "streams")
    ]
    for states, kinds, shown in ((["STABLE"], ["Streams"], 1), (["empty"], [], 0), ([], ["consumer"], 0)):
        answer = client.ask(LIST, 5, {"states_filter": states, "types_filter": kinds})
        assert len(answer.groups) == shown
    assert client.ask(DELETE, 3, {"groups_names": ["g"]}).results[0].error_code == 68
    old = client.ask(DESCRIBE, 6, {"groups": ["g"], "include_authorized_operations": False}).groups[0]
    assert (old.error_code, old.error_message) == (69, "Group g is not a classic group.")
    assert client.ask(JOIN, 9, join_body("g")).error_code == 23
    who = {"group_id": "g", "member_id": "a", "generation_id": 2}
    assert client.ask(HEARTBEAT, 4, who).error_code == 25
    sync = {**who, "protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    assert client.ask(SYNC, 5, sync).error_code == 25
    leave = client.ask(LEAVE, 5, {"group_id": "g", "members": [{"member_id": "a", "reason": None}]})
    assert leave.members[0].error_code == 25
    refused = consumer_beat(client, "x", 0)
    assert (refused.error_code, refused.error_message) == (69, "Group g is not a consumer group.")


def test_a_group_that_is_not_ready_is_found_by_that(client: RawClient) -> None:
    beat(client, "a", 0, topology=topology(subtopology("0", "later")))
    for state, shown in (("NOT_READY", 1), ("NotReady", 0)):
        assert len(client.ask(LIST, 5, {"states_filter": [state], "types_filter": []}).groups) == shown


def test_empty_groups_change_their_protocol(broker: CatalogueBroker, client: RawClient) -> None:
    member = stable(client)
    refused = beat(client, "a", 0)
    assert (refused.error_code, refused.error_message) == (69, "Group g is not a streams group.")
    client.ask(LEAVE, 5, {"group_id": "g", "members": [{"member_id": member, "reason": None}]})
    assert commit(client, "g", {("t", 0): 5}) == {("t", 0): 0}
    before = len(log_of(broker))
    assert told(beat(client, "a", 0)) == (2, {"0": ALL})
    assert types(log_of(broker)[before:]) == [-2, 19, 23, 17, 21, 20, 22]
    assert fetched(client, "g", None) == {("t", 0): 5}
    beat(client, "a", -1)
    before = len(log_of(broker))
    stable(client)
    assert types(log_of(broker)[before:])[:4] == [-20, -17, -23, 2]
    assert fetched(client, "g", None) == {("t", 0): 5}


def test_a_consumer_group_is_none_of_streams(client: RawClient) -> None:
    consumer_beat(client, "a", 0)
    refused = beat(client, "a", 0)
    assert (refused.error_code, refused.error_message) == (69, "Group g is not a streams group.")
    assert describe(client).error_message == "Group g is not a streams group."


def test_a_restart_remembers(log_dir: Path) -> None:
    tags = [{"key": "zone", "value": "z"}]
    with CatalogueBroker([log_dir], QUICK) as running, running.connect() as client:
        create(client, "t", 4)
        found(client, "g")
        beat(client, "a", 0, user_endpoint={"host": "h", "port": 1}, client_tags=tags, instance_id="i", rack_id="r")
        beat(client, "b", 0)
        beat(client, "a", 2, instance_id="i")
        commit(client, "g", {("t", 0): 5}, "b", 3)
        before = describe(client)
    with CatalogueBroker([log_dir], QUICK) as running, running.connect() as client:
        found(client, "g")
        assert describe(client) == before
        assert fetched(client, "g", None) == {("t", 0): 5}
        assert told(beat(client, "a", 2, instance_id="i", **owned(tasks(s0=[0, 1])))) == (3, None)
        assert told(beat(client, "b", 3)) == (3, {"0": [2, 3]})
        assert describe(client).group_epoch == before.group_epoch


def test_sessions_start_anew_after_a_restart(log_dir: Path) -> None:
    settings = {**QUICK, "group.streams.session.timeout.ms": 600}
    with CatalogueBroker([log_dir], QUICK) as running, running.connect() as client:
        create(client, "t", 4)
        found(client, "g")
        beat(client, "a", 0)
    with CatalogueBroker([log_dir], settings) as running, running.connect() as client:
        found(client, "g")
        assert describe(client).group_state == "Stable"
        until(lambda: describe(client).group_state == "Empty")


def test_a_group_that_nobody_needs_expires(log_dir: Path) -> None:
    settings = QUICK | {"offsets.retention.minutes": 10, "offsets.retention.check.interval.ms": 20}
    with CatalogueBroker([log_dir], settings) as running, running.connect() as client:
        create(client, "t", 1)
        create(client, "u", 1)
        found(client, "g")
        epoch, _ = told(beat(client, "a", 0))
        assert commit(client, "g", {("t", 0): 5, ("u", 0): 6}, "a", epoch) == {("t", 0): 0, ("u", 0): 0}
        # With members: what their topology does not read.
        running.clock.moved_ms = 700_000
        until(lambda: fetched(client, "g", None) == {("t", 0): 5})
        # Without: everything, and then the group.
        assert beat(client, "a", -1).error_code == 0
        until(lambda: fetched(client, "g", None) == {})
        until(lambda: describe(client).error_code == 69)
        assert client.ask(LIST, 5, {}).groups == ()
        assert types(log_of(running))[-4:] == [-1, -20, -17, -23]


def test_descriptions_of_topologies_have_no_plugin(client: RawClient) -> None:
    beat(client, "a", 0)
    description = {"subtopologies": [], "global_stores": []}
    body = {"group_id": "g", "member_id": "a", "topology_epoch": 0, "topology_description": description}
    answer = client.ask(UPDATE_DESCRIPTION, 0, body)
    assert (answer.error_code, answer.error_message) == (
        35,
        "The broker has no streams group topology description plugin configured.",
    )
    assert describe(client).topology_description_status == 0
    group = describe(client, include_topology_description=True)
    assert (group.topology_description_status, group.topology_description, group.assignor_name) == (1, None, "sticky")
    assert describe(client, "none", include_topology_description=True).topology_description_status == 0


def test_version_0(client: RawClient) -> None:
    answer = beat(client, "a", 0, version=0)
    assert told(answer) == (2, {"0": ALL})
    assert answer.acceptable_recovery_lag == 0
    assert beat(client, "a", 2).acceptable_recovery_lag == 10_000
    assert describe(client, version=0).group_state == "Stable"


def test_without_the_protocol(log_dir: Path) -> None:
    settings = {**QUICK, "group.coordinator.rebalance.protocols": "classic,consumer"}
    with CatalogueBroker([log_dir], settings) as running, running.connect() as client:
        found(client, "g")
        assert beat(client, "a", 0).error_code == 35
        assert describe(client).error_code == 35
