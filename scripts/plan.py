"""From the paths and options of a command line to one job a partition, with its settings and where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from compactd.config.errors import UsageError
from compactd.config.load import (
    RawSettings,
    Resolved,
    ResolvedConfig,
    load_file,
    parse_sets,
    resolve_cleaner,
    resolve_topic,
)
from compactd.config.settings import CleanerConfig
from compactd.storage.cleaning.run import CleanJob
from compactd.storage.metadata import ClusterMetadata, read_cluster_metadata
from compactd.storage.targets import PartitionTarget, Targets, find_targets


@dataclass(slots=True)
class Planned:
    """One partition with its settings."""

    target: PartitionTarget
    job: CleanJob
    settings: ResolvedConfig

    @property
    def name(self) -> str:
        return str(self.target.topic_partition)


@dataclass(slots=True)
class Plan:
    """Everything that the paths lead to."""

    targets: Targets
    partitions: list[Planned]
    cleaner: Resolved[CleanerConfig]
    metadata: ClusterMetadata | None
    #: What a person should know before reading results, each a sentence.
    notes: list[str] = field(default_factory=list)


def make_plan(
    paths: Sequence[Path],
    sets: Sequence[str] = (),
    config_file: Path | None = None,
    metadata_dir: Path | None = None,
    high_watermark: int | None = None,
    workers: int | None = None,
    any_buffer_size: bool = False,
) -> Plan:
    """Finds the partitions and puts their settings together: --set, --config, the cluster's metadata, defaults.

    `workers` takes the place of log.cleaner.threads. Raises UsageError, SettingError, StorageIOError.
    """
    given = parse_sets([*sets, *([] if workers is None else [f"log.cleaner.threads={workers}"])])
    file_settings = None if config_file is None else load_file(config_file)
    targets = find_targets(paths)
    log_dirs = [state.path for state in targets.log_dirs]
    metadata = read_cluster_metadata([*([] if metadata_dir is None else [metadata_dir]), *log_dirs])
    if metadata_dir is not None and (metadata is None or metadata_dir.resolve() not in metadata.path.resolve().parents):
        raise UsageError(detail=f"--metadata {metadata_dir}: there is no __cluster_metadata-0 in it")
    if high_watermark is not None and len(targets.partitions) > 1:
        raise UsageError(detail="--high-watermark is of one partition; name a single topic-partition directory")

    plan = Plan(targets, [], resolve_cleaner(given, file_settings, metadata, any_buffer_size), metadata, targets.notes)
    plan.notes.extend(_notes(metadata, given, file_settings))
    settings: dict[str, ResolvedConfig] = {}
    for target in targets.partitions:
        topic = target.topic_partition.topic
        if topic not in settings:
            settings[topic] = resolve_topic(topic, given, file_settings, metadata)
            if metadata is None:
                settings[topic] = _as_kafka_creates(topic, settings[topic])
            elif topic not in metadata.topics:
                plan.notes.append(
                    f"{target.directory}: the cluster's metadata knows no topic {topic}, so its settings are the "
                    "defaults; a broker sets such a directory aside when it starts."
                )
        job = _job(target, settings[topic], high_watermark)
        plan.partitions.append(Planned(target, job, settings[topic]))
    return plan


#: What the coordinators give their topics when they create them (GroupCoordinator.offsetsTopicConfigs and its twin).
_COORDINATOR_TOPICS = {
    "__consumer_offsets": {"cleanup_policy": frozenset({"compact"}), "segment_bytes": 104857600},
    "__transaction_state": {"cleanup_policy": frozenset({"compact"}), "segment_bytes": 104857600},
}


def _as_kafka_creates(topic: str, settings: ResolvedConfig) -> ResolvedConfig:
    """Without the cluster's metadata: the settings Kafka creates its own topics with, where nothing else was given."""
    values = {
        field: value
        for field, value in _COORDINATOR_TOPICS.get(topic, {}).items()
        if settings.sources[field.replace("_", ".")] == "default"
    }
    if not values:
        return settings
    sources = settings.sources | {field.replace("_", "."): "Kafka's settings for this topic" for field in values}
    return replace(settings, config=msgspec.structs.replace(settings.config, **values), sources=sources)


def _job(target: PartitionTarget, settings: ResolvedConfig, high_watermark: int | None) -> CleanJob:
    state, name = target.log_dir, target.topic_partition
    if high_watermark is None and state.high_watermarks is not None:
        # Kafka starts a log without an entry at its log start offset.
        high_watermark = state.high_watermarks.get(name, 0)
    return CleanJob(
        topic_partition=name,
        directory=target.directory,
        config=settings.config,
        checkpoint=state.cleaner_offsets.get(name),
        high_watermark=high_watermark,
        log_start_offset=state.log_start_offsets.get(name, 0),
        clean_shutdown=state.clean_shutdown,
        recovery_point=state.recovery_points.get(name, 0),
    )


def _notes(metadata: ClusterMetadata | None, given: RawSettings, file_settings: RawSettings | None) -> list[str]:
    notes: list[str] = []
    if metadata is not None:
        notes.extend(metadata.warnings)
    elif not _names_policy(given) and (file_settings is None or not _names_policy(file_settings)):
        notes.append(
            "there is no __cluster_metadata-0 beside these partitions and no cleanup.policy in --set or --config, so all "
            "but Kafka's own topics count as cleanup.policy=delete; name the log dir that holds it with --metadata, or "
            "use --set cleanup.policy=compact."
        )
    if file_settings is not None:
        notes.extend(
            f"{unused.source}: {unused.name} {unused.reason}." for unused in file_settings.unused if unused.unknown
        )
    return notes


def _names_policy(settings: RawSettings) -> bool:
    in_topics = any("cleanup.policy" in entries for entries in settings.topics.values())
    return "cleanup.policy" in settings.every_topic or "log.cleanup.policy" in settings.broker or in_topics
