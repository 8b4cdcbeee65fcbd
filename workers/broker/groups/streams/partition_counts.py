"""How many partitions internal topics get (Kafka's RepartitionTopics, CopartitionedTopicsEnforcer, ChangelogTopics).

Where an answer depends on the order in which Kafka goes through its hash tables, that order is followed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.groups.consumer.java import listed, text_order
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.streams.status import Status
from compactd.workers.broker.groups.streams.topology import CopartitionGroup, Subtopology, Topology
from compactd.workers.broker.transactions.java_order import string_hash

#: Partitions of a topic that exists; None: it doesn't.
PartitionsOf = Callable[[str], int | None]


class TopicProblemError(Exception):
    """The topics that there are don't fit the topology; members are told so until they do."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class PartitionCounts:
    """What is decided so far; topics that exist stay as they are. GroupError: a copartition group names no topic."""

    def __init__(self, topology: Topology, partitions_of: PartitionsOf) -> None:
        self._subtopologies = topology.ordered
        self._groups = [group for each in self._subtopologies for group in copartitioned(each)]
        self._partitions_of = partitions_of
        self.decided: dict[str, int] = {}
        #: Counts of repartition topics that are fixed, which stay as they are.
        self._fixed: set[int] = set()

    def decide(self) -> None:
        """TopicProblemError; GroupError where no topics would do."""
        self.decided.update(self._repartition_topics())
        fixed = {
            topic.name for each in self._subtopologies for topic in each.repartition_source_topics if topic.partitions
        }
        flexible = {
            topic.name
            for each in self._subtopologies
            for topic in each.repartition_source_topics
            if not topic.partitions
        }
        for group in self._groups:
            if group:
                self.decided.update(self._same(group, fixed, flexible))
        self.decided.update(self._changelogs())

    def of(self, topic: str) -> int:
        """Partitions of a topic that is there or will be. GroupError: nothing is known of it."""
        count = self._partitions_of(topic)
        if count is None:
            count = self.decided.get(topic)
        if count is None:
            raise GroupError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return count

    # ---- repartition topics

    def _repartition_topics(self) -> dict[str, int]:
        """As many partitions as their application says, or as the widest topic that is read where they are written."""
        counts = {
            topic.name: topic.partitions
            for each in self._subtopologies
            for topic in each.repartition_source_topics
            if topic.partitions
        }
        self._follow(counts)
        for each in self._subtopologies:
            if any(sink not in counts for sink in each.repartition_sink_topics):
                raise _invalid(
                    "Failed to compute number of partitions for all repartition topics. There may be loops in the topology"
                    " that cannot be resolved."
                )
        for each in self._subtopologies:
            if any(topic.name not in counts for topic in each.repartition_source_topics):
                raise _invalid(
                    "Failed to compute number of partitions for all repartition topics, because a repartition source"
                    " topic is never used as a sink topic."
                )
        return counts

    def _follow(self, counts: dict[str, int]) -> None:
        """Counts of sinks, from what is known at the time.

        Kafka goes through all subtopologies, round by round; here each is visited only in the round in which it would
        come to a count, so that a long chain in a bad order keeps nobody waiting.
        """
        readers: dict[str, list[int]] = {}
        for place, each in enumerate(self._subtopologies):
            for topic in each.repartition_source_topics:
                readers.setdefault(topic.name, []).append(place)
        #: (round, place)
        visits = [
            (0, place) for place, each in enumerate(self._subtopologies) if self._widest(each, counts) is not None
        ]
        visited: set[int] = set()
        while visits:
            turn, place = heapq.heappop(visits)
            if place in visited:
                continue
            visited.add(place)
            subtopology = self._subtopologies[place]
            count = self._widest(subtopology, counts)
            for sink in subtopology.repartition_sink_topics:
                if count is None or sink in counts:
                    continue
                counts[sink] = count
                for reader in readers.get(sink, ()):
                    heapq.heappush(visits, (turn if reader > place else turn + 1, reader))

    def _widest(self, subtopology: Subtopology, counts: Mapping[str, int]) -> int | None:
        """Of what it reads and is known; None: nothing is."""
        known = [counts[topic.name] for topic in subtopology.repartition_source_topics if topic.name in counts]
        known += [count for name in subtopology.source_topics if (count := self._partitions_of(name)) is not None]
        return max(known, default=None)

    # ---- copartitioning

    def _same(self, group: Collection[str], fixed: Collection[str], flexible: Collection[str]) -> dict[str, int]:
        """The repartition topics of a group with the count that all of it must have."""
        repartition = {
            name: self.of(name) for name in listed(_among(group, fixed, flexible), string_hash)
        }  # fmt: skip
        others = {name: self.of(name) for name in group if name not in repartition}
        if others:
            count = _equal(others.values(), others)
        elif fixed:
            # All topics of the application that have a fixed count, also those of other groups.
            self._fixed = self._fixed or {self.of(name) for name in fixed}
            count = _equal(self._fixed, repartition)
        else:
            count = max(repartition.values())
        for name, decided in repartition.items():
            if name in fixed and decided != count:
                raise TopicProblemError(
                    Status.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Number of partitions [{decided}] of repartition topic [{name}] doesn't match number of partitions"
                    f" [{count}] of the source topic.",
                )
        return dict.fromkeys(repartition, count)

    # ---- changelogs

    def _changelogs(self) -> dict[str, int]:
        """One partition for every task."""
        counts: dict[str, int] = {}
        for each in self._subtopologies:
            inputs = [self.of(name) for name in each.input_topics]
            if not inputs:
                raise _invalid(f"No source topics found for subtopology {each.subtopology_id}")
            counts.update(dict.fromkeys((topic.name for topic in each.state_changelog_topics), max(inputs)))
        return counts


def copartitioned(subtopology: Subtopology) -> list[list[str]]:
    """The topics of its groups, each group as a HashSet lists it. GroupError: a place that is not there."""
    sources = subtopology.source_topics
    repartition = [topic.name for topic in subtopology.repartition_source_topics]

    def named(group: CopartitionGroup) -> list[str]:
        names = [*_at(sources, group.source_topics), *_at(repartition, group.repartition_source_topics)]
        return listed(dict.fromkeys(names), string_hash)

    return [named(group) for group in subtopology.copartition_groups]


def _at(names: Collection[str], places: Iterable[int]) -> list[str]:
    names, places = list(names), list(places)
    if any(not 0 <= place < len(names) for place in places):
        raise GroupError(ErrorCode.UNKNOWN_SERVER_ERROR)
    return [names[place] for place in places]


def _among(group: Iterable[str], fixed: Collection[str], flexible: Collection[str]) -> list[str]:
    return [name for name in group if name in fixed or name in flexible]


def _equal(counts: Collection[int], told: Mapping[str, int]) -> int:
    """The one count. TopicProblemError with the topics of `told`: there is more than one."""
    if len(set(counts)) > 1:
        text = ", ".join(f"{name}={told[name]}" for name in sorted(told, key=text_order))
        raise TopicProblemError(
            Status.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{text}}}]",
        )
    return next(iter(counts))


def _invalid(text: str) -> GroupError:
    return GroupError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
