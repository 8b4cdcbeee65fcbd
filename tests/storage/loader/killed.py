"""A broker's log dir as SIGKILL left it: Kafka 4.3.1, one node, preallocated indexes, an open transaction, a swap behind it.

Four partitions of a generated cluster; the large `.deleted` source of one clean is emptied.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import zstandard

ARCHIVE = Path(__file__).parents[2] / "data" / "kafka-4.3.1-killed.tar.zst"
PARTITIONS = ("__transaction_state-0", "compact-test-0", "payments-0", "sessions-0")
#: When it was killed, in ms.
KILLED_MS = 1_796_006_140_000


def unpack(target: Path) -> Path:
    """The log dir below `target`."""
    plain = zstandard.ZstdDecompressor().stream_reader(ARCHIVE.open("rb"), closefd=True)
    with plain, tarfile.open(fileobj=io.BytesIO(plain.read())) as archive:
        archive.extractall(target, filter="data")
    return target / "killed"
