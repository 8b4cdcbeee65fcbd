"""compactd serve with the cleaning side scripted: `python tests/scripts/stand_in_serve.py CONFIG TOLD CLEANING`.

Everything else is the real thing. What the cleaning side is told to do is a line of TOLD each; its status is the JSON of
CLEANING, where that file exists. Prints `running` on stdout once everything runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from compactd.config.errors import RefusedError
from compactd.coordinator.configuration import Configuration
from compactd.coordinator.control.messages import CleaningStatus, Control, Done
from compactd.coordinator.control.socket import refused
from compactd.coordinator.daemon import Daemon
from compactd.coordinator.interfaces import Frame, WorkerId
from compactd.coordinator.parts import default_parts
from compactd.storage.names import TopicPartition
from compactd.workers import log_output
from compactd.workers.message import Message
from compactd.workers.partition_messages import PartitionState


class ScriptedCleaning:
    """Cleans nothing."""

    def __init__(self, told: Path, status: Path) -> None:
        self._told, self._status = told, status

    def start(self) -> None:
        return

    def worker_ready(self, worker: WorkerId) -> None:
        return

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        return

    def received(self, worker: WorkerId, message: Message) -> None:
        return

    def states_changed(self, states: Sequence[PartitionState]) -> None:
        return

    def partitions_gone(self, partitions: Sequence[TopicPartition]) -> None:
        return

    def configs_changed(self, topics: Sequence[str]) -> None:
        return

    def settings_changed(self) -> None:
        return

    def control(self, request: Control, answer: Callable[[Control], None]) -> None:
        fields = msgspec.to_builtins(request)
        names = fields.get("names") or (fields["name"],) if "name" in fields else fields["names"]
        with open(self._told, "a") as file:
            file.write(f"{type(request).__name__} {','.join(names)}\n")
        if "nosuch" in names:
            answer(refused(RefusedError(path="nosuch", reason="there is no such topic", advice="Look at the list.")))
        else:
            answer(Done(lines=(f"{type(request).__name__}: {', '.join(names) or 'everything'}",)))

    def status(self, all_partitions: bool) -> CleaningStatus:
        if not self._status.exists():
            return CleaningStatus()
        return msgspec.json.decode(self._status.read_bytes(), type=CleaningStatus)

    def stop(self, stopped: Callable[[], None]) -> None:
        stopped()


def main() -> None:
    config, told, status = map(Path, sys.argv[1:])
    log_output.configure("coordinator", "text", "info")

    def cleaning(_: Frame) -> ScriptedCleaning:
        return ScriptedCleaning(told, status)

    daemon = Daemon(
        Configuration([], config),
        replace(default_parts(), cleaning=cleaning),
        environment={"COMPACTD_LOG_FORMAT": "text"},
        started=lambda _: print("running", flush=True),
    )
    sys.exit(0 if daemon.run() else 1)


if __name__ == "__main__":
    main()
