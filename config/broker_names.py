"""Kafka's other settings: names that compactd knows but doesn't act on, so that a real server.properties can be read.

Why each has no effect, and which values are refused, is in `config.without_effect`.

The names of Kafka 4.4.0's KafkaConfig and LogConfig that `config.table` doesn't have, and those that 4.0 removed.
"""

from __future__ import annotations

_OTHER_BROKER_NAMES = """
alter.config.policy.class.name
alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds
auto.leader.rebalance.enable broker.heartbeat.interval.ms broker.id
broker.session.timeout.ms client.quota.callback.class config.providers
controlled.shutdown.enable
controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
controller.quorum.append.linger.ms controller.quorum.auto.join.enable controller.quorum.bootstrap.servers
controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms
controller.quorum.fetch.max.bytes controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.quorum.voters
controller.socket.timeout.ms
create.topic.policy.class.name default.replication.factor delegation.token.expiry.check.interval.ms
delegation.token.expiry.time.ms delegation.token.max.lifetime.ms delegation.token.secret.key
delete.records.purgatory.purge.interval.requests early.start.listeners
errors.deadletterqueue.auto.create.topics.enable errors.deadletterqueue.topic.name.prefix
fetch.purgatory.purge.interval.requests follower.fetch.last.tiered.offset.enable
group.consumer.assignor.offload.enable group.coordinator.append.linger.ms
group.coordinator.background.threads group.coordinator.cached.buffer.max.bytes
group.coordinator.threads group.share.assignment.interval.ms
group.share.assignor.offload.enable group.share.assignors group.share.delivery.count.limit
group.share.dlq.manager.class.name group.share.heartbeat.interval.ms group.share.initialize.retry.interval.ms
group.share.max.assignment.interval.ms group.share.max.delivery.count.limit
group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks
group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms group.share.max.share.sessions
group.share.max.size group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
group.share.partition.max.record.locks group.share.persister.class.name group.share.record.lock.duration.ms
group.share.session.timeout.ms
group.streams.assignor.offload.enable
group.streams.max.warmup.replicas
group.streams.num.warmup.replicas
group.streams.topology.description.plugin.class initial.broker.registration.timeout.ms
inter.broker.listener.name internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
internal.metadata.max.batch.size.in.bytes kafka.metrics.polling.interval.secs kafka.metrics.reporters
leader.imbalance.check.interval.seconds log.local.retention.bytes
log.local.retention.ms log.remote.copy.lag.bytes log.remote.copy.lag.ms
metadata.log.dir metadata.max.idle.interval.ms metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms num.io.threads num.network.threads
num.replica.fetchers offsets.commit.timeout.ms
offsets.topic.compression.codec offsets.topic.replication.factor process.roles
producer.purgatory.purge.interval.requests queued.max.requests
remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
remote.log.index.file.cache.ttl.ms remote.log.manager.copier.thread.pool.size
remote.log.manager.copy.max.bytes.per.second remote.log.manager.copy.quota.window.num
remote.log.manager.copy.quota.window.size.seconds remote.log.manager.expiration.thread.pool.size
remote.log.manager.fetch.max.bytes.per.second remote.log.manager.fetch.quota.window.num
remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.follower.thread.pool.size
remote.log.manager.task.interval.ms remote.log.manager.task.retry.backoff.max.ms
remote.log.manager.task.retry.backoff.ms remote.log.manager.task.retry.jitter
remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
remote.log.reader.max.pending.tasks remote.log.reader.threads remote.log.storage.manager.class.name
remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix remote.log.storage.system.enable
replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes replica.fetch.response.max.bytes
replica.fetch.wait.max.ms replica.lag.time.max.ms replica.selector.class replica.socket.receive.buffer.bytes
replica.socket.timeout.ms replication.quota.window.num replication.quota.window.size.seconds request.timeout.ms
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class
sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism.controller.protocol
sasl.mechanism.inter.broker.protocol sasl.oauthbearer.allow.unverified.audience
sasl.oauthbearer.allow.unverified.issuer sasl.oauthbearer.assertion.algorithm
sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
security.inter.broker.protocol
security.providers server.max.startup.time.ms share.coordinator.append.linger.ms
share.coordinator.cached.buffer.max.bytes share.coordinator.cold.partition.snapshot.interval.ms
share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms
share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
share.coordinator.threads share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.allow.dn.changes ssl.allow.san.changes
ssl.endpoint.identification.algorithm
ssl.keymanager.algorithm
ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
telemetry.max.bytes
transaction.state.log.replication.factor transaction.two.phase.commit.enable
unclean.leader.election.interval.ms unstable.api.versions.enable
unstable.feature.versions.enable
"""

_OTHER_TOPIC_NAMES = """
errors.deadletterqueue.group.enable follower.replication.throttled.replicas
leader.replication.throttled.replicas local.retention.bytes local.retention.ms remote.copy.lag.bytes
remote.copy.lag.ms remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable
"""

_REMOVED_BROKER_NAMES = """
advertised.host.name advertised.port broker.id.generation.enable control.plane.listener.name
controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms delegation.token.master.key
group.coordinator.new.enable host.name inter.broker.protocol.version leader.imbalance.per.broker.percentage
log.message.downconversion.enable log.message.format.version log.message.timestamp.difference.max.ms
metadata.max.retention.count offsets.commit.required.acks password.encoder.cipher.algorithm
password.encoder.iterations password.encoder.key.length password.encoder.keyfactory.algorithm
password.encoder.old.secret password.encoder.secret port quota.consumer.default quota.producer.default
reserved.broker.max.id zookeeper.clientCnxnSocket zookeeper.connect zookeeper.connection.timeout.ms
zookeeper.max.in.flight.requests zookeeper.metadata.migration.enable zookeeper.session.timeout.ms
zookeeper.set.acl zookeeper.ssl.cipher.suites zookeeper.ssl.client.enable zookeeper.ssl.crl.enable
zookeeper.ssl.enabled.protocols zookeeper.ssl.endpoint.identification.algorithm zookeeper.ssl.keystore.location
zookeeper.ssl.keystore.password zookeeper.ssl.keystore.type zookeeper.ssl.ocsp.enable zookeeper.ssl.protocol
zookeeper.ssl.truststore.location zookeeper.ssl.truststore.password zookeeper.ssl.truststore.type
"""

#: Broker-level settings of Kafka 4.4.0 that storage, retention and cleaning don't need.
OTHER_BROKER_NAMES: frozenset[str] = frozenset(_OTHER_BROKER_NAMES.split())

#: Topic-level settings of Kafka 4.4.0 that storage, retention and cleaning on one node don't need.
OTHER_TOPIC_NAMES: frozenset[str] = frozenset(_OTHER_TOPIC_NAMES.split())

#: Broker-level settings of earlier Kafka that 4.0 removed; an old server.properties may still hold them.
REMOVED_BROKER_NAMES: frozenset[str] = frozenset(_REMOVED_BROKER_NAMES.split())

#: Kafka passes every name with these beginnings on: to a plug-in or a metrics reporter.
OPEN_PREFIXES: tuple[str, ...] = (
    "config.providers.",
    "rsm.config.",
    "rlmm.config.",
    "confluent.",
)
