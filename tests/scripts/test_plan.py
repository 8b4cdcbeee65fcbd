"""Where partitions get their settings from when compactd is pointed at log dirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.config.errors import SettingError, UsageError
from compactd.scripts.plan import make_plan
from tests.scripts.helpers import Broker, batch
from tests.storage.metadata import logs


@pytest.fixture
def two_disks(tmp_path: Path) -> tuple[Path, Path]:
    """JBOD: the metadata log on the first disk says that t is compacted, t-0 lies on the second."""
    first, second = Broker(tmp_path / "d1"), Broker(tmp_path / "d2")
    second.partition("t-0", [[batch(0, ("a", "1"))]])
    logs.write_log(
        first.path,
        logs.batch(
            0,
            logs.METADATA_VERSION,
            logs.topic("t", 1),
            logs.topic_config("t", "cleanup.policy", "compact"),
            logs.topic_config("t", "delete.retention.ms", "77"),
        ),
    )
    return first.stop(), second.stop()


def test_the_clusters_own_metadata_on_another_disk(two_disks: tuple[Path, Path]) -> None:
    first, second = two_disks
    for paths, metadata in (([first, second], None), ([second], first), ([second / "t-0"], first)):
        plan = make_plan(paths, metadata_dir=metadata)
        (planned,) = plan.partitions
        assert planned.settings.config.compact
        assert planned.settings.config.delete_retention_ms == 77
        assert planned.settings.sources["cleanup.policy"] == "__cluster_metadata-0 offset 2 (topic t)"
        assert not [note for note in plan.notes if "__cluster_metadata-0" in note]


def test_a_topic_that_the_metadata_does_not_know_is_named(two_disks: tuple[Path, Path]) -> None:
    first, second = two_disks
    (second / "t-0").rename(second / "gone-0")
    (note,) = make_plan([first, second]).notes
    assert str(second / "gone-0") in note and "knows no topic gone" in note


def test_set_beats_the_metadata(two_disks: tuple[Path, Path]) -> None:
    (planned,) = make_plan(list(two_disks), ["delete.retention.ms=1s"]).partitions
    assert planned.settings.config.delete_retention_ms == 1000
    assert planned.settings.sources["delete.retention.ms"] == "--set"
    assert planned.settings.sources["cleanup.policy"].startswith("__cluster_metadata-0")


def test_without_the_metadata_a_note_names_the_way_out(two_disks: tuple[Path, Path]) -> None:
    plan = make_plan([two_disks[1]])
    assert not plan.partitions[0].settings.config.compact
    (note,) = plan.notes
    assert "--metadata" in note and "--set cleanup.policy=compact" in note
    assert make_plan([two_disks[1]], ["cleanup.policy=compact"]).notes == []
    assert make_plan([two_disks[1]], ["log.cleanup.policy=compact"]).notes == []


def test_a_metadata_dir_without_the_log_is_wrong_usage(two_disks: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="there is no __cluster_metadata-0 in it"):
        make_plan([two_disks[0]], metadata_dir=two_disks[1])


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_kafkas_own_topics_are_compacted_even_without_metadata(broker: Broker, topic: str) -> None:
    """Log dirs of ZooKeeper times have no metadata log; Kafka creates these topics compacted, always."""
    broker.partition(f"{topic}-3", [[batch(0, ("a", "1"))]])
    path = broker.stop()
    (planned,) = make_plan([path]).partitions
    assert planned.settings.config.cleanup_policy == {"compact"}
    assert planned.settings.config.segment_bytes == 104857600
    assert planned.settings.sources["cleanup.policy"] == "Kafka's settings for this topic"
    (given,) = make_plan([path], ["cleanup.policy=delete", "segment.bytes=2MiB"]).partitions
    assert given.settings.config.cleanup_policy == {"delete"}
    assert given.settings.config.segment_bytes == 2 << 20


def test_workers_take_the_place_of_the_cleaner_threads(broker: Broker, tmp_path: Path) -> None:
    broker.partition("t-0", [])
    path = broker.stop()
    config = tmp_path / "server.properties"
    config.write_text("log.cleaner.threads=3\nlog.cleaner.dedupe.buffer.size=8388608\nnot.a.kafka.name=1\n")
    plan = make_plan([path], config_file=config)
    assert plan.cleaner.config.threads == 3
    assert any("not.a.kafka.name" in note for note in plan.notes)
    assert make_plan([path], config_file=config, workers=5).cleaner.config.threads == 5
    with pytest.raises(SettingError, match="must be more than 1 MiB for each of 8 cleaner threads"):
        make_plan([path], config_file=config, workers=8)
    assert make_plan([path], config_file=config, workers=8, any_buffer_size=True).cleaner.config.threads == 8


def test_what_the_checkpoints_say_of_a_partition(broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"))]])
    broker.partition("u-0", [])
    path = broker.stop()
    (path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    (path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    (path / "replication-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    jobs = {planned.name: planned.job for planned in make_plan([path]).partitions}
    assert (jobs["t-0"].checkpoint, jobs["t-0"].log_start_offset, jobs["t-0"].high_watermark) == (1, 1, 1)
    assert (jobs["t-0"].clean_shutdown, jobs["t-0"].recovery_point) == (True, 1)
    assert (jobs["u-0"].checkpoint, jobs["u-0"].high_watermark) == (None, 0)  # Kafka starts it at its log start
    (path / "replication-offset-checkpoint").unlink()
    assert {planned.job.high_watermark for planned in make_plan([path]).partitions} == {None}
