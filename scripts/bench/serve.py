"""`compactd bench serve`: what a daemon costs that has nothing to do, and what it does under load, beside a Kafka broker."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from compactd.config.errors import CompactdError, RefusedError
from compactd.scripts.bench import kafka, serve_load
from compactd.scripts.bench.machine import Machine
from compactd.scripts.client import KafkaClient
from compactd.scripts.output import Table, human_bytes, print_json, print_line, warn
from compactd.scripts.own_daemon import OwnDaemon
from compactd.workers.catalogue_messages import NewTopic

#: What issue and documentation promise of an idle daemon with 1,000 partitions.
GOAL_CPU_SHARE = 0.01
GOAL_PSS_BYTES = 250_000_000
GOAL_FIRST_ANSWER_SECONDS = 1.5
_TOPIC = "quiet"
#: Before the idle time is measured: what follows a start (checkpoints, the JVM's compilers) is no idle cost.
_SETTLE_SECONDS = 10.0
_KAFKA_SECONDS = 180.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Idle:
    """One side."""

    name: str
    partitions: int
    #: From the start of the process to the answer of the first request, with the partitions that it had.
    first_answer_seconds: float
    #: Of one core.
    cpu_share: float
    #: Over all its processes, shared pages counted once.
    pss_bytes: int
    processes: int


@click.command(
    name="serve",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 2 wrong usage, 3 refused (no Java), 4 I/O error.",
)
@click.option("--partitions", type=click.IntRange(1, 100_000), default=1000, show_default=True, metavar="N")
@click.option("--seconds", type=click.FloatRange(1, 3600), default=None,
              help="Idle time that is measured (20), or time of each load (3).")  # fmt: skip
@click.option(
    "--load", "under_load", is_flag=True, help="Measure loads instead: large and small batches, many clients."
)
@click.option("--kafka/--no-kafka", "with_kafka", default=True, help="Measure a Kafka broker as well.")
@click.option("--directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
              help="Where to put the data; the system's temporary directory unless given.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON lines: one object a side.")
def command(
    partitions: int,
    seconds: float | None,
    under_load: bool,
    with_kafka: bool,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Measure CPU, memory and start of an idle daemon with many quiet partitions, and of Kafka's broker with as many.

    With --load: how many requests and bytes each serves, on few and on 1,000 connections, and what consumers cost that ask
    and never read. One thread asks both sides alike; it and the broker share the machine's CPUs.

    Each side creates its partitions, is stopped in good order, starts again, answers its first request and is then left
    alone. Needs Linux; Kafka's side a JDK, Maven and a source checkout.

    \b
    Examples:
      compactd bench serve
      compactd bench serve --partitions 100 --seconds 5 --no-kafka
      compactd bench serve --load
    """
    machine = Machine.here(directory or Path(tempfile.gettempdir()))
    if machine.is_busy:
        warn(f"the machine is busy (load {machine.load:.1f}): times will be off, memory will not.")
    if under_load:
        _load(directory, seconds or 3.0, with_kafka, as_json, machine)
        return
    seconds = seconds or 20.0
    with tempfile.TemporaryDirectory(prefix="compactd-bench-", dir=directory) as root:
        measured = [_ours(Path(root) / "compactd", partitions, seconds)]
        if as_json:
            print_json(asdict(measured[0]), flush=True)
        if with_kafka:
            measured.append(_kafka(Path(root) / "kafka", partitions, seconds))
            if as_json:
                print_json(asdict(measured[1]), flush=True)
    if not as_json:
        print_line(f"Idle with {partitions:,} partitions, over {seconds:g} s; {machine}")
        _show(measured)


def _show(measured: Sequence[Idle]) -> None:
    table = Table(["", ">first answer", ">CPU of a core", ">memory (PSS)", ">processes"])
    for idle in measured:
        table.row(
            idle.name,
            f"{idle.first_answer_seconds:.2f} s",
            f"{100 * idle.cpu_share:.2f} %",
            human_bytes(idle.pss_bytes),
            idle.processes,
        )
    table.row(
        "goal", f"{GOAL_FIRST_ANSWER_SECONDS:g} s", f"{100 * GOAL_CPU_SHARE:g} %", human_bytes(GOAL_PSS_BYTES), ""
    )
    table.show()


# ---- load

_LOAD_SETTINGS = {"log.retention.check.interval.ms": 2000, "auto.create.topics.enable": "false"}


def _load(directory: Path | None, seconds: float, with_kafka: bool, as_json: bool, machine: Machine) -> None:
    sides: dict[str, serve_load.Loads] = {}
    with tempfile.TemporaryDirectory(prefix="compactd-bench-", dir=directory) as root:
        with OwnDaemon(Path(root) / "compactd", _LOAD_SETTINGS) as daemon:
            daemon.create_topics(serve_load.TOPICS)
            pids = daemon.pids()
            sides["compactd"] = serve_load.run(
                daemon.bootstrap, seconds, lambda: _cpu_seconds(pids), lambda: sum(map(_pss, pids)), warm=False
            )
        if with_kafka:
            broker = _KafkaBroker(Path(root) / "kafka", _LOAD_SETTINGS)
            with broker.running(None) as (pid, _):
                for topic in serve_load.TOPICS:
                    broker.create(topic)
                sides["Kafka"] = serve_load.run(
                    broker.bootstrap, seconds, lambda: _cpu_seconds([pid]), lambda: _pss(pid), warm=True
                )
    if as_json:
        for name, loads in sides.items():
            print_json({"name": name, **asdict(loads)})
    else:
        print_line(f"Each load for {seconds:g} s; {machine}")
        _show_loads(sides)


def _show_loads(sides: dict[str, serve_load.Loads]) -> None:
    table = Table(
        [
            "load",
            "",
            ">requests/s",
            ">MB/s",
            ">median",
            ">p99",
            ">CPU",
            ">CPU a request",
            ">Kafka's requests",
            ">Kafka's CPU",
        ]
    )
    for rows in zip(*(loads.measured for loads in sides.values()), strict=True):
        for name, row in zip(sides, rows, strict=True):
            is_first = row is rows[0] and len(rows) > 1
            requests = f"{row.requests_per_second / rows[-1].requests_per_second:.2f}x" if is_first else ""
            cpu = f"{row.cpu_seconds / rows[-1].cpu_seconds:.2f}x" if is_first and rows[-1].cpu_seconds else ""
            table.row(
                row.name if row is rows[0] else "",
                name,
                f"{row.requests_per_second:,.0f}",
                f"{row.bytes_per_second / 1e6:,.0f}",
                f"{row.median_ms:.2f} ms",
                f"{row.p99_ms:.2f} ms",
                f"{row.cpu:.2f}",
                f"{1e6 * row.cpu_seconds:,.0f} us",
                requests,
                cpu,
            )
    table.show()
    for name, loads in sides.items():
        print_line(
            f"{name}: {serve_load.GOAL_CONNECTIONS:,} clients connected and answered in {loads.connect_seconds:.2f} s, "
            f"{human_bytes(max(0, loads.connections_bytes))} more memory; consumers that never read: "
            f"{human_bytes(max(0, loads.lazy_bytes))} more memory, another client's p99 {loads.beside_lazy_p99_ms:.2f} ms"
        )
    print_line(
        f"goal: {serve_load.GOAL_BYTES_PER_SECOND / 1e6:,.0f} MB/s of large batches, "
        f"{serve_load.GOAL_CONNECTIONS:,} connections"
    )


# ---- idle


def _ours(directory: Path, partitions: int, seconds: float) -> Idle:
    settings = {"log.index.size.max.bytes": 65536}
    with OwnDaemon(directory, settings) as daemon:
        daemon.create_topics(
            [NewTopic(name=_TOPIC, num_partitions=partitions, configs=(("cleanup.policy", "compact"),))]
        )
    begun = time.monotonic()
    with OwnDaemon(directory, settings) as daemon:
        _ask_first(daemon.bootstrap)
        answered = time.monotonic() - begun
        cpu, pss, count = _observe(daemon.pids, seconds)
    return Idle("compactd", partitions, answered, cpu, pss, count)


def _ask_first(bootstrap: str) -> None:
    """The first thing that every client asks."""
    with KafkaClient(bootstrap) as client:
        layout = client.layout(_TOPIC)
        assert all(leader >= 0 for leader in layout.leaders.values())


def _observe(pids: Callable[[], list[int]], seconds: float) -> tuple[float, int, int]:
    """(share of a core, PSS in bytes, processes) over `seconds`."""
    time.sleep(_SETTLE_SECONDS)
    watched = pids()
    before, begun = _cpu_seconds(watched), time.monotonic()
    time.sleep(seconds)
    used, passed = _cpu_seconds(watched) - before, time.monotonic() - begun
    return used / passed, sum(_pss(pid) for pid in watched), len(watched)


def _cpu_seconds(pids: Sequence[int]) -> float:
    total = 0
    for pid in pids:
        # The name in brackets may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def _pss(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    if found is None:
        raise RefusedError(
            path=f"/proc/{pid}/smaps_rollup", reason="this system doesn't tell it", advice="Use Linux 4.14 or newer."
        )
    return int(found[1]) << 10


# ---- Kafka


class KafkaBrokerError(CompactdError):
    """Kafka's broker {what}: {said}."""


class _KafkaBroker:
    """A broker of one node in a directory of its own."""

    def __init__(self, directory: Path, more: Mapping[str, object]) -> None:
        self._classpath = kafka.classpath()
        self._directory = directory
        directory.mkdir(parents=True)
        port, controller = _free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        self._properties = directory / "server.properties"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": directory / "d1",
            **more,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._tool("kafka.tools.StorageTool", "format", "-t", "Y29tcGFjdGQtYmVuY2gtMQ", "-c", str(self._properties))

    def _tool(self, *arguments: str) -> None:
        _run(["java", "-XX:+UseSerialGC", "-cp", self._classpath, *arguments])

    def create(self, topic: NewTopic) -> None:
        """Makes a topic."""
        configs = [part for name, value in topic.configs for part in ("--config", f"{name}={value}")]
        self._tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.bootstrap, "--create",
                   "--topic", topic.name, "--partitions", str(topic.num_partitions), "--replication-factor", "1",
                   *configs)  # fmt: skip

    def running(self, partitions: int | None) -> AbstractContextManager[tuple[int, float]]:
        """(process id, seconds to its first answer about so many partitions of the quiet topic)"""
        # Kafka's own start script gives its broker 1 GB of heap.
        broker = ["java", "-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        broker += ["-cp", self._classpath, "kafka.Kafka", str(self._properties)]
        return _broker(broker, self._directory, self.bootstrap, partitions)


def _kafka(directory: Path, partitions: int, seconds: float) -> Idle:
    broker = _KafkaBroker(directory, {"log.index.size.max.bytes": 65536})
    with broker.running(None):
        broker.create(NewTopic(name=_TOPIC, num_partitions=partitions, configs=(("cleanup.policy", "compact"),)))
    with broker.running(partitions) as (pid, answered):
        cpu, pss, count = _observe(lambda: [pid], seconds)
    return Idle("Kafka", partitions, answered, cpu, pss, count)


@contextmanager
def _broker(
    command: Sequence[str], directory: Path, bootstrap: str, partitions: int | None
) -> Iterator[tuple[int, float]]:
    """(process id, seconds to its first answer about so many partitions)"""
    begun = time.monotonic()
    with (directory / "broker.txt").open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        while not _answers(bootstrap, partitions):
            if process.poll() is not None or time.monotonic() - begun > _KAFKA_SECONDS:
                said = (directory / "broker.txt").read_text(errors="replace")[-2000:]
                raise KafkaBrokerError(what="did not start", said=said)
            time.sleep(0.02)
        yield process.pid, time.monotonic() - begun
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(bootstrap: str, partitions: int | None) -> bool:
    host, port = bootstrap.split(":")
    with suppress(CompactdError, OSError):
        if partitions is None:
            socket.create_connection((host, int(port)), timeout=1).close()
            return True
        with KafkaClient(bootstrap) as client:
            leaders = client.layout(_TOPIC).leaders
            return len(leaders) == partitions and all(leader >= 0 for leader in leaders.values())
    return False


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_KAFKA_SECONDS)
    if done.returncode != 0:
        raise KafkaBrokerError(what="could not be set up", said=(done.stderr + done.stdout)[-2000:])


def _free_ports(count: int) -> list[int]:
    probes: list[Any] = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
