"""The daemon at one moment, for `compactd status` and the metrics."""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from compactd.coordinator.control.messages import Status

if TYPE_CHECKING:
    from compactd.coordinator.daemon import Daemon


def build(daemon: Daemon, all_partitions: bool) -> Status:
    """From what is known already; touches no disk."""
    partitions = daemon.partitions
    return Status(
        version=version("compactd"),
        pid=os.getpid(),
        state=daemon.state,
        up_seconds=round(time.monotonic() - daemon.begun, 1),
        now_ms=daemon.clock.now_ms(),
        cluster_id=partitions.cluster_id,
        node_id=daemon.settings.daemon.node_id,
        topics=len(partitions.topics),
        partitions=len(partitions.entries),
        offline=partitions.offline(),
        workers=daemon.supervisor.status(),
        log_dirs=daemon.dirs.status(partitions.count_by_log_dir(), daemon.settings.storage.cordoned_log_dirs),
        cleaning=daemon.cleaning.status(all_partitions),
        deleter=daemon.deletions.status(),
        loop=daemon.loop.status(),
        metrics=daemon.metrics_address,
        moves={str(name): state.moving_to for name, state in partitions.states.items() if state.moving_to},
    )
