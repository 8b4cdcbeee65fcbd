"""The typed configurations made from the table of `config.table`: a topic's, the cleaner's, the log manager's, the daemon's.

`from_strings` parses and checks as Kafka's LogConfig, CleanerConfig and KafkaConfig do (facts 3). To learn where each
value came from, use `config.load.resolve_topic`, `resolve_cleaner`, `resolve_storage` and `resolve_daemon`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from compactd.config.authorization import check_authorizer, parse_super_users
from compactd.config.connection_limits import parse_overrides
from compactd.config.consumer_groups import check_groups
from compactd.config.daemon_table import DAEMON_SETTINGS
from compactd.config.errors import SettingError
from compactd.config.listener_security import securities
from compactd.config.listener_settings import listener_setting, shown
from compactd.config.listeners import Listener, open_listeners, parse_address, parse_protocols, told_listeners
from compactd.config.setting import Scope, Setting, Value
from compactd.config.table import (
    BY_TOPIC_NAME,
    CLEANER_SETTINGS,
    SETTINGS,
    STORAGE_SETTINGS,
)

__all__ = [
    "SETTINGS",
    "CleanerConfig",
    "DaemonConfig",
    "StorageConfig",
    "TopicConfig",
    "as_text",
    "nearest_name",
]

#: Offset-map memory that Kafka demands for each cleaner at start (KafkaConfig: "at least 1MB per cleaner thread").
MIN_DEDUPE_BYTES_PER_THREAD = 1 << 20

_DEFAULTS: dict[tuple[Scope, str], Any] = {(setting.scope, setting.field): setting.default for setting in SETTINGS}


def _topic(field: str) -> Any:
    return _DEFAULTS[Scope.TOPIC, field]


def _cleaner(field: str) -> Any:
    return _DEFAULTS[Scope.CLEANER, field]


def _storage(field: str) -> Any:
    return _DEFAULTS[Scope.STORAGE, field]


def _daemon(field: str) -> Any:
    return _DEFAULTS[Scope.DAEMON, field]


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Every topic-level setting of one topic (Kafka's LogConfig). Times in ms, sizes in bytes; see docs/settings.md."""

    cleanup_policy: frozenset[str] = frozenset(_topic("cleanup_policy"))
    #: Effective: internal.segment.bytes where that is set, else segment.bytes.
    segment_bytes: int = _topic("segment_bytes")
    internal_segment_bytes: int | None = _topic("internal_segment_bytes")
    segment_ms: int = _topic("segment_ms")
    segment_jitter_ms: int = _topic("segment_jitter_ms")
    index_interval_bytes: int = _topic("index_interval_bytes")
    segment_index_bytes: int = _topic("segment_index_bytes")
    preallocate: bool = _topic("preallocate")
    flush_messages: int = _topic("flush_messages")
    flush_ms: int = _topic("flush_ms")
    file_delete_delay_ms: int = _topic("file_delete_delay_ms")
    max_message_bytes: int = _topic("max_message_bytes")
    max_decompressed_message_bytes: int = _topic("max_decompressed_message_bytes")
    message_timestamp_type: str = _topic("message_timestamp_type")
    message_timestamp_before_max_ms: int = _topic("message_timestamp_before_max_ms")
    message_timestamp_after_max_ms: int = _topic("message_timestamp_after_max_ms")
    compression_type: str = _topic("compression_type")
    compression_gzip_level: int = _topic("compression_gzip_level")
    compression_lz4_level: int = _topic("compression_lz4_level")
    compression_zstd_level: int = _topic("compression_zstd_level")
    min_insync_replicas: int = _topic("min_insync_replicas")
    unclean_leader_election_enable: bool = _topic("unclean_leader_election_enable")
    retention_ms: int = _topic("retention_ms")
    retention_bytes: int = _topic("retention_bytes")
    min_cleanable_dirty_ratio: float = _topic("min_cleanable_dirty_ratio")
    delete_retention_ms: int = _topic("delete_retention_ms")
    min_compaction_lag_ms: int = _topic("min_compaction_lag_ms")
    max_compaction_lag_ms: int = _topic("max_compaction_lag_ms")

    @property
    def compact(self) -> bool:
        """The policy has compact: the newest record of every key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """The policy has delete: old segments go by time and size."""
        return "delete" in self.cleanup_policy

    @classmethod
    def from_strings(cls, values: Mapping[str, object], source: str = "settings", units: bool = True) -> TopicConfig:
        """A topic's configuration from topic-level names; what isn't given has its default.

        Values are text, or plain numbers, booleans and lists of text. Raises SettingError for unknown names and values.
        """
        parsed: dict[str, Value] = {}
        for name, value in values.items():
            setting = BY_TOPIC_NAME.get(name)
            if setting is None:
                raise unknown_name(name, as_text(value), source, tuple(BY_TOPIC_NAME))
            parsed[setting.field] = setting.parse(name, as_text(value), source, units)
        return cls.from_values(parsed, source)

    @classmethod
    def from_values(cls, values: Mapping[str, Value], source: str = "settings") -> TopicConfig:
        """A configuration from parsed values by field, with the checks that need more than one of them."""
        fields: dict[str, Any] = dict(values)
        if "cleanup_policy" in fields:
            fields["cleanup_policy"] = frozenset(fields["cleanup_policy"])
        if fields.get("internal_segment_bytes") is not None:
            fields["segment_bytes"] = fields["internal_segment_bytes"]
        config = cls(**fields)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise SettingError(
                source=source,
                name="min.compaction.lag.ms",
                value=str(config.min_compaction_lag_ms),
                reason=f"must be at most max.compaction.lag.ms, which is {config.max_compaction_lag_ms}",
            )
        return config


class CleanerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The log.cleaner.* settings that aren't a topic's (Kafka's CleanerConfig). Sizes are totals over all threads."""

    enable: bool = _cleaner("enable")
    threads: int = _cleaner("threads")
    dedupe_buffer_size: int = _cleaner("dedupe_buffer_size")
    io_buffer_size: int = _cleaner("io_buffer_size")
    load_factor: float = _cleaner("io_buffer_load_factor")
    io_max_bytes_per_second: float = _cleaner("io_max_bytes_per_second")
    backoff_ms: int = _cleaner("backoff_ms")

    @classmethod
    def from_strings(
        cls, values: Mapping[str, object], source: str = "settings", units: bool = True, any_buffer_size: bool = False
    ) -> CleanerConfig:
        """The cleaner's configuration from broker-level names; `any_buffer_size` lifts Kafka's 1 MiB a thread.

        Raises SettingError for unknown names and values.
        """
        parsed = _parse_broker(values, CLEANER_SETTINGS, source, units)
        return cls.from_values(parsed, source, any_buffer_size)

    @classmethod
    def from_values(
        cls, values: Mapping[str, Value], source: str = "settings", any_buffer_size: bool = False
    ) -> CleanerConfig:
        """A configuration from parsed values by field of the table, with the checks that need more than one of them."""
        fields: dict[str, Any] = dict(values)
        if "io_buffer_load_factor" in fields:
            fields["load_factor"] = fields.pop("io_buffer_load_factor")
        config = cls(**fields)
        memory = config.dedupe_buffer_size // max(1, config.threads)
        if not any_buffer_size and memory <= MIN_DEDUPE_BYTES_PER_THREAD:
            raise SettingError(
                source=source,
                name="log.cleaner.dedupe.buffer.size",
                value=str(config.dedupe_buffer_size),
                reason=f"must be more than 1 MiB for each of {config.threads} cleaner threads",
            )
        return config


class StorageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the log manager as a whole (Kafka's LogManager and ProducerStateManagerConfig). Times in ms."""

    log_dirs: tuple[str, ...] = _storage("log_dirs")
    cordoned_log_dirs: tuple[str, ...] = _storage("cordoned_log_dirs")
    num_recovery_threads_per_data_dir: int = _storage("num_recovery_threads_per_data_dir")
    background_threads: int = _storage("background_threads")
    log_flush_scheduler_interval_ms: int = _storage("log_flush_scheduler_interval_ms")
    log_flush_offset_checkpoint_interval_ms: int = _storage("log_flush_offset_checkpoint_interval_ms")
    log_flush_start_offset_checkpoint_interval_ms: int = _storage("log_flush_start_offset_checkpoint_interval_ms")
    log_initial_task_delay_ms: int = _storage("log_initial_task_delay_ms")
    log_dir_failure_timeout_ms: int = _storage("log_dir_failure_timeout_ms")
    log_retention_check_interval_ms: int = _storage("log_retention_check_interval_ms")
    producer_id_expiration_ms: int = _storage("producer_id_expiration_ms")
    producer_id_expiration_check_interval_ms: int = _storage("producer_id_expiration_check_interval_ms")

    @classmethod
    def from_strings(cls, values: Mapping[str, object], source: str = "settings", units: bool = True) -> StorageConfig:
        """The log manager's configuration from broker-level names. Raises SettingError for unknown names and values."""
        return cls.from_values(_parse_broker(values, STORAGE_SETTINGS, source, units), source)

    @classmethod
    def from_values(cls, values: Mapping[str, Value], source: str = "settings") -> StorageConfig:
        """A configuration from parsed values by field, with the checks that need more than one of them."""
        fields: dict[str, Any] = dict(values)
        config = cls(**fields)
        missing = set(config.cordoned_log_dirs) - set(config.log_dirs) - {"*"}
        if missing:
            raise SettingError(
                source=source,
                name="cordoned.log.dirs",
                value=",".join(config.cordoned_log_dirs),
                reason=f"not among log.dirs: {', '.join(sorted(missing))}",
            )
        return config


class DaemonConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `compactd serve` itself. Times in ms, sizes in bytes."""

    node_id: int = _daemon("node_id")
    listeners: tuple[str, ...] = _daemon("listeners")
    advertised_listeners: tuple[str, ...] | None = _daemon("advertised_listeners")
    listener_security_protocol_map: str = _daemon("listener_security_protocol_map")
    controller_listener_names: tuple[str, ...] = _daemon("controller_listener_names")
    broker_workers: int = _daemon("broker_workers")
    socket_request_max_bytes: int = _daemon("socket_request_max_bytes")
    queued_max_request_bytes: int = _daemon("queued_max_request_bytes")
    max_connections: int = _daemon("max_connections")
    max_connections_per_ip: int = _daemon("max_connections_per_ip")
    max_connections_per_ip_overrides: str = _daemon("max_connections_per_ip_overrides")
    max_connection_creation_rate: int = _daemon("max_connection_creation_rate")
    socket_receive_buffer_bytes: int = _daemon("socket_receive_buffer_bytes")
    socket_send_buffer_bytes: int = _daemon("socket_send_buffer_bytes")
    socket_listen_backlog_size: int = _daemon("socket_listen_backlog_size")
    broker_rack: str | None = _daemon("broker_rack")
    connections_max_idle_ms: int = _daemon("connections_max_idle_ms")
    fetch_max_bytes: int = _daemon("fetch_max_bytes")
    max_incremental_fetch_session_cache_slots: int = _daemon("max_incremental_fetch_session_cache_slots")
    max_request_partition_size_limit: int = _daemon("max_request_partition_size_limit")
    num_replica_alter_log_dirs_threads: int | None = _daemon("num_replica_alter_log_dirs_threads")
    sasl_enabled_mechanisms: tuple[str, ...] = _daemon("sasl_enabled_mechanisms")
    connections_max_reauth_ms: int = _daemon("connections_max_reauth_ms")
    connection_failed_authentication_delay_ms: int = _daemon("connection_failed_authentication_delay_ms")
    sasl_server_max_receive_size: int = _daemon("sasl_server_max_receive_size")
    principal_builder_class: str = _daemon("principal_builder_class")
    sasl_server_callback_handler_class: str | None = _daemon("sasl_server_callback_handler_class")
    ssl_client_auth: str = _daemon("ssl_client_auth")
    ssl_enabled_protocols: tuple[str, ...] = _daemon("ssl_enabled_protocols")
    ssl_cipher_suites: tuple[str, ...] = _daemon("ssl_cipher_suites")
    ssl_keystore_type: str = _daemon("ssl_keystore_type")
    ssl_keystore_location: str | None = _daemon("ssl_keystore_location")
    ssl_keystore_certificate_chain: str | None = _daemon("ssl_keystore_certificate_chain")
    ssl_keystore_key: str | None = _daemon("ssl_keystore_key")
    ssl_key_password: str | None = _daemon("ssl_key_password")
    ssl_keystore_password: str | None = _daemon("ssl_keystore_password")
    ssl_truststore_type: str = _daemon("ssl_truststore_type")
    ssl_truststore_location: str | None = _daemon("ssl_truststore_location")
    ssl_truststore_certificates: str | None = _daemon("ssl_truststore_certificates")
    ssl_truststore_password: str | None = _daemon("ssl_truststore_password")
    ssl_principal_mapping_rules: str = _daemon("ssl_principal_mapping_rules")
    ssl_engine_factory_class: str | None = _daemon("ssl_engine_factory_class")
    #: Settings of single listeners, by their whole names.
    listener_settings: dict[str, str] = {}
    authorizer_class_name: str = _daemon("authorizer_class_name")
    super_users: str = _daemon("super_users")
    allow_everyone_if_no_acl_found: bool = _daemon("allow_everyone_if_no_acl_found")
    quota_window_num: int = _daemon("quota_window_num")
    quota_window_size_seconds: int = _daemon("quota_window_size_seconds")
    controller_quota_window_num: int = _daemon("controller_quota_window_num")
    controller_quota_window_size_seconds: int = _daemon("controller_quota_window_size_seconds")
    num_partitions: int = _daemon("num_partitions")
    auto_create_topics_enable: bool = _daemon("auto_create_topics_enable")
    delete_topic_enable: bool = _daemon("delete_topic_enable")
    cleaner_io_pressure_limit: float = _daemon("cleaner_io_pressure_limit")
    cleaner_free_space_margin: int = _daemon("cleaner_free_space_margin")
    cleaner_job_timeout_ms: int = _daemon("cleaner_job_timeout_ms")
    offsets_topic_num_partitions: int = _daemon("offsets_topic_num_partitions")
    offsets_topic_segment_bytes: int = _daemon("offsets_topic_segment_bytes")
    offsets_load_buffer_size: int = _daemon("offsets_load_buffer_size")
    offsets_retention_minutes: int = _daemon("offsets_retention_minutes")
    offsets_retention_check_interval_ms: int = _daemon("offsets_retention_check_interval_ms")
    offset_metadata_max_bytes: int = _daemon("offset_metadata_max_bytes")
    group_min_session_timeout_ms: int = _daemon("group_min_session_timeout_ms")
    group_max_session_timeout_ms: int = _daemon("group_max_session_timeout_ms")
    group_initial_rebalance_delay_ms: int = _daemon("group_initial_rebalance_delay_ms")
    group_max_size: int = _daemon("group_max_size")
    group_coordinator_rebalance_protocols: tuple[str, ...] = _daemon("group_coordinator_rebalance_protocols")
    group_consumer_session_timeout_ms: int = _daemon("group_consumer_session_timeout_ms")
    group_consumer_min_session_timeout_ms: int = _daemon("group_consumer_min_session_timeout_ms")
    group_consumer_max_session_timeout_ms: int = _daemon("group_consumer_max_session_timeout_ms")
    group_consumer_heartbeat_interval_ms: int = _daemon("group_consumer_heartbeat_interval_ms")
    group_consumer_min_heartbeat_interval_ms: int = _daemon("group_consumer_min_heartbeat_interval_ms")
    group_consumer_max_heartbeat_interval_ms: int = _daemon("group_consumer_max_heartbeat_interval_ms")
    group_consumer_assignment_interval_ms: int = _daemon("group_consumer_assignment_interval_ms")
    group_consumer_min_assignment_interval_ms: int = _daemon("group_consumer_min_assignment_interval_ms")
    group_consumer_max_assignment_interval_ms: int = _daemon("group_consumer_max_assignment_interval_ms")
    group_consumer_max_size: int = _daemon("group_consumer_max_size")
    group_consumer_assignors: tuple[str, ...] = _daemon("group_consumer_assignors")
    group_consumer_migration_policy: str = _daemon("group_consumer_migration_policy")
    group_consumer_regex_refresh_interval_ms: int = _daemon("group_consumer_regex_refresh_interval_ms")
    group_streams_session_timeout_ms: int = _daemon("group_streams_session_timeout_ms")
    group_streams_min_session_timeout_ms: int = _daemon("group_streams_min_session_timeout_ms")
    group_streams_max_session_timeout_ms: int = _daemon("group_streams_max_session_timeout_ms")
    group_streams_heartbeat_interval_ms: int = _daemon("group_streams_heartbeat_interval_ms")
    group_streams_min_heartbeat_interval_ms: int = _daemon("group_streams_min_heartbeat_interval_ms")
    group_streams_max_heartbeat_interval_ms: int = _daemon("group_streams_max_heartbeat_interval_ms")
    group_streams_max_size: int = _daemon("group_streams_max_size")
    group_streams_num_standby_replicas: int = _daemon("group_streams_num_standby_replicas")
    group_streams_max_standby_replicas: int = _daemon("group_streams_max_standby_replicas")
    group_streams_initial_rebalance_delay_ms: int = _daemon("group_streams_initial_rebalance_delay_ms")
    group_streams_assignment_interval_ms: int = _daemon("group_streams_assignment_interval_ms")
    group_streams_min_assignment_interval_ms: int = _daemon("group_streams_min_assignment_interval_ms")
    group_streams_max_assignment_interval_ms: int = _daemon("group_streams_max_assignment_interval_ms")
    group_streams_assignors: tuple[str, ...] = _daemon("group_streams_assignors")
    group_streams_rack_aware_assignment_tags: tuple[str, ...] = _daemon("group_streams_rack_aware_assignment_tags")
    group_streams_task_offset_interval_ms: int = _daemon("group_streams_task_offset_interval_ms")
    group_streams_min_task_offset_interval_ms: int = _daemon("group_streams_min_task_offset_interval_ms")
    group_streams_acceptable_recovery_lag: int = _daemon("group_streams_acceptable_recovery_lag")
    transaction_state_log_num_partitions: int = _daemon("transaction_state_log_num_partitions")
    transaction_state_log_segment_bytes: int = _daemon("transaction_state_log_segment_bytes")
    transaction_state_log_min_isr: int = _daemon("transaction_state_log_min_isr")
    transaction_state_log_load_buffer_size: int = _daemon("transaction_state_log_load_buffer_size")
    transaction_max_timeout_ms: int = _daemon("transaction_max_timeout_ms")
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _daemon(
        "transaction_abort_timed_out_transaction_cleanup_interval_ms"
    )
    transactional_id_expiration_ms: int = _daemon("transactional_id_expiration_ms")
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _daemon(
        "transaction_remove_expired_transaction_cleanup_interval_ms"
    )
    transaction_partition_verification_enable: bool = _daemon("transaction_partition_verification_enable")
    add_partitions_to_txn_retry_backoff_ms: int = _daemon("add_partitions_to_txn_retry_backoff_ms")
    add_partitions_to_txn_retry_backoff_max_ms: int = _daemon("add_partitions_to_txn_retry_backoff_max_ms")
    metadata_log_max_record_bytes_between_snapshots: int = _daemon("metadata_log_max_record_bytes_between_snapshots")
    metadata_log_max_snapshot_interval_ms: int = _daemon("metadata_log_max_snapshot_interval_ms")
    metadata_log_segment_bytes: int = _daemon("metadata_log_segment_bytes")
    metadata_log_segment_ms: int = _daemon("metadata_log_segment_ms")
    metadata_max_retention_bytes: int = _daemon("metadata_max_retention_bytes")
    metadata_max_retention_ms: int = _daemon("metadata_max_retention_ms")
    replica_high_watermark_checkpoint_interval_ms: int = _daemon("replica_high_watermark_checkpoint_interval_ms")
    run_dir: str = _daemon("run_dir")
    worker_heartbeat_ms: int = _daemon("worker_heartbeat_ms")
    worker_timeout_ms: int = _daemon("worker_timeout_ms")
    worker_stop_timeout_ms: int = _daemon("worker_stop_timeout_ms")
    worker_start_timeout_ms: int = _daemon("worker_start_timeout_ms")
    shutdown_timeout_ms: int = _daemon("shutdown_timeout_ms")
    metrics_listener: str = _daemon("metrics_listener")
    metrics_partitions: bool = _daemon("metrics_partitions")
    log_format: str = _daemon("log_format")
    log_level: str = _daemon("log_level")
    test_clock_file: str = _daemon("test_clock_file")

    def __repr__(self) -> str:
        """Without passwords."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__ if name != "listener_settings")
        told = [f"{name}={shown(name, str(value)) if value is not None else None!r}" for name, value in values]
        told += [f"{name}={shown(name, value)!r}" for name, value in self.listener_settings.items()]
        return f"DaemonConfig({', '.join(told)})"

    @property
    def open_listeners(self) -> tuple[Listener, ...]:
        """Where clients connect."""
        protocols = parse_protocols(self.listener_security_protocol_map)
        return open_listeners(self.listeners, self.controller_listener_names, protocols, self.broker_workers)

    @property
    def told_listeners(self) -> tuple[Listener, ...]:
        """What clients are told."""
        opened = self.open_listeners
        if self.advertised_listeners is None:
            return opened
        return told_listeners(self.advertised_listeners, self.controller_listener_names, opened)

    @classmethod
    def from_strings(cls, values: Mapping[str, object], source: str = "settings", units: bool = True) -> DaemonConfig:
        """The daemon's configuration from broker-level names. Raises SettingError for unknown names and values."""
        own = {name: as_text(value) for name, value in values.items() if listener_setting(name) is not None}
        others = {name: value for name, value in values.items() if name not in own}
        parsed = _parse_broker(others, DAEMON_SETTINGS, source, units)
        return cls.from_values(parsed, source, {name: text for name, text in own.items() if text})

    @classmethod
    def from_values(
        cls, values: Mapping[str, Value], source: str = "settings", listener_settings: Mapping[str, str] | None = None
    ) -> DaemonConfig:
        """A configuration from parsed values by field, with the checks that need more than one of them."""
        fields: dict[str, Any] = dict(values)
        config = cls(**fields, listener_settings=dict(listener_settings or {}))
        checks: list[tuple[str, object, Callable[[], object]]] = [
            (
                "listener.security.protocol.map",
                config.listener_security_protocol_map,
                lambda: parse_protocols(config.listener_security_protocol_map),
            ),
            ("listeners", config.listeners, lambda: config.open_listeners),
            ("advertised.listeners", config.advertised_listeners, lambda: config.told_listeners),
            (
                "authorizer.class.name",
                config.authorizer_class_name,
                lambda: check_authorizer(config.authorizer_class_name),
            ),
            (
                "max.connections.per.ip.overrides",
                config.max_connections_per_ip_overrides,
                lambda: parse_overrides(config.max_connections_per_ip_overrides),
            ),
            ("super.users", config.super_users, lambda: parse_super_users(config.super_users)),
        ]
        if config.metrics_listener:
            checks.append(("metrics.listener", config.metrics_listener, lambda: parse_address(config.metrics_listener)))
        for name, value, check in checks:
            try:
                check()
            except ValueError as fault:
                raise SettingError(source=source, name=name, value=as_text(value), reason=str(fault)) from None
        delay, idle = config.connection_failed_authentication_delay_ms, config.connections_max_idle_ms
        if 0 <= idle <= delay:
            raise SettingError(
                source=source,
                name="connection.failed.authentication.delay.ms",
                value=str(delay),
                reason=f"must be less than connections.max.idle.ms, which is {idle}",
            )
        securities(config, source)
        check_groups(config, source)
        return config


def as_text(value: object) -> str:
    """`value` as it would stand in a properties file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(str(entry) for entry in value)
    return str(value)


def nearest_name(name: str, names: tuple[str, ...]) -> str | None:
    """The one of `names` that `name` is most probably a slip of."""
    close = difflib.get_close_matches(name.strip().lower().replace("_", "."), names, n=1, cutoff=0.75)
    return close[0] if close else None


def unknown_name(name: str, value: str, source: str, names: tuple[str, ...]) -> SettingError:
    """The error for a name that isn't one of `names`, with the nearest one."""
    near = nearest_name(name, names)
    reason = "no such setting" + (f", the nearest is {near}" if near else "; docs/settings.md lists them all")
    return SettingError(source=source, name=name, value=value, reason=reason)


def _parse_broker(
    values: Mapping[str, object], settings: tuple[Setting, ...], source: str, units: bool
) -> dict[str, Value]:
    names = {entry.name: setting for setting in settings for entry in setting.broker}
    for name, value in values.items():
        if name not in names:
            raise unknown_name(name, as_text(value), source, tuple(names))
    parsed: dict[str, Value] = {}
    for setting in settings:
        # The leftmost name that is set wins; the others are checked all the same.
        for entry in reversed(setting.broker):
            if entry.name in values:
                parsed[setting.field] = setting.parse(entry.name, as_text(values[entry.name]), source, units)
    return parsed
