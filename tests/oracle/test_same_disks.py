"""Kafka 4.4.0 and `compactd serve` take turns on the same log dirs: each finds everything that the other left.

At each stop topics are made, altered, grown and deleted, records written with every codec, cleaned, retained and deleted,
offsets committed, settings changed; before and after, everything is looked at. After an orderly stop nobody recovers
anything, distrusts a file or sets a directory aside, and Kafka has no warning but those that it has on dirs of its own.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from compactd.scripts.verify import command as verify
from compactd.storage.log_dir import LogDir
from compactd.storage.names import TopicPartition
from tests.daemon.daemons import Daemon
from tests.oracle.broker import Broker
from tests.oracle.visit import CODECS, Visit
from tests.oracle.world import BROKER, GROUP, METRICS, NODE, TOPIC, World, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

#: What both are given.
SETTINGS = {
    "log.retention.check.interval.ms": 300,
    "log.segment.delete.delay.ms": 1000,
    "log.cleaner.backoff.ms": 300,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
    "log.flush.start.offset.checkpoint.interval.ms": 300,
}
#: Settings by which the metadata log gets several segments and snapshots within seconds, and loses its beginning.
SHORT_METADATA = {
    "metadata.log.segment.ms": 500,
    "metadata.log.max.record.bytes.between.snapshots": 3000,
    "metadata.max.retention.bytes": 20_000,
}
#: Where Kafka tells what it does to a log that it loads.
LOADING = ("org.apache.kafka.storage.internals.log.LogLoader", "org.apache.kafka.storage.internals.log.LogManager")
#: What Kafka complains of on log dirs of its own.
USUAL = (
    "Performing controller activation.",
    "Attempting to close NetworkClient that has already been closed.",
    # A clean took the snapshot of a producer's state away that was about to be flushed.
    "org.apache.kafka.common.utils.Utils - Failed to flush file",
    # Of every partition that CreatePartitions adds: these tests grow topics of this name from two.
    *(f"Expected partition kept-{stage}-{number} with topic id" for stage in range(9) for number in (2, 3)),
)
#: After a crash, whoever's: Kafka takes the leadership that it finds away and up again, while coordinators load.
AFTER_KILL = ("Failed to load metadata from __consumer_offsets-", "Failed to load metadata from __transaction_state-")

Turn = Callable[..., AbstractContextManager[str]]


# ---- who serves


@pytest.fixture
def kafka(oracle_classpath: str, tmp_path: Path) -> Turn:
    """`with kafka() as bootstrap:` Kafka serves d1 and d2; afterwards it has nothing to complain of.

    `formats`: makes them log dirs first. `killed`: in the end it is, and else everything is in good order then.
    `after_kill`: of whoever served before, so that something may be recovered. More: its settings.
    """
    log_dirs = [tmp_path / "d1", tmp_path / "d2"]

    @contextmanager
    def serve(
        *, formats: bool = False, killed: bool = False, after_kill: bool = False, **settings: object
    ) -> Iterator[str]:
        broker = Broker(oracle_classpath, tmp_path / "kafka", log_dirs, {**SETTINGS, **settings}, LOADING)
        if formats:
            for log_dir in log_dirs:
                log_dir.mkdir()
            broker.format()
        with broker:
            yield broker.bootstrap
            if killed:
                broker.kill()
        assert not (said := complaints(broker, AFTER_KILL if after_kill else ())), "\n".join(said)
        if not formats and not after_kill:
            kafka_recovered_nothing(broker)
        look_at(log_dirs, killed)

    return serve


@pytest.fixture
def compactd(tmp_path: Path) -> Turn:
    """The same with `compactd serve`, which formats empty log dirs by itself."""
    log_dirs = [tmp_path / "d1", tmp_path / "d2"]

    @contextmanager
    def serve(*, killed: bool = False, after_kill: bool = False, **settings: object) -> Iterator[str]:
        given = {name.replace(".", "_"): value for name, value in {**SETTINGS, **settings}.items()}
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        with Daemon(tmp_path, **given) as daemon:
            yield daemon.bootstrap
            if killed:
                daemon.signal(signal.SIGKILL)
                daemon.ended()
                until(lambda: not daemon.survivors(), "the end of its workers")
            else:
                daemon.stop()
        said = [json.loads(line) for line in log.read_text().splitlines()]
        # On a busy machine.
        said = [line for line in said if not line["message"].startswith("a turn of the coordinator took")]
        assert [line["message"] for line in said if line["level"] in ("warning", "error")] == []
        if not after_kill:
            assert [line["message"] for line in said if "recovered" in line["message"]] == []
        look_at(log_dirs, killed)

    return serve


def complaints(broker: Broker, more: Sequence[str] = ()) -> list[str]:
    """Warnings and errors beyond the usual ones, with the exceptions that they tell of."""
    found: list[str] = []
    for line in broker.output.read_text(errors="replace").splitlines():
        if re.search(r" (INFO|WARN|ERROR|FATAL) ", line):
            found.append(line)
        elif found:
            found[-1] += f"\n{line}"
        else:
            found = [line]
    return [entry for entry in found if " INFO " not in entry and not any(usual in entry for usual in (*USUAL, *more))]


def kafka_recovered_nothing(broker: Broker) -> None:
    """Its loader told of every log that it needed no recovery."""
    text = broker.output.read_text(errors="replace")
    assert "Skipping recovery of" in text
    for line in text.splitlines():
        # Kafka opens the metadata log as after a crash, always.
        if "__cluster_metadata" not in line:
            assert "Recovering" not in line and "recovery for all logs" not in line and "Rebuilding" not in line, line


def look_at(log_dirs: Sequence[Path], killed: bool) -> None:
    """What a broker left: nothing set aside; after an orderly stop the same marker everywhere, and no fault in any file."""
    assert not [str(path) for log_dir in log_dirs for path in log_dir.iterdir() if path.name.endswith("-stray")]
    markers = [LogDir(log_dir).clean_shutdown() for log_dir in log_dirs]
    if killed:
        assert markers == [None] * len(log_dirs)
        return
    assert len({-1 if marker is None else marker.broker_epoch for marker in markers} - {-1}) == 1, markers
    odd = (".cleaned", ".swap", ".tmp", ".part")
    assert not [str(path) for log_dir in log_dirs for path in log_dir.rglob("*") if path.name.endswith(odd)]
    found = CliRunner().invoke(verify, ["--records", *map(str, log_dirs)])
    assert found.exit_code == 0, found.output


# ---- one stay at a broker


def first_changes(visit: Visit) -> None:
    """What the others go on with."""
    visit.create("plain", 3)
    visit.create("sequence")
    visit.create("transactions", 2)
    visit.create("hanging")
    visit.create(
        "compacted",
        cleanup_policy="compact",
        segment_ms=60_000,
        min_cleanable_dirty_ratio=0.01,
        file_delete_delay_ms=1000,
    )
    visit.create("retained", segment_ms=60_000, retention_bytes=1, file_delete_delay_ms=1000)
    visit.create("trimmed", segment_ms=60_000, file_delete_delay_ms=1000)


def changes(visit: Visit, log_dirs: Sequence[Path]) -> None:
    """Something of everything."""
    stage = visit.world.stage
    visit.create(f"kept-{stage}", 2, retention_ms=1_000_000_000 + stage, max_message_bytes=900_000)
    visit.create(f"passing-{stage}", 2)
    visit.produce(f"passing-{stage}", {0: visit.rows("none"), 1: visit.rows("none")})
    visit.produce(f"kept-{stage}", {0: visit.rows("zstd")}, "zstd")
    if stage:
        before = stage - 1
        visit.delete(f"passing-{before}")
        visit.alter(TOPIC, f"kept-{before}", retention_ms=None, segment_ms=str(10_000_000 + stage))
        visit.grow(f"kept-{before}", 4)
        visit.produce(f"kept-{before}", {3: visit.rows("none")})
        visit.delete_group(f"group-{before}")
        # A topic of a name that was there before is another one.
        visit.delete("again")
    visit.create("again", segment_ms=20_000_000 + stage)
    visit.produce("again", {0: visit.rows("none")})
    with ThreadPoolExecutor(len(CODECS)) as threads:
        asked = [
            threads.submit(visit.produce, "plain", {number: visit.rows(codec) for number in range(3)}, codec)
            for codec in CODECS
        ]
        for each in asked:
            each.result()
    visit.produce_raw("sequence")
    for commit in (True, False, True):
        rows = {number: visit.rows("lz4") for number in range(2)}
        visit.produce("transactions", rows, "lz4", f"transaction-{stage}", commit)
    # This producer's state is that of the broker before: its epoch goes on.
    visit.produce("transactions", {0: visit.rows("none")}, "none", "transaction", stage % 2 == 0)
    # What the one before it left open is aborted by its coordinator, whichever program that is now.
    visit.produce("hanging", {0: visit.rows("none")}, "none", "hanging")
    visit.produce("hanging", {0: visit.rows("none")}, "none", "hanging", leave_open=True)
    visit.join("members", "plain", "classic")
    visit.join("new-members", "plain", "consumer")
    visit.commit(f"group-{stage}", {("plain", number): (number + stage, f"at {stage}") for number in range(3)})
    visit.commit("group", {("plain", 0): (stage + 1, ""), (f"kept-{stage}", 0): (2, "gone on")})
    visit.alter(BROKER, "", log_retention_ms=str(2_000_000_000 + stage), log_cleaner_threads=str(1 + stage % 2))
    # One stays: where the last setting of a node goes, Kafka has it back after a start with an older snapshot.
    node = {"log_cleaner_io_max_bytes_per_second": None if stage % 2 else "1.23456789E8"}
    visit.alter(BROKER, NODE, log_flush_interval_ms=str(1_000_000 + stage), **node)
    visit.alter(GROUP, "group", consumer_session_timeout_ms=str(50_000 + stage), share_heartbeat_interval_ms="6000")
    visit.alter(METRICS, "metrics", interval_ms=str(1000 + stage), match="client_id=a.*" if stage % 2 else None)
    visit.limit(f"user-{stage}", "producer_byte_rate", 1e9 + stage)
    visit.limit("user", "consumer_byte_rate", 2e9 + stage)
    # None of them is dismissed: Kafka 4.4.0 forgets all credentials when it replays the removal of one without a snapshot.
    visit.enrol(f"user-{stage}", 1 + stage % 2, 4096 + stage)
    if stage:
        visit.limit(f"user-{stage - 1}", "producer_byte_rate", None)
    clean(visit, log_dirs)
    retain(visit)
    visit.produce("trimmed", {0: visit.closing_rows(3, 4)}, apart=True)
    visit.delete_records("trimmed", 0, visit.last_offset(("trimmed", 0)) - 2)
    for (topic, _), start in visit.world.starts.items():
        # Until this is written a crash forgets where a log starts.
        until(lambda topic=topic, start=start: durable_start(log_dirs, topic) == start, f"the start of {topic}")  # type: ignore[misc]


def durable_start(log_dirs: Sequence[Path], topic: str) -> int:
    """Where partition 0 starts after a crash: its checkpoint, or its first segment."""
    partition = TopicPartition(topic, 0)
    (directory,) = (log_dir / str(partition) for log_dir in log_dirs if (log_dir / str(partition)).is_dir())
    bases = [int(path.stem) for path in directory.glob("*.log")]
    return max(LogDir(directory.parent).log_start_offsets.read().get(partition, 0), min(bases, default=0))


def clean(visit: Visit, log_dirs: Sequence[Path]) -> None:
    """Writes what leaves closed segments behind, and waits until they are clean."""
    visit.produce("compacted", {0: visit.closing_rows(3, 8)}, apart=True)
    end = visit.last_offset(("compacted", 0)) - 1
    partition = TopicPartition("compacted", 0)

    def is_clean() -> bool:
        found = [LogDir(log_dir).cleaner_offsets.read().get(partition, -1) for log_dir in log_dirs]
        return max(found) >= end

    until(is_clean, "the clean")


def retain(visit: Visit) -> None:
    """Writes more than retention.bytes, and waits until only the active segment is left."""
    place = ("retained", 0)
    visit.produce("retained", {0: visit.closing_rows(3, 5)}, apart=True)
    last = visit.last_offset(place) - 1
    until(lambda: visit.starts([place])[place] == last, "retention")
    visit.world.starts[place] = last


def stay(world: World, bootstrap: str, log_dirs: Sequence[Path]) -> None:
    """Looks at everything, changes something of everything, and looks again."""
    with Visit(world, bootstrap) as visit:
        if not world.topics:
            first_changes(visit)
        visit.verify()
        changes(visit, log_dirs)
        visit.verify()
    world.stage += 1


def only_look(world: World, bootstrap: str) -> None:
    with Visit(world, bootstrap) as visit:
        visit.verify()


# ---- turns


def test_kafka_compactd_kafka_compactd_kafka(kafka: Turn, compactd: Turn, tmp_path: Path) -> None:
    """With metadata logs of several segments and snapshots at each stop, made by both."""
    log_dirs = [tmp_path / "d1", tmp_path / "d2"]
    metadata = log_dirs[0] / "__cluster_metadata-0"
    world = World()
    for turn in range(2):
        with kafka(formats=not turn, **SHORT_METADATA) as bootstrap:
            stay(world, bootstrap, log_dirs)
        several(metadata)
        with compactd(**SHORT_METADATA) as bootstrap:
            stay(world, bootstrap, log_dirs)
        several(metadata)
    with kafka() as bootstrap:
        only_look(world, bootstrap)
        until(lambda: not [path for each in log_dirs for path in each.rglob("*-delete")], "the end of deleted topics")


def several(metadata: Path) -> None:
    """Segments and snapshots beyond the first."""
    segments = sorted(path.name for path in metadata.glob("*.log"))
    snapshots = sorted(path.name for path in metadata.glob("*.checkpoint"))
    assert len(segments) > 1 and len(snapshots) > 1, (segments, snapshots)


def test_begun_here_and_killed_at_each_stop(kafka: Turn, compactd: Turn, tmp_path: Path) -> None:
    """A crash of the process loses nothing that was acknowledged, whoever crashed and whoever comes next."""
    log_dirs = [tmp_path / "d1", tmp_path / "d2"]
    world = World()
    for turn in range(2):
        with compactd(killed=True, after_kill=turn > 0) as bootstrap:
            stay(world, bootstrap, log_dirs)
        with kafka(killed=True, after_kill=True) as bootstrap:
            stay(world, bootstrap, log_dirs)
    with compactd(after_kill=True) as bootstrap:
        only_look(world, bootstrap)
    with kafka() as bootstrap:
        only_look(world, bootstrap)
