"""Log dirs formatted as Kafka 4.4.0's storage tool formats them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from compactd.config.errors import CompactdError, RefusedError
from compactd.storage import files, names
from compactd.storage.log_dir import LogDir
from compactd.storage.metadata.format import format_log_dirs, random_id
from compactd.storage.metadata.load import load_bootstrap
from compactd.storage.metadata.metadata_log import MetadataLog
from compactd.storage.records.batch import iter_batches
from tests.file_faults import FaultyLayer, PowerCut
from tests.storage.metadata.golden import golden
from tests.storage.metadata.logs import NOW

CHECKPOINT = "00000000000000000000-0000000000.checkpoint"


def content(log_dir: Path) -> list[str]:
    return sorted(str(path.relative_to(log_dir)) for path in log_dir.rglob("*"))


def test_a_fresh_node(tmp_path: Path) -> None:
    dirs = [tmp_path / "a" / "d1", tmp_path / "a" / "d2"]
    cluster_id = format_log_dirs(dirs, node_id=7, now_ms=NOW)
    assert content(dirs[0]) == ["__cluster_metadata-0", f"__cluster_metadata-0/{CHECKPOINT}", "meta.properties"]
    assert content(dirs[1]) == ["meta.properties"]
    metas = [LogDir(path).meta() for path in dirs]
    assert [(meta.version, meta.cluster_id, meta.node_id) for meta in metas if meta] == [(1, cluster_id, 7)] * 2
    ids = {meta.directory_id for meta in metas if meta}
    assert len(ids) == 2
    assert all(isinstance(found, uuid.UUID) and found.version == 4 for found in ids)
    assert names.parse_uuid(cluster_id).version == 4


def test_the_bootstrap_checkpoint_is_that_of_kafka_but_for_its_times(tmp_path: Path) -> None:
    format_log_dirs([tmp_path / "d"], node_id=1, now_ms=NOW)
    path = tmp_path / "d" / "__cluster_metadata-0" / CHECKPOINT
    ours, theirs = path.read_bytes(), golden("0 0 checkpoint")
    assert path.stat().st_mode & 0o777 == 0o400
    assert len(ours) == len(theirs) == 411
    for one, other in zip(iter_batches(ours), iter_batches(theirs), strict=True):
        one.check()
        assert (one.header.base_offset, one.header.attributes) == (other.header.base_offset, other.header.attributes)
        assert one.header.leader_epoch == other.header.leader_epoch == 0
        if one.header.base_offset:
            assert one.data[61:] == other.data[61:]
    header = next(iter_batches(ours)).records()[0]
    assert header.value == b"\0\0" + NOW.to_bytes(8, "big") + b"\0"


def test_what_is_formatted_already_stays(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in ("d1", "d2", "d3")]
    cluster_id = format_log_dirs(dirs[:2], node_id=1, now_ms=NOW)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert format_log_dirs(dirs, node_id=1, now_ms=NOW + 5) == cluster_id
    assert all(path.read_bytes() == data for path, data in before.items())
    assert content(dirs[2]) == ["meta.properties"]


@pytest.mark.parametrize("node_id,cluster_id", [(2, None), (1, "R0h2GY22SfSFe562CeoJag")])
def test_another_node_s_or_cluster_s_dir_is_refused(tmp_path: Path, node_id: int, cluster_id: str | None) -> None:
    format_log_dirs([tmp_path / "d1"], node_id=1, now_ms=NOW)
    with pytest.raises(RefusedError, match="it belongs to node 1 of cluster"):
        format_log_dirs([tmp_path / "d1", tmp_path / "d2"], node_id=node_id, now_ms=NOW, cluster_id=cluster_id)
    assert not (tmp_path / "d2").exists()


@pytest.mark.parametrize("held", ["users-0", "lost+found", "__cluster_metadata-0"])
def test_a_dir_with_directories_of_its_own_is_refused(tmp_path: Path, held: str) -> None:
    (tmp_path / held).mkdir()
    (tmp_path / held / "00000000000000000000.log").touch()
    with pytest.raises(RefusedError, match="yet holds"):
        format_log_dirs([tmp_path], node_id=1, now_ms=NOW)
    assert not (tmp_path / "meta.properties").exists()


def test_formatting_that_was_stopped_goes_on(fast_dir: Path) -> None:
    for number in range(1000):
        dirs = [fast_dir / str(number) / name for name in ("d1", "d2")]
        dirs[0].parent.mkdir()
        layer = FaultyLayer()
        layer.stop_at(number)
        stopped = False
        with files.replaced(layer):
            try:
                format_log_dirs(dirs, node_id=1, now_ms=NOW)
            except PowerCut:
                stopped = True
            layer.lose_unsynced()
        format_log_dirs(dirs, node_id=1, now_ms=NOW)
        log = MetadataLog.open(dirs[0])
        assert len(load_bootstrap(log)[0]) == 6
        log.close()
        assert len({meta.cluster_id for path in dirs if (meta := LogDir(path).meta())}) == 1
        if not stopped:
            assert number > 15
            return
    raise AssertionError("never done")


def test_a_damaged_bootstrap_checkpoint_has_a_named_error(tmp_path: Path) -> None:
    format_log_dirs([tmp_path / "d"], node_id=1, now_ms=NOW)
    path = tmp_path / "d" / "__cluster_metadata-0" / CHECKPOINT
    data = path.read_bytes()
    path.unlink()
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        log = MetadataLog.open(tmp_path / "d")
        with pytest.raises(CompactdError, match="checkpoint"):
            load_bootstrap(log)
        log.close()


def test_drawn_ids_never_begin_with_a_dash() -> None:
    assert not any(names.uuid_text(random_id()).startswith("-") for _ in range(2000))
