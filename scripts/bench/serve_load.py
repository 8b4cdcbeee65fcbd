"""The loads of `compactd bench serve --load`: the same requests to one broker and then to the other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compactd.scripts.bench.load_client import (
    Driver,
    Load,
    check_produced,
    fetch_request,
    metadata_request,
    produce_request,
)
from compactd.scripts.client import KafkaClient
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from compactd.workers.catalogue_messages import NewTopic

#: What issue and documentation promise.
GOAL_BYTES_PER_SECOND = 200_000_000
GOAL_CONNECTIONS = 1000

_BIG, _SMALL = "big", "small"
_BIG_PARTITIONS, _SMALL_PARTITIONS = 4, 8
#: Old segments go, so that the disk is not filled.
TOPICS = (
    NewTopic(
        name=_BIG,
        num_partitions=_BIG_PARTITIONS,
        configs=(("retention.bytes", str(512 << 20)), ("segment.bytes", str(256 << 20))),
    ),
    NewTopic(name=_SMALL, num_partitions=_SMALL_PARTITIONS),
)
#: Before a load is measured: as long as a JVM's compilers need for what it does.
_WARM_SECONDS = 3.0
_LAZY = 50
_LAZY_REQUESTS = 20


@dataclass(frozen=True, slots=True)
class Measured:
    """One load at one broker."""

    name: str
    requests_per_second: float
    #: Of what clients sent and of what they got.
    bytes_per_second: float
    median_ms: float
    p99_ms: float
    #: Of the broker, in cores.
    cpu: float

    @property
    def cpu_seconds(self) -> float:
        """Of the broker for one request: what other work on the machine moves least."""
        return self.cpu / self.requests_per_second if self.requests_per_second else 0.0


@dataclass(frozen=True, slots=True)
class Loads:
    """All loads at one broker."""

    measured: Sequence[Measured]
    #: Seconds that it took to connect GOAL_CONNECTIONS times and to answer a request on each.
    connect_seconds: float
    #: What the broker's memory (PSS) grew by while so many connections were open, and while _LAZY consumers asked for
    #: _LAZY_REQUESTS x 50 MB each and read nothing.
    connections_bytes: int
    lazy_bytes: int
    #: Of another client's requests meanwhile.
    beside_lazy_p99_ms: float


def batches() -> tuple[bytes, bytes]:
    """(about 900 KB, about 1 KB) of records with keys; values that do not compress well."""
    noise = random.Random(1)
    now = int(time.time() * 1000)

    def make(count: int, size: int) -> bytes:
        records = [Record(n, now, b"key-%06d" % n, noise.randbytes(size // 2).hex().encode(), ()) for n in range(count)]
        return build_batch(records, base_offset=0)

    return make(900, 1000), make(10, 100)


def run(
    bootstrap: str, seconds: float, cpu_seconds: Callable[[], float], memory: Callable[[], int], warm: bool
) -> Loads:
    """All loads, one after the other. `warm`: the broker is a JVM."""
    big, small = batches()
    write_big = [produce_request(_BIG, number, big) for number in range(_BIG_PARTITIONS)]
    write_small = [produce_request(_SMALL, number, small) for number in range(_SMALL_PARTITIONS)]
    read_small = [fetch_request(_SMALL, [number], 0, 50 << 20, 4096) for number in range(_SMALL_PARTITIONS)]
    metadata = [metadata_request(_SMALL)]
    measured = []

    def measure(name: str, connections: int, frames: Sequence[bytes], window: int = 1, written: bool = True) -> Load:
        check = check_produced if written else None
        with Driver(bootstrap, connections) as driver:
            if warm:
                driver.run(frames, _WARM_SECONDS, window=window, check=check)
            driver.run(frames, requests=4 * connections, check=check)
            used, begun = cpu_seconds(), time.perf_counter()
            load = driver.run(frames, seconds, window=window, check=check)
            cores = (cpu_seconds() - used) / (time.perf_counter() - begun)
        measured.append(_told(name, load, cores))
        return load

    measure("produce 900 KB, 1 connection, 5 at once", 1, write_big, window=5)
    measure("produce 900 KB, 8 connections", 8, write_big)
    read_big = [
        fetch_request(_BIG, [number], _first(bootstrap, number), 50 << 20, 10 << 20)
        for number in range(_BIG_PARTITIONS)
    ]
    measure("fetch 10 MB, 1 connection", 1, read_big, written=False)
    measure("fetch 10 MB, 4 connections", 4, read_big, written=False)
    measure("produce 1 KB, 1 connection", 1, write_small)
    measure("produce 1 KB, 8 connections, 5 at once", 8, write_small, window=5)
    measure("fetch 4 KB, 8 connections", 8, read_small, written=False)
    measure("metadata, 8 connections", 8, metadata, written=False)
    before = memory()
    begun = time.perf_counter()
    with Driver(bootstrap, GOAL_CONNECTIONS) as driver:
        driver.run(metadata, requests=GOAL_CONNECTIONS)
        connect_seconds = time.perf_counter() - begun
        connections_bytes = memory() - before
    measure(f"produce 1 KB, {GOAL_CONNECTIONS:,} connections", GOAL_CONNECTIONS, write_small)
    lazy_bytes, beside = _lazy(bootstrap, read_big, metadata, memory)
    return Loads(tuple(measured), connect_seconds, connections_bytes, lazy_bytes, beside)


def _lazy(
    bootstrap: str, read_big: Sequence[bytes], metadata: Sequence[bytes], memory: Callable[[], int]
) -> tuple[int, float]:
    """(growth of memory, latency of another client) while consumers ask and do not read."""
    with Driver(bootstrap, 1) as other, Driver(bootstrap, _LAZY, receive_buffer=16 << 10) as lazy:
        other.run(metadata, requests=100)
        before = memory()
        for number, sock in enumerate(lazy.sockets):
            for _ in range(_LAZY_REQUESTS):
                sock.send(read_big[number % len(read_big)])
        load = other.run(metadata, 2.0)
        return memory() - before, 1000 * load.latency(0.99)


def _first(bootstrap: str, partition: int) -> int:
    """Where the log of a partition begins now."""
    with KafkaClient(bootstrap) as client:
        return client.offset_at(client.layout(_BIG), partition, -2)


def _told(name: str, load: Load, cores: float) -> Measured:
    return Measured(
        name,
        load.requests / load.seconds,
        (load.sent_bytes + load.received_bytes) / load.seconds,
        1000 * load.latency(0.5),
        1000 * load.latency(0.99),
        cores,
    )
