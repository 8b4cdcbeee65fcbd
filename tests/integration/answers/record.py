"""The scripts of requests, and the recording of what Kafka 4.4.0 answers to them.

`python -m tests.integration.answers.record` writes it anew, with a Kafka of its own.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.integration import servers
from tests.integration.answers import admin, cluster, groups, records, security, streams, transactions
from tests.integration.answers.recording import Log, Recording
from tests.integration.servers import Server
from tests.oracle.driver import build

FILE = Path(__file__).parents[2] / "data" / "kafka-4.4.0-answers.json.gz"

#: What is asked, and which APIs it is there for; in this order on a fresh broker.
SCRIPTS: dict[str, tuple[Callable[[Recording], None], tuple[int, ...]]] = {
    "records": (records.records, records.APIS),
    "cluster": (cluster.cluster, cluster.APIS),
    "groups": (groups.groups, groups.APIS),
    "streams": (streams.streams, streams.APIS),
    "transactions": (transactions.transactions, transactions.APIS),
    "admin": (admin.admin, admin.APIS),
    "security": (security.security, security.APIS),
}


def play(name: str, server: Server) -> Recording:
    """What a broker answers."""
    recording = Recording(server)
    try:
        SCRIPTS[name][0](recording)
    finally:
        recording.close()
    return recording


def recorded() -> dict[str, Log]:
    """By script."""
    found = json.loads(gzip.decompress(FILE.read_bytes()))
    return {name: [(label, answer) for label, answer in log] for name, log in found.items()}


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="compactd-answers-") as directory,
        servers.kafka(build(), Path(directory) / "kafka") as kafka,
    ):
        logs = {name: play(name, kafka).log for name in SCRIPTS}
    FILE.write_bytes(gzip.compress(json.dumps(logs).encode(), mtime=0))
    print(f"{sum(map(len, logs.values()))} answers, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
