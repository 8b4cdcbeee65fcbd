"""Topologies for tests of streams groups: small ones that chance makes, many of which fit their topics."""

from __future__ import annotations

import random
from typing import Any

from compactd.workers.broker.groups.streams.topology import CopartitionGroup, Subtopology, TopicInfo, Topology

SOURCES = [f"in-{number}" for number in range(6)]


def chance_topology(chance: random.Random) -> Topology:
    """Up to six subtopologies in a chain or not, with faults now and then."""
    count = chance.choice([1, 1, 2, 3, 6])
    fixed = chance.random() < 0.3
    internal = [f"app-{chance.randrange(1000)}-{number}-repartition" for number in range(count)]
    infos = [
        _info(chance, name, chance.choice([1, 2, 3, 4]) if fixed and chance.random() < 0.7 else 0) for name in internal
    ]
    subtopologies = []
    for number in range(count):
        sources = chance.sample(SOURCES, chance.choice([0, 1, 1, 2, 3]))
        read = [info for place, info in enumerate(infos) if place < number and chance.random() < 0.5]
        if chance.random() < 0.03:
            read.append(chance.choice(infos))
        if not sources and not read and chance.random() < 0.97:
            sources = [chance.choice(SOURCES)]
        written = [internal[number]] if number + 1 < count else []
        if chance.random() < 0.1:
            written.append(chance.choice(internal))
        changelogs = [
            _info(chance, f"app-store-{number}-{place}-changelog", 0) for place in range(chance.choice([0, 1, 1, 2, 9]))
        ]
        subtopologies.append(
            Subtopology(
                chance.choice([str(number), str(number), f"sub-{number * 7}"]),
                tuple(sources),
                (),
                tuple(changelogs),
                tuple(written),
                tuple(read),
                _groups(chance, len(sources), len(read)),
            )
        )
    chance.shuffle(subtopologies)
    unique = {each.subtopology_id: each for each in subtopologies}
    return Topology(chance.randrange(5), tuple(unique.values()))


def _info(chance: random.Random, name: str, partitions: int) -> TopicInfo:
    configs = {f"config.{chance.randrange(99)}": str(chance.randrange(9)) for _ in range(chance.choice([0, 0, 1, 3]))}
    return TopicInfo(name, partitions, chance.choice([0, 0, 1, 3]), tuple(configs.items()))


def _groups(chance: random.Random, sources: int, repartition: int) -> tuple[CopartitionGroup, ...]:
    if chance.random() < 0.4:
        return ()
    stray = chance.random() < 0.01
    return tuple(
        CopartitionGroup(
            tuple(chance.sample(range(sources), chance.randrange(sources + 1))),
            (),
            tuple(chance.sample(range(repartition), chance.randrange(repartition + 1)))
            + ((repartition,) if stray else ()),
        )
        for _ in range(chance.choice([1, 1, 2]))
    )


def chance_topics(chance: random.Random, topology: Topology) -> dict[str, int]:
    """Topics that there are: sources mostly, internal ones in some worlds."""
    widths = [1, 2, 3, 4, 12] if chance.random() < 0.4 else [chance.choice([1, 4])]
    topics = {name: chance.choice(widths) for name in SOURCES}
    if chance.random() < 0.1:
        del topics[chance.choice(SOURCES)]
        topics.pop(chance.choice(SOURCES), None)
    if chance.random() < 0.3:
        for name in topology.required_topics - set(SOURCES):
            if chance.random() < 0.7:
                topics[name] = chance.choice(widths)
    return topics


def json_topology(topology: Topology) -> dict[str, Any]:
    """As Kafka's JSON has the value of record type 23."""
    return topology.record()
