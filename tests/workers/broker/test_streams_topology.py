"""Topologies of streams groups: their records, and which topics they need (KIP-1071); Kafka's InternalTopicManager agrees."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.storage.metadata.offsets import decode_offsets_record, encode_offsets_record
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.streams.configured import ConfiguredTopology, configure
from compactd.workers.broker.groups.streams.status import Status
from compactd.workers.broker.groups.streams.topology import CopartitionGroup, Subtopology, TopicInfo, Topology
from tests.oracle.driver import Oracle
from tests.workers.broker.streams_topologies import chance_topics, chance_topology, json_topology


def looked_at(topology: Topology, **topics: int) -> ConfiguredTopology:
    """With these topics and their numbers of partitions."""
    return configure(topology, 7, topics.get)


BEYOND, BEFORE = CopartitionGroup((1,)), CopartitionGroup((-1,))
COUNTS = Topology(
    3,
    (
        Subtopology(
            "1", (), (), (TopicInfo("store", configs=(("cleanup.policy", "compact"),)),), (), (TopicInfo("rep"),)
        ),
        Subtopology("0", ("in",), (), (), ("rep",)),
    ),
)


def test_internal_topics_are_as_wide_as_what_is_read() -> None:
    found = looked_at(COUNTS, **{"in": 4})
    assert found.subtopologies is not None and list(found.subtopologies) == ["0", "1"]
    assert [each.tasks for each in found.subtopologies.values()] == [4, 4]
    assert {name: each.partitions for name, each in found.missing.items()} == {"rep": 4, "store": 4}
    assert found.missing["store"].configs == {"cleanup.policy": "compact"}
    assert found.problem == (Status.MISSING_INTERNAL_TOPICS, "Internal topics are missing: store, rep")
    assert not found.is_ready
    ready = looked_at(COUNTS, rep=4, store=4, **{"in": 4})
    assert ready.is_ready and not ready.missing and (ready.epoch, ready.metadata_hash) == (3, 7)


def test_topics_that_do_not_fit_are_told() -> None:
    assert looked_at(COUNTS).problem == (Status.MISSING_SOURCE_TOPICS, "Source topics in are missing.")
    wide = looked_at(COUNTS, rep=4, store=3, **{"in": 4})
    assert wide.subtopologies is None and not wide.missing
    assert wide.problem == (
        Status.INCORRECTLY_PARTITIONED_TOPICS,
        "Existing topic store has different number of partitions: expected 4, found 3",
    )


def test_many_topics_are_summed_up() -> None:
    sources = tuple(f"s{number}" for number in range(5))
    found = configure(Topology(0, (Subtopology("0", sources),)), 0, {}.get)
    assert found.problem == (
        Status.MISSING_SOURCE_TOPICS,
        "Source topics s0, s1, s2 and 2 additional topics are missing.",
    )


def test_copartitioned_topics_are_equally_wide() -> None:
    def joined(partitions: int = 0) -> Topology:
        group = CopartitionGroup((0,), (), (0,))
        reader = Subtopology("1", ("b",), (), (), (), (TopicInfo("rep", partitions),), (group,))
        return Topology(0, (Subtopology("0", ("a",), (), (), ("rep",)), reader))

    found = looked_at(joined(), a=2, b=6)
    assert {name: each.partitions for name, each in found.missing.items()} == {"rep": 6}
    assert looked_at(joined(3), a=2, b=6).problem == (
        Status.INCORRECTLY_PARTITIONED_TOPICS,
        "Number of partitions [3] of repartition topic [rep] doesn't match number of partitions [6] of the source topic.",
    )
    both = Topology(0, (Subtopology("0", ("a", "b"), copartition_groups=(CopartitionGroup((0, 1)),)),))
    assert looked_at(both, a=2, b=6).problem == (
        Status.INCORRECTLY_PARTITIONED_TOPICS,
        "Following topics do not have the same number of partitions: [{a=2, b=6}]",
    )
    assert looked_at(both, a=2, b=2).is_ready


@pytest.mark.parametrize(
    ("topology", "code", "text"),
    [
        (Topology(0, (Subtopology("0"),)), ErrorCode.STREAMS_INVALID_TOPOLOGY, "No source topics found for subtopology 0"),
        (
            Topology(0, (Subtopology("0", repartition_source_topics=(TopicInfo("r"),)),)),
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            "never used as a sink topic",
        ),
        (
            Topology(0, (Subtopology("0", (), (), (), ("r",), (TopicInfo("r"),)),)),
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            "loops in the topology",
        ),
        (Topology(0, (Subtopology("0", ("in",), copartition_groups=(BEYOND,)),)), ErrorCode.UNKNOWN_SERVER_ERROR, ""),
        (Topology(0, (Subtopology("0", ("in",), copartition_groups=(BEFORE,)),)), ErrorCode.UNKNOWN_SERVER_ERROR, ""),
    ],
)  # fmt: skip
def test_topologies_that_no_topics_would_do_for(topology: Topology, code: ErrorCode, text: str) -> None:
    with pytest.raises(GroupError) as refused:
        looked_at(topology, **{"in": 1})
    assert refused.value.code == code and text in (refused.value.message or "")


@given(st.integers(0, 1 << 32))
def test_a_topology_survives_its_record(seed: int) -> None:
    topology = chance_topology(random.Random(seed))
    key, value = encode_offsets_record(23, {"groupId": "g"}, 0, topology.record())
    again = Topology.of_record(decode_offsets_record(key, value)["value"])
    assert again == topology and again.subtopologies == topology.subtopologies
    shuffled = Topology(topology.epoch, tuple(reversed(topology.subtopologies)))
    assert shuffled == topology and hash(shuffled) == hash(topology)
    assert Topology(topology.epoch + 1, topology.subtopologies) != topology


def test_what_a_request_may_not_say() -> None:
    row = dict.fromkeys(
        ("source_topics", "source_topic_regex", "state_changelog_topics", "repartition_sink_topics"), ()
    ) | {"subtopology_id": "0", "repartition_source_topics": (), "copartition_groups": ()}

    def told(epoch: int, *rows: dict[str, Any]) -> Topology:
        return Topology.of_request(
            SimpleNamespace(epoch=epoch, subtopologies=[SimpleNamespace(**each) for each in rows])
        )

    assert told(2, row) == Topology(2, (Subtopology("0"),))
    told(2, row).check()
    for epoch, rows in ((-1, [row]), (0, [row, row])):
        with pytest.raises(GroupError):
            told(epoch, *rows).check()


@given(st.integers(0, 1 << 32))
def test_tasks_and_topics_hang_together(seed: int) -> None:
    chance = random.Random(seed)
    topology = chance_topology(chance)
    topics = chance_topics(chance, topology)
    try:
        found = configure(topology, 0, topics.get)
    except GroupError:
        return
    if found.subtopologies is None:
        assert found.problem is not None and not found.missing
        return
    assert found.is_ready == (not found.missing)
    assert not set(found.missing) & set(topics)
    assert set(found.missing) | set(topics) >= topology.required_topics
    widths = topics | {name: each.partitions for name, each in found.missing.items()}
    for each in topology.subtopologies:
        tasks = found.subtopologies[each.subtopology_id].tasks
        assert tasks == max(widths[name] for name in each.input_topics)
        assert all(widths[topic.name] == tasks for topic in each.state_changelog_topics)
        assert topology.subtopology_of(each.input_topics[0]) is not None


def test_a_long_chain_in_a_bad_order_keeps_nobody_waiting() -> None:
    """Round by round through all of them it would take minutes."""
    count = 20_000
    chain = [
        Subtopology(
            f"{number:05}", ("in",) if number == 0 else (), (), (), (f"r{number}",), (TopicInfo(f"r{number - 1}"),)
        )
        for number in range(count)
    ]
    chain[0] = Subtopology("00000", ("in",), (), (), ("r0",))
    found = configure(Topology(0, tuple(reversed(chain))), 0, {"in": 3}.get)
    assert found.subtopologies is not None and {each.tasks for each in found.subtopologies.values()} == {3}


# ---- Kafka's own


def ours(topology: Topology, topics: dict[str, int]) -> dict[str, Any]:
    try:
        found = configure(topology, 0, topics.get)
    except GroupError as error:
        return {"refused": error.code, "message": error.message}
    answer: dict[str, Any] = {
        "described": camel(found.described()),
        "raw": camel(topology.described()),
        "missing": [
            {
                "name": name,
                "partitions": each.partitions,
                "replicationFactor": each.replication_factor or -1,
                "configs": [[key, value] for key, value in each.configs.items()],
            }
            for name, each in found.missing.items()
        ],
    }
    if found.problem is not None:
        answer |= {"status": found.problem[0], "text": found.problem[1]}
    if found.subtopologies is not None:
        answer["tasks"] = {name: each.tasks for name, each in found.subtopologies.items()}
    return answer


def camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            "".join([key.split("_")[0], *map(str.title, key.split("_")[1:])]): camel(each)
            for key, each in value.items()
        }
    return [camel(each) for each in value] if isinstance(value, list) else value


def kafkas(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" not in answer:
        return answer
    if answer["error"] == "StreamsInvalidTopologyException":
        return {"refused": ErrorCode.STREAMS_INVALID_TOPOLOGY, "message": answer["message"]}
    return {"refused": ErrorCode.UNKNOWN_SERVER_ERROR, "message": None}


@pytest.mark.kafka
@pytest.mark.parametrize("seed", range(4))
def test_kafka_finds_the_same_topics(oracle: Oracle, seed: int) -> None:
    chance = random.Random(seed)
    worlds = []
    for _ in range(500):
        topology = chance_topology(chance)
        worlds.append((topology, chance_topics(chance, topology)))
    answers = oracle.many(
        [{"op": "streamsTopics", "topology": json_topology(topology), "topics": topics} for topology, topics in worlds]
    )
    kinds: set[object] = set()
    for (topology, topics), answer in zip(worlds, answers, strict=True):
        assert ours(topology, topics) == kafkas(answer), (topology, topics)
        kinds.add(answer.get("error") or answer.get("status", "ready"))
    assert kinds >= {"ready", 1, 2, 3, "StreamsInvalidTopologyException"}
