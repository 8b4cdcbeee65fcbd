"""Putting a cleaned segment in the place of its sources, and what a crash in the middle leaves (facts 5.9, 8.2).

    write X.cleaned, fsync                      killed here: the next start drops .cleaned, the sources stand
    fsync the directory
    rename .cleaned -> .swap, highest base first   killed here: a .cleaned beside .swap, both dropped, the sources stand
    fsync the directory                         from here on the cleaned data is what the next start finds
    rename the sources to .deleted              killed here: .swap is complete, it is finished
    drop the .swap suffix
    fsync the directory
    rename snapshots of vanished bases to .deleted

Kafka fsyncs the directory once, at the end; the two more cost about 0.1 ms each and hold the order on every file system.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compactd.config.errors import RefusedError
from compactd.storage import files, names
from compactd.storage.names import CLEANED, DELETED, SWAP
from compactd.storage.records.batch import scan_headers


def segment_file_names(base_offset: int) -> tuple[str, ...]:
    """Plain names of one segment's files, in Kafka's order of renaming."""
    return (
        names.log_name(base_offset),
        names.offset_index_name(base_offset),
        names.time_index_name(base_offset),
        names.transaction_index_name(base_offset),
    )


def replace_segments(directory: Path, new_bases: Sequence[int], old_bases: Sequence[int]) -> list[Path]:
    """Swaps `.cleaned` segments in for their sources (LocalLog.replaceSegments). Returns the `.deleted` files.

    A source that is gone already (deleted by retention meanwhile) is skipped. The caller owns the partition's log, and saw to
    it that no other `.cleaned` files lie here (`drop_stale_cleaned`): met by the next start beside our `.swap`, one that a
    clean left when it died would have it dropped.
    Raises RefusedError, with nothing changed, where a `.cleaned` log is missing (somebody's load removed it meanwhile).
    """
    for base in new_bases:
        if not (directory / (names.log_name(base) + CLEANED)).exists():
            raise RefusedError(
                path=directory / (names.log_name(base) + CLEANED),
                reason="the cleaned segment is not there, so its sources stay",
                advice="Clean again.",
            )
    files.fsync_dir(directory)
    for base in sorted(new_bases, reverse=True):
        for name in segment_file_names(base):
            if (directory / (name + CLEANED)).exists():
                files.rename(directory / (name + CLEANED), directory / (name + SWAP))
    files.fsync_dir(directory)

    deleted = []
    for base in sorted(old_bases):
        for name in segment_file_names(base):
            if (directory / name).exists():
                files.rename(directory / name, directory / (name + DELETED))
                deleted.append(directory / (name + DELETED))
    for base in sorted(new_bases):
        for name in segment_file_names(base):
            if (directory / (name + SWAP)).exists():
                files.rename(directory / (name + SWAP), directory / name)
    files.fsync_dir(directory)

    for base in sorted(set(old_bases) - set(new_bases)):
        snapshot = names.snapshot_name(base)
        if (directory / snapshot).exists():
            files.rename(directory / snapshot, directory / (snapshot + DELETED))
            deleted.append(directory / (snapshot + DELETED))
    files.fsync_dir(directory)
    return deleted


def drop_cleaned(directory: Path, bases: Iterable[int]) -> None:
    """Removes the unfinished output of a group; the sources were never touched."""
    for base in bases:
        for name in segment_file_names(base):
            files.remove(directory / (name + CLEANED), missing_ok=True)


def drop_stale_cleaned(directory: Path, keep_bases: Sequence[int] = ()) -> None:
    """Removes `.cleaned` files that no running clean of this partition is writing."""
    for name in sorted(path.name for path in directory.iterdir() if path.name.endswith(CLEANED)):
        if names.parse_segment_name(name) is not None and _base(name) not in keep_bases:
            files.remove(directory / name, missing_ok=True)


@dataclass(frozen=True, slots=True)
class SwapRecovery:
    """What finishing or dropping an interrupted swap did; all names are inside the partition directory."""

    removed: tuple[str, ...]
    renamed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.removed or self.renamed)


def pending_swap_files(directory: Path) -> list[str]:
    """Names of `.deleted`, `.cleaned` and `.swap` files: what `recover_swap` would deal with."""
    return sorted(p.name for p in directory.iterdir() if _suffix(p.name) and not _kept(p.name))


def recover_swap(directory: Path) -> SwapRecovery:
    """Finishes a complete swap, drops an unfinished one, removes `.deleted` files (LogLoader.removeTempFilesAndCollectSwapFiles).

    Afterwards no file of the directory has one of the three suffixes. Raises CorruptBatchError where a `.swap` log is damaged.
    """
    listing = pending_swap_files(directory)
    removed: list[str] = []
    renamed: list[str] = []

    def drop(selected: Iterable[str]) -> None:
        """Each step is made durable before the next one, which relies on it."""
        before = len(removed)
        for name in selected:
            files.remove(directory / name, missing_ok=True)
            removed.append(name)
        if len(removed) > before:
            files.fsync_dir(directory)

    drop(name for name in listing if name.endswith(DELETED))
    cleaned = [name for name in listing if name.endswith(CLEANED)]
    swap = [name for name in listing if name.endswith(SWAP)]
    unfinished = min((_base(name) for name in cleaned), default=None)
    if unfinished is not None:
        drop(name for name in swap if _base(name) >= unfinished)
        swap = [name for name in swap if _base(name) < unfinished]
    drop(cleaned)

    logs = [name for name in swap if name.endswith(".log" + SWAP)]
    if logs:
        low = min(_base(name) for name in logs)
        high = max(_next_offset(directory / name, _base(name)) for name in logs)
        drop(
            path.name
            for path in sorted(directory.iterdir())
            if not path.name.endswith(SWAP)
            and (parsed := names.parse_segment_name(path.name)) is not None
            and low <= parsed.base_offset < high
        )
    for name in swap:
        plain = name.removesuffix(SWAP)
        files.rename(directory / name, directory / plain)
        renamed.append(plain)
    if renamed:
        files.fsync_dir(directory)
    return SwapRecovery(tuple(removed), tuple(renamed))


def _suffix(name: str) -> str:
    return next((suffix for suffix in (DELETED, CLEANED, SWAP) if name.endswith(suffix)), "")


def _kept(name: str) -> bool:
    """KRaft keeps `.checkpoint.deleted` files for itself; names without an offset are nobody's segment."""
    return name.endswith(".checkpoint" + DELETED) or (
        not name.endswith(DELETED) and names.parse_segment_name(name) is None
    )


def _base(name: str) -> int:
    parsed = names.parse_segment_name(name)
    return -1 if parsed is None else parsed.base_offset


def _next_offset(path: Path, base_offset: int) -> int:
    last = None
    for last in scan_headers(path, 0):  # noqa: B007
        pass
    return base_offset if last is None else last.next_offset
