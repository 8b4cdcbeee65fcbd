"""A topology with the topics of the catalogue: how many tasks there are, and which topics are to be created.

Kafka's InternalTopicManager.configureTopics and ConfiguredTopology.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.java import HashTable, hash_map, text_order
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.streams.partition_counts import PartitionCounts, PartitionsOf, TopicProblemError
from compactd.workers.broker.groups.streams.status import Status
from compactd.workers.broker.groups.streams.topology import (
    Subtopology,
    TopicInfo,
    Topology,
    described_subtopology,
    described_topic,
)
from compactd.workers.broker.transactions.java_order import string_hash

#: Topics that a message names.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the application has for itself. `replication_factor` None: the broker's."""

    name: str
    partitions: int
    replication_factor: int | None = None
    #: In the order of a HashMap.
    configs: Mapping[str, str] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """A row of a described group."""
        return described_topic(self.name, self.partitions, self.replication_factor or 0, self.configs.items())


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    """A subtopology with its tasks, one a partition of the widest topic that it reads."""

    tasks: int
    source_topics: frozenset[str] = frozenset()
    repartition_source_topics: Mapping[str, InternalTopic] = field(default_factory=dict)
    repartition_sink_topics: frozenset[str] = frozenset()
    state_changelog_topics: Mapping[str, InternalTopic] = field(default_factory=dict)

    @property
    def is_stateful(self) -> bool:
        """It keeps state that a standby can copy."""
        return bool(self.state_changelog_topics)


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """What became of a topology; tasks can run when there is no problem."""

    epoch: int
    #: Of the topics that were looked at.
    metadata_hash: int
    #: By id, in their order; None: the topics don't fit.
    subtopologies: Mapping[str, ConfiguredSubtopology] | None
    #: Topics to create, by name, in the order of a HashMap that had all internal topics in it.
    missing: Mapping[str, InternalTopic] = field(default_factory=dict)
    #: What members are told.
    problem: tuple[Status, str] | None = None

    @property
    def is_ready(self) -> bool:
        """All topics are there as they should be."""
        return self.problem is None

    def described(self) -> dict[str, Any]:
        """The `topology` of a described group."""
        return {
            "epoch": self.epoch,
            "subtopologies": [
                described_subtopology(
                    subtopology_id,
                    each.source_topics,
                    each.repartition_sink_topics,
                    [topic.described() for topic in each.repartition_source_topics.values()],
                    [topic.described() for topic in each.state_changelog_topics.values()],
                )
                for subtopology_id, each in (self.subtopologies or {}).items()
            ],
        }


def configure(topology: Topology, metadata_hash: int, partitions_of: PartitionsOf) -> ConfiguredTopology:
    """Looks at the topics. GroupError: no topics would do for this topology."""
    counts = PartitionCounts(topology, partitions_of)
    try:
        _check_sources(topology, partitions_of)
        counts.decide()
        ordered = sorted(topology.ordered, key=lambda each: text_order(each.subtopology_id))
        subtopologies = {each.subtopology_id: _configured(each, counts) for each in ordered}
        missing = _missing(topology, subtopologies.values(), partitions_of)
    except TopicProblemError as error:
        return ConfiguredTopology(topology.epoch, metadata_hash, None, problem=(error.status, error.text))
    problem = None
    if missing:
        problem = (Status.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {_summary(missing)}")
    return ConfiguredTopology(topology.epoch, metadata_hash, subtopologies, missing, problem)


def _check_sources(topology: Topology, partitions_of: PartitionsOf) -> None:
    names = {name for each in topology.ordered for name in each.source_topics}
    missing = sorted((name for name in names if partitions_of(name) is None), key=text_order)
    if missing:
        raise TopicProblemError(Status.MISSING_SOURCE_TOPICS, f"Source topics {_summary(missing)} are missing.")


def _configured(subtopology: Subtopology, counts: PartitionCounts) -> ConfiguredSubtopology:
    tasks = max(counts.of(name) for name in subtopology.input_topics)
    if tasks <= 0:
        raise GroupError(ErrorCode.UNKNOWN_SERVER_ERROR)
    return ConfiguredSubtopology(
        tasks,
        frozenset(subtopology.source_topics),
        _internal(subtopology.repartition_source_topics, counts),
        frozenset(subtopology.repartition_sink_topics),
        _internal(subtopology.state_changelog_topics, counts),
    )


def _internal(topics: Iterable[TopicInfo], counts: PartitionCounts) -> dict[str, InternalTopic]:
    made: dict[str, InternalTopic] = {}
    for topic in topics:
        partitions = topic.partitions or counts.decided[topic.name]
        configs = dict(topic.configs)
        if topic.name in made or partitions < 1 or len(configs) != len(topic.configs):
            # Kafka stumbles over it in the middle of its work.
            raise GroupError(ErrorCode.UNKNOWN_SERVER_ERROR)
        made[topic.name] = InternalTopic(
            topic.name, partitions, topic.replication_factor or None, hash_map(configs, string_hash)
        )
    return hash_map(made, string_hash)


def _missing(
    topology: Topology, subtopologies: Iterable[ConfiguredSubtopology], partitions_of: PartitionsOf
) -> dict[str, InternalTopic]:
    topics: dict[str, InternalTopic] = {}
    table = HashTable(string_hash)
    for each in subtopologies:
        for name, topic in (*each.repartition_source_topics.items(), *each.state_changelog_topics.items()):
            topics[name] = topic
            table.put(name)
    for name in topology.listed_topics:
        found, expected = partitions_of(name), topics.get(name)
        if found is None or expected is None:
            continue
        if found != expected.partitions:
            raise TopicProblemError(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {expected.partitions}, found"
                f" {found}",
            )
        table.remove(name)
    return {name: topics[name] for name in table.listed()}


def _summary(names: Collection[str]) -> str:
    first = list(names)[:_NAMED]
    rest = len(names) - len(first)
    return ", ".join(first) + (f" and {rest} additional topics" if rest else "")
