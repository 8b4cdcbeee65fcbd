"""What a streams application is made of: subtopologies, and the topics that they read, write and keep their state in.

Its members tell it to the group (KIP-1071), which writes it down; Kafka's StreamsTopology and StreamsGroupTopologyValue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.java import listed, text_order
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.transactions.java_order import string_hash


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """An internal topic as members ask for it. 0: as many partitions as fit, or the broker's replication factor."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CopartitionGroup:
    """Topics that must have equally many partitions, as places in the lists of their subtopology."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of the application that is cut into tasks by partitions."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    state_changelog_topics: tuple[TopicInfo, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[TopicInfo, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    @property
    def input_topics(self) -> list[str]:
        """What it reads: others' topics, then repartition topics."""
        return [*self.source_topics, *(topic.name for topic in self.repartition_source_topics)]


@dataclass(frozen=True, eq=False)
class Topology:
    """A whole application; equal to another one that lists the same subtopologies in any order."""

    epoch: int
    #: As they were told and are written down.
    subtopologies: tuple[Subtopology, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        return self.epoch == other.epoch and self._by_id == other._by_id

    def __hash__(self) -> int:
        return hash((self.epoch, frozenset(self._by_id.values())))

    @cached_property
    def _by_id(self) -> dict[str, Subtopology]:
        return {each.subtopology_id: each for each in self.subtopologies}

    @cached_property
    def ordered(self) -> tuple[Subtopology, ...]:
        """As Kafka goes through them: a HashMap of their ids."""
        return tuple(self._by_id[each] for each in listed(self._by_id, string_hash))

    @cached_property
    def listed_topics(self) -> tuple[str, ...]:
        """The required topics, as Kafka's HashSet lists them."""
        names: dict[str, None] = {}
        for each in self.ordered:
            names |= dict.fromkeys(each.input_topics)
            names |= dict.fromkeys(topic.name for topic in each.state_changelog_topics)
        return tuple(listed(names, string_hash))

    @cached_property
    def required_topics(self) -> frozenset[str]:
        """What has to be there for tasks to run."""
        return frozenset(self.listed_topics)

    @cached_property
    def _readers(self) -> dict[str, Subtopology]:
        return {name: each for each in self.ordered for name in each.input_topics}

    def subtopology_of(self, topic: str) -> Subtopology | None:
        """Which one reads the topic; None: none does."""
        return self._readers.get(topic)

    @classmethod
    def of_request(cls, told: Any) -> Topology:
        """Of the `topology` of a StreamsGroupHeartbeat request; it has still to be checked."""
        return cls(told.epoch, tuple(_told_subtopology(each) for each in told.subtopologies))

    def check(self) -> None:
        """GroupError: it contradicts itself. Kafka comes to that in the middle of its work."""
        if self.epoch < 0 or len(self._by_id) != len(self.subtopologies):
            raise GroupError(ErrorCode.UNKNOWN_SERVER_ERROR)

    @classmethod
    def of_record(cls, value: Mapping[str, Any]) -> Topology:
        """Of a decoded value of record type 23."""
        return cls(value["epoch"], tuple(_recorded_subtopology(each) for each in value["subtopologies"]))

    def record(self) -> dict[str, Any]:
        """The value of record type 23."""
        return {"epoch": self.epoch, "subtopologies": [_subtopology_record(each) for each in self.subtopologies]}

    def described(self) -> dict[str, Any]:
        """The `topology` of a described group whose topics were not looked at yet."""
        ordered = sorted(self._by_id.values(), key=lambda each: text_order(each.subtopology_id))
        return {
            "epoch": self.epoch,
            "subtopologies": [
                described_subtopology(
                    each.subtopology_id,
                    each.source_topics,
                    each.repartition_sink_topics,
                    [_described_topic(topic) for topic in each.repartition_source_topics],
                    [_described_topic(topic) for topic in each.state_changelog_topics],
                )
                for each in ordered
            ],
        }


def described_subtopology(
    subtopology_id: str,
    sources: Iterable[str],
    sinks: Iterable[str],
    repartition: Iterable[dict[str, Any]],
    changelogs: Iterable[dict[str, Any]],
) -> dict[str, Any]:
    """A subtopology of a described group; topics are rows of `described_topic`."""

    def by_name(row: dict[str, Any]) -> bytes:
        return text_order(row["name"])

    return {
        "subtopology_id": subtopology_id,
        "source_topics": sorted(sources, key=text_order),
        "repartition_sink_topics": sorted(sinks, key=text_order),
        "repartition_source_topics": sorted(repartition, key=by_name),
        "state_changelog_topics": sorted(changelogs, key=by_name),
    }


def described_topic(
    name: str, partitions: int, replication_factor: int, configs: Iterable[tuple[str, str]]
) -> dict[str, Any]:
    """An internal topic of a described group."""
    return {
        "name": name,
        "partitions": partitions,
        "replication_factor": replication_factor,
        "topic_configs": [{"key": key, "value": value} for key, value in configs],
    }


def _described_topic(topic: TopicInfo) -> dict[str, Any]:
    return described_topic(topic.name, topic.partitions, topic.replication_factor, topic.configs)


def _told_subtopology(told: Any) -> Subtopology:
    return Subtopology(
        told.subtopology_id,
        tuple(told.source_topics),
        tuple(told.source_topic_regex),
        tuple(_told_topic(each) for each in told.state_changelog_topics),
        tuple(told.repartition_sink_topics),
        tuple(_told_topic(each) for each in told.repartition_source_topics),
        tuple(
            CopartitionGroup(
                tuple(each.source_topics), tuple(each.source_topic_regex), tuple(each.repartition_source_topics)
            )
            for each in told.copartition_groups
        ),
    )


def _told_topic(told: Any) -> TopicInfo:
    configs = tuple((each.key, each.value) for each in told.topic_configs)
    return TopicInfo(told.name, told.partitions, told.replication_factor, configs)


def _recorded_subtopology(value: Mapping[str, Any]) -> Subtopology:
    return Subtopology(
        value["subtopologyId"],
        tuple(value["sourceTopics"]),
        tuple(value["sourceTopicRegex"]),
        tuple(_recorded_topic(each) for each in value["stateChangelogTopics"]),
        tuple(value["repartitionSinkTopics"]),
        tuple(_recorded_topic(each) for each in value["repartitionSourceTopics"]),
        tuple(
            CopartitionGroup(
                tuple(each["sourceTopics"]), tuple(each["sourceTopicRegex"]), tuple(each["repartitionSourceTopics"])
            )
            for each in value["copartitionGroups"]
        ),
    )


def _recorded_topic(value: Mapping[str, Any]) -> TopicInfo:
    configs = tuple((each["key"], each["value"]) for each in value["topicConfigs"])
    return TopicInfo(value["name"], value["partitions"], value["replicationFactor"], configs)


def _subtopology_record(each: Subtopology) -> dict[str, Any]:
    return {
        "subtopologyId": each.subtopology_id,
        "sourceTopics": list(each.source_topics),
        "sourceTopicRegex": list(each.source_topic_regex),
        "stateChangelogTopics": [_topic_record(topic) for topic in each.state_changelog_topics],
        "repartitionSinkTopics": list(each.repartition_sink_topics),
        "repartitionSourceTopics": [_topic_record(topic) for topic in each.repartition_source_topics],
        "copartitionGroups": [
            {
                "sourceTopics": list(group.source_topics),
                "sourceTopicRegex": list(group.source_topic_regex),
                "repartitionSourceTopics": list(group.repartition_source_topics),
            }
            for group in each.copartition_groups
        ],
    }


def _topic_record(topic: TopicInfo) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": topic.partitions,
        "replicationFactor": topic.replication_factor,
        "topicConfigs": [{"key": key, "value": value} for key, value in topic.configs],
    }
