"""What each metric of `metrics.table` comes to at one moment. Pure, and called in the web server's threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compactd.config.setting import LONG_MAX
from compactd.config.settings import TopicConfig
from compactd.coordinator.control.messages import PartitionStatus, Status
from compactd.storage.names import TopicPartition
from compactd.workers.partition_messages import PartitionState

#: Label values and the value, for each series of a metric.
Series = list[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class PastClean:
    """A clean that ended."""

    bytes_read: float
    bytes_written: float
    #: Share of the offset map that was used.
    map_use: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Moment:
    """The daemon as the metrics show it. Nothing in it changes any more."""

    status: Status
    states: Sequence[tuple[TopicPartition, PartitionState]]
    #: Effective settings of every topic of `states`.
    configs: Mapping[str, TopicConfig]
    #: The last cleans, as many as there are cleaners at most.
    cleans: Sequence[PastClean]
    #: Show single partitions.
    partitions: bool


def series_of(moment: Moment) -> dict[str, Series]:
    """By metric, all but the counters that the cleaners' messages feed."""
    shown: dict[str, Series] = {}
    _of_node(moment.status, shown)
    _of_log_dirs(moment.status, shown)
    _of_cleaning(moment, shown)
    if moment.partitions:
        _of_partitions(moment, shown)
    return shown


def _of_node(status: Status, shown: dict[str, Series]) -> None:
    loop, deleter, offline = status.loop, status.deleter, len(status.offline)
    values: dict[str, float] = {
        "kafka_server_replicamanager_partitioncount": status.partitions,
        "kafka_server_replicamanager_offlinereplicacount": offline,
        "kafka_controller_kafkacontroller_globaltopiccount": status.topics,
        "kafka_controller_kafkacontroller_globalpartitioncount": status.partitions,
        "kafka_controller_kafkacontroller_offlinepartitionscount": offline,
        "compactd_uptime_seconds": status.up_seconds,
        "compactd_partitions_moving": len(status.moves),
        "compactd_deleter_queue_files": deleter.queued,
        "compactd_deleter_queue_bytes": deleter.queued_bytes,
        "compactd_deleter_removed_total": deleter.removed,
        "compactd_loop_turns_total": loop.turns,
        "compactd_loop_slow_turns_total": loop.slow_turns,
        "compactd_loop_busy_seconds_total": loop.busy_seconds,
        "compactd_loop_slowest_seconds": loop.slowest_ms / 1000,
    }
    shown.update({name: [((), value)] for name, value in values.items()})
    shown["compactd_info"] = [((status.version, status.state, status.cluster_id), 1)]
    workers = [((each.kind, str(each.number)), each) for each in status.workers]
    shown["compactd_worker_up"] = [(labels, int(each.state == "running")) for labels, each in workers]
    shown["compactd_worker_restarts_total"] = [(labels, each.restarts) for labels, each in workers]
    shown["compactd_worker_silent_seconds"] = [(labels, each.silent_seconds) for labels, each in workers]


def _of_log_dirs(status: Status, shown: dict[str, Series]) -> None:
    dirs = [((each.path,), each) for each in status.log_dirs]
    failed = [(labels, int(bool(each.offline_because))) for labels, each in dirs]
    cordoned = [(labels, int(each.cordoned)) for labels, each in dirs]
    shown["kafka_log_logmanager_logdirectoryoffline"] = list(failed)
    shown["kafka_log_logmanager_logdirectorycordoned"] = list(cordoned)
    shown["kafka_log_logmanager_offlinelogdirectorycount"] = [((), sum(value for _, value in failed))]
    shown["kafka_log_logmanager_cordonedlogdirectorycount"] = [((), sum(value for _, value in cordoned))]
    shown["compactd_log_dir_free_bytes"] = [(labels, each.free_bytes) for labels, each in dirs]
    shown["compactd_log_dir_total_bytes"] = [(labels, each.total_bytes) for labels, each in dirs]
    shown["compactd_log_dir_partitions"] = [(labels, each.partitions) for labels, each in dirs]


def _of_cleaning(moment: Moment, shown: dict[str, Series]) -> None:
    status, cleaning, last = moment.status, moment.status.cleaning, moment.cleans
    read = max(sum(clean.bytes_read for clean in last), 1)
    written = sum(clean.bytes_written for clean in last)
    ratios = [each.dirty_ratio for each in cleaning.partitions if each.dirty_ratio is not None]
    dead = sum(worker.kind == "cleaner" and worker.state == "given up" for worker in status.workers)
    values = {
        "kafka_log_logcleaner_max_buffer_utilization_percent": int(
            100 * max((clean.map_use for clean in last), default=0)
        ),
        "kafka_log_logcleaner_cleaner_recopy_percent": int(100 * written / read),
        "kafka_log_logcleaner_max_clean_time_secs": int(max((clean.seconds for clean in last), default=0)),
        "kafka_log_logcleaner_max_compaction_delay_secs": _compaction_delay_ms(moment) // 1000,
        "kafka_log_logcleaner_deadthreadcount": dead,
        "kafka_log_logcleanermanager_max_dirty_percent": int(100 * max(ratios, default=0)),
        "compactd_cleans_running": len(cleaning.jobs),
        "compactd_cleaning_paused": len(cleaning.paused),
        "compactd_cleaning_held": int(bool(cleaning.held_by)),
        "compactd_quarantined_partitions": len(cleaning.quarantine),
    }
    shown.update({name: [((), value)] for name, value in values.items()})
    known = {each.name: each for each in cleaning.partitions}
    aside = [known.get(each.partition) for each in cleaning.quarantine]
    for name, count in (
        ("kafka_log_logcleanermanager_uncleanable_partitions_count", lambda _: 1),
        ("kafka_log_logcleanermanager_uncleanable_bytes", lambda each: each.dirty_bytes),
    ):
        sums = dict.fromkeys((each.path for each in status.log_dirs), 0)
        for each in aside:
            if each is not None and each.log_dir in sums:
                sums[each.log_dir] += count(each)
        shown[name] = [((path,), value) for path, value in sums.items()]


def _compaction_delay_ms(moment: Moment) -> int:
    """As LogCleaner's maxCompactionDelay: of closed, dirty segments the earliest first batch, past the topic's limit."""
    limited = {name for name, config in moment.configs.items() if config.max_compaction_lag_ms != LONG_MAX}
    states = {name: state for name, state in moment.states if name.topic in limited}
    status, worst = moment.status, 0
    for each in status.cleaning.partitions if limited else ():
        name = _name(each)
        state = states.get(name)
        if state is None:
            continue
        dirty = [s.first_batch_timestamp for s in state.closed if s.base_offset >= each.first_dirty_offset]
        earliest = min((timestamp for timestamp in dirty if timestamp > 0), default=status.now_ms)
        worst = max(worst, status.now_ms - earliest - moment.configs[name.topic].max_compaction_lag_ms)
    return worst


def _of_partitions(moment: Moment, shown: dict[str, Series]) -> None:
    columns: tuple[Series, ...] = ([], [], [], [], [])
    for name, state in moment.states:
        labels = (name.topic, str(name.partition))
        for column, value in zip(columns, _log_values(state, moment.configs[name.topic]), strict=True):
            column.append((labels, value))
    for metric, column in zip(
        ("numlogsegments", "logstartoffset", "logendoffset", "size", "retentionsizeinpercent"), columns, strict=True
    ):
        shown[f"kafka_log_log_{metric}"] = column
    ratios: Series = []
    sizes: Series = []
    for each in moment.status.cleaning.partitions:
        if each.dirty_ratio is not None:
            found = _name(each)
            labels = (found.topic, str(found.partition))
            ratios.append((labels, each.dirty_ratio))
            sizes.append((labels, each.dirty_bytes))
    shown["compactd_partition_dirty_ratio"], shown["compactd_partition_dirty_bytes"] = ratios, sizes
    shown["compactd_partition_quarantined"] = [
        (tuple(each.partition.rsplit("-", 1)), 1) for each in moment.status.cleaning.quarantine
    ]


def _log_values(state: PartitionState, config: TopicConfig) -> tuple[int, int, int, int, int]:
    """Segments, start, end, size, retention size in percent."""
    size = state.active_size + sum(segment.size for segment in state.closed)
    limit = config.retention_bytes if config.delete else -1
    share = 100 * size // limit if limit > 0 else 0
    return len(state.closed) + 1, state.log_start_offset, state.log_end_offset, size, share


def _name(partition: PartitionStatus) -> TopicPartition:
    topic, _, number = partition.name.rpartition("-")
    return TopicPartition(topic, int(number))
