"""`compactd stress`: load on a daemon, while cleaners work under it; what is read is compared with what was written."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from compactd.config.errors import EXIT_FAULTS, CompactdError, UsageError
from compactd.coordinator.control.messages import CleanNow, Status
from compactd.scripts.client import LATEST, KafkaClient
from compactd.scripts.output import human_bytes, human_count, print_json, print_line
from compactd.scripts.own_daemon import OwnDaemon
from compactd.scripts.stress_model import CODECS, Counters, Model, Reader, Shape, Writer
from compactd.workers.catalogue_messages import NewTopic

_LOOK_SECONDS = 1.0
_KEEPS_DELETES_SECONDS = 20.0
#: For the last clean, and for a worker that was killed to be back.
_PATIENCE_SECONDS = 300.0
#: Faults that are printed; the rest is counted.
_SHOWN = 20

#: A daemon that cleans as often as it can.
_SETTINGS = {
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.threads": 1,
    "log.cleaner.dedupe.buffer.size": 16 << 20,
    "log.retention.check.interval.ms": 5000,
    "log.index.size.max.bytes": 1 << 20,
}
_TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": 4 << 20,
    "segment.ms": 3000,
    "min.cleanable.dirty.ratio": 0.2,
    "delete.retention.ms": round(_KEEPS_DELETES_SECONDS * 1000),
    "file.delete.delay.ms": 2000,
}


@click.command(
    name="stress",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 all that was read is right, 1 faults were found, 2 wrong usage, 3 refused, 4 I/O error.",
)
@click.option("--seconds", type=click.FloatRange(1, 10**7), default=30, show_default=True, help="How long to write.")
@click.option("--partitions", type=click.IntRange(1, 1000), default=4, show_default=True)
@click.option("--keys", type=click.IntRange(1, 10**7), default=2000, show_default=True)
@click.option("--skew", type=click.FloatRange(0, 20), default=2.0, show_default=True,
              help="0: all keys equally often; more: a few of them mostly.")  # fmt: skip
@click.option("--value-bytes", nargs=2, type=click.IntRange(0, 1 << 20), default=(10, 1000), show_default=True,
              metavar="FROM TO", help="Size of values.")  # fmt: skip
@click.option("--codec", "codecs", type=click.Choice(CODECS), multiple=True, help="Only these; may be given again.")
@click.option("--tombstones", type=click.FloatRange(0, 1), default=0.1, show_default=True, help="Share of deletions.")
@click.option("--writers", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--readers", type=click.IntRange(0, 64), default=1, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--kill", "kill_seconds", type=click.FloatRange(0.5), metavar="SECONDS",
              help="Kill a random worker process so often. Not with --bootstrap-server.")  # fmt: skip
@click.option("--bootstrap-server", "bootstrap", metavar="HOST:PORT",
              help="Stress this server. TOPIC must be there, compacted and empty. Default: a daemon of its own.")  # fmt: skip
@click.option("--topic", default="stress", show_default=True)
@click.option("--directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
              help="Where its own daemon has its logs; the system's temporary directory unless given.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON lines: rates as it goes, then the verdict.")
def command(
    seconds: float,
    partitions: int,
    keys: int,
    skew: float,
    value_bytes: tuple[int, int],
    codecs: tuple[str, ...],
    tombstones: float,
    writers: int,
    readers: int,
    seed: int,
    kill_seconds: float | None,
    bootstrap: str | None,
    topic: str,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Write and read at full speed while cleaners work, and check every record against what was acknowledged.

    Readers go through the whole log again and again: at the end of each pass every key must have the value that was its
    latest when the pass began, or a later one. At last everything is cleaned and must be exactly what was written last.

    \b
    Examples:
      compactd stress
      compactd stress --seconds 3600 --kill 10
      compactd stress --bootstrap-server 127.0.0.1:9092 --topic scratch
    """
    if value_bytes[0] > value_bytes[1]:
        raise UsageError(detail=f"--value-bytes: {value_bytes[0]} is more than {value_bytes[1]}")
    if bootstrap is not None and kill_seconds is not None:
        raise UsageError(detail="--kill ends processes of a daemon of this command's own, not of --bootstrap-server")
    shape = Shape(keys, skew, value_bytes, tombstones=tombstones, codecs=codecs or CODECS, seed=seed)
    with _server(bootstrap, directory, topic, partitions) as (address, daemon):
        stress = _Stress(address, daemon, topic, shape, as_json)
        stress.run(seconds, writers, readers, kill_seconds)
        stress.check_the_end()
        status = daemon.status() if daemon is not None else None
    if daemon is not None:
        # What a stop in good order leaves.
        strays = [path.name for log_dir in daemon.log_dirs for path in log_dir.rglob("*") if path.suffix in _ODD]
        if strays:
            stress.counters.fault(f"{len(strays)} files were left over: {', '.join(sorted(strays)[:5])}")
    if not stress.verdict(status):
        raise SystemExit(EXIT_FAULTS)


_ODD = (".cleaned", ".swap", ".tmp")


@contextlib.contextmanager
def _server(
    bootstrap: str | None, directory: Path | None, topic: str, partitions: int
) -> Iterator[tuple[str, OwnDaemon | None]]:
    if bootstrap is not None:
        yield bootstrap, None
        return
    with tempfile.TemporaryDirectory(prefix="compactd-stress-", dir=directory) as root:
        daemon = OwnDaemon(Path(root), _SETTINGS, log_dirs=2)
        with daemon:
            configs = tuple((name, str(value)) for name, value in _TOPIC_SETTINGS.items())
            daemon.create_topics([NewTopic(name=topic, num_partitions=partitions, configs=configs)])
            yield daemon.bootstrap, daemon


class _Stress:
    def __init__(self, bootstrap: str, daemon: OwnDaemon | None, topic: str, shape: Shape, as_json: bool) -> None:
        self._bootstrap, self._daemon, self._topic, self._shape = bootstrap, daemon, topic, shape
        self._as_json = as_json
        self.counters = Counters()
        self._random = random.Random(shape.seed)
        self._killed: dict[str, int] = {}
        with KafkaClient(bootstrap) as client:
            layout = client.layout(topic)
            self._models = {partition: Model(partition) for partition in layout.leaders}
            if any(client.offset_at(layout, partition, LATEST) for partition in self._models):
                raise UsageError(detail=f"topic {topic} is not empty: what is in it is not known")

    def run(self, seconds: float, writers: int, readers: int, kill_seconds: float | None) -> None:
        """Writers for so long, readers beside them."""
        stopping = threading.Event()
        bodies = [
            Writer(self._bootstrap, self._topic, self._models, self._shape, (number, writers), self.counters).run
            for number in range(writers)
        ]
        bodies += [self._reader().run for _ in range(readers)]
        threads = [threading.Thread(target=body, args=(stopping,)) for body in bodies]
        for thread in threads:
            thread.start()
        try:
            begun = time.monotonic()
            next_kill = begun + (kill_seconds or 0)
            before = (begun, 0, 0, 0)
            while (now := time.monotonic()) < begun + seconds and not self.counters.faults:
                time.sleep(min(_LOOK_SECONDS, max(0.0, begun + seconds - now)))
                if kill_seconds is not None and time.monotonic() >= next_kill:
                    next_kill = time.monotonic() + kill_seconds
                    self._kill()
                before = self._tell(time.monotonic() - begun, before)
        finally:
            stopping.set()
            for thread in threads:
                thread.join()

    def check_the_end(self) -> None:
        """Nobody writes any more: the log, cleaned to its end where that can be asked for, is the model."""
        with self._served() as client:
            layout = client.layout(self._topic)
            if self._daemon is not None:
                self._clean(
                    self._daemon,
                    {f"{self._topic}-{number}": client.offset_at(layout, number, LATEST) for number in self._models},
                )
            for model in self._models.values():
                self._reader().one_pass(client, layout, model, is_clean=self._daemon is not None)

    def verdict(self, status: Status | None) -> bool:
        """Says it; whether all is good."""
        counters, faults = self.counters, list(self.counters.faults)
        if status is not None:
            faults += [f"{each.partition} is set aside: {each.reason}" for each in status.cleaning.quarantine]
            faults += [f"{name} is offline: {why}" for name, why in status.offline.items()]
        if not counters.written:
            faults.append("nothing was written")
        keys = sum(len(model.latest) for model in self._models.values())
        if self._as_json:
            figures: dict[str, Any] = {
                "good": not faults, "faults": faults, "records_written": counters.written, "records_read": counters.read,
                "passes": counters.passes, "keys": keys, "killed": self._killed, "reconnects": counters.reconnects,
                "longest_write_seconds": counters.longest_write, "longest_read_seconds": counters.longest_read,
            }  # fmt: skip
            if status is not None:
                figures["slowest_turn_ms"] = status.loop.slowest_ms
            print_json(figures)
            return not faults
        for fault in faults[:_SHOWN]:
            print_line(f"fault: {fault}")
        if len(faults) > _SHOWN:
            print_line(f"and {len(faults) - _SHOWN} more")
        killed = ", ".join(f"{name} {count} times" for name, count in sorted(self._killed.items()))
        print_line(
            f"{'Faults were found' if faults else 'Good'}: {human_count(counters.written)} records written, "
            f"{human_count(counters.read)} read in {counters.passes} passes, {human_count(keys)} keys compared; "
            f"longest wait {1000 * counters.longest_write:.0f} ms for an acknowledgement, "
            f"{1000 * counters.longest_read:.0f} ms for a fetch" + (f"; killed {killed}" if killed else "") + "."
        )
        return not faults

    def _reader(self) -> Reader:
        return Reader(self._bootstrap, self._topic, self._models, self.counters, _KEEPS_DELETES_SECONDS / 2)

    def _served(self) -> KafkaClient:
        """A client, as soon as every partition is served: a broker that was killed just before may not be back yet."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with contextlib.suppress(CompactdError):
                client = KafkaClient(self._bootstrap)
                try:
                    layout = client.layout(self._topic)
                    for partition in self._models:
                        client.offset_at(layout, partition, LATEST)
                    return client
                except CompactdError:
                    client.close()
            _wait(end, "the partitions are not served")

    def _clean(self, daemon: OwnDaemon, ends: Mapping[str, int]) -> None:
        """All of it, the active segments too."""
        end = time.monotonic() + _PATIENCE_SECONDS
        daemon.ask(CleanNow(names=(self._topic,)))
        while True:
            cleaning = daemon.status(True).cleaning
            now = {each.name: each.first_dirty_offset for each in cleaning.partitions}
            if not cleaning.jobs and all(now.get(name, -1) >= offset for name, offset in ends.items()):
                return
            if cleaning.quarantine:
                return
            _wait(end, "the last clean did not end")

    def _kill(self) -> None:
        assert self._daemon is not None
        running = [worker for worker in self._daemon.status().workers if worker.state == "running" and worker.pid]
        if running:
            worker = self._random.choice(running)
            assert worker.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
            self._killed[worker.kind] = self._killed.get(worker.kind, 0) + 1

    def _tell(self, passed: float, before: tuple[float, int, int, int]) -> tuple[float, int, int, int]:
        counters, now = self.counters, time.monotonic()
        seconds = max(now - before[0], 1e-9)
        written, size, read = counters.written, counters.written_bytes, counters.read
        rates = {
            "seconds": round(passed, 1),
            "written_per_second": round((written - before[1]) / seconds),
            "written_bytes_per_second": round((size - before[2]) / seconds),
            "read_per_second": round((read - before[3]) / seconds),
            "passes": counters.passes,
        }
        cleaning = ""
        if self._daemon is not None:
            with contextlib.suppress(CompactdError):
                status = self._daemon.status()
                cleaning = ", ".join(f"{job.partition} {job.phase}" for job in status.cleaning.jobs) or "idle"
        if self._as_json:
            print_json({**rates, "cleaning": cleaning}, flush=True)
        else:
            print_line(
                f"{passed:6.0f} s  {rates['written_per_second']:>8,} records/s written "
                f"({human_bytes(rates['written_bytes_per_second'])}/s)  {rates['read_per_second']:>8,} read  "
                f"{counters.passes:>5} passes  cleaners: {cleaning or 'unknown'}"
            )
        return now, written, size, read


def _wait(end: float, why: str) -> None:
    if time.monotonic() > end:
        raise _StuckError(what=why, seconds=round(_PATIENCE_SECONDS))
    time.sleep(0.1)


class _StuckError(CompactdError):
    """After {seconds} s {what}."""
