"""The daemon in a process of its own, with fake workers and parts: `python tests/coordinator/fake_serve.py CONFIG`.

Prints `running` on stdout once everything runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from compactd.config.errors import CompactdError
from compactd.coordinator.configuration import Configuration
from compactd.coordinator.control.messages import CleaningStatus, Control, Done
from compactd.coordinator.daemon import Daemon
from compactd.coordinator.interfaces import CatalogueOutcome, CatalogueSetup, Frame, Parts, Settings, WorkerId
from compactd.storage.names import TopicPartition
from compactd.workers import log_output
from compactd.workers.catalogue_messages import (
    AlterConfigs,
    CreateTopics,
    DeleteTopics,
    ResourceResult,
    ResourceResults,
    TopicResult,
    TopicResults,
    arguments_of,
    to_raw,
)
from compactd.workers.catalogue_update import CataloguePartition, CatalogueTopic, CatalogueUpdate
from compactd.workers.message import Endpoint, Message
from compactd.workers.partition_messages import PartitionState

WORKER = Path(__file__).parent / "fake_daemon_worker.py"


def note(text: str) -> None:
    with open(Path(os.environ["COMPACTD_TEST_DIR"]) / "told", "a") as file:
        file.write(f"{text}\n")


class FakeCatalogue:
    """Topics in memory; partition p of a topic lies in log dir p modulo their number and belongs to worker p."""

    def __init__(self, setup: CatalogueSetup) -> None:
        self.setup = setup
        self.cluster_id = "fake"
        self.broker_epoch = 7
        self.topics: dict[str, CatalogueTopic] = {}
        self.offset = 0
        for spec in os.environ.get("COMPACTD_TEST_TOPICS", "").split():
            name, count = spec.split(":")
            self._add(name, int(count), {})

    def start(
        self, nodes: tuple[tuple[int, str, int], ...], endpoints: tuple[tuple[Endpoint, ...], ...] = ()
    ) -> CatalogueUpdate:
        self.nodes = nodes
        return self._update(list(self.topics), full=True)

    def change(self, operation: str, arguments: msgspec.Raw) -> CatalogueOutcome:
        asked: Any = arguments_of(operation, arguments)
        if isinstance(asked, CreateTopics):
            results = []
            for topic in asked.topics:
                self._add(topic.name, topic.num_partitions, {name: value or "" for name, value in topic.configs})
                results.append(TopicResult(name=topic.name, num_partitions=topic.num_partitions))
            names = [topic.name for topic in asked.topics]
            return CatalogueOutcome(results=to_raw(TopicResults(results=tuple(results))), update=self._update(names))
        if isinstance(asked, DeleteTopics):
            gone = tuple(str(name) for name, _ in asked.topics)
            for name in gone:
                del self.topics[name]
            answer = TopicResults(results=tuple(TopicResult(name=name) for name in gone))
            return CatalogueOutcome(results=to_raw(answer), update=self._update([], deleted=gone))
        if isinstance(asked, AlterConfigs):
            for resource in asked.resources:
                topic = self.topics[resource.name]
                configs = topic.configs | {change.name: change.value or "" for change in resource.configs}
                self.topics[resource.name] = msgspec.structs.replace(topic, configs=configs)
            names = [resource.name for resource in asked.resources]
            done = ResourceResults(results=tuple(ResourceResult(type=2, name=name) for name in names))
            return CatalogueOutcome(results=to_raw(done), update=self._update(names))
        raise KeyError(operation)

    def log_dir_failed(self, log_dir: Path) -> CatalogueUpdate | None:
        return None

    def settings_changed(self, settings: Settings) -> None:
        return

    def maintain(self) -> None:
        return

    def close(self) -> None:
        note("catalogue closed")

    def _add(self, name: str, count: int, configs: dict[str, str]) -> None:
        dirs = self.setup.log_dirs
        self.offset += 1
        workers = self.setup.settings.daemon.broker_workers
        self.topics[name] = CatalogueTopic(
            name=name,
            topic_id=f"{name}-{self.offset}".ljust(22, "A")[:22],
            partitions=tuple(
                CataloguePartition(
                    partition=number,
                    leader_epoch=0,
                    partition_epoch=0,
                    log_dir=str(dirs[number % len(dirs)]),
                    worker=number % workers,
                )
                for number in range(count)
            ),
            configs=configs,
        )

    def _update(self, names: Sequence[str], deleted: tuple[str, ...] = (), full: bool = False) -> CatalogueUpdate:
        self.offset += 1
        return CatalogueUpdate(
            full=full,
            metadata_offset=self.offset,
            cluster_id=self.cluster_id,
            topics=tuple(self.topics[name] for name in names),
            deleted=deleted,
            nodes=self.nodes,
        )


class FakeCleaning:
    """Writes down what it is told."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def start(self) -> None:
        self._note("start")

    def worker_ready(self, worker: WorkerId) -> None:
        self._note(f"ready {worker}")

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        self._note(f"gone {worker} {reason}")

    def received(self, worker: WorkerId, message: Message) -> None:
        self._note(f"received {type(message).__name__}")

    def states_changed(self, states: Sequence[PartitionState]) -> None:
        self._note(f"states {len(states)}")

    def partitions_gone(self, partitions: Sequence[TopicPartition]) -> None:
        self._note(f"gone {','.join(map(str, partitions))}")

    def configs_changed(self, topics: Sequence[str]) -> None:
        self._note(f"configs {','.join(topics)}")

    def settings_changed(self) -> None:
        self._note("settings")

    def control(self, request: Control, answer: Callable[[Control], None]) -> None:
        answer(Done(lines=(type(request).__name__,)))

    def status(self, all_partitions: bool) -> CleaningStatus:
        return CleaningStatus(held_by="nothing")

    def stop(self, stopped: Callable[[], None]) -> None:
        self._note("stop")
        stopped()

    def _note(self, text: str) -> None:
        note(f"cleaning {text}")


def main() -> None:
    log_output.configure("coordinator", "text", "debug")
    parts = Parts(catalogue=FakeCatalogue, cleaning=FakeCleaning)

    def command(worker: WorkerId, run_dir: Path) -> list[str]:
        return [sys.executable, str(WORKER), worker.kind, str(worker.number), str(run_dir)]

    daemon = Daemon(
        Configuration([], Path(sys.argv[1])),
        parts,
        command=command,
        environment={"COMPACTD_LOG_FORMAT": "text"},
        started=lambda _: print("running", flush=True),
    )
    try:
        clean = daemon.run()
    except CompactdError as error:
        print(f"error: {error}", flush=True)
        sys.exit(error.exit_code)
    print("stopped", flush=True)
    sys.exit(0 if clean else 1)


if __name__ == "__main__":
    main()
