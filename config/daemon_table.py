"""The daemon's own settings, those of `access_table` and `coordination_table` included. Part of `config.table`.

Where Kafka has a setting, its name, type and range are Kafka's. Five defaults differ: node.id, which Kafka demands;
listeners, which here is this machine alone, since nothing asks a client who it is; and the three of sockets.
"""

from __future__ import annotations

from compactd.config.access_table import AUTHENTICATION, AUTHORISATION, QUOTAS
from compactd.config.coordination_table import GROUPS, TRANSACTIONS
from compactd.config.daemon_rows import kafka, own
from compactd.config.listeners import DEFAULT_PROTOCOLS
from compactd.config.setting import INT_MAX, Dynamic, Kind, Setting, Unit
from compactd.config.streams_table import STREAMS

_NETWORK: tuple[Setting, ...] = (
    kafka("node.id", Kind.INT, 1, "number of this node; worker k > 0 is node.id + 1000000 x k", low=0),
    kafka(
        "listeners",
        Kind.LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "where clients connect, NAME://HOST:PORT with commas between; broker worker k listens on the ports + k, or each "
        "on free ones for port 0",
        Dynamic.NO,
        may_be_empty=False,
    ),
    kafka("advertised.listeners", Kind.LIST, None, "host and port that clients are told, where they differ"),
    kafka(
        "listener.security.protocol.map",
        Kind.STRING,
        DEFAULT_PROTOCOLS,
        "what each listener speaks, NAME:PROTOCOL with commas between; replaces the default as a whole",
    ),
    kafka(
        "controller.listener.names",
        Kind.LIST,
        (),
        "listeners of Kafka's own quorum, which this node does not have: they are not opened",
    ),
    own("broker.workers", Kind.INT, 1, "broker processes, each with its share of the partitions", low=1, high=256),
    kafka("socket.request.max.bytes", Kind.INT, 104_857_600, "largest request", unit=Unit.BYTES, low=1),
    kafka(
        "queued.max.request.bytes",
        Kind.LONG,
        -1,
        "memory of requests that wait, each worker; reading pauses beyond it; -1: no limit",
        unit=Unit.BYTES,
    ),
    kafka("max.connections", Kind.INT, INT_MAX, "connections of each worker", Dynamic.YES, low=0),
    kafka("max.connections.per.ip", Kind.INT, INT_MAX, "connections from one address", Dynamic.YES, low=0),
    kafka(
        "max.connections.per.ip.overrides",
        Kind.STRING,
        "",
        "connections from single addresses: host:number,host:number",
        Dynamic.YES,
    ),
    kafka(
        "max.connection.creation.rate", Kind.INT, INT_MAX, "new connections per second, each worker", Dynamic.YES, low=0
    ),
    kafka(
        "socket.receive.buffer.bytes",
        Kind.INT,
        -1,
        "SO_RCVBUF of connections; -1: as the system sees fit (Kafka's default is 102400)",
        unit=Unit.BYTES,
    ),
    kafka(
        "socket.send.buffer.bytes",
        Kind.INT,
        -1,
        "SO_SNDBUF of connections; -1: as the system sees fit, 204800 for large fetches nearby (Kafka's default is 102400)",
        unit=Unit.BYTES,
    ),
    kafka(
        "socket.listen.backlog.size",
        Kind.INT,
        1024,
        "connections that may wait to be taken, each listener; net.core.somaxconn is the most (Kafka's default is 50)",
        low=1,
    ),
    kafka("broker.rack", Kind.STRING, None, "rack that clients and the assignors of groups are told; unset: none"),
    kafka("connections.max.idle.ms", Kind.LONG, 600_000, "idle connections are closed after this", unit=Unit.MS),
    kafka("fetch.max.bytes", Kind.INT, 57_671_680, "most that one fetch returns", unit=Unit.BYTES, low=1024),
    kafka("max.incremental.fetch.session.cache.slots", Kind.INT, 1000, "fetch sessions that are remembered", low=0),
    kafka("max.request.partition.size.limit", Kind.INT, 2000, "partitions in one DescribeTopicPartitions", low=1),
)


_MOVES: tuple[Setting, ...] = (
    kafka(
        "num.replica.alter.log.dirs.threads",
        Kind.INT,
        None,
        "partitions that each worker moves to other log dirs at the same time; unset: as many as there are log dirs",
        unit=Unit.THREADS,
    ),
)

_TOPICS: tuple[Setting, ...] = (
    kafka("num.partitions", Kind.INT, 1, "partitions of a topic created without a number", low=1),
    kafka("auto.create.topics.enable", Kind.BOOLEAN, True, "a topic that a client asks for is created"),
    kafka("delete.topic.enable", Kind.BOOLEAN, True, "clients may delete topics"),
)

_CLEANING: tuple[Setting, ...] = (
    own(
        "cleaner.io.pressure.limit",
        Kind.DOUBLE,
        60.0,
        "cleaners hold back while tasks wait for I/O more than this percent of the time; 100: never",
        Dynamic.YES,
        low=0,
        high=100,
    ),
    own(
        "cleaner.free.space.margin",
        Kind.LONG,
        64 << 20,
        "a clean is not begun unless its largest group and this many bytes fit the log dir, nor goes a move there on",
        Dynamic.YES,
        unit=Unit.BYTES,
        low=0,
    ),
    own(
        "cleaner.job.timeout.ms",
        Kind.LONG,
        120_000,
        "a cleaner that tells no progress of its job for this long is replaced",
        Dynamic.YES,
        unit=Unit.MS,
        low=1000,
    ),
)

_CATALOGUE: tuple[Setting, ...] = (
    kafka(
        "metadata.log.max.record.bytes.between.snapshots",
        Kind.LONG,
        20_971_520,
        "a snapshot of the catalogue is written after this much",
        unit=Unit.BYTES,
        low=1,
    ),
    kafka(
        "metadata.log.max.snapshot.interval.ms",
        Kind.LONG,
        3_600_000,
        "a snapshot of the catalogue is written at least this often where something changed; 0: never",
        unit=Unit.MS,
        low=0,
    ),
    kafka(
        "metadata.log.segment.bytes",
        Kind.INT,
        1 << 30,
        "segment size of the metadata log",
        unit=Unit.BYTES,
        low=8 << 20,
    ),
    kafka("metadata.log.segment.ms", Kind.LONG, 604_800_000, "age of a metadata segment", unit=Unit.MS),
    kafka(
        "metadata.max.retention.bytes",
        Kind.LONG,
        104_857_600,
        "metadata log and snapshots beyond this size are deleted",
        unit=Unit.BYTES,
    ),
    kafka(
        "metadata.max.retention.ms",
        Kind.LONG,
        604_800_000,
        "metadata segments and snapshots older than this are deleted",
        unit=Unit.MS,
    ),
)

_PROCESSES: tuple[Setting, ...] = (
    kafka(
        "replica.high.watermark.checkpoint.interval.ms",
        Kind.LONG,
        5000,
        "how often high watermarks are written",
        unit=Unit.MS,
        low=1,
    ),
    own(
        "run.dir",
        Kind.STRING,
        "",
        "directory of the sockets, mode 0700, outside every log dir; unset: one under $XDG_RUNTIME_DIR or /tmp",
    ),
    own("worker.heartbeat.ms", Kind.INT, 1000, "how often a worker says that it lives", unit=Unit.MS, low=20),
    own(
        "worker.timeout.ms",
        Kind.LONG,
        15_000,
        "a worker that was silent for this long is asked to stop, then terminated, then killed",
        Dynamic.YES,
        unit=Unit.MS,
        low=100,
    ),
    own(
        "worker.stop.timeout.ms",
        Kind.LONG,
        5000,
        "how long a worker has for each step: asked to stop, terminated, killed",
        Dynamic.YES,
        unit=Unit.MS,
        low=50,
    ),
    own(
        "worker.start.timeout.ms",
        Kind.LONG,
        30_000,
        "a worker that does not report within this time of its start is stopped and started again",
        Dynamic.YES,
        unit=Unit.MS,
        low=100,
    ),
    own(
        "shutdown.timeout.ms",
        Kind.LONG,
        60_000,
        "an orderly stop takes at most this; what has not closed by then is recovered at the next start",
        Dynamic.YES,
        unit=Unit.MS,
        low=100,
    ),
    own("metrics.listener", Kind.STRING, "", "HOST:PORT of /metrics and /healthz; unset: none"),
    own("metrics.partitions", Kind.BOOLEAN, True, "metrics have series for each partition", Dynamic.YES),
    own(
        "log.format",
        Kind.STRING,
        "auto",
        "what the daemon's own log looks like; auto: text on a terminal, JSON lines elsewhere",
        choices=("auto", "text", "json"),
    ),
    own(
        "log.level",
        Kind.STRING,
        "info",
        "what the daemon's own log holds",
        Dynamic.YES,
        choices=("debug", "info", "warning", "error"),
    ),
    own("test.clock.file", Kind.STRING, "", "file with an offset in ms to the time of day; for tests", hidden=True),
)

DAEMON_SETTINGS: tuple[Setting, ...] = (
    _NETWORK
    + AUTHENTICATION
    + AUTHORISATION
    + QUOTAS
    + _MOVES
    + _TOPICS
    + _CLEANING
    + GROUPS
    + STREAMS
    + TRANSACTIONS
    + _CATALOGUE
    + _PROCESSES
)
