"""Damage that a crash, a full disk or a careless hand does to a partition's directory, and how it is done to a copy."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from compactd.config.errors import CorruptBatchError
from compactd.storage import names
from compactd.storage.records.batch import scan_headers


@dataclass(frozen=True)
class Damage:
    """One thing done to the files. `at` picks the segment, `share` (0..99) the place in it."""

    kind: str
    at: int = 0
    share: int = 0


#: What recovery from the recovery point on has to cope with.
UNFLUSHED = ("torn", "junk", "zeros", "flip", "index-junk", "index-grown", "no-timeindex")
#: What may meet any start.
ANY = (
    "no-index",
    "no-txnindex",
    "no-snapshots",
    "bad-snapshot",
    "stale-snapshot",
    "no-epochs",
    "cut-epochs",
    "deleted-left",
    "cleaned-left",
    "orphan-index",
)

damages = st.lists(
    st.builds(Damage, st.sampled_from(UNFLUSHED + ANY), st.integers(0, 5), st.integers(0, 99)), max_size=3
)


def apply(directory: Path, damage: Damage, floor: int, clean: bool) -> None:
    """Does the damage. `floor`: base offset from which recovery reads the log; above it only where `clean` is false."""
    logs = sorted(directory.glob("*.log"))
    if damage.kind in UNFLUSHED:
        logs = [] if clean else [log for log in logs if int(log.stem) >= floor]
    if not logs:
        return
    log = logs[-1 - damage.at % len(logs)]
    base = int(log.stem)
    index = directory / names.offset_index_name(base)
    times = directory / names.time_index_name(base)
    snapshots = sorted(directory.glob("*.snapshot"))
    epochs = directory / names.LEADER_EPOCH_CHECKPOINT
    match damage.kind:
        case "torn":
            _resize(log, log.stat().st_size * damage.share // 100)
        case "junk":
            log.write_bytes(log.read_bytes() + bytes((7 * n + damage.share) % 256 for n in range(1 + damage.share)))
        case "zeros":
            log.write_bytes(log.read_bytes() + bytes(40 * damage.share + 1))
        case "flip":
            _flip_in_a_batch(log, damage.share)
        case "index-junk":
            for path in (index, times):
                path.write_bytes(b"  ")
        case "index-grown":
            for path in (index, times):
                if path.exists():
                    path.write_bytes(path.read_bytes() + bytes(240))
        case "no-timeindex":
            times.unlink(missing_ok=True)
        case "no-index":
            index.unlink(missing_ok=True)
        case "no-txnindex":
            (directory / names.transaction_index_name(base)).unlink(missing_ok=True)
        case "no-snapshots":
            for path in snapshots:
                path.unlink()
        case "bad-snapshot":
            if snapshots:
                path = snapshots[-1 - damage.at % len(snapshots)]
                path.write_bytes(path.read_bytes()[:-1] + b"\x55")
        case "stale-snapshot":
            if snapshots:
                (directory / names.snapshot_name(base + damage.share)).write_bytes(snapshots[0].read_bytes())
        case "no-epochs":
            epochs.unlink(missing_ok=True)
        case "cut-epochs":
            epochs.write_bytes(b"0\n0\n")
        case "deleted-left":
            log.with_name(log.name + names.DELETED).write_bytes(b"gone")
        case "cleaned-left":
            log.with_name(log.name + names.CLEANED).write_bytes(b"half")
        case "orphan-index":
            (directory / names.offset_index_name(base + 100_000 + damage.share)).write_bytes(b"")


def _resize(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def _flip_in_a_batch(log: Path, share: int) -> None:
    """One bit of what a batch's CRC covers; offsets are not covered, there compactd is stricter on purpose."""
    headers = []
    with contextlib.suppress(CorruptBatchError):  # an earlier damage may have torn the file
        for header in scan_headers(log, 0):
            headers.append(header)
    if not headers:
        return
    header = headers[len(headers) * share // 100]
    covered = header.position + (21 if header.magic == 2 else 16)
    data = bytearray(log.read_bytes())
    place = covered + (header.size - (covered - header.position)) * share // 100
    data[place] ^= 1 << share % 8
    log.write_bytes(bytes(data))
