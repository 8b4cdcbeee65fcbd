"""Kafka 4.4.0 and the catalogue take turns on the same log dirs, and neither finds anything to complain about.

Warnings that Kafka has on log dirs of its own: that its controller becomes active, and that a network client was closed
twice. Everything else it says is a finding.
"""

from __future__ import annotations

import re
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from compactd.coordinator.catalogue.catalogue import Catalogue
from compactd.storage import names
from compactd.storage.log_dir import LogDir
from compactd.storage.metadata.format import format_log_dirs
from compactd.storage.metadata.snapshots import write_snapshot
from compactd.storage.partition_metadata import write_partition_metadata
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from compactd.workers.catalogue_messages import (
    AllocateProducerIds,
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    ProducerIdBlock,
    ResourceChange,
    ResourceType,
    TopicResults,
)
from compactd.workers.clock import Clock
from tests.coordinator.catalogues import opened
from tests.oracle.broker import Broker
from tests.oracle.driver import Oracle, decode, record

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

NODES = ((1, "127.0.0.1", 9092),)
USUAL = ("Performing controller activation.", "Attempting to close NetworkClient that has already been closed.")


def findings(broker: Broker) -> list[str]:
    """Warnings and errors beyond the usual ones."""
    lines = broker.output.read_text(errors="replace").splitlines()
    return [line for line in lines if line.strip() and not any(usual in line for usual in USUAL)]


def strays(log_dirs: Sequence[Path]) -> list[str]:
    return [path.name for log_dir in log_dirs for path in log_dir.iterdir() if path.name.endswith("-stray")]


def described(classpath: str, broker: Broker) -> tuple[dict[str, tuple[str, int, str]], set[str]]:
    """Topic to (id, partitions, settings), and the lines of partitions without this leader."""
    done = subprocess.run(
        ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classpath, "org.apache.kafka.tools.TopicCommand",
         "--bootstrap-server", broker.bootstrap, "--describe"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    topics: dict[str, tuple[str, int, str]] = {}
    leaderless = set()
    for line in done.stdout.splitlines():
        fields = dict(part.split(": ", 1) for part in line.strip().split("\t") if ": " in part)
        if "TopicId" in fields:
            # Of the broker's own settings, which are shown as well, this one is not in the catalogue.
            configs = re.split(r",(?=[a-z.]+=)", fields.get("Configs", ""))
            shown = ",".join(sorted(config for config in configs if config != "segment.index.bytes=65536"))
            topics[fields["Topic"]] = (fields["TopicId"], int(fields["PartitionCount"]), shown)
        elif fields.get("Leader") != "1":
            leaderless.add(line.strip())
    return topics, leaderless


def stopped_in_order(catalogue: Catalogue, log_dirs: Sequence[Path]) -> None:
    """What a daemon does last."""
    catalogue.close()
    for log_dir in log_dirs:
        LogDir(log_dir).write_clean_shutdown(catalogue.broker_epoch)


def begun(log_dirs: Sequence[Path]) -> Catalogue:
    """What a daemon does first."""
    for log_dir in log_dirs:
        (log_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)
    catalogue = opened(log_dirs, clock=Clock())
    catalogue.start(NODES)
    return catalogue


def created(catalogue: Catalogue, *topics: NewTopic) -> dict[str, str]:
    results, update = catalogue.apply("create_topics", CreateTopics(topics=topics))
    assert isinstance(results, TopicResults)
    assert [result.message for result in results.results if result.error] == []
    assert update is not None
    return {result.name: result.topic_id for result in results.results if result.name is not None}


def own(catalogue: Catalogue, topic: str, partition: int) -> Path:
    """Makes a partition's directory as its owner does, with three records in the catalogue's leader epoch."""
    found = next(entry for entry in catalogue.full_update().topics if entry.name == topic)
    place = found.partitions[partition]
    directory = Path(place.log_dir) / f"{topic}-{partition}"
    directory.mkdir()
    write_partition_metadata(directory / names.PARTITION_METADATA, names.parse_uuid(found.topic_id))
    now = time.time_ns() // 1_000_000
    records = [Record(offset, now, b"key-%d" % offset, b"value") for offset in range(3)]
    batch = build_batch(records, base_offset=0, leader_epoch=place.leader_epoch)
    (directory / "00000000000000000000.log").write_bytes(batch)
    for kind in ("index", "timeindex"):
        (directory / f"00000000000000000000.{kind}").touch()
    (directory / names.LEADER_EPOCH_CHECKPOINT).write_text(f"0\n1\n{place.leader_epoch} 0\n")
    return directory


def alter(kind: int, name: str, *changes: ConfigChange) -> AlterConfigs:
    return AlterConfigs(resources=(ResourceChange(type=kind, name=name, configs=changes),))


def test_formatted_here_served_by_kafka_changed_here_served_by_kafka(
    oracle: Oracle, oracle_classpath: str, tmp_path: Path
) -> None:
    log_dirs = [tmp_path / "d1", tmp_path / "d2"]
    format_log_dirs(log_dirs, node_id=1, now_ms=time.time_ns() // 1_000_000)
    broker = Broker(oracle_classpath, tmp_path, log_dirs)
    with broker:
        topics = [
            {"name": "theirs", "partitions": 2, "config": {"retention.ms": "12345678"}},
            {"name": "gone", "partitions": 1, "config": {}},
        ]
        oracle.request("createTopics", bootstrap=broker.bootstrap, topics=topics)
        sent = [{"topic": "theirs", "partition": number, **record(b"k", b"%d" % number)} for number in range(2)]
        oracle.request("produce", bootstrap=broker.bootstrap, records=sent)
    assert findings(broker) == []

    catalogue = begun(log_dirs)
    theirs, gone = catalogue.image.topics["theirs"], catalogue.image.topics["gone"]
    assert catalogue.image.topic_configs("theirs") == {"retention.ms": "12345678"}
    assert [(state.leader, state.leader_epoch, state.isr) for state in theirs.partitions.values()] == [(1, 2, (1,))] * 2
    ids = created(
        catalogue,
        NewTopic(name="ours", num_partitions=3, configs=(("cleanup.policy", "compact"), ("min.insync.replicas", "1"))),
        NewTopic(name="with.dots-and_more"),
        NewTopic(name="x" * 249, configs=(("segment.ms", "60000"), ("min.cleanable.dirty.ratio", "0.1"))),
    )
    own(catalogue, "ours", 0)
    catalogue.apply(
        "alter_configs",
        alter(
            ResourceType.TOPIC,
            "theirs",
            ConfigChange(name="retention.ms", value=None, operation=ConfigOperation.DELETE),
            ConfigChange(name="cleanup.policy", value="compact", operation=ConfigOperation.APPEND),
        ),
    )
    catalogue.apply(
        "alter_configs", alter(ResourceType.BROKER, "", ConfigChange(name="log.cleaner.threads", value="2"))
    )
    catalogue.apply("alter_configs", alter(ResourceType.BROKER, "1", ConfigChange(name="log.retention.ms", value="-1")))
    catalogue.apply(
        "alter_configs", alter(ResourceType.GROUP, "g", ConfigChange(name="consumer.session.timeout.ms", value="46000"))
    )
    catalogue.apply("create_partitions", CreatePartitions(topics=(MorePartitions(name="theirs", count=4),)))
    catalogue.apply("delete_topics", DeleteTopics(topics=((None, gone.topic_id),)))
    block, _ = catalogue.apply("allocate_producer_ids", AllocateProducerIds())
    assert isinstance(block, ProducerIdBlock)
    for log_dir in log_dirs:
        for path in log_dir.glob("gone-0"):
            path.rename(path.with_name(names.delete_dir_name(names.TopicPartition("gone", 0), uuid.uuid4().hex)))
    # Kafka then begins with this snapshot, and replays what comes after it.
    catalogue._log.add_snapshot(write_snapshot(catalogue._log.directory, catalogue.image, time.time_ns() // 1_000_000))
    image = catalogue.image
    stopped_in_order(catalogue, log_dirs)

    with broker:
        topics_seen, leaderless = described(oracle_classpath, broker)
        oracle.request(
            "createTopics", bootstrap=broker.bootstrap, topics=[{"name": "again", "partitions": 1, "config": {}}]
        )
        answer = oracle.request("consume", bootstrap=broker.bootstrap, topics=["ours", "theirs"], timeoutMs=30000)
        oracle.request(
            "produce", bootstrap=broker.bootstrap, records=[{"topic": "ours", "partition": 1, **record(b"k", b"v")}]
        )
    assert findings(broker) == []
    assert strays(log_dirs) == []
    # Settings of the broker that were stored here count for every topic that has none of its own.
    isr, kept = "min.insync.replicas=1", "retention.ms=-1"
    assert topics_seen == {
        "theirs": (theirs.topic_id, 4, f"cleanup.policy=delete,compact,{isr},{kept}"),
        "ours": (ids["ours"], 3, f"cleanup.policy=compact,{isr},{kept}"),
        "with.dots-and_more": (ids["with.dots-and_more"], 1, f"{isr},{kept}"),
        "x" * 249: (ids["x" * 249], 1, f"min.cleanable.dirty.ratio=0.1,{isr},{kept},segment.ms=60000"),
    }
    assert leaderless == set()
    read = {(entry["topic"], entry["partition"], decode(entry["key"])) for entry in answer["records"]}
    assert read == {
        ("theirs", 0, b"k"), ("theirs", 1, b"k"), *(("ours", 0, b"key-%d" % offset) for offset in range(3)),
    }  # fmt: skip

    catalogue = begun(log_dirs)
    after = catalogue.image
    assert set(after.topics) == {*image.topics, "again"}
    assert {name: topic.topic_id for name, topic in after.topics.items() if name != "again"} == {
        name: topic.topic_id for name, topic in image.topics.items()
    }
    assert after.configs == image.configs
    assert after.next_producer_id >= block.first + block.count
    state = after.topics["theirs"].partitions[0]
    assert (state.isr, state.leader, state.elr, state.recovery_state) == ((1,), 1, (), 0)
    stopped_in_order(catalogue, log_dirs)


def test_begun_here_killed_there(oracle: Oracle, oracle_classpath: str, tmp_path: Path) -> None:
    """A cluster that never saw Kafka; Kafka killed on it; several starts and a long history here; Kafka again."""
    log_dirs = [tmp_path / "d1", tmp_path / "d2"]
    catalogue = begun(log_dirs)
    ids = created(catalogue, NewTopic(name="first", num_partitions=2, configs=(("retention.ms", "1000000000"),)))
    own(catalogue, "first", 0)
    stopped_in_order(catalogue, log_dirs)
    broker = Broker(oracle_classpath, tmp_path, log_dirs)
    with broker:
        oracle.request(
            "createTopics", bootstrap=broker.bootstrap, topics=[{"name": "second", "partitions": 1, "config": {}}]
        )
        sent = [{"topic": "second", "partition": 0, **record(b"k", b"v")}]
        oracle.request("produce", bootstrap=broker.bootstrap, records=sent)
        broker.kill()
    assert findings(broker) == []

    for _ in range(3):
        catalogue = begun(log_dirs)
        assert catalogue.image.brokers[1]["fenced"]
        for number in range(5):
            created(catalogue, NewTopic(name=f"passing-{number}", num_partitions=3))
            names_to_delete = ((f"passing-{number}", "A" * 22),)
            catalogue.apply("delete_topics", DeleteTopics(topics=names_to_delete))
        catalogue._log.add_snapshot(
            write_snapshot(catalogue._log.directory, catalogue.image, time.time_ns() // 1_000_000)
        )
        stopped_in_order(catalogue, log_dirs)
    for topic in catalogue.image.topics.values():
        for state in topic.partitions.values():
            assert (state.isr, state.leader, state.elr, state.last_known_elr) == ((), -1, (1,), (1,))
    # Snapshots alone are enough: Kafka begins a log behind the newest.
    for path in (log_dirs[0] / "__cluster_metadata-0").glob("0000*"):
        if path.suffix != ".checkpoint":
            path.unlink()
    catalogue = begun(log_dirs)
    assert set(catalogue.image.topics) == {"first", "second"}
    catalogue.close()

    with broker:
        topics_seen, leaderless = described(oracle_classpath, broker)
        answer = oracle.request("consume", bootstrap=broker.bootstrap, topics=["first", "second"], timeoutMs=30000)
    assert findings(broker) == []
    assert strays(log_dirs) == []
    assert leaderless == set()
    assert {name: topic[0] for name, topic in topics_seen.items()} == {
        "first": ids["first"],
        "second": catalogue.image.topics["second"].topic_id,
    }
    assert sorted(decode(entry["key"]) or b"" for entry in answer["records"]) == [b"k", b"key-0", b"key-1", b"key-2"]
