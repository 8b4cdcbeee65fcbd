"""The topics section of the configuration: topics are created, or altered where they exist. Nothing is ever deleted by it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from compactd.coordinator.configuration import TopicSection
from compactd.workers.catalogue_messages import (
    AlterConfigs,
    ConfigChange,
    CreatePartitions,
    CreateTopics,
    MorePartitions,
    NewTopic,
    ResourceChange,
    ResourceResults,
    ResourceType,
    Struct,
    TopicResults,
)
from compactd.workers.catalogue_update import CatalogueTopic

_log = logging.getLogger(__name__)

#: Carries an operation out and hands its results over.
Change = Callable[[str, Struct, Callable[[Struct], None]], None]


def apply_topics(
    sections: Sequence[TopicSection], known: Mapping[str, CatalogueTopic], change: Change, told: Callable[[str], None]
) -> None:
    """Asks for what lacks. `told` gets a line for everything that was done or refused."""

    def topics_done(verb: str) -> Callable[[Struct], None]:
        def done(results: Struct) -> None:
            for result in cast(TopicResults, results).results:
                if result.error:
                    told(f"topic {result.name} was not {verb}: {result.message}")
                else:
                    told(f"topic {result.name} was {verb}, {result.num_partitions} partitions")

        return done

    def configs_done(results: Struct) -> None:
        for result in cast(ResourceResults, results).results:
            told(
                f"topic {result.name} was not altered: {result.message}"
                if result.error
                else f"topic {result.name} was altered"
            )

    new = [section for section in sections if section.name not in known]
    if new:
        topics = tuple(
            NewTopic(
                name=section.name,
                num_partitions=-1 if section.partitions is None else section.partitions,
                configs=tuple(section.configs.items()),
            )
            for section in new
        )
        change("create_topics", CreateTopics(topics=topics), topics_done("created"))
    old = [(section, known[section.name]) for section in sections if section.name in known]
    grown = []
    for section, topic in old:
        count = len(topic.partitions)
        if section.partitions is not None and section.partitions > count:
            grown.append(MorePartitions(name=section.name, count=section.partitions))
        elif section.partitions is not None and section.partitions < count:
            told(f"topic {section.name} has {count} partitions, and can not be given fewer")
    if grown:
        change("create_partitions", CreatePartitions(topics=tuple(grown)), topics_done("grown"))
    altered = [
        ResourceChange(type=ResourceType.TOPIC, name=section.name, configs=changes)
        for section, topic in old
        if (changes := _changes(section, topic))
    ]
    if altered:
        change("alter_configs", AlterConfigs(resources=tuple(altered)), configs_done)


def _changes(section: TopicSection, topic: CatalogueTopic) -> tuple[ConfigChange, ...]:
    return tuple(
        ConfigChange(name=name, value=value)
        for name, value in section.configs.items()
        if topic.configs.get(name) != value
    )
