"""What a benchmark's figures were measured on."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compactd.scripts.output import human_bytes

_MOUNTS = Path("/proc/self/mounts")
_CPUS = Path("/proc/cpuinfo")
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_CLEAR_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine, and how busy it was when the benchmark began."""

    cpu: str
    #: CPUs that this process may use, of those there are.
    cpus_usable: int
    cpus: int
    memory_bytes: int
    system: str
    file_system: str
    #: Runnable processes on average over the last minute, ours not yet among them.
    load: float

    @classmethod
    def here(cls, directory: Path) -> Machine:
        """`directory`: where the data will lie."""
        return cls(
            _cpu(),
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            os.cpu_count() or 1,
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            f"{platform.system()} {platform.release()}",
            _file_system(directory.resolve()),
            os.getloadavg()[0],
        )

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cpus_usable} of {self.cpus} CPUs, {human_bytes(self.memory_bytes)}, {self.system}, "
            f"data on {self.file_system}, load {self.load:.1f} at the start"
        )

    @property
    def is_busy(self) -> bool:
        """So much else runs that figures will be off."""
        return self.load > self.cpus_usable / 2

    def to_json(self) -> dict[str, Any]:
        return {_camel(name): value for name, value in asdict(self).items()}


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def _cpu() -> str:
    with suppress(OSError):
        for line in _CPUS.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(directory: Path) -> str:
    """Type of the file system with the longest mount point above `directory`."""
    found = ("?", -1)
    with suppress(OSError):
        for line in _MOUNTS.read_text().splitlines():
            _, point, kind, *_ = line.split()
            if directory.is_relative_to(point) and len(point) >= found[1]:
                found = (kind, len(point))
    return found[0]


def forget_peak_memory() -> bool:
    """Starts `peak_memory` anew (Linux). False where the system has no such thing."""
    try:
        _CLEAR.write_text(_CLEAR_PEAK)
    except OSError:
        return False
    return True


def peak_memory() -> int:
    """Most bytes of memory this process had resident since `forget_peak_memory`, Python itself included."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0
