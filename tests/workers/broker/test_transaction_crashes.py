"""Killed at every step of a transaction: afterwards all of it is there, or nothing, in every partition and for groups."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.workers.broker.partition import Partition
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.transactional import (
    FEW,
    RawProducer,
    committed,
    fetched,
    group_offset,
    ready,
    settled,
)

_TOPICS = {"t": 3}
_VALUES = [b"0", b"1", b"2"]


class Copies:
    """Of the log dir as it was behind every append: what a process that was killed leaves."""

    def __init__(self, log_dir: Path, into: Path) -> None:
        self.log_dir = log_dir
        self.into = into
        self.steps: list[str] = []

    def take(self, partition: Partition) -> None:
        path = self.into / f"{len(self.steps):03}"
        path.mkdir(parents=True)
        shutil.copytree(self.log_dir, path / "log")
        self.steps.append(str(partition))

    def __iter__(self) -> Iterator[tuple[str, Path]]:
        for number, step in enumerate(self.steps):
            yield step, self.into / f"{number:03}" / "log"


@pytest.fixture
def copies(log_dir: Path, fast_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copies]:
    """Taken from `begin` on."""
    taken = Copies(log_dir, fast_dir / "copies")
    real = Partition._appended

    def appended(self: Partition, *arguments: Any) -> None:
        real(self, *arguments)
        taken.take(self)

    monkeypatch.setattr(Partition, "_appended", appended)
    yield taken
    monkeypatch.undo()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])
def test_all_or_nothing(
    log_dir: Path, copies: Copies, newer: bool, commit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CatalogueBroker([log_dir], FEW) as broker, broker.connect() as client:
        ready(client, _TOPICS)
        producer = RawProducer(client, "tx", newer)
        assert producer.init() == 0
        copies.steps.clear()
        shutil.rmtree(copies.into, ignore_errors=True)
        for number, value in enumerate(_VALUES):
            assert producer.send("t", value, number) == 0
        assert producer.commit_offset("g", "t", 7) == 0
        assert producer.end(commit) == 0
        assert settled(client, "tx").transaction_state == ("CompleteCommit" if commit else "CompleteAbort")
    monkeypatch.undo()
    assert len(copies.steps) >= 4 + 1 + 4 + 1
    outcomes = [_outcome(path, newer) for _, path in copies]
    if commit:
        # From the prepared record on, behind which come four markers and the last record, all of it counts.
        behind = 1 + 4 + 1
        assert outcomes == ["nothing"] * (len(outcomes) - behind) + ["all"] * behind
    else:
        assert outcomes == ["nothing"] * len(outcomes)


def _outcome(log_dir: Path, newer: bool) -> str:
    """What is left of the transaction once it is finished, or given up by its producer, which has come back."""
    with CatalogueBroker([log_dir], FEW, clean=False) as broker, broker.connect() as client:
        found = settled(client, "tx")
        if found.transaction_state == "Ongoing":
            assert not any(committed(client, "t", number) for number in range(3))
        producer = RawProducer(client, "tx", newer)
        assert producer.init() == 0
        state = settled(client, "tx")
        assert (state.transaction_state, state.topics) == ("Empty", ())
        seen = [committed(client, "t", number) for number in range(3)]
        offset = group_offset(client, "g", "t")
        for number in range(3):
            answer = fetched(client, "t", number)
            # Nothing is left open: what was written is decided.
            assert answer.last_stable_offset == answer.high_watermark
        # And the producer goes on.
        assert producer.send("t", b"next") == 0
        assert producer.end(True) == 0
        settled(client, "tx")
        assert committed(client, "t")[-1] == b"next"
    if seen == [[value] for value in _VALUES]:
        assert offset == 7
        return "all"
    assert (seen, offset) == ([[], [], []], -1)
    return "nothing"
