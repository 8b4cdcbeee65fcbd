"""What the loader's tests share: load a directory as a start would, and look at what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compactd.config.settings import TopicConfig
from compactd.storage import names
from compactd.storage.loaded_log import LoadedLog
from compactd.storage.loader import load_log
from compactd.storage.orderly_close import close_orderly
from compactd.storage.records.batch import read_batches
from compactd.storage.swap import pending_swap_files
from tests.logs import NOW_MS

#: Every batch but a segment's first gets an index entry.
DENSE = TopicConfig(index_interval_bytes=0)


def load(directory: Path, *, clean: bool = False, config: TopicConfig = DENSE, **fields: Any) -> LoadedLog:
    fields.setdefault("now_ms", NOW_MS)
    return load_log(directory, config, clean_shutdown=clean, **fields)


def reload(loaded: LoadedLog, *, clean: bool = True, **fields: Any) -> LoadedLog:
    """Closes in good order, or just forgets, and loads again."""
    point = loaded.recovery_point
    if clean:
        close_orderly(loaded)
        point = loaded.recovery_point
    fields.setdefault("recovery_point", point)
    fields.setdefault("log_start_offset", loaded.log_start_offset)
    return load(loaded.directory, clean=clean, config=loaded.config, **fields)


def offsets(directory: Path) -> list[int]:
    """Offsets of all records, control records included; fails where a batch is damaged or offsets go back."""
    found: list[int] = []
    for path in sorted(directory.glob("*.log")):
        for batch in read_batches(path):
            batch.check()
            for record in batch.records():
                assert not found or record.offset > found[-1]
                found.append(record.offset)
    return found


def bases(loaded: LoadedLog) -> list[int]:
    return [segment.base_offset for segment in loaded.segments]


def snapshots(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.snapshot"))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def leftovers(directory: Path) -> list[str]:
    """Names that no start may leave, `.deleted` files of this very start apart."""
    found = [name for name in pending_swap_files(directory) if not name.endswith(names.DELETED)]
    return found + [path.name for path in directory.iterdir() if path.name.endswith(".tmp")]
