"""Partitions of open transactions, of their coordinator and of groups move to other log dirs; nothing of it is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.workers.broker.groups.records import OFFSETS_TOPIC
from compactd.workers.broker.transactions.gate import Gate
from compactd.workers.broker.transactions.java_order import partition_of
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_moves import NO_MARGIN, alter, until
from tests.workers.broker.transactional import (
    FEW,
    STATE_TOPIC,
    RawProducer,
    committed,
    described,
    fetched,
    group_offset,
    ready,
    settled,
)


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("d1", "d2")]
    for each in made:
        each.mkdir()
    return made


def moved(broker: CatalogueBroker, client: RawClient, topic: str, partition: int = 0) -> None:
    """To the other log dir."""
    here = broker.partition(topic, partition).log_dir
    there = next(each for each in broker.log_dirs if each != here)
    assert alter(client, there, topic, partition) == 0
    until(lambda: broker.partition(topic, partition).log_dir == there)


@pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])
@pytest.mark.parametrize("commit", [False, True], ids=["aborted", "committed"])
def test_an_open_transaction_goes_on_over_moves(dirs: list[Path], newer: bool, commit: bool) -> None:
    with CatalogueBroker(dirs, {**FEW, **NO_MARGIN}) as broker, broker.connect() as client:
        ready(client, {"t": 1})
        producer = RawProducer(client, "tx", newer)
        assert producer.init() == 0
        assert producer.send("t", b"never") == 0
        assert producer.end(False) == 0
        settled(client, "tx")
        assert producer.send("t", b"before") == 0
        assert producer.commit_offset("g", "t", 7) == 0
        for topic, partition in (("t", 0), (STATE_TOPIC, partition_of("tx", 2)), (OFFSETS_TOPIC, 0)):
            moved(broker, client, topic, partition)
        assert described(client, "tx").transaction_state == "Ongoing"
        assert fetched(client, "t").last_stable_offset < fetched(client, "t").high_watermark
        assert producer.send("t", b"after") == 0
        assert producer.end(commit) == 0
        settled(client, "tx")
        expected = [b"before", b"after"] if commit else []
        assert committed(client, "t") == expected
        assert group_offset(client, "g", "t") == (7 if commit else -1)
        moved(broker, client, "t")
        assert committed(client, "t") == expected
        # The next one begins on the other disk as it would have on the first.
        assert producer.send("t", b"next") == 0
        assert producer.end(True) == 0
        settled(client, "tx")
        assert committed(client, "t") == [*expected, b"next"]


@pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])
def test_a_first_batch_that_was_let_in_is_appended_on_the_other_disk(
    dirs: list[Path], newer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition moves between the coordinator's word and the append."""
    with CatalogueBroker(dirs, {**FEW, **NO_MARGIN}) as broker, broker.connect() as client, broker.connect() as other:
        ready(client, {"t": 1})
        producer = RawProducer(client, "tx", newer)
        assert producer.init() == 0
        usual = Gate._ask
        done: list[str] = []

        async def ask(self: Gate, asked: object) -> object:
            found = await usual(self, asked)  # type: ignore[arg-type]
            if not done and all(not error for error in found.values()):
                done.append("moved")
                loop = self._context.loop
                await loop.run_in_executor(None, lambda: moved(broker, other, "t"))
            return found

        monkeypatch.setattr(Gate, "_ask", ask)
        assert producer.send("t", b"first") == 0
        assert done == ["moved"]
        assert producer.end(True) == 0
        settled(client, "tx")
        assert committed(client, "t") == [b"first"]
