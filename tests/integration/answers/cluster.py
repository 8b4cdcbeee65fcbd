"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, DescribeQuorum, UpdateFeatures."""

from __future__ import annotations

import uuid
from typing import Any

from tests.integration.answers.recording import Recording

METADATA, API_VERSIONS, DESCRIBE_QUORUM, UPDATE_FEATURES, DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS = (
    3, 18, 55, 57, 60, 75
)  # fmt: skip
APIS = (METADATA, API_VERSIONS, DESCRIBE_QUORUM, UPDATE_FEATURES, DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS)


def cluster(script: Recording) -> None:
    script.create("meta", 3)
    script.create("other", 1)
    found = script.quietly(METADATA, 9, {"topics": []})
    script.named(found.cluster_id, "<cluster>")

    def metadata(*names: str, **more: Any) -> dict[str, Any]:
        return {
            "topics": [{"name": name} for name in names],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
            **more,
        }

    script.each("topics", METADATA, metadata("meta", "nowhere", "bad name", ""))
    script.each("none", METADATA, metadata(), lowest=1)
    script.each("all", METADATA, metadata(topics=None), lowest=1)
    script.each("all of old", METADATA, metadata(), highest=0)
    for how, topic_id in (("id", script.ids["meta"]), ("unknown id", uuid.UUID(int=7)), ("neither", None)):
        script.each(
            f"by {how}", METADATA, metadata(topics=[{"name": None, "topic_id": topic_id}]), lowest=10
        )  # fmt: skip
    script.each("by both", METADATA, metadata(topics=[{"name": "meta", "topic_id": script.ids["meta"]}]), lowest=10)

    named = {"client_software_name": "raw", "client_software_version": "1.0"}
    for version in range(6):
        script.ask("what is announced", API_VERSIONS, version, named)
    for version in (3, 4, 5):
        for name in ("", "bad name", "-x", "x" * 300):
            script.ask(f"name {name[:9]!r}", API_VERSIONS, version, {**named, "client_software_name": name})
            script.ask(f"version {name[:9]!r}", API_VERSIONS, version, {**named, "client_software_version": name})
    mine = {"cluster_id": found.cluster_id, "node_id": 1}
    for more in ({"cluster_id": "x", "node_id": 1}, {**mine, "node_id": 2}, {"node_id": 1}, {"cluster_id": "x"}):
        script.ask(str(sorted(more)), API_VERSIONS, 5, {**named, **more})

    for operations in (True, False):
        body = {"include_cluster_authorized_operations": operations}
        script.each(f"operations {operations}", DESCRIBE_CLUSTER, body)
        for endpoint in (2, 3):
            script.each(f"endpoint {endpoint}", DESCRIBE_CLUSTER, {**body, "endpoint_type": endpoint}, lowest=1)
    script.each("fenced ones", DESCRIBE_CLUSTER, {"include_fenced_brokers": True}, lowest=2)

    names = [{"name": name} for name in ("other", "meta", "nowhere", "bad name")]
    for more in (
        {}, {"response_partition_limit": 1}, {"response_partition_limit": 0}, {"response_partition_limit": -3},
        {"cursor": {"topic_name": "meta", "partition_index": 1}},
        {"cursor": {"topic_name": "absent", "partition_index": 0}},
        {"cursor": {"topic_name": "meta", "partition_index": -1}},
        {"response_partition_limit": 3, "cursor": {"topic_name": "meta", "partition_index": 2}},
    ):  # fmt: skip
        script.each(str(more), DESCRIBE_TOPIC_PARTITIONS, {"topics": names, "response_partition_limit": 2000, **more})

    script.own |= {"high_watermark", "log_end_offset"}
    for topic, partition in (("__cluster_metadata", 0), ("__cluster_metadata", 1), ("meta", 0)):
        body = {"topics": [{"topic_name": topic, "partitions": [{"partition_index": partition}]}]}
        script.each(f"quorum of {topic}-{partition}", DESCRIBE_QUORUM, body)
    script.each("quorum of nothing", DESCRIBE_QUORUM, {"topics": []})

    def features(*updates: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"timeout": 30_000, "feature_updates": list(updates), "validate_only": True, **more}

    for feature, level, kind in (
        ("metadata.version", 33, 1), ("metadata.version", 32, 1), ("metadata.version", 32, 2), ("metadata.version", 99, 1),
        ("metadata.version", 6, 3), ("transaction.version", 1, 2), ("transaction.version", 3, 1), ("no.such", 1, 1),
        ("group.version", 0, 2), ("group.version", 1, 1), ("kraft.version", 1, 1), ("transaction.version", -1, 2),
        ("transaction.version", 2, 7),
    ):  # fmt: skip
        update = {"feature": feature, "max_version_level": level, "upgrade_type": kind}
        script.each(f"{feature} {level} {kind}", UPDATE_FEATURES, features(update), lowest=1)
    update = {"feature": "no.such", "max_version_level": 1}
    script.each("an unknown one", UPDATE_FEATURES, features({**update, "upgrade_type": 1, "allow_downgrade": False}))
    script.each("the same twice", UPDATE_FEATURES, features(update, update), lowest=1)
    script.each("none", UPDATE_FEATURES, features())
