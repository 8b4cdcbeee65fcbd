"""Every setting, once (facts 3, Kafka 4.4.0). Those of the daemon are in `config.daemon_table`.

Names, types, defaults and ranges are Kafka's. `docs/settings.md` is made from this table by `config.document`.
"""

from __future__ import annotations

from compactd.config.daemon_table import DAEMON_SETTINGS
from compactd.config.setting import INT_MAX, LONG_MAX, MAX_RATE, BrokerName, Dynamic, Kind, Scope, Setting, Unit

_D = Dynamic.YES
_HOUR_MS = 3_600_000
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


def _topic(
    topic: str, broker: str | tuple[BrokerName, ...], kind: Kind, default: object, meaning: str, **more: object
) -> Setting:
    """A setting with a topic-level name; `broker` names a single dynamic broker default or lists the names."""
    names = (BrokerName(broker, _D),) if isinstance(broker, str) else broker
    return Setting(topic.replace(".", "_"), Scope.TOPIC, kind, default, meaning, topic=topic, broker=names, **more)  # type: ignore[arg-type]


def _cleaner(name: str, kind: Kind, default: object, meaning: str, dynamic: Dynamic = _D, **more: object) -> Setting:
    field = name.removeprefix("log.cleaner.").replace(".", "_")
    return Setting(field, Scope.CLEANER, kind, default, meaning, broker=(BrokerName(name, dynamic),), **more)  # type: ignore[arg-type]


def _storage(
    name: str, kind: Kind, default: object, meaning: str, dynamic: Dynamic = Dynamic.NO, **more: object
) -> Setting:
    field = name.replace(".", "_")
    return Setting(field, Scope.STORAGE, kind, default, meaning, broker=(BrokerName(name, dynamic),), **more)  # type: ignore[arg-type]


TOPIC_SETTINGS: tuple[Setting, ...] = (
    _topic(
        "cleanup.policy",
        "log.cleanup.policy",
        Kind.LIST,
        ("delete",),
        "what happens to old records: compact keeps the newest of each key, delete drops old segments",
        choices=("compact", "delete"),
    ),
    _topic(
        "segment.bytes",
        "log.segment.bytes",
        Kind.INT,
        1 << 30,
        "size at which a segment is closed, and limit of the segments cleaned into one",
        unit=Unit.BYTES,
        low=1 << 20,
    ),
    _topic(
        "internal.segment.bytes",
        (),
        Kind.INT,
        None,
        "overrides segment.bytes without its lower limit; for tests",
        unit=Unit.BYTES,
        low=1,
        hidden=True,
    ),
    _topic(
        "segment.ms",
        (BrokerName("log.roll.ms", _D), BrokerName("log.roll.hours", kind=Kind.INT, scale=_HOUR_MS)),
        Kind.LONG,
        168 * _HOUR_MS,
        "age at which a segment is closed",
        unit=Unit.MS,
        low=1,
    ),
    _topic(
        "segment.jitter.ms",
        (BrokerName("log.roll.jitter.ms", _D), BrokerName("log.roll.jitter.hours", kind=Kind.INT, scale=_HOUR_MS)),
        Kind.LONG,
        0,
        "at most this much, drawn at random per segment, is taken off segment.ms",
        unit=Unit.MS,
        low=0,
    ),
    _topic(
        "index.interval.bytes",
        "log.index.interval.bytes",
        Kind.INT,
        4096,
        "bytes of records between two index entries",
        unit=Unit.BYTES,
        low=0,
    ),
    _topic(
        "segment.index.bytes",
        "log.index.size.max.bytes",
        Kind.INT,
        10 << 20,
        "size of a segment's index files; also limits the segments cleaned into one",
        unit=Unit.BYTES,
        low=4,
    ),
    _topic("preallocate", "log.preallocate", Kind.BOOLEAN, False, "new .log files are made at their full size"),
    _topic(
        "flush.messages",
        "log.flush.interval.messages",
        Kind.LONG,
        LONG_MAX,
        "records after which a log is flushed to disk",
        unit=Unit.MESSAGES,
        low=1,
    ),
    _topic(
        "flush.ms",
        (BrokerName("log.flush.interval.ms", _D), BrokerName("log.flush.scheduler.interval.ms")),
        Kind.LONG,
        LONG_MAX,
        "time after which a log is flushed to disk",
        unit=Unit.MS,
        low=0,
    ),
    _topic(
        "file.delete.delay.ms",
        "log.segment.delete.delay.ms",
        Kind.LONG,
        60_000,
        "how long replaced files stay as .deleted, and deleted partitions as -delete",
        unit=Unit.MS,
        low=0,
    ),
    _topic(
        "max.message.bytes",
        "message.max.bytes",
        Kind.INT,
        1_048_588,
        "largest batch that is accepted, compressed size",
        unit=Unit.BYTES,
        low=0,
    ),
    _topic(
        "max.decompressed.message.bytes",
        "max.decompressed.message.bytes",
        Kind.INT,
        INT_MAX - 8,
        "largest record body inside a compressed batch",
        unit=Unit.BYTES,
        low=1,
        high=INT_MAX - 8,
    ),
    _topic(
        "message.timestamp.type",
        "log.message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "whose clock stamps a record: the producer's or, at append, the broker's",
        choices=("CreateTime", "LogAppendTime"),
    ),
    _topic(
        "message.timestamp.before.max.ms",
        "log.message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAX,
        "how far in the past a producer's timestamp may lie (CreateTime)",
        unit=Unit.MS,
        low=0,
    ),
    _topic(
        "message.timestamp.after.max.ms",
        "log.message.timestamp.after.max.ms",
        Kind.LONG,
        _HOUR_MS,
        "how far in the future a producer's timestamp may lie (CreateTime)",
        unit=Unit.MS,
        low=0,
    ),
    _topic(
        "compression.type",
        "compression.type",
        Kind.STRING,
        "producer",
        "codec batches are stored with at append; cleaning keeps a batch's own codec",
        choices=_CODECS,
    ),
    _topic(
        "compression.gzip.level",
        "compression.gzip.level",
        Kind.INT,
        -1,
        "level where compression.type is gzip; cleaning uses the default level",
        low=1,
        high=9,
        also=(-1,),
    ),
    _topic(
        "compression.lz4.level",
        "compression.lz4.level",
        Kind.INT,
        9,
        "level where compression.type is lz4; cleaning uses the default level",
        low=1,
        high=17,
    ),
    _topic(
        "compression.zstd.level",
        "compression.zstd.level",
        Kind.INT,
        3,
        "level where compression.type is zstd; cleaning uses the default level",
        low=-131072,
        high=22,
    ),
    _topic(
        "min.insync.replicas",
        "min.insync.replicas",
        Kind.INT,
        1,
        "replicas that must have a record before acks=all is answered",
        low=1,
        no_effect="as in Kafka, where no more are asked for than there are copies: one",
    ),
    _topic(
        "unclean.leader.election.enable",
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "a replica that lags may lead",
        no_effect="there is one copy of each partition",
    ),
    _topic(
        "retention.ms",
        (
            BrokerName("log.retention.ms", _D, low=1, negative_is_off=True),
            BrokerName("log.retention.minutes", kind=Kind.INT, scale=60_000, low=1, negative_is_off=True),
            BrokerName("log.retention.hours", kind=Kind.INT, scale=_HOUR_MS, low=1, negative_is_off=True),
        ),
        Kind.LONG,
        168 * _HOUR_MS,
        "segments whose newest record is older are deleted (policy delete); -1 is off",
        unit=Unit.MS,
        low=-1,
    ),
    _topic(
        "retention.bytes",
        "log.retention.bytes",
        Kind.LONG,
        -1,
        "oldest segments beyond this size of a partition are deleted (policy delete); negative is off",
        unit=Unit.BYTES,
    ),
    _topic(
        "min.cleanable.dirty.ratio",
        "log.cleaner.min.cleanable.ratio",
        Kind.DOUBLE,
        0.5,
        "share of uncleaned bytes that must be exceeded before a log is cleaned",
        unit=Unit.RATIO,
        low=0,
        high=1,
    ),
    _topic(
        "delete.retention.ms",
        "log.cleaner.delete.retention.ms",
        Kind.LONG,
        86_400_000,
        "how long tombstones and transaction markers stay after they were cleaned",
        unit=Unit.MS,
        low=0,
    ),
    _topic(
        "min.compaction.lag.ms",
        "log.cleaner.min.compaction.lag.ms",
        Kind.LONG,
        0,
        "records younger than this are not cleaned; at most max.compaction.lag.ms",
        unit=Unit.MS,
        low=0,
    ),
    _topic(
        "max.compaction.lag.ms",
        "log.cleaner.max.compaction.lag.ms",
        Kind.LONG,
        LONG_MAX,
        "records older than this are cleaned whatever the ratio",
        unit=Unit.MS,
        low=1,
    ),
)

CLEANER_SETTINGS: tuple[Setting, ...] = (
    _cleaner(
        "log.cleaner.enable",
        Kind.BOOLEAN,
        True,
        "false: no compaction at all (deprecated in Kafka, KIP-1148)",
        Dynamic.NO,
    ),
    _cleaner(
        "log.cleaner.threads",
        Kind.INT,
        1,
        "cleaners that run at once; Kafka needs one at least, and changes it at run time to between half and double",
        unit=Unit.THREADS,
        low=0,
    ),
    _cleaner(
        "log.cleaner.dedupe.buffer.size",
        Kind.LONG,
        128 << 20,
        "memory of the offset maps of all cleaners together; more than 1 MiB for each",
        unit=Unit.BYTES,
        low=1,
    ),
    _cleaner(
        "log.cleaner.io.buffer.size",
        Kind.INT,
        512 << 10,
        "memory of the read and write buffers of all cleaners together",
        unit=Unit.BYTES,
        low=0,
        no_effect="each cleaner reads and writes by the MiB, or by the batch where that is larger",
    ),
    _cleaner(
        "log.cleaner.io.buffer.load.factor",
        Kind.DOUBLE,
        0.9,
        "how full an offset map may get",
        unit=Unit.RATIO,
        above=0,
        high=1,
    ),
    _cleaner(
        "log.cleaner.io.max.bytes.per.second",
        Kind.DOUBLE,
        MAX_RATE,
        "limit of reading and writing, all cleaners together",
        unit=Unit.BYTES_PER_SECOND,
        above=0,
    ),
    _cleaner("log.cleaner.backoff.ms", Kind.LONG, 15_000, "pause when nothing is to be cleaned", unit=Unit.MS, low=0),
)

STORAGE_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "log_dirs",
        Scope.STORAGE,
        Kind.LIST,
        ("/tmp/kafka-logs",),
        "directories that hold the partitions",
        broker=(BrokerName("log.dirs"), BrokerName("log.dir")),
        may_be_empty=False,
    ),
    _storage(
        "cordoned.log.dirs", Kind.LIST, (), "log dirs that get no new partitions, or * for all", Dynamic.PER_BROKER
    ),
    _storage(
        "num.recovery.threads.per.data.dir",
        Kind.INT,
        2,
        "threads that load and close the logs of a dir",
        _D,
        unit=Unit.THREADS,
        low=1,
    ),
    _storage(
        "background.threads",
        Kind.INT,
        10,
        "threads of the scheduler",
        _D,
        unit=Unit.THREADS,
        low=1,
        no_effect="processes of their own do its work",
    ),
    _storage(
        "log.flush.scheduler.interval.ms",
        Kind.LONG,
        LONG_MAX,
        "how often logs are checked for flush.ms; each second where it is not set (by Kafka never)",
        unit=Unit.MS,
    ),
    _storage(
        "log.flush.offset.checkpoint.interval.ms",
        Kind.INT,
        60_000,
        "how often recovery points are written",
        unit=Unit.MS,
        low=0,
    ),
    _storage(
        "log.flush.start.offset.checkpoint.interval.ms",
        Kind.INT,
        60_000,
        "how often log start offsets are written",
        unit=Unit.MS,
        low=0,
    ),
    _storage(
        "log.initial.task.delay.ms",
        Kind.LONG,
        30_000,
        "delay of the first run of every periodic task",
        unit=Unit.MS,
        low=0,
    ),
    _storage(
        "log.dir.failure.timeout.ms",
        Kind.LONG,
        30_000,
        "the broker stops when it cannot report a failed dir for this long",
        unit=Unit.MS,
        low=1,
        no_effect="whom it is reported to is on this node",
    ),
    _storage(
        "log.retention.check.interval.ms",
        Kind.LONG,
        300_000,
        "how often old segments are looked for",
        unit=Unit.MS,
        low=1,
    ),
    _storage(
        "producer.id.expiration.ms",
        Kind.INT,
        86_400_000,
        "idle producers are forgotten after this, and with them the last batch a clean must keep for them",
        _D,
        unit=Unit.MS,
        low=1,
    ),
    _storage(
        "producer.id.expiration.check.interval.ms",
        Kind.INT,
        600_000,
        "how often idle producers are looked for",
        unit=Unit.MS,
        low=1,
        hidden=True,
    ),
)

SETTINGS: tuple[Setting, ...] = TOPIC_SETTINGS + CLEANER_SETTINGS + STORAGE_SETTINGS + DAEMON_SETTINGS

#: Topic-level name to setting.
BY_TOPIC_NAME: dict[str, Setting] = {setting.topic: setting for setting in TOPIC_SETTINGS if setting.topic is not None}

#: Broker-level name to the settings it feeds: log.flush.scheduler.interval.ms feeds two, every other one.
BY_BROKER_NAME: dict[str, tuple[Setting, ...]] = {
    entry.name: tuple(other for other in SETTINGS if other.broker_name(entry.name) is not None)
    for setting in SETTINGS
    for entry in setting.broker
}
