"""How rows of the daemon's tables are written: `config.daemon_table`, `access_table`, `coordination_table`."""

from __future__ import annotations

from compactd.config.setting import BrokerName, Dynamic, Kind, Scope, Setting


def kafka(
    name: str, kind: Kind, default: object, meaning: str, dynamic: Dynamic = Dynamic.NO, **more: object
) -> Setting:
    """A setting of Kafka's brokers, under Kafka's name."""
    field = name.replace(".", "_")
    return Setting(field, Scope.DAEMON, kind, default, meaning, broker=(BrokerName(name, dynamic),), **more)  # type: ignore[arg-type]


def own(name: str, kind: Kind, default: object, meaning: str, dynamic: Dynamic = Dynamic.NO, **more: object) -> Setting:
    """A setting that Kafka does not have."""
    return kafka(name, kind, default, meaning, dynamic, own=True, **more)


def plug_in(name: str, kind: Kind, default: object, meaning: str) -> Setting:
    """Kafka's, but read by its authorizer: KafkaConfig does not know it."""
    return kafka(name, kind, default, meaning, plug_in=True)
