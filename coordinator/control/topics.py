"""The topics at one moment, for `compactd topics`: what the catalogue says of each, and what its brokers told last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactd.config.settings import as_text
from compactd.config.table import TOPIC_SETTINGS
from compactd.coordinator.control.messages import TopicPartitionReport, TopicReport, Topics
from compactd.storage.names import TopicPartition
from compactd.workers.catalogue_update import CataloguePartition, CatalogueTopic

if TYPE_CHECKING:
    from compactd.coordinator.daemon import Daemon


def build(daemon: Daemon, names: tuple[str, ...] = ()) -> Topics:
    """All topics, or those of `names` that exist. From what is known already; touches no disk."""
    topics = daemon.partitions.topics
    wanted = sorted(topics) if not names else sorted(name for name in set(names) if name in topics)
    return Topics(topics=tuple(_topic(daemon, topics[name]) for name in wanted))


def _topic(daemon: Daemon, topic: CatalogueTopic) -> TopicReport:
    config = daemon.topic_config(topic.name)
    effective = {}
    for setting in TOPIC_SETTINGS:
        value = getattr(config, setting.field, None)
        if value is not None and not setting.hidden:
            effective[setting.name] = as_text(sorted(value) if isinstance(value, frozenset) else value)
    return TopicReport(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(_partition(daemon, topic.name, place) for place in topic.partitions),
        configs=dict(topic.configs),
        effective=effective,
    )


def _partition(daemon: Daemon, topic: str, place: CataloguePartition) -> TopicPartitionReport:
    name = TopicPartition(topic, place.partition)
    entry, state = daemon.partitions.entries.get(name), daemon.states.get(name)
    offline = ""
    if entry is not None and not entry.is_ready:
        offline = entry.offline or f"{entry.owner} is loading it"
    report = TopicPartitionReport(
        partition=place.partition,
        worker=f"broker-{place.worker}",
        log_dir=place.log_dir,
        leader_epoch=place.leader_epoch,
        offline=offline,
    )
    if state is None:
        return report
    return TopicPartitionReport(
        partition=place.partition,
        worker=report.worker,
        log_dir=place.log_dir,
        leader_epoch=place.leader_epoch,
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        high_watermark=state.high_watermark,
        size=state.active_size + sum(segment.size for segment in state.closed),
        segments=len(state.closed) + 1,
        offline=offline,
    )
