"""`compactd serve` on log dirs that it may not take over: it ends with a sentence that says what to do, and changes nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compactd.storage.metadata.metadata_log import MetadataLog
from compactd.storage.metadata.record_types import MetadataRecord, RecordType
from compactd.workers.catalogue_messages import NewTopic
from tests.coordinator.catalogue.test_catalogue_topics import create
from tests.coordinator.catalogues import NOW, started
from tests.daemon.daemons import Daemon, until

_REFUSED = 3
_OTHER_CLUSTER = "R0h2GY22SfSFe562CeoJag"


def edit_meta(log_dir: Path, name: str, value: str) -> None:
    path = log_dir / "meta.properties"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{name}=")]
    path.write_text("\n".join([*lines, f"{name}={value}", ""]))


def append(log_dirs: list[Path], kind: RecordType, version: int, **data: object) -> None:
    log = MetadataLog.open(log_dirs[0])
    log.append([MetadataRecord(kind, data, version).value], NOW)
    log.close()


def another_node(log_dirs: list[Path]) -> None:
    for log_dir in log_dirs:
        edit_meta(log_dir, "node.id", "7")


def another_cluster(log_dirs: list[Path]) -> None:
    edit_meta(log_dirs[1], "cluster.id", _OTHER_CLUSTER)


def newer_version(log_dirs: list[Path]) -> None:
    append(log_dirs, RecordType.FEATURE_LEVEL, 0, name="metadata.version", featureLevel=34)


def unknown_feature(log_dirs: list[Path]) -> None:
    append(log_dirs, RecordType.FEATURE_LEVEL, 0, name="elastic.version", featureLevel=1)


def several_replicas(log_dirs: list[Path]) -> None:
    catalogue = started(log_dirs)
    topic_id = catalogue.image.topics["users"].topic_id
    catalogue.close()
    directories = [catalogue.image.topics["users"].partitions[0].directories[0]] * 2
    append(
        log_dirs, RecordType.PARTITION, 2, partitionId=1, topicId=topic_id, replicas=[1, 2], isr=[1], removingReplicas=[],
        addingReplicas=[], leader=-1, leaderEpoch=0, partitionEpoch=0, directories=directories,
    )  # fmt: skip


def another_order(log_dirs: list[Path]) -> None:
    log_dirs[0].rename(log_dirs[0].with_name("x"))
    log_dirs[1].rename(log_dirs[0])
    log_dirs[0].with_name("x").rename(log_dirs[1])


def listing(log_dirs: list[Path]) -> dict[Path, bytes]:
    return {path: path.read_bytes() for log_dir in log_dirs for path in log_dir.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("spoil", "reason", "advice"),
    [
        (
            another_node,
            "it belongs to node 7, and node.id is 1",
            "Set node.id to 7, or name other directories in log.dirs.",
        ),
        (another_cluster, f"belongs to cluster {_OTHER_CLUSTER}, and", "Name only log dirs of one broker in log.dirs."),
        (newer_version, "feature metadata.version at level 34, and levels 7 to 33 are known", ""),
        (unknown_feature, "feature elastic.version at level 1, and no such feature is known", ""),
        (several_replicas, "partition users-1 has replicas on nodes", "kafka-reassign-partitions first."),
        (another_order, "which belongs into the first entry of log.dirs", "first"),
    ],
)
def test_the_daemon_ends_and_says_why(
    tmp_path: Path, spoil: Callable[[list[Path]], None], reason: str, advice: str
) -> None:
    daemon = Daemon(tmp_path)
    catalogue = started(daemon.dirs)
    create(catalogue, NewTopic(name="users"))
    catalogue.close()
    spoil(daemon.dirs)
    before = listing(daemon.dirs)
    command = [sys.executable, "-m", "compactd.scripts", "serve", "--config", str(daemon.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=daemon.environment)
    until(lambda: not daemon.survivors(), "the end of its workers")
    sentences = [line for line in done.stderr.splitlines() if line.startswith("compactd: ")]
    assert done.returncode == _REFUSED and len(sentences) == 1
    assert reason in sentences[0] and advice in sentences[0] and str(tmp_path) in sentences[0]
    after = listing(daemon.dirs)
    assert {path: data for path, data in after.items() if path in before} == before
    assert {path.name for path in after.keys() - before.keys()} <= {".lock"}
