"""Opens catalogues for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compactd.config.settings import CleanerConfig, DaemonConfig, StorageConfig
from compactd.coordinator.catalogue.catalogue import Catalogue
from compactd.coordinator.interfaces import CatalogueSetup, Settings
from compactd.workers.clock import Clock

NOW = 1_800_000_000_000
NODES = ((1, "127.0.0.1", 9092),)


class StoppedClock(Clock):
    """Says what a test sets."""

    def __init__(self, now_ms: int = NOW) -> None:
        super().__init__()
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms


def settings(log_dirs: Sequence[Path], cordoned: Sequence[str] = (), **daemon: Any) -> Settings:
    storage = StorageConfig(log_dirs=tuple(map(str, log_dirs)), cordoned_log_dirs=tuple(cordoned))
    return Settings(storage, CleanerConfig(), DaemonConfig(**daemon))


def opened(
    log_dirs: Sequence[Path],
    *,
    offline: Mapping[Path, str] | None = None,
    clock: Clock | None = None,
    cordoned: Sequence[str] = (),
    **daemon: Any,
) -> Catalogue:
    """`log_dirs`: all of log.dirs; those in `offline` are left out of what can be used."""
    offline = offline or {}
    usable = tuple(path for path in log_dirs if path not in offline)
    return Catalogue.open(
        CatalogueSetup(usable, offline, settings(log_dirs, cordoned, **daemon), clock or StoppedClock())
    )


def started(log_dirs: Sequence[Path], **more: Any) -> Catalogue:
    catalogue = opened(log_dirs, **more)
    try:
        catalogue.start(NODES)
    except BaseException:
        catalogue.close()
        raise
    return catalogue
