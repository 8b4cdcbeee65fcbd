"""Producers of both kinds, zombies, timeouts, stops and kills, against a model of what committed readers have to see."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.strategies import examples
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.transactional import (
    FEW,
    RawProducer,
    batches_of,
    committed,
    fetched,
    group_offset,
    ready,
    settled,
)

_PARTITIONS = 2
_SETTINGS = {**FEW, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 5}
#: By name: whether its clients are newer ones. The last one changes its mind with each client.
_NAMES = {"old": False, "new": True, "mixed": None}


@dataclass
class Attempt:
    """A transaction: what was written in it, and what came of it (None: it is open)."""

    name: str
    offset: int | None = None
    outcome: bool | None = None
    values: list[bytes] = field(default_factory=list)


class Transactions(RuleBasedStateMachine):
    """One broker, which comes back on its log dir or on a copy of it as a kill leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()
        memory = Path("/dev/shm")
        self._root = Path(tempfile.mkdtemp(prefix="compactd-test-", dir=memory if memory.is_dir() else None))
        self._stack.callback(shutil.rmtree, self._root)
        self._log_dir = self._root / "0"
        self._log_dir.mkdir()
        self._runs = 0
        self._moved_ms = 0
        self._count = 0
        self.producers: dict[str, RawProducer] = {}
        self.zombies: list[RawProducer] = []
        self.open: dict[str, Attempt] = {}
        #: What was written, in order, by partition.
        self.written: list[list[tuple[bytes, Attempt]]] = [[] for _ in range(_PARTITIONS)]
        #: What each group has committed last.
        self.offsets: dict[str, int] = dict.fromkeys(_NAMES, -1)

    @initialize()
    def begin(self) -> None:
        self._start(clean=True)
        ready(self.client, {"t": _PARTITIONS})
        for name, newer in _NAMES.items():
            self._take_over(name, newer=bool(newer))

    def _start(self, clean: bool) -> None:
        self._running = contextlib.ExitStack()
        self.broker = self._running.enter_context(CatalogueBroker([self._log_dir], _SETTINGS, clean=clean))
        self.broker.clock.moved_ms = self._moved_ms
        self.client: RawClient = self._running.enter_context(self.broker.connect())
        for each in [*self.producers.values(), *self.zombies]:
            each.client = self.client

    def teardown(self) -> None:
        if hasattr(self, "_running"):
            try:
                self._check()
            finally:
                self._running.close()
        self._stack.close()

    # ---- clients

    def _take_over(self, name: str, newer: bool) -> None:
        if name in self.producers:
            self.zombies = [*self.zombies[-3:], self.producers[name]]
        self._abort(name)
        producer = self.producers[name] = RawProducer(self.client, name, newer)
        assert producer.init() == 0

    def _abort(self, name: str) -> None:
        attempt = self.open.pop(name, None)
        if attempt is not None:
            attempt.outcome = False

    @rule(name=st.sampled_from(sorted(_NAMES)), newer=st.booleans())
    def another_client(self, name: str, newer: bool) -> None:
        kind = _NAMES[name]
        self._take_over(name, newer if kind is None else kind)

    @rule(name=st.sampled_from(sorted(_NAMES)), partition=st.integers(0, _PARTITIONS - 1))
    def send(self, name: str, partition: int) -> None:
        self._count += 1
        value = b"%d" % self._count
        assert self.producers[name].send("t", value, partition) == 0
        attempt = self.open.setdefault(name, Attempt(name))
        self.written[partition].append((value, attempt))

    @rule(name=st.sampled_from(sorted(_NAMES)))
    def commit_offset(self, name: str) -> None:
        self._count += 1
        assert self.producers[name].commit_offset(name, "t", self._count) == 0
        self.open.setdefault(name, Attempt(name)).offset = self._count

    @precondition(lambda self: self.open)
    @rule(commit=st.booleans(), data=st.data())
    def end(self, commit: bool, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        assert self.producers[name].end(commit) == 0
        attempt = self.open.pop(name)
        attempt.outcome = commit
        if commit and attempt.offset is not None:
            self.offsets[name] = attempt.offset

    @precondition(lambda self: self.zombies)
    @rule(partition=st.integers(0, _PARTITIONS - 1), data=st.data())
    def a_zombie_wakes(self, partition: int, data: st.DataObject) -> None:
        zombie = data.draw(st.sampled_from(self.zombies))
        rightful = self.producers[zombie.name]
        if (zombie.producer_id, zombie.epoch) >= (rightful.producer_id, rightful.epoch):
            return
        # Its partition is not in the transaction, or it is fenced.
        assert zombie.until_told(lambda: zombie.write("t", b"undead", partition, sequence=0)) != 0
        assert zombie.end(True) != 0

    # ---- what happens to the broker

    @rule()
    def time_passes(self) -> None:
        """Everything that is open is aborted, and the producers are fenced."""
        self._moved_ms += 61_000
        self.broker.clock.moved_ms = self._moved_ms
        for name in list(self.open):
            found = settled(self.client, name)
            while found.transaction_state == "Ongoing":
                found = settled(self.client, name)
            self._abort(name)
            self._take_over(name, self.producers[name].newer)

    @rule(kill=st.booleans())
    def restart(self, kill: bool) -> None:
        if kill:
            self._runs += 1
            copy = self._root / str(self._runs)
            # As of this moment: what the broker does at its stop is not in it.
            self.broker.in_loop(lambda _: shutil.copytree(self._log_dir, copy))
        self._running.close()
        if kill:
            shutil.rmtree(self._log_dir)
            self._log_dir = copy
        self._start(clean=not kill)
        for name in _NAMES:
            settled(self.client, name)

    # ---- the model

    @rule()
    def look(self) -> None:
        for name in _NAMES:
            settled(self.client, name)
        for number in range(_PARTITIONS):
            expected = self._visible(number)
            assert committed(self.client, "t", number) == list(expected)
        assert {name: group_offset(self.client, name, "t") for name in _NAMES if not self._commits(name)} == {
            name: offset for name, offset in self.offsets.items() if not self._commits(name)
        }

    def _commits(self, name: str) -> bool:
        """Its offset is not stable now."""
        return name in self.open and self.open[name].offset is not None

    def _visible(self, number: int) -> Iterator[bytes]:
        """Committed values in front of the first one that is not decided."""
        for value, attempt in self.written[number]:
            if attempt.outcome is None:
                return
            if attempt.outcome:
                yield value

    def _check(self) -> None:
        """Everybody ends what is open: nothing is left unstable, nothing is lost, nothing is there twice."""
        for name in list(self.open):
            self.end_of(name)
        self.look()
        for number in range(_PARTITIONS):
            answer = fetched(self.client, "t", number)
            assert answer.last_stable_offset == answer.high_watermark
            values = [
                record.value
                for each in batches_of(self.client, "t", number, isolation=0)
                if not each.header.is_control
                for record in each.records()
            ]
            assert values == [value for value, _ in self.written[number]]

    def end_of(self, name: str) -> None:
        """Commits what is open of one producer."""
        assert self.producers[name].end(True) == 0
        attempt = self.open.pop(name)
        attempt.outcome = True
        if attempt.offset is not None:
            self.offsets[name] = attempt.offset


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(
    max_examples=examples(25), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
