"""The plain-Python kernel: the executable specification of what is in native/, and what works where Rust was not there."""

from __future__ import annotations

from compactd.storage.kernel.interface import RoundSettings
from compactd.storage.kernel.reference.round import ReferenceRound


class ReferenceKernel:
    """Fills `interface.Kernel`. Slow (a few MB/s), with memory for one batch and one map."""

    name = "reference"

    def begin_round(self, settings: RoundSettings) -> ReferenceRound:
        """Raises SettingError when the map could not hold a single key."""
        return ReferenceRound(settings)


KERNEL = ReferenceKernel()
