"""Topics, partitions, settings, log dirs, elections, reassignments."""

from __future__ import annotations

import uuid
from typing import Any

from tests.integration.answers.recording import Recording, span

(CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_CONFIGS, ALTER_CONFIGS, ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS,
 CREATE_PARTITIONS, ELECT_LEADERS, INCREMENTAL_ALTER_CONFIGS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS,
 LIST_CONFIG_RESOURCES) = (19, 20, 32, 33, 34, 35, 37, 43, 44, 45, 46, 74)  # fmt: skip
APIS = (
    CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_CONFIGS, ALTER_CONFIGS, ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS,
    CREATE_PARTITIONS, ELECT_LEADERS, INCREMENTAL_ALTER_CONFIGS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS,
    LIST_CONFIG_RESOURCES,
)  # fmt: skip


def admin(script: Recording) -> None:
    # Answers of a topic that is only validated carry an id that nothing gets.
    topics(script)
    settings(script)
    log_dirs(script)
    leaders(script)


def topics(script: Recording) -> None:
    def create(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
        given = [{"num_partitions": 1, "replication_factor": 1, **row} for row in rows]
        return {"topics": given, "timeout": 30_000, **more}

    for version in span(CREATE_TOPICS):
        name = f"made{version}"
        segment = [{"name": "segment.ms", "value": "99000"}]
        script.ask("one", CREATE_TOPICS, version, create({"name": name, "num_partitions": 2, "configs": segment}))
        script.ask("validated", CREATE_TOPICS, version, create({"name": f"maybe{version}"}, validate_only=True))
        both = [{"partition_index": number, "broker_ids": [1]} for number in (0, 1)]
        assigned = {"name": f"assigned{version}", "num_partitions": -1, "replication_factor": -1, "assignments": both}
        script.ask("assigned", CREATE_TOPICS, version, create(assigned))
        usual = {"name": f"usual{version}", "num_partitions": -1, "replication_factor": -1}
        script.ask("as usual", CREATE_TOPICS, version, create(usual))
        script.ask("at once", CREATE_TOPICS, version, create({"name": f"x{version}"}, {"name": f"x{version}"}))
    far = {"num_partitions": -1, "replication_factor": -1, "assignments": [{"partition_index": 0, "broker_ids": [9]}]}
    script.each("refused", CREATE_TOPICS, create(
        {"name": "made7"}, {"name": "bad name"}, {"name": ""}, {"name": ".."}, {"name": "n1", "num_partitions": 0},
        {"name": "n2", "replication_factor": 2}, {"name": "n3", "replication_factor": 0}, {"name": "__cluster_metadata"},
        {"name": "n4", "configs": [{"name": "cleanup.policy", "value": "shred"}]}, {"name": "n5", **far},
        {"name": "n6", "configs": [{"name": "no.such", "value": "1"}]},
        {"name": "n7", "configs": [{"name": "segment.ms", "value": None}]}, {"name": "n8", "num_partitions": -2},
        {"name": "n9", "assignments": [{"partition_index": 0, "broker_ids": [1]}]},
        {"name": "n10", **far, "assignments": [{"partition_index": 1, "broker_ids": [1]}]},
        {"name": "n11", **far, "assignments": [{"partition_index": 0, "broker_ids": [1, 1]}]},
    ))  # fmt: skip
    script.each("too many", CREATE_TOPICS, create({"name": "many", "num_partitions": 10_001}))
    for version in span(CREATE_PARTITIONS):
        rows = [
            {"name": f"made{version + 2}", "count": 4, "assignments": None},
            {"name": "usual2", "count": 4 + version, "assignments": [{"broker_ids": [1]}]},
            {"name": "made7", "count": 2, "assignments": None}, {"name": "made7", "count": 1, "assignments": None},
            {"name": "usual3", "count": 5, "assignments": []}, {"name": "nothing", "count": 2, "assignments": None},
            {"name": "usual4", "count": 4, "assignments": [{"broker_ids": [7]}]},
        ]  # fmt: skip
        for row in rows:
            body = {"topics": [row], "timeout": 30_000}
            script.ask(f"validate {row}", CREATE_PARTITIONS, version, {**body, "validate_only": True})
            script.ask(f"{row}", CREATE_PARTITIONS, version, {**body, "validate_only": False})
        script.ask(
            "twice", CREATE_PARTITIONS, version, {"topics": rows[2:4], "timeout": 30_000, "validate_only": False}
        )
    for version in span(DELETE_TOPICS):
        names = [f"made{version + 1}" if version < 6 else "made7", "nothing", "bad name"]
        given = [{"name": name} for name in names] + [
            {"topic_id": uuid.UUID(int=5)},
            {},
            {"name": "x2"},
            {"name": "x2"},
        ]
        script.ask("some", DELETE_TOPICS, version, {"topics": given, "topic_names": names, "timeout": 30_000})


def settings(script: Recording) -> None:
    script.create("set", 1, retention_ms=100_000)

    def resource(kind: int, name: str, *changes: tuple[str, int, str | None], keys: Any = None) -> dict[str, Any]:
        rows = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
        return {"resource_type": kind, "resource_name": name, "configs": rows, "configuration_keys": keys}

    def describe(*rows: dict[str, Any]) -> Any:
        given = [{key: value for key, value in row.items() if key != "configs"} for row in rows]
        return {"resources": given, "include_synonyms": True, "include_documentation": False}

    def alter(*rows: dict[str, Any], plain: bool = False, validate_only: bool = False) -> Any:
        given = []
        for row in rows:
            kept = {key: value for key, value in row.items() if key != "configuration_keys"}
            if plain:
                kept["configs"] = [{key: each[key] for key in ("name", "value")} for each in row["configs"]]
            given.append(kept)
        return {"resources": given, "validate_only": validate_only}

    script.each("topic", DESCRIBE_CONFIGS, describe(resource(2, "set")))
    for kind, name in (
        (2, "nothing"),
        (2, ""),
        (2, "bad name"),
        (4, "7"),
        (4, "x"),
        (8, ""),
        (8, "7"),
        (32, ""),
        (16, ""),
        (3, "x"),
    ):
        script.each(f"{kind} {name!r}", DESCRIBE_CONFIGS, describe(resource(kind, name)))
    for keys in (["retention.ms", "no.such"], []):
        script.each(f"keys {keys}", DESCRIBE_CONFIGS, describe(resource(2, "set", keys=keys)))
    script.each("twice", DESCRIBE_CONFIGS, describe(resource(2, "set"), resource(2, "set")))
    for version in span(INCREMENTAL_ALTER_CONFIGS):
        for name, operation, value in (
            ("cleanup.policy", 2, "compact"), ("cleanup.policy", 3, "delete"), ("retention.ms", 1, None),
            ("retention.ms", 0, "soon"), ("retention.ms", 0, None), ("retention.ms", 2, "1"), ("no.such", 0, "1"),
            ("retention.ms", 9, "1"), ("segment.bytes", 0, "7"), ("cleanup.policy", 0, ""),
        ):  # fmt: skip
            label = f"{name} {operation} {value}"
            script.ask(
                f"validate {label}",
                INCREMENTAL_ALTER_CONFIGS,
                version,
                alter(resource(2, "set", (name, operation, value)), validate_only=True),
            )
            script.ask(label, INCREMENTAL_ALTER_CONFIGS, version, alter(resource(2, "set", (name, operation, value))))
        for kind, which, one in (
            (2, "nothing", ("retention.ms", 0, "1")), (2, "", ("retention.ms", 0, "1")), (3, "x", ("a", 0, "1")),
            (4, "7", ("log.retention.ms", 0, "1")), (4, "1", ("node.id", 0, "1")), (4, "x", ("log.retention.ms", 0, "1")),
            (4, "1", ("log.retention.ms", 0, "soon")), (4, "", ("log.cleaner.threads", 0, "x")),
            (32, "g", ("no.such", 0, "1")), (32, "", ("consumer.session.timeout.ms", 0, "50000")),
            (32, "g", ("consumer.session.timeout.ms", 0, "1")), (32, "g", ("consumer.heartbeat.interval.ms", 0, "1")),
            (32, "g", ("consumer.session.timeout.ms", 0, "50000")), (16, "m", ("interval.ms", 0, "1000")),
            (16, "m", ("interval.ms", 0, "1")), (16, "m", ("no.such", 0, "1")), (8, "1", ("no.such.logger", 0, "INFO")),
        ):  # fmt: skip
            script.ask(f"{kind} {which!r} {one}", INCREMENTAL_ALTER_CONFIGS, version, alter(resource(kind, which, one)))
        twice = resource(2, "set", ("retention.ms", 0, "5"), ("retention.ms", 0, "6"))
        script.ask("a key twice", INCREMENTAL_ALTER_CONFIGS, version, alter(twice))
        one = resource(2, "set", ("retention.ms", 0, "500000"))
        script.ask("a topic twice", INCREMENTAL_ALTER_CONFIGS, version, alter(one, one))
    for version in span(ALTER_CONFIGS):
        for which, change in (
            ("set", ("segment.ms", 0, f"{version + 9}0000")),
            ("set", ("no.such", 0, "1")),
            ("nothing", ("segment.ms", 0, "9")),
            ("set", ("segment.ms", 0, None)),
        ):
            script.ask(f"{which} {change}", ALTER_CONFIGS, version, alter(resource(2, which, change), plain=True))
        # (Kafka never answers one that names a topic twice.)
    for kind, name in ((16, "m"), (32, "g")):  # brokers hear of a change a little after it is told
        script.until(
            LIST_CONFIG_RESOURCES, 1, {"resource_types": [kind]},
            lambda found, name=name: any(name in repr(each) for each in found.config_resources), f"settings of {name}",
        )  # fmt: skip
    for kinds in ([], [2], [4], [16], [32], [3], [2, 32]):
        script.each(f"kinds {kinds}", LIST_CONFIG_RESOURCES, {"resource_types": kinds}, lowest=1 if kinds else 0)


def log_dirs(script: Recording) -> None:
    """Which of two dirs a partition lies in is each broker's own affair: they are asked for partitions that are nowhere."""
    script.create("dirs", 2)
    for topics_ in ([{"topic": "nothing", "partitions": [0]}], [], [{"topic": "dirs", "partitions": [9]}]):
        script.each(str(topics_), DESCRIBE_LOG_DIRS, {"topics": topics_})
    for version in span(ALTER_REPLICA_LOG_DIRS):
        for path, topic, number in (
            ("/nowhere", "dirs", 0), (str(script.server.log_dirs[0]), "nothing", 0),
            (str(script.server.log_dirs[1]), "dirs", 9), ("relative", "dirs", 0), ("", "dirs", 0),
        ):  # fmt: skip
            body = {"dirs": [{"path": path, "topics": [{"name": topic, "partitions": [number]}]}]}
            script.ask(f"{script.plain(path)} {topic}-{number}", ALTER_REPLICA_LOG_DIRS, version, body)
        # To where it lies already.
        path = str(script.server.partition_dir("dirs", 0).parent)
        body = {"dirs": [{"path": path, "topics": [{"name": "dirs", "partitions": [0]}]}]}
        script.ask("to where it is", ALTER_REPLICA_LOG_DIRS, version, body)


def leaders(script: Recording) -> None:
    script.create("led", 2)
    for kind in (0, 1, 2):
        for given in ([{"topic": "led", "partitions": [0, 1, 9]}], [{"topic": "nothing", "partitions": [0]}], [], None):
            if kind == 2 and given is None:
                continue
            body = {"election_type": kind, "topic_partitions": given, "timeout": 30_000}
            script.each(f"election {kind} {given}", ELECT_LEADERS, body, lowest=0 if kind == 0 else 1)

    def reassign(topic: str, number: int, replicas: Any, **more: Any) -> dict[str, Any]:
        row = {"name": topic, "partitions": [{"partition_index": number, "replicas": replicas}]}
        return {"timeout": 30_000, "topics": [row], "allow_replication_factor_change": True, **more}

    for topic, number, replicas in (
        ("led", 0, [1]), ("led", 0, [1, 2]), ("led", 0, [1, 1]), ("led", 0, []), ("led", 0, None), ("led", 9, [1]),
        ("nothing", 0, [1]), ("led", 0, [7]), ("led", 0, [-1]),
    ):  # fmt: skip
        script.each(f"{topic}-{number} {replicas}", ALTER_REASSIGNMENTS, reassign(topic, number, replicas))
    script.each("none", ALTER_REASSIGNMENTS, {"timeout": 30_000, "topics": []})
    for given in (
        None,
        [],
        [{"name": "led", "partition_indexes": [0, 9]}],
        [{"name": "nothing", "partition_indexes": [0]}],
    ):
        script.each(str(given), LIST_REASSIGNMENTS, {"timeout": 30_000, "topics": given})
