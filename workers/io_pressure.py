"""Yielding to others when the disks are busy: the kernel's pressure stall information (PSI) for I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

PRESSURE_FILE = Path("/proc/pressure/io")
SETTING = "cleaner.io.pressure.limit"
_LOOK_SECONDS = 1.0
#: The longest a cleaner holds back for each chunk; it never stops altogether, or a busy disk would never be cleaned.
_MOST_SECONDS = 0.25
_SLICE_SECONDS = 0.05


class IoPressure:
    """Sleeps a little for each chunk while tasks on this machine wait for I/O for more than `limit` percent of the time."""

    def __init__(self, limit: float, path: Path = PRESSURE_FILE) -> None:
        """`limit`: percent of the last ten seconds in which some task waited; 100 or more: never yields."""
        self._limit = limit
        self._path = path
        self._looked = 0.0
        self.share = 0.0

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> IoPressure:
        """From the settings of a Welcome or Reconfigure."""
        return cls(float(settings.get(SETTING, "100")))

    @property
    def is_high(self) -> bool:
        """As of at most a second ago; False where the kernel has no such file."""
        now = time.monotonic()
        if self._limit < 100 and now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self.share = read_share(self._path)
        return self._limit < 100 and self.share > self._limit

    def wait(self, check: Callable[[], None]) -> None:
        """Returns at once while the pressure is low."""
        until = time.monotonic() + _MOST_SECONDS
        while self.is_high and time.monotonic() < until:
            time.sleep(_SLICE_SECONDS)
            check()


def read_share(path: Path = PRESSURE_FILE) -> float:
    """Percent of the last ten seconds in which at least one task waited for I/O ("some avg10"); 0 where unknown."""
    try:
        line = path.read_text("ascii").splitlines()[0]
        return float(dict(part.split("=") for part in line.split()[1:])["avg10"])
    except (OSError, ValueError, LookupError):
        return 0.0
