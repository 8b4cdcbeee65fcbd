"""Producers at work while a test does harm: what was acknowledged, and whether it is all still there."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import defaultdict
from types import TracebackType
from typing import Any

from kafka import KafkaProducer

from tests.daemon.daemons import PATIENCE_SECONDS, Daemon, close_producer, until

#: Between sends: a load that leaves this machine room for the daemon.
_PAUSE_SECONDS = 0.002


class Load:
    """`with Load(daemon, "users", "events"):` a thread that writes numbered values: to a compacted topic with keys, and
    each once to a topic that keeps everything."""

    def __init__(self, daemon: Daemon, compacted: str, kept: str, keys: int = 40, seed: int = 1) -> None:
        self._daemon = daemon
        self._compacted, self._kept = compacted, kept
        self._keys = keys
        self._random = random.Random(seed)
        #: Key to the largest number that was acknowledged.
        self.acknowledged: dict[bytes, int] = defaultdict(lambda: -1)
        #: Key to the largest number that was sent.
        self.sent: dict[bytes, int] = {}
        self.kept: set[bytes] = set()
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Load:
        self._producer: KafkaProducer = self._daemon.producer(
            retry_backoff_ms=50, reconnect_backoff_ms=50, reconnect_backoff_max_ms=200, delivery_timeout_ms=120_000
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        try:
            if kind is None:
                self._producer.flush(timeout=2 * PATIENCE_SECONDS)
        finally:
            close_producer(self._producer, 5 if kind is None else 0)
            del self._producer
            # A connection that was being made just then is only closed with its last reference.
            gc.collect()

    def _run(self) -> None:
        number = 0
        try:
            while not self._stopping.is_set():
                key = b"k%d" % self._random.randrange(self._keys)
                number += 1
                self.sent[key] = number
                self._producer.send(self._compacted, key=key, value=b"%d" % number).add_callback(
                    self._compacted_acknowledged, key, number
                ).add_errback(self.errors.append)
                value = b"%d" % number
                self._producer.send(self._kept, value=value).add_callback(self._kept_acknowledged, value).add_errback(
                    self.errors.append
                )
                time.sleep(_PAUSE_SECONDS)
        except BaseException as error:
            self.errors.append(error)

    def _compacted_acknowledged(self, key: bytes, number: int, _metadata: Any) -> None:
        with self._lock:
            self.acknowledged[key] = max(self.acknowledged[key], number)

    def _kept_acknowledged(self, value: bytes, _metadata: Any) -> None:
        with self._lock:
            self.kept.add(value)

    def acknowledged_so_far(self) -> int:
        with self._lock:
            return len(self.kept)

    def goes_on(self, more: int = 1) -> None:
        """Waits until so many more records than now are acknowledged."""
        sofar = self.acknowledged_so_far()
        until(lambda: self.acknowledged_so_far() >= sofar + more, "more acknowledgements")

    def verify(self, partitions: int) -> None:
        """Every record that was acknowledged is there, every key has its latest value once the log is clean."""
        assert not self.errors, self.errors[:3]
        assert len(self.kept) > 100, "the load never got going"
        kept = {record.value for number in range(partitions) for record in self._daemon.records(self._kept, number)}
        lost = self.kept - kept
        assert not lost, f"{len(lost)} acknowledged records are lost, {sorted(lost, key=int)[:10]}"
        self._daemon.clean_now(self._compacted)
        latest: dict[bytes, int] = {}
        for number in range(partitions):
            for record in self._daemon.records(self._compacted, number):
                assert record.key not in latest, f"{record.key} is there twice after the clean"
                latest[record.key] = int(record.value)
        for key, acknowledged in self.acknowledged.items():
            assert acknowledged <= latest.get(key, -1) <= self.sent[key], key
