"""What `compactd stress` writes, and what has to be read back: the model of each partition is what was acknowledged last."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from compactd.config.errors import CompactdError, RefusedError, UsageError
from compactd.scripts.client import EARLIEST, LATEST, KafkaClient, TopicLayout
from compactd.scripts.partitioning import Partitioner
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: Each record has its number in this header: deletions have no value that could tell it.
HEADER = b"number"
_TIMEOUT_MS = 30_000
_RECONNECT_SECONDS = 0.2
#: A broker that is away for longer is a fault.
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Shape:
    """The load."""

    keys: int = 2000
    #: 0: every key equally often; the larger, the more go to few keys.
    skew: float = 2.0
    #: Bytes of a value, from and to.
    sizes: tuple[int, int] = (10, 1000)
    batch_records: int = 200
    #: Share of records that delete their key.
    tombstones: float = 0.1
    codecs: tuple[str, ...] = CODECS
    seed: int = 1


@dataclass(slots=True)
class Model:
    """Key to (number, whether it is a deletion) of the last record that was acknowledged; numbers only grow."""

    partition: int
    latest: dict[bytes, tuple[int, bool]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def acknowledged(self, records: Sequence[tuple[bytes, int, bool]]) -> None:
        with self.lock:
            for key, number, deletes in records:
                self.latest[key] = (number, deletes)

    def snapshot(self) -> dict[bytes, tuple[int, bool]]:
        with self.lock:
            return dict(self.latest)


class Counters:
    """What was done so far, by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.written = self.written_bytes = self.read = self.read_bytes = self.passes = self.reconnects = 0
        #: Longest wait for an acknowledgement or a fetch, in seconds.
        self.longest_write = self.longest_read = 0.0
        self.faults: list[str] = []

    def wrote(self, records: int, size: int, seconds: float) -> None:
        with self._lock:
            self.written += records
            self.written_bytes += size
            self.longest_write = max(self.longest_write, seconds)

    def got(self, records: int, size: int, seconds: float) -> None:
        with self._lock:
            self.read += records
            self.read_bytes += size
            self.longest_read = max(self.longest_read, seconds)

    def passed(self) -> None:
        with self._lock:
            self.passes += 1

    def reconnected(self) -> None:
        with self._lock:
            self.reconnects += 1

    def fault(self, what: str) -> None:
        with self._lock:
            self.faults.append(what)


class Writer:
    """Writes batches of its own share of the keys, one after the other, until `stopping`; sends again what was not
    acknowledged, so that the model knows the last value of every key."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        models: dict[int, Model],
        shape: Shape,
        share: tuple[int, int],
        counters: Counters,
    ) -> None:
        """`share`: (k, n) for every n-th key from the k-th on."""
        self._bootstrap, self._topic = bootstrap, topic
        self._models, self._shape, self._counters = models, shape, counters
        self._random = random.Random(f"{shape.seed}/{share[0]}")
        partitioner = Partitioner(sorted(models))
        keys = [b"key-%06d" % number for number in range(share[0], shape.keys, share[1])]
        self._keys: dict[int, list[bytes]] = {}
        for key in keys:
            self._keys.setdefault(partitioner.of(key), []).append(key)
        self._filling = self._random.randbytes(shape.sizes[1])
        self._number = 0

    def run(self, stopping: threading.Event) -> None:
        """The body of a thread."""
        client: KafkaClient | None = None
        try:
            while not stopping.is_set() and self._keys:
                partition = self._random.choice(list(self._keys))
                records, batch, size = self._batch(partition)
                begun = time.monotonic()
                while True:
                    try:
                        if client is None:
                            client = KafkaClient(self._bootstrap)
                            layout = client.layout(self._topic)
                        client.produce(layout, partition, batch, -1, _TIMEOUT_MS)
                        break
                    except CompactdError as error:
                        if time.monotonic() - begun > _PATIENCE_SECONDS:
                            raise
                        _close(client)
                        client = None
                        self._counters.reconnected()
                        if _is_final(error):
                            raise
                        time.sleep(_RECONNECT_SECONDS)
                self._models[partition].acknowledged(records)
                self._counters.wrote(len(records), size, time.monotonic() - begun)
        except Exception as error:
            self._counters.fault(f"a writer gave up: {error}")
        finally:
            _close(client)

    def _batch(self, partition: int) -> tuple[list[tuple[bytes, int, bool]], bytes, int]:
        """(what it says, the batch, bytes of keys and values)"""
        shape, draw, keys = self._shape, self._random, self._keys[partition]
        said: list[tuple[bytes, int, bool]] = []
        records: list[Record] = []
        now, size = time.time_ns() // 1_000_000, 0
        for position in range(shape.batch_records):
            self._number += 1
            key = keys[int(len(keys) * draw.random() ** (1 + shape.skew))]
            deletes = draw.random() < shape.tombstones
            value = None if deletes else self._filling[: draw.randint(*shape.sizes)]
            said.append((key, self._number, deletes))
            records.append(Record(position, now, key, value, ((HEADER, b"%d" % self._number),)))
            size += len(key) + len(value or b"")
        codec = CODECS.index(draw.choice(shape.codecs))
        return said, build_batch(records, base_offset=0, codec=codec), size


class Reader:
    """Reads each partition from its start to its end, again and again, and compares what it saw with the model."""

    def __init__(
        self, bootstrap: str, topic: str, models: dict[int, Model], counters: Counters, keeps_deletes_seconds: float
    ) -> None:
        """`keeps_deletes_seconds`: delete.retention.ms. A pass that takes longer may miss a deletion that it should have seen."""
        self._bootstrap, self._topic, self._models = bootstrap, topic, models
        self._counters, self._keeps = counters, keeps_deletes_seconds

    def run(self, stopping: threading.Event) -> None:
        """The body of a thread."""
        client: KafkaClient | None = None
        try:
            while not stopping.is_set():
                for model in self._models.values():
                    if stopping.is_set():
                        return
                    try:
                        if client is None:
                            client = KafkaClient(self._bootstrap)
                        self.one_pass(client, client.layout(self._topic), model)
                    except CompactdError as error:
                        if _is_final(error):
                            raise
                        _close(client)
                        client = None
                        time.sleep(_RECONNECT_SECONDS)
        except Exception as error:
            self._counters.fault(f"a reader gave up: {error}")
        finally:
            _close(client)

    def one_pass(self, client: KafkaClient, layout: TopicLayout, model: Model, is_clean: bool = False) -> None:
        """From the log's start to its end as of now. `is_clean`: nobody writes, and every closed segment was cleaned: what
        is there has to be the model, each key once."""
        before, begun = model.snapshot(), time.monotonic()
        seen = self._read(client, layout, model.partition, is_clean)
        quick = time.monotonic() - begun < self._keeps
        where = f"{layout.name}-{model.partition}"
        for key, (number, deletes) in before.items():
            found = seen.get(key)
            if found is None:
                if not deletes:
                    self._counters.fault(f"{where}: {key.decode()} is gone, its value {number} was acknowledged")
            elif found[0] < number and (quick or not deletes):
                self._counters.fault(f"{where}: {key.decode()} ends with {found[0]}, {number} was acknowledged")
            elif is_clean and found != (number, deletes):
                self._counters.fault(f"{where}: {key.decode()} is {found}, not {(number, deletes)}")
        if is_clean:
            for key in seen.keys() - before.keys():
                self._counters.fault(f"{where}: nobody wrote {key.decode()}")
        self._counters.passed()

    def _read(
        self, client: KafkaClient, layout: TopicLayout, partition: int, is_clean: bool
    ) -> dict[bytes, tuple[int, bool]]:
        where = f"{layout.name}-{partition}"
        offset, end = client.offset_at(layout, partition, EARLIEST), client.offset_at(layout, partition, LATEST)
        seen: dict[bytes, tuple[int, bool]] = {}
        last = -1
        while offset < end:
            begun, asked = time.monotonic(), offset
            (fetched,) = client.fetch(layout, {partition: offset}, 100, False)
            took, records, size = time.monotonic() - begun, 0, 0
            if fetched.error:
                raise _ReadError(what=where, error=fetched.error)
            if not fetched.batches:
                self._counters.fault(f"{where}: nothing is read at offset {offset}, the log ends at {end}")
                break
            for batch in fetched.batches:
                batch.check()
                for record in batch.records():
                    if record.offset < asked:
                        continue
                    if record.offset <= last:
                        self._counters.fault(f"{where}: offset {record.offset} comes after {last}")
                    last = record.offset
                    key, value = record.key or b"", record.value
                    if is_clean and key in seen:
                        self._counters.fault(f"{where}: {key.decode()} is there twice in a clean log")
                    number = next((int(text or b"-1") for name, text in record.headers if name == HEADER), -1)
                    seen[key] = (number, value is None)
                    records += 1
                    size += len(key) + len(value or b"")
                offset = max(offset, batch.header.next_offset)
            self._counters.got(records, size, took)
        return seen


class _ReadError(CompactdError):
    """{what} answered error {error}."""


def _is_final(error: CompactdError) -> bool:
    """Wrong usage, a topic that isn't there: it will not get better."""
    return isinstance(error, (UsageError, RefusedError))


def _close(client: KafkaClient | None) -> None:
    if client is not None:
        client.close()
