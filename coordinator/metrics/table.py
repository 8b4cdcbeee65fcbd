"""Every metric, once: its name, its meaning, and which of Kafka's it is. docs/metrics.md is made from this table.

Kafka's metrics have the names that its JMX exporter gives them in lower case, so that dashboards find them here as well
(facts 4.9).
"""

from __future__ import annotations

from dataclasses import dataclass

GAUGE, COUNTER = "gauge", "counter"
PARTITION = ("topic", "partition")
LOG_DIR = ("logDirectory",)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Names of counters end in _total."""

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()
    #: Kafka's MBean; empty: not one of Kafka's.
    kafka: str = ""


def _log_cleaner(name: str, meaning: str, manager: bool = False, labels: tuple[str, ...] = ()) -> Metric:
    bean = "LogCleanerManager" if manager else "LogCleaner"
    metric = f"kafka_log_{bean}_{name}".lower().replace("-", "_")
    return Metric(metric, GAUGE, meaning, labels, f"kafka.log:type={bean},name={name}")


def _kafka(group: str, bean: str, name: str, meaning: str, labels: tuple[str, ...] = ()) -> Metric:
    metric = f"{group.replace('.', '_')}_{bean}_{name}".lower()
    return Metric(metric, GAUGE, meaning, labels, f"{group}:type={bean},name={name}")


def _socket_server(name: str, kind: str, meaning: str) -> Metric:
    """`networkProcessor`: number of the broker worker."""
    metric = f"kafka_server_socket_server_metrics_{name.replace('-', '_')}"
    bean = "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*"
    return Metric(metric, kind, meaning, ("listener", "networkProcessor"), f"{bean}, attribute {name}")


#: Left out where metrics.partitions is false.
PARTITION_METRICS: tuple[Metric, ...] = (
    _kafka("kafka.log", "Log", "NumLogSegments", "segments of the log", PARTITION),
    _kafka("kafka.log", "Log", "LogStartOffset", "first offset of the log", PARTITION),
    _kafka("kafka.log", "Log", "LogEndOffset", "next offset of the log", PARTITION),
    _kafka("kafka.log", "Log", "Size", "bytes of its segments' .log files", PARTITION),
    _kafka(
        "kafka.log",
        "Log",
        "RetentionSizeInPercent",
        "100 x size / retention.bytes, rounded down; 0 where that is off or delete is not in its cleanup.policy",
        PARTITION,
    ),
    Metric("compactd_partition_dirty_ratio", GAUGE, "share of bytes that were not cleaned yet, 0 to 1", PARTITION),
    Metric("compactd_partition_dirty_bytes", GAUGE, "bytes that were not cleaned yet and could be", PARTITION),
    Metric("compactd_partition_quarantined", GAUGE, "1: its cleaning failed, and it was set aside", PARTITION),
)

METRICS: tuple[Metric, ...] = (
    _log_cleaner("max-buffer-utilization-percent", "how full the offset map was, the fullest of the last cleans"),
    _log_cleaner("cleaner-recopy-percent", "100 x bytes written / bytes read, over the last cleans"),
    _log_cleaner("max-clean-time-secs", "seconds that the longest of the last cleans took"),
    _log_cleaner(
        "max-compaction-delay-secs", "how far the oldest dirty record is past max.compaction.lag.ms; 0 where none is"
    ),
    _log_cleaner("DeadThreadCount", "cleaner processes that were given up"),
    _log_cleaner("max-dirty-percent", "100 x the highest dirty ratio, rounded down", manager=True),
    _log_cleaner("uncleanable-partitions-count", "partitions in quarantine", manager=True, labels=LOG_DIR),
    _log_cleaner("uncleanable-bytes", "dirty bytes of partitions in quarantine", manager=True, labels=LOG_DIR),
    Metric(
        "kafka_utils_throttler_cleaner_io_bytes_total",
        COUNTER,
        "bytes that cleaners read and wrote: what log.cleaner.io.max.bytes.per.second limits",
        kafka="kafka.utils:type=Throttler,name=cleaner-io",
    ),
    _kafka("kafka.log", "LogManager", "OfflineLogDirectoryCount", "log dirs that failed"),
    _kafka("kafka.log", "LogManager", "CordonedLogDirectoryCount", "log dirs that get no new partitions"),
    _kafka("kafka.log", "LogManager", "LogDirectoryOffline", "1: the log dir failed", LOG_DIR),
    _kafka("kafka.log", "LogManager", "LogDirectoryCordoned", "1: the log dir gets no new partitions", LOG_DIR),
    _kafka("kafka.server", "ReplicaManager", "PartitionCount", "partitions of this node"),
    _kafka("kafka.server", "ReplicaManager", "OfflineReplicaCount", "partitions that nobody serves"),
    _kafka("kafka.controller", "KafkaController", "GlobalTopicCount", "topics"),
    _kafka("kafka.controller", "KafkaController", "GlobalPartitionCount", "partitions"),
    _kafka("kafka.controller", "KafkaController", "OfflinePartitionsCount", "partitions that nobody serves"),
    _socket_server("connection-count", GAUGE, "clients that are connected"),
    _socket_server("successful-authentication-total", COUNTER, "clients that logged in, or showed a certificate"),
    _socket_server("failed-authentication-total", COUNTER, "clients that failed to"),
    _socket_server("successful-reauthentication-total", COUNTER, "clients that logged in once more"),
    _socket_server("failed-reauthentication-total", COUNTER, "clients that failed to, and were disconnected"),
    Metric(
        "kafka_server_plugins_acls_total_count",
        GAUGE,
        "ACLs",
        kafka="kafka.server:type=plugins,config=authorizer.class.name,class=StandardAuthorizer, attribute acls-total-count",
    ),
    Metric(
        "compactd_authorizations_total",
        COUNTER,
        "what clients asked to do: allowed or denied; none without an authorizer. Kafka's authorization-*-rate-per-minute "
        "are rates of these",
        ("result",),
    ),
    Metric(
        "compactd_throttles_total",
        COUNTER,
        "answers that told a client to keep still, and connections that had to wait, by the kind of quota: produce, fetch, "
        "request, controller_mutation or connection",
        ("quota",),
    ),
    Metric(
        "compactd_throttle_seconds_total", COUNTER, "for how long: Kafka's throttle-time, of all clients", ("quota",)
    ),
    Metric("compactd_transactions_open", GAUGE, "transactions that were begun and not ended yet"),
    Metric("compactd_transactions_committed_total", COUNTER, "transactions that were committed"),
    Metric("compactd_transactions_aborted_total", COUNTER, "transactions that were aborted, for whichever reason"),
    Metric(
        "compactd_transactions_timed_out_total", COUNTER, "transactions that were open for too long and are aborted"
    ),
    Metric("compactd_info", GAUGE, "always 1", ("version", "state", "clusterId")),
    Metric("compactd_uptime_seconds", GAUGE, "since the coordinator was started"),
    Metric("compactd_worker_up", GAUGE, "1: the process runs", ("kind", "number")),
    Metric("compactd_worker_restarts_total", COUNTER, "how often it was started again", ("kind", "number")),
    Metric("compactd_worker_silent_seconds", GAUGE, "since it was last heard of", ("kind", "number")),
    Metric("compactd_cleans_running", GAUGE, "cleans that are under way"),
    Metric("compactd_cleaning_paused", GAUGE, "names that compactd pause holds, all of cleaning counted as one"),
    Metric("compactd_cleaning_held", GAUGE, "1: no clean is begun, for lack of space or for I/O pressure"),
    Metric("compactd_quarantined_partitions", GAUGE, "partitions in quarantine"),
    Metric(
        "compactd_cleans_total", COUNTER, "rounds that ended: cleaned, aborted, faulty, refused or failed", ("outcome",)
    ),
    Metric("compactd_clean_read_bytes_total", COUNTER, "bytes of the segments that were copied by cleans that ended"),
    Metric("compactd_clean_written_bytes_total", COUNTER, "bytes of the segments that took their place"),
    Metric("compactd_clean_read_records_total", COUNTER, "records that cleans read"),
    Metric("compactd_clean_written_records_total", COUNTER, "records that cleans kept"),
    Metric("compactd_clean_superseded_records_total", COUNTER, "records dropped because a later one has their key"),
    Metric("compactd_clean_removed_tombstones_total", COUNTER, "tombstones dropped after delete.retention.ms"),
    Metric("compactd_deleter_queue_files", GAUGE, "files and directories that wait for their removal"),
    Metric("compactd_deleter_queue_bytes", GAUGE, "their bytes"),
    Metric("compactd_deleter_removed_total", COUNTER, "files and directories that were removed"),
    Metric("compactd_log_dir_free_bytes", GAUGE, "free space of its file system", LOG_DIR),
    Metric("compactd_log_dir_total_bytes", GAUGE, "size of its file system", LOG_DIR),
    Metric("compactd_log_dir_partitions", GAUGE, "partitions in it", LOG_DIR),
    Metric("compactd_partitions_moving", GAUGE, "partitions on their way to another log dir"),
    Metric("compactd_loop_turns_total", COUNTER, "turns of the coordinator's loop"),
    Metric("compactd_loop_slow_turns_total", COUNTER, "turns of more than 100 ms"),
    Metric("compactd_loop_busy_seconds_total", COUNTER, "time that the loop was not waiting"),
    Metric("compactd_loop_slowest_seconds", GAUGE, "the slowest turn"),
    *PARTITION_METRICS,
)

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
