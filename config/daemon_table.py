"""The daemon's own settings: part of `config.table`, kept apart for its length.

Where Kafka has a setting, its name, type and range are Kafka's. Five defaults differ: node.id, which Kafka demands;
listeners, which here is this machine alone, since nothing asks a client who it is; and the three of sockets.
"""

from __future__ import annotations

from compactd.config.authorization import STANDARD_AUTHORIZER
from compactd.config.listeners import DEFAULT_PROTOCOLS
from compactd.config.setting import INT_MAX, BrokerName, Dynamic, Kind, Scope, Setting, Unit


def _kafka(
    name: str, kind: Kind, default: object, meaning: str, dynamic: Dynamic = Dynamic.NO, **more: object
) -> Setting:
    field = name.replace(".", "_")
    return Setting(field, Scope.DAEMON, kind, default, meaning, broker=(BrokerName(name, dynamic),), **more)  # type: ignore[arg-type]


def _own(
    name: str, kind: Kind, default: object, meaning: str, dynamic: Dynamic = Dynamic.NO, **more: object
) -> Setting:
    return _kafka(name, kind, default, meaning, dynamic, own=True, **more)


def _plug_in(name: str, kind: Kind, default: object, meaning: str) -> Setting:
    """Kafka's, but read by its authorizer: KafkaConfig does not know it."""
    return _kafka(name, kind, default, meaning, plug_in=True)


_NETWORK: tuple[Setting, ...] = (
    _kafka("node.id", Kind.INT, 1, "number of this node; worker k > 0 is node.id + 1000000 x k", low=0),
    _kafka(
        "listeners",
        Kind.LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "where clients connect, NAME://HOST:PORT with commas between; broker worker k listens on the ports + k, or each "
        "on free ones for port 0",
        Dynamic.NO,
        may_be_empty=False,
    ),
    _kafka("advertised.listeners", Kind.LIST, None, "host and port that clients are told, where they differ"),
    _kafka(
        "listener.security.protocol.map",
        Kind.STRING,
        DEFAULT_PROTOCOLS,
        "what each listener speaks, NAME:PROTOCOL with commas between; replaces the default as a whole",
    ),
    _kafka(
        "controller.listener.names",
        Kind.LIST,
        (),
        "listeners of Kafka's own quorum, which this node does not have: they are not opened",
    ),
    _own("broker.workers", Kind.INT, 1, "broker processes, each with its share of the partitions", low=1, high=256),
    _kafka("socket.request.max.bytes", Kind.INT, 104_857_600, "largest request", unit=Unit.BYTES, low=1),
    _kafka(
        "queued.max.request.bytes",
        Kind.LONG,
        -1,
        "memory of requests that wait, each worker; reading pauses beyond it; -1: no limit",
        unit=Unit.BYTES,
    ),
    _kafka("max.connections", Kind.INT, INT_MAX, "connections of each worker", Dynamic.YES, low=0),
    _kafka("max.connections.per.ip", Kind.INT, INT_MAX, "connections from one address", Dynamic.YES, low=0),
    _kafka(
        "max.connections.per.ip.overrides",
        Kind.STRING,
        "",
        "connections from single addresses: host:number,host:number",
        Dynamic.YES,
    ),
    _kafka(
        "max.connection.creation.rate", Kind.INT, INT_MAX, "new connections per second, each worker", Dynamic.YES, low=0
    ),
    _kafka(
        "socket.receive.buffer.bytes",
        Kind.INT,
        -1,
        "SO_RCVBUF of connections; -1: as the system sees fit (Kafka's default is 102400)",
        unit=Unit.BYTES,
    ),
    _kafka(
        "socket.send.buffer.bytes",
        Kind.INT,
        -1,
        "SO_SNDBUF of connections; -1: as the system sees fit (Kafka's default is 102400)",
        unit=Unit.BYTES,
    ),
    _kafka(
        "socket.listen.backlog.size",
        Kind.INT,
        1024,
        "connections that may wait to be taken, each listener; net.core.somaxconn is the most (Kafka's default is 50)",
        low=1,
    ),
    _kafka("broker.rack", Kind.STRING, None, "rack that clients and the assignors of groups are told; unset: none"),
    _kafka("connections.max.idle.ms", Kind.LONG, 600_000, "idle connections are closed after this", unit=Unit.MS),
    _kafka("fetch.max.bytes", Kind.INT, 57_671_680, "most that one fetch returns", unit=Unit.BYTES, low=1024),
    _kafka("max.incremental.fetch.session.cache.slots", Kind.INT, 1000, "fetch sessions that are remembered", low=0),
    _kafka("max.request.partition.size.limit", Kind.INT, 2000, "partitions in one DescribeTopicPartitions", low=1),
)

_QUOTAS: tuple[Setting, ...] = (
    _kafka("quota.window.num", Kind.INT, 11, "windows over which the rates of client quotas are taken", low=1),
    _kafka("quota.window.size.seconds", Kind.INT, 1, "length of each of these windows, in seconds", low=1),
    _kafka(
        "controller.quota.window.num",
        Kind.INT,
        11,
        "windows whose permits to make and delete partitions are saved up",
        low=1,
    ),
    _kafka("controller.quota.window.size.seconds", Kind.INT, 1, "length of each of these windows, in seconds", low=1),
)

_MOVES: tuple[Setting, ...] = (
    _kafka(
        "num.replica.alter.log.dirs.threads",
        Kind.INT,
        None,
        "partitions that each worker moves to other log dirs at the same time; unset: as many as there are log dirs",
        unit=Unit.THREADS,
    ),
)

_TOPICS: tuple[Setting, ...] = (
    _kafka("num.partitions", Kind.INT, 1, "partitions of a topic created without a number", low=1),
    _kafka("auto.create.topics.enable", Kind.BOOLEAN, True, "a topic that a client asks for is created"),
    _kafka("delete.topic.enable", Kind.BOOLEAN, True, "clients may delete topics"),
)

_PRINCIPALS = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
_P = Dynamic.PER_BROKER

#: Each listener may have its own, under listener.name.NAME. (see config.listener_settings).
_AUTHENTICATION: tuple[Setting, ...] = (
    _kafka(
        "sasl.enabled.mechanisms",
        Kind.LIST,
        ("GSSAPI",),
        "how clients of SASL listeners log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512; has to be set, GSSAPI cannot be had",
        _P,
    ),
    _kafka(
        "connections.max.reauth.ms",
        Kind.LONG,
        0,
        "clients have to log in again within this; 0: never",
        unit=Unit.MS,
    ),
    _kafka(
        "connection.failed.authentication.delay.ms",
        Kind.INT,
        100,
        "a client that failed to log in is told, and disconnected, after this",
        unit=Unit.MS,
        low=0,
    ),
    _kafka(
        "sasl.server.max.receive.size",
        Kind.INT,
        524_288,
        "largest request of a client that has not logged in",
        unit=Unit.BYTES,
    ),
    _kafka("principal.builder.class", Kind.CLASS, _PRINCIPALS, "Kafka's own is the only one", _P),
    _kafka("sasl.server.callback.handler.class", Kind.CLASS, None, "cannot be had; unset: Kafka's own"),
    _kafka(
        "ssl.client.auth",
        Kind.STRING,
        "none",
        "whether clients of TLS listeners show a certificate",
        _P,
        choices=("required", "requested", "none"),
    ),
    _kafka("ssl.enabled.protocols", Kind.LIST, ("TLSv1.2", "TLSv1.3"), "versions of TLS", _P),
    _kafka(
        "ssl.cipher.suites", Kind.LIST, (), "cipher suites of TLS, by their standard names; empty: OpenSSL's choice", _P
    ),
    _kafka("ssl.keystore.type", Kind.STRING, "JKS", "PEM is the only type that can be read", _P),
    _kafka("ssl.keystore.location", Kind.STRING, None, "file with the private key and the certificates", _P),
    _kafka("ssl.keystore.certificate.chain", Kind.PASSWORD, None, "certificates, in place of the file", _P),
    _kafka("ssl.keystore.key", Kind.PASSWORD, None, "private key, in place of the file", _P),
    _kafka("ssl.key.password", Kind.PASSWORD, None, "password of the private key", _P),
    _kafka("ssl.keystore.password", Kind.PASSWORD, None, "a PEM file as a whole has none", _P),
    _kafka("ssl.truststore.type", Kind.STRING, "JKS", "PEM is the only type that can be read", _P),
    _kafka("ssl.truststore.location", Kind.STRING, None, "file with the certificates of who vouches for clients", _P),
    _kafka("ssl.truststore.certificates", Kind.PASSWORD, None, "these certificates, in place of the file", _P),
    _kafka("ssl.truststore.password", Kind.PASSWORD, None, "a PEM file as a whole has none", _P),
    _kafka("ssl.principal.mapping.rules", Kind.STRING, "DEFAULT", "what the owner of a certificate is called"),
    _kafka("ssl.engine.factory.class", Kind.CLASS, None, "cannot be had; unset: Kafka's own", _P),
)

_AUTHORISATION: tuple[Setting, ...] = (
    _kafka(
        "authorizer.class.name",
        Kind.STRING,
        "",
        f"{STANDARD_AUTHORIZER}: clients may do what ACLs allow; unset: everybody may do everything",
    ),
    _plug_in("super.users", Kind.STRING, "", "principals that may do everything: `User:admin;User:alice`"),
    _plug_in(
        "allow.everyone.if.no.acl.found",
        Kind.BOOLEAN,
        False,
        "everybody may do everything with a topic, group or other resource that no ACL is about",
    ),
)

_CLEANING: tuple[Setting, ...] = (
    _own(
        "cleaner.io.pressure.limit",
        Kind.DOUBLE,
        60.0,
        "cleaners hold back while tasks wait for I/O more than this percent of the time; 100: never",
        Dynamic.YES,
        low=0,
        high=100,
    ),
    _own(
        "cleaner.free.space.margin",
        Kind.LONG,
        64 << 20,
        "a clean is not begun unless its largest group and this many bytes fit the log dir, nor goes a move there on",
        Dynamic.YES,
        unit=Unit.BYTES,
        low=0,
    ),
    _own(
        "cleaner.job.timeout.ms",
        Kind.LONG,
        120_000,
        "a cleaner that tells no progress of its job for this long is replaced",
        Dynamic.YES,
        unit=Unit.MS,
        low=1000,
    ),
)

_GROUPS: tuple[Setting, ...] = (
    _kafka("offsets.topic.num.partitions", Kind.INT, 50, "partitions of __consumer_offsets", low=1),
    _kafka(
        "offsets.topic.segment.bytes",
        Kind.INT,
        104_857_600,
        "segment.bytes of __consumer_offsets",
        unit=Unit.BYTES,
        low=1,
    ),
    _kafka(
        "offsets.load.buffer.size",
        Kind.INT,
        5_242_880,
        "read at once when groups are loaded; a larger batch is read whole",
        unit=Unit.BYTES,
        low=1,
    ),
    _kafka("offsets.retention.minutes", Kind.INT, 10_080, "committed offsets of empty groups expire after this", low=1),
    _kafka(
        "offsets.retention.check.interval.ms",
        Kind.LONG,
        600_000,
        "how often expired offsets are looked for",
        unit=Unit.MS,
        low=1,
    ),
    _kafka("offset.metadata.max.bytes", Kind.INT, 4096, "text that may go with a committed offset", unit=Unit.BYTES),
    _kafka("group.min.session.timeout.ms", Kind.INT, 6000, "shortest session timeout of a member", unit=Unit.MS),
    _kafka("group.max.session.timeout.ms", Kind.INT, 1_800_000, "longest session timeout of a member", unit=Unit.MS),
    _kafka("group.initial.rebalance.delay.ms", Kind.INT, 3000, "a new group waits this long for members", unit=Unit.MS),
    _kafka("group.max.size", Kind.INT, INT_MAX, "members of a group", low=1),
    _kafka(
        "group.coordinator.rebalance.protocols",
        Kind.LIST,
        ("classic", "consumer", "streams"),
        "protocols of groups; without consumer there are no groups of KIP-848. Streams groups are not served",
        choices=("classic", "consumer", "share", "streams"),
        may_be_empty=False,
    ),
    _kafka(
        "group.consumer.session.timeout.ms",
        Kind.INT,
        45_000,
        "a member of a consumer group (KIP-848) that is not heard of for this long is out",
        unit=Unit.MS,
        low=1,
    ),
    _kafka(
        "group.consumer.min.session.timeout.ms",
        Kind.INT,
        45_000,
        "shortest that groups may set it to",
        unit=Unit.MS,
        low=1,
    ),
    _kafka(
        "group.consumer.max.session.timeout.ms",
        Kind.INT,
        60_000,
        "longest that groups may set it to",
        unit=Unit.MS,
        low=1,
    ),
    _kafka(
        "group.consumer.heartbeat.interval.ms",
        Kind.INT,
        5000,
        "members of consumer groups are told to be heard of this often",
        unit=Unit.MS,
        low=1,
    ),
    _kafka(
        "group.consumer.min.heartbeat.interval.ms",
        Kind.INT,
        5000,
        "shortest that groups may set it to",
        unit=Unit.MS,
        low=1,
    ),
    _kafka(
        "group.consumer.max.heartbeat.interval.ms",
        Kind.INT,
        15_000,
        "longest that groups may set it to",
        unit=Unit.MS,
        low=1,
    ),
    _kafka(
        "group.consumer.assignment.interval.ms",
        Kind.INT,
        1000,
        "the assignment of a consumer group is computed no more often than this",
        Dynamic.YES,
        unit=Unit.MS,
        low=0,
    ),
    _kafka(
        "group.consumer.min.assignment.interval.ms",
        Kind.INT,
        0,
        "shortest that groups may set it to",
        unit=Unit.MS,
        low=0,
    ),
    _kafka(
        "group.consumer.max.assignment.interval.ms",
        Kind.INT,
        15_000,
        "longest that groups may set it to",
        unit=Unit.MS,
        low=0,
    ),
    _kafka("group.consumer.max.size", Kind.INT, INT_MAX, "members of a consumer group", low=1),
    _kafka(
        "group.consumer.assignors",
        Kind.LIST,
        ("uniform", "range"),
        "assignors that members may ask for, the default first; Kafka's own two, no classes",
        choices=("uniform", "range"),
        may_be_empty=False,
    ),
    _kafka(
        "group.consumer.migration.policy",
        Kind.STRING,
        "bidirectional",
        "whether groups with members in them may change to the consumer protocol (upgrade), back (downgrade), both "
        "(bidirectional) or neither (disabled)",
    ),
    _kafka(
        "group.consumer.regex.refresh.interval.ms",
        Kind.INT,
        600_000,
        "topics that members name by a regular expression are looked for at least this often",
        unit=Unit.MS,
        low=10_000,
    ),
)

_TRANSACTIONS: tuple[Setting, ...] = (
    _kafka("transaction.state.log.num.partitions", Kind.INT, 50, "partitions of __transaction_state", low=1),
    _kafka(
        "transaction.state.log.segment.bytes",
        Kind.INT,
        104_857_600,
        "segment.bytes of __transaction_state",
        unit=Unit.BYTES,
        low=1,
    ),
    _kafka("transaction.state.log.min.isr", Kind.INT, 2, "min.insync.replicas of __transaction_state", low=1),
    _kafka(
        "transaction.state.log.load.buffer.size",
        Kind.INT,
        5_242_880,
        "read at once when transactions are loaded; a larger batch is read whole",
        unit=Unit.BYTES,
        low=1,
    ),
    _kafka("transaction.max.timeout.ms", Kind.INT, 900_000, "longest timeout of a transaction", unit=Unit.MS, low=1),
    _kafka(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Kind.INT,
        10_000,
        "how often transactions that are too old are looked for, to abort them",
        unit=Unit.MS,
        low=1,
    ),
    _kafka(
        "transactional.id.expiration.ms",
        Kind.INT,
        604_800_000,
        "a transactional id that nobody uses is forgotten after this",
        unit=Unit.MS,
        low=1,
    ),
    _kafka(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Kind.INT,
        3_600_000,
        "how often expired transactional ids are looked for",
        unit=Unit.MS,
        low=1,
    ),
    _kafka(
        "transaction.partition.verification.enable",
        Kind.BOOLEAN,
        True,
        "what older producers write in a transaction is let in only when its coordinator knows the partition",
        Dynamic.YES,
    ),
    _kafka(
        "add.partitions.to.txn.retry.backoff.ms",
        Kind.INT,
        20,
        "a partition joins a transaction as soon as the one before has ended: how often that is tried",
        unit=Unit.MS,
        low=1,
    ),
    _kafka(
        "add.partitions.to.txn.retry.backoff.max.ms",
        Kind.INT,
        100,
        "and for how long, before the producer has to ask again",
        unit=Unit.MS,
        low=0,
    ),
)

_CATALOGUE: tuple[Setting, ...] = (
    _kafka(
        "metadata.log.max.record.bytes.between.snapshots",
        Kind.LONG,
        20_971_520,
        "a snapshot of the catalogue is written after this much",
        unit=Unit.BYTES,
        low=1,
    ),
    _kafka(
        "metadata.log.max.snapshot.interval.ms",
        Kind.LONG,
        3_600_000,
        "a snapshot of the catalogue is written at least this often where something changed; 0: never",
        unit=Unit.MS,
        low=0,
    ),
    _kafka(
        "metadata.log.segment.bytes",
        Kind.INT,
        1 << 30,
        "segment size of the metadata log",
        unit=Unit.BYTES,
        low=8 << 20,
    ),
    _kafka("metadata.log.segment.ms", Kind.LONG, 604_800_000, "age of a metadata segment", unit=Unit.MS),
    _kafka(
        "metadata.max.retention.bytes",
        Kind.LONG,
        104_857_600,
        "metadata log and snapshots beyond this size are deleted",
        unit=Unit.BYTES,
    ),
    _kafka(
        "metadata.max.retention.ms",
        Kind.LONG,
        604_800_000,
        "metadata segments and snapshots older than this are deleted",
        unit=Unit.MS,
    ),
)

_PROCESSES: tuple[Setting, ...] = (
    _kafka(
        "replica.high.watermark.checkpoint.interval.ms",
        Kind.LONG,
        5000,
        "how often high watermarks are written",
        unit=Unit.MS,
        low=1,
    ),
    _own(
        "run.dir",
        Kind.STRING,
        "",
        "directory of the sockets, mode 0700, outside every log dir; unset: one under $XDG_RUNTIME_DIR or /tmp",
    ),
    _own("worker.heartbeat.ms", Kind.INT, 1000, "how often a worker says that it lives", unit=Unit.MS, low=20),
    _own(
        "worker.timeout.ms",
        Kind.LONG,
        15_000,
        "a worker that was silent for this long is asked to stop, then terminated, then killed",
        Dynamic.YES,
        unit=Unit.MS,
        low=100,
    ),
    _own(
        "worker.stop.timeout.ms",
        Kind.LONG,
        5000,
        "how long a worker has for each step: asked to stop, terminated, killed",
        Dynamic.YES,
        unit=Unit.MS,
        low=50,
    ),
    _own(
        "worker.start.timeout.ms",
        Kind.LONG,
        30_000,
        "a worker that does not report within this time of its start is stopped and started again",
        Dynamic.YES,
        unit=Unit.MS,
        low=100,
    ),
    _own(
        "shutdown.timeout.ms",
        Kind.LONG,
        60_000,
        "an orderly stop takes at most this; what has not closed by then is recovered at the next start",
        Dynamic.YES,
        unit=Unit.MS,
        low=100,
    ),
    _own("metrics.listener", Kind.STRING, "", "HOST:PORT of /metrics and /healthz; unset: none"),
    _own("metrics.partitions", Kind.BOOLEAN, True, "metrics have series for each partition", Dynamic.YES),
    _own(
        "log.format",
        Kind.STRING,
        "auto",
        "what the daemon's own log looks like; auto: text on a terminal, JSON lines elsewhere",
        choices=("auto", "text", "json"),
    ),
    _own(
        "log.level",
        Kind.STRING,
        "info",
        "what the daemon's own log holds",
        Dynamic.YES,
        choices=("debug", "info", "warning", "error"),
    ),
    _own("test.clock.file", Kind.STRING, "", "file with an offset in ms to the time of day; for tests", hidden=True),
)

DAEMON_SETTINGS: tuple[Setting, ...] = (
    _NETWORK
    + _AUTHENTICATION
    + _AUTHORISATION
    + _QUOTAS
    + _MOVES
    + _TOPICS
    + _CLEANING
    + _GROUPS
    + _TRANSACTIONS
    + _CATALOGUE
    + _PROCESSES
)
