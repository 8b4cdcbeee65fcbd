"""Each kind of fault is found and named, with its place; a sound log dir has none, and nothing is changed by looking."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from compactd.storage import names
from compactd.storage.findings import FAULT, NOTE
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.records.batch import scan_headers
from compactd.storage.transaction_index import encode_transaction, read_transaction_index
from compactd.storage.verify import PartitionCheck, verify_partition
from compactd.storage.verify_log_dir import duplicate_partitions
from tests.logs import LogBuilder
from tests.storage.verify.broker import CONFIG, NAME, dir_check, expectations, stopped_broker


def verify(directory: Path, *, records: bool = False) -> PartitionCheck:
    check = dir_check(directory.parent)
    result = verify_partition(directory, NAME, CONFIG, expectations(check), records=records)
    result.findings[:0] = check.findings
    return result


def codes(directory: Path, severity: str = FAULT) -> set[str]:
    return {finding.code for finding in verify(directory).findings if finding.severity == severity}


def _bases(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.log"))


def _edit(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(bytes(content))


def test_a_sound_log_dir_has_no_faults_and_is_not_touched(tmp_path: Path) -> None:
    directory = stopped_broker(tmp_path / "d")
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "d").rglob("*") if path.is_file()
    }
    result = verify(directory, records=True)
    assert result.findings == []
    assert (result.log_start_offset, result.log_end_offset) == (0, 24)
    after = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "d").rglob("*") if path.is_file()
    }
    assert after == before


def _log(directory: Path, number: int) -> Path:
    return directory / names.log_name(_bases(directory)[number])


def _flip_record(directory: Path) -> None:
    log = _log(directory, 1)
    header = list(scan_headers(log))[1]
    _edit(log, header.position + 70, b"\xff")


def _second_fault(directory: Path) -> None:
    _flip_record(directory)
    log = _log(directory, 1)
    header = list(scan_headers(log))[2]
    _edit(log, header.position + 70, b"\xff")


def _index(directory: Path, position: int, data: bytes, name: names.NameOf = names.offset_index_name) -> None:
    _edit(directory / name(_bases(directory)[1]), position, data)


def _txn_path(directory: Path) -> Path:
    return next(iter(directory.glob("*.txnindex")))


def _rewrite_txn(directory: Path, **changes: int) -> None:
    path = _txn_path(directory)
    (entry,) = read_transaction_index(path)
    values = {
        name: getattr(entry, name) for name in ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    }
    path.write_bytes(encode_transaction(AbortedTransaction(**(values | changes))))


def _duplicate(directory: Path) -> None:
    """A record of the clean section has the key of an earlier one."""
    shutil.rmtree(directory)
    with LogBuilder(directory, CONFIG) as log:
        for number in range(24):
            log.append([(f"k{max(number, 1)}", "v" * 20)])
    (directory / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n1\n0 0\n")


FAULTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "crc": ("CORRUPT_BATCH", _flip_record),
    "torn": ("TORN_BATCH", lambda d: _log(d, -1).write_bytes(_log(d, -1).read_bytes()[:-5])),
    "offset-back": ("CORRUPT_BATCH", lambda d: _edit(_log(d, 1), 0, bytes(8))),
    "overlap": (
        "OVERLAP",
        lambda d: _edit(_log(d, 0), [*scan_headers(_log(d, 0))][-1].position, (900).to_bytes(8, "big")),
    ),
    "index-missing": ("MISSING_INDEX", lambda d: (d / names.offset_index_name(_bases(d)[1])).unlink()),
    "time-index-missing": ("MISSING_INDEX", lambda d: (d / names.time_index_name(_bases(d)[1])).unlink()),
    "index-nowhere": ("OFFSET_INDEX", lambda d: _index(d, 4, (50).to_bytes(4, "big"))),
    "index-beyond": ("OFFSET_INDEX", lambda d: _index(d, 4, (1 << 20).to_bytes(4, "big"))),
    "index-offset": ("OFFSET_INDEX", lambda d: _index(d, 0, (99).to_bytes(4, "big"))),
    "index-odd": ("OFFSET_INDEX", lambda d: (d / names.offset_index_name(0)).write_bytes(bytes(7))),
    "index-grown": ("INDEX_NOT_TRIMMED", lambda d: (d / names.offset_index_name(0)).open("ab").write(bytes(80))),
    "time-value": ("TIME_INDEX", lambda d: _index(d, 0, (5).to_bytes(8, "big"), names.time_index_name)),
    "time-offset": ("TIME_INDEX", lambda d: _index(d, 8, (77).to_bytes(4, "big"), names.time_index_name)),
    "time-short": ("TIME_INDEX", lambda d: (d / names.time_index_name(_bases(d)[1])).write_bytes(b"")),
    "orphan": ("ORPHAN_INDEX", lambda d: (d / names.offset_index_name(999)).write_bytes(b"")),
    "swap": ("UNFINISHED_SWAP", lambda d: (d / (names.log_name(0) + names.SWAP)).write_bytes(b"")),
    "txn-producer": ("TRANSACTION_INDEX", lambda d: _rewrite_txn(d, producer_id=6)),
    "txn-marker": ("TRANSACTION_INDEX", lambda d: _rewrite_txn(d, last_offset=8)),
    "txn-first": ("TRANSACTION_INDEX", lambda d: _rewrite_txn(d, first_offset=6)),
    "txn-stable": ("TRANSACTION_INDEX", lambda d: _rewrite_txn(d, last_stable_offset=1)),
    "txn-missing": ("TRANSACTION_INDEX", lambda d: _txn_path(d).unlink()),
    "txn-version": ("TRANSACTION_INDEX", lambda d: _edit(_txn_path(d), 0, b"\x07")),
    "snapshot": ("SNAPSHOT", lambda d: _edit(d / names.snapshot_name(24), 12, b"\xff")),
    "snapshot-beyond": (
        "SNAPSHOT_BEYOND_END",
        lambda d: shutil.copy(d / names.snapshot_name(24), d / names.snapshot_name(99)),
    ),
    "epochs": ("LEADER_EPOCHS", lambda d: (d / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n2\n0 0\n1 11\n")),
    "epochs-beyond": (
        "LEADER_EPOCHS",
        lambda d: (d / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n3\n0 0\n1 10\n2 90\n"),
    ),
    "epochs-garbage": ("LEADER_EPOCHS", lambda d: (d / names.LEADER_EPOCH_CHECKPOINT).write_bytes(bytes(9))),
    "epoch-of-a-batch": ("LEADER_EPOCHS", lambda d: _edit(_log(d, 0), 12, (9).to_bytes(4, "big"))),
    "metadata": ("PARTITION_METADATA", lambda d: (d / names.PARTITION_METADATA).write_bytes(b"aa")),
    "topic-id": (
        "TOPIC_ID",
        lambda d: (d / names.PARTITION_METADATA).write_text("version: 0\ntopic_id: AAAAAAAAAAgAAAAAAAAATQ"),
    ),
    "meta": ("META_PROPERTIES", lambda d: (d.parent / names.META_PROPERTIES).write_text("version=3\n")),
    "marker": ("CLEAN_SHUTDOWN", lambda d: (d.parent / names.CLEAN_SHUTDOWN).write_text("{")),
    "checkpoint": ("CHECKPOINT", lambda d: (d.parent / "replication-offset-checkpoint").write_bytes(b"aa")),
    "watermark": (
        "HIGH_WATERMARK",
        lambda d: (d.parent / "replication-offset-checkpoint").write_text("0\n1\nt 0 25\n"),
    ),
    "recovery-point": (
        "RECOVERY_POINT",
        lambda d: (d.parent / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 25\n"),
    ),
    "end-moved": ("END_MOVED", lambda d: (d.parent / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 20\n")),
    "start": ("LOG_START_OFFSET", lambda d: (d.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 90\n")),
    "cleaner": ("CLEANER_OFFSET", lambda d: (d.parent / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 90\n")),
    "foreign": ("FOREIGN_DIRECTORY", lambda d: (d.parent / "lost+found").mkdir()),
    "duplicate": ("DUPLICATE_KEYS", _duplicate),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_is_named(tmp_path: Path, kind: str) -> None:
    code, damage = FAULTS[kind]
    directory = stopped_broker(tmp_path / "d")
    damage(directory)
    if (
        kind == "overlap"
    ):  # the batch's own entry in the index is wrong then, too, and it holds fewer offsets than records
        assert code in codes(directory)
    else:
        assert codes(directory) == {code}


def test_indexes_of_brokers_before_3_9_are_sound(tmp_path: Path) -> None:
    """One entry for the batches that were appended at once: the start of the first, the end of the last."""
    directory = stopped_broker(tmp_path / "d")
    for base in _bases(directory):
        headers = list(scan_headers(directory / names.log_name(base)))
        chunks = [headers[at : at + 3] for at in range(1, len(headers), 3)]
        entries = [struct.pack(">ii", chunk[-1].last_offset - base, chunk[0].position) for chunk in chunks]
        (directory / names.offset_index_name(base)).write_bytes(b"".join(entries))
    assert codes(directory) == set()


def test_several_damaged_batches_of_a_segment_are_all_told(tmp_path: Path) -> None:
    directory = stopped_broker(tmp_path / "d")
    first, second = [header.position for header in scan_headers(_log(directory, 1))][1:3]
    _second_fault(directory)
    found = [finding for finding in verify(directory).faults if finding.code == "CORRUPT_BATCH"]
    assert [finding.position for finding in found] == [first, second]
    assert all("CRC" in finding.detail and finding.offset is not None for finding in found)


def test_a_first_batch_that_lies_too_far_is_told(tmp_path: Path) -> None:
    directory = stopped_broker(tmp_path / "d")
    _edit(_log(directory, 1), 0, (_bases(directory)[1] + (1 << 31)).to_bytes(8, "big"))
    assert "OFFSET_OVERFLOW" in codes(directory)


def test_notes_are_no_faults(tmp_path: Path) -> None:
    directory = stopped_broker(tmp_path / "d")
    (directory / (names.log_name(0) + names.DELETED)).write_bytes(b"")
    (directory.parent / "cleaner-offset-checkpoint.tmp").write_bytes(b"half")
    (directory.parent / ("t-1." + "a" * 32 + "-delete")).mkdir()
    (directory.parent / ("t-2." + "a" * 32 + "-stray")).mkdir()
    (directory.parent / "replication-offset-checkpoint").write_text("0\n2\nt 0 24\ngone 0 5\n")
    assert codes(directory) == set()
    assert codes(directory, NOTE) == {
        "DELETED_FILE",
        "TEMPORARY_FILE",
        "DELETE_DIRECTORY",
        "STRAY_DIRECTORY",
        "STALE_ENTRIES",
    }


def test_after_an_unclean_stop_what_recovery_rebuilds_is_no_fault(tmp_path: Path) -> None:
    directory = stopped_broker(tmp_path / "d")
    (directory.parent / names.CLEAN_SHUTDOWN).unlink()
    active = _bases(directory)[-1]
    (directory.parent / "recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {active}\n")
    for name in (names.offset_index_name(active), names.time_index_name(active)):
        (directory / name).write_bytes(bytes(4096))
    assert codes(directory) == set()
    assert "UNCLEAN_STOP" in codes(directory, NOTE)


def test_a_partition_in_two_dirs(tmp_path: Path) -> None:
    found = duplicate_partitions([(NAME, tmp_path / "a" / "t-0"), (NAME, tmp_path / "b" / "t-0")])
    assert [finding.code for finding in found] == ["DUPLICATE_PARTITION"] * 2
