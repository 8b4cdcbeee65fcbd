"""One random bit flipped in each kind of file: always a named finding, never a crash, a hang, a huge allocation or a wrong record.

A flip counts as found when verify names something in that file (or in the log dir for a file that others contradict). Then
the directory is loaded, as after a clean and after an unclean stop: what is served is a part of what was written.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tracemalloc
from pathlib import Path

import pytest

from compactd.config.errors import CompactdError, CorruptBatchError
from compactd.storage import names
from compactd.storage.findings import Finding
from compactd.storage.loader import load_log
from compactd.storage.log_dir import LogDir
from compactd.storage.log_dir_session import LogDirSession
from compactd.storage.orderly_close import close_orderly
from compactd.storage.records.batch import read_batches
from compactd.storage.verify import verify_partition
from tests.logs import NOW_MS
from tests.storage.verify.broker import CONFIG, NAME, dir_check, expectations, stopped_broker
from tests.strategies import examples

FILES = (
    "log",
    "index",
    "timeindex",
    "txnindex",
    "snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "meta.properties",
    ".kafka_cleanshutdown",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "log-start-offset-checkpoint",
)
#: More than any file here has; what loading needs beside its buffers of a few MiB is small.
MOST_ALLOCATED = 32 << 20


def _files(directory: Path, kind: str) -> list[Path]:
    if (directory.parent / kind).exists():
        return [directory.parent / kind]
    if (directory / kind).exists():
        return [directory / kind]
    return sorted(path for path in directory.glob(f"*.{kind}") if path.stat().st_size)


def _records(directory: Path, start: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    """Every record that a reader of the loaded log meets; reading stops where a batch is damaged, as a reader does."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    with contextlib.suppress(CorruptBatchError):
        for path in sorted(directory.glob("*.log")):
            for batch in read_batches(path):
                batch.check()
                found.extend((rec.offset, rec.key, rec.value) for rec in batch.records() if rec.offset >= start)
    return found


def _findings(directory: Path) -> list[Finding]:
    check = dir_check(directory.parent)
    result = verify_partition(directory, NAME, CONFIG, expectations(check), records=True)
    return [*check.findings, *result.findings]


def _harmless(path: Path, position: int, before: bytes) -> bool:
    """Flips that change nothing that anybody reads, or something no other file can contradict."""
    if path.name == names.META_PROPERTIES:
        return True  # comments, and ids that only the cluster can tell wrong from right
    if path.name == names.CLEAN_SHUTDOWN:
        return True  # the epoch is any number
    if path.name == names.PARTITION_METADATA:
        # Kafka looks at neither label, and takes any version. Four bits of an id's last character mean nothing.
        label = len("version: 0\ntopic_id: ")
        return position < label or _id_of(path.read_bytes()[label:]) == _id_of(before[label:])
    # Another offset within the log, another partition's name, or another kind of blank: all could be true.
    return path.name.endswith("checkpoint")


def _id_of(text: bytes) -> object:
    try:
        return names.parse_uuid(text.decode("ascii"))
    except ValueError:
        return None


def _batch_start(data: bytes, position: int) -> int:
    start = 0
    while True:
        size = 12 + int.from_bytes(data[start + 8 : start + 12], "big")
        if position < start + size:
            return start
        start += size


def _is_last_batch(before: bytes, position: int) -> bool:
    start = _batch_start(before, position)
    size = 12 + int.from_bytes(before[start + 8 : start + 12], "big")
    return start + size == len(before)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped_broker(tmp_path_factory.mktemp("sound") / "d")


@pytest.mark.parametrize("kind", FILES)
def test_a_flipped_bit_is_found_and_never_served(tmp_path: Path, sound: Path, kind: str) -> None:
    draw = random.Random(f"{kind} 1")
    wanted = _records(sound)
    turns = examples(40)
    unseen = []
    for turn in range(turns):
        directory = tmp_path / str(turn) / "t-0"
        shutil.copytree(sound.parent, directory.parent)
        path = draw.choice(_files(directory, kind))
        before = path.read_bytes()
        bit = draw.randrange(len(before) * 8)
        after = bytearray(before)
        after[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(after))
        where = f"{path.name}, bit {bit % 8} of byte {bit // 8}"
        tracemalloc.start()
        found = _findings(directory)
        if not found and not _harmless(path, bit // 8, before):
            unseen.append(where)
        for clean in (True, False):
            served = tmp_path / f"{turn}-{clean}" / "t-0"
            shutil.copytree(directory.parent, served.parent)
            start = _load(served, clean)
            # A clean start reads no batch but the last, and no CRC covers a batch's offset: only verify sees that.
            # Nothing in its segment follows the last batch that could contradict its offset after an unclean stop.
            blind = kind == "log" and bit // 8 - _batch_start(before, bit // 8) < 8
            blind = blind and (clean or _is_last_batch(before, bit // 8))
            if start is not None and not blind:
                got = _records(served, start)
                assert set(got) <= set(wanted), (
                    f"{where}: a wrong record is served after a {'clean' if clean else 'unclean'} stop"
                )
                if path.suffix != ".log" and start == 0:
                    assert got == wanted, f"{where}: records were lost though the log was whole"
            shutil.rmtree(served.parent)
        assert tracemalloc.get_traced_memory()[1] < MOST_ALLOCATED, where
        tracemalloc.stop()
        shutil.rmtree(directory.parent)
    assert unseen == []


def _load(directory: Path, clean: bool) -> int | None:
    """Loads as a start of the log dir does; the log start offset, None where the damage is named as an error."""
    try:
        with LogDirSession.begin(directory.parent, clean=clean) as session:
            point = session.recovery_points.get(NAME, 0) if clean else 0
            loaded = load_log(
                directory,
                CONFIG,
                clean_shutdown=clean,
                recovery_point=point,
                log_start_offset=session.log_start_offsets.get(NAME, 0),
                now_ms=NOW_MS,
                topic_partition=NAME,
            )
            close_orderly(loaded)
            return loaded.log_start_offset
    except CompactdError as error:
        assert str(error)
        return None


def test_every_kind_of_file_is_there(sound: Path) -> None:
    assert all(_files(sound, kind) for kind in FILES)
    assert LogDir(sound.parent).clean_shutdown() is not None
