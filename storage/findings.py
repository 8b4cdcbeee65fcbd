"""What `compactd verify` finds: faults, and things worth knowing that are none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compactd.storage.names import TopicPartition

#: Something is wrong: exit code 1.
FAULT = "fault"
#: Normal, or gone at the next start, and still good to know.
NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. Positions are bytes in the file, offsets absolute."""

    severity: str
    #: Stable name of the kind, for programs: CORRUPT_BATCH, OFFSET_INDEX, …
    code: str
    path: Path
    detail: str
    position: int | None = None
    offset: int | None = None
    #: What a start of Kafka (or `--repair`) does about it; empty: nothing.
    repair: str = ""
    topic_partition: TopicPartition | None = None

    def to_json(self) -> dict[str, Any]:
        """One JSON line."""
        name = self.topic_partition
        return {
            "severity": self.severity,
            "code": self.code,
            "path": str(self.path),
            "topic": None if name is None else name.topic,
            "partition": None if name is None else name.partition,
            "position": self.position,
            "offset": self.offset,
            "detail": self.detail,
            "repair": self.repair,
        }
