"""Where members of a streams group may be asked for their state, and for which partitions (EndpointToPartitionsManager)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from compactd.workers.broker.groups.consumer.java import hash_set_capacity, listed
from compactd.workers.broker.groups.consumer.topics import Topics
from compactd.workers.broker.groups.streams.configured import ConfiguredSubtopology, ConfiguredTopology
from compactd.workers.broker.groups.streams.group import StreamsGroup
from compactd.workers.broker.groups.streams.member import StreamsMember
from compactd.workers.broker.groups.streams.tasks import Tasks, in_java_order
from compactd.workers.broker.transactions.java_order import string_hash


def endpoint_rows(
    topics: Topics,
    group: StreamsGroup,
    configured: ConfiguredTopology,
    updated: StreamsMember,
    replaced: StreamsMember | None,
) -> list[dict[str, Any]]:
    """Of all members that have one; `updated` as it will be, in place of `replaced`.

    Where topics are missing there is nothing to be said of partitions. (Kafka 4.4.0 fails then.)
    """
    gone = {updated.member_id, *(() if replaced is None else (replaced.member_id,))}
    others = any(member.endpoint is not None for member in group.members.values())
    members = [group.members[each] for each in group.members.listed() if each not in gone] if others else []
    subtopologies = configured.subtopologies or {}
    return [_row(topics, subtopologies, member) for member in (*members, updated) if member.endpoint is not None]


def _row(topics: Topics, subtopologies: Mapping[str, ConfiguredSubtopology], member: StreamsMember) -> dict[str, Any]:
    assert member.endpoint is not None
    host, port = member.endpoint
    has = member.assigned.without_epochs()
    copies = dict(has.standby)
    for subtopology, partitions in has.warmup.items():
        copies[subtopology] = copies.get(subtopology, frozenset()) | partitions
    return {
        "user_endpoint": {"host": host, "port": port},
        "active_partitions": _partitions(topics, subtopologies, has.active),
        "standby_partitions": _partitions(topics, subtopologies, copies),
    }


def _partitions(
    topics: Topics, subtopologies: Mapping[str, ConfiguredSubtopology], tasks: Tasks
) -> list[dict[str, Any]]:  # fmt: skip
    rows = []
    for subtopology, numbers in in_java_order(tasks).items():
        known = subtopologies.get(subtopology)
        if known is None:
            continue
        for topic in _sources(known):
            topic_id = topics.id_of(topic)
            count = 0 if topic_id is None else topics.partitions_of(topic_id)
            there = sorted(number for number in numbers if number < count)
            if there:
                rows.append({"topic": topic, "partitions": there})
    return rows


def _sources(subtopology: ConfiguredSubtopology) -> Iterable[str]:
    """All topics that it reads, in the order of a HashSet."""
    own = sorted(subtopology.source_topics)
    return listed([*own, *sorted(subtopology.repartition_source_topics)], string_hash, hash_set_capacity(len(own)))
