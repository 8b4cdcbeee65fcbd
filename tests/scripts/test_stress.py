"""`compactd stress`: its judgement, with a server that lies in every way; what it refuses. (tests/daemon runs it for real.)"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from click.testing import Result

from compactd.config.errors import ServerError, StorageIOError
from compactd.scripts.client import EARLIEST, Fetched, TopicLayout
from compactd.scripts.stress_model import CODECS, HEADER, Counters, Model, Reader, Shape, Writer
from compactd.storage.records.batch import iter_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record

_LAYOUT = TopicLayout("stress", {0: 1})
Said = tuple[int, bytes, int, bool]


class FakeClient:
    """Serves a partition from a list of batches, each a list of (offset, key, number, deletes)."""

    def __init__(self, batches: Sequence[Sequence[Said]], end: int | None = None) -> None:
        self.batches = [
            build_batch(
                [
                    Record(offset, 0, key, None if deletes else b"x", ((HEADER, b"%d" % number),))
                    for offset, key, number, deletes in each
                ],
                base_offset=each[0][0],
            )
            for each in batches
        ]
        self.end = end if end is not None else (batches[-1][-1][0] + 1 if batches else 0)

    def offset_at(self, _layout: TopicLayout, _partition: int, timestamp: int) -> int:
        return 0 if timestamp == EARLIEST else self.end

    def fetch(self, _layout: TopicLayout, offsets: dict[int, int], *_: Any) -> list[Fetched]:
        (offset,) = offsets.values()
        found = [batch for data in self.batches for batch in iter_batches(data) if batch.header.last_offset >= offset]
        return [Fetched(0, 0, self.end, self.end, 0, found[:1], [])]


def faults(
    acknowledged: dict[bytes, tuple[int, bool]],
    batches: Sequence[Sequence[Said]],
    is_clean: bool = False,
    end: int | None = None,
    keeps: float = 1000.0,
) -> list[str]:
    """What the reader finds wrong with a partition."""
    counters = Counters()
    model = Model(0, dict(acknowledged))
    client: Any = FakeClient(batches, end)
    Reader("", "stress", {0: model}, counters, keeps).one_pass(client, _LAYOUT, model, is_clean)
    assert counters.passes == 1
    return counters.faults


def test_a_log_that_holds_what_was_written() -> None:
    batches = [[(0, b"a", 1, False), (1, b"b", 2, False)], [(2, b"a", 3, False)], [(7, b"b", 4, True)]]
    assert not faults({b"a": (3, False), b"b": (4, True)}, batches)


def test_later_values_than_were_known_when_the_pass_began_are_right() -> None:
    assert not faults({b"a": (1, False)}, [[(0, b"a", 5, False), (1, b"new", 6, False)]])


@pytest.mark.parametrize(
    ("acknowledged", "batches", "words"),
    [
        ({b"a": (3, False)}, [[(0, b"b", 1, False)]], "a is gone, its value 3 was acknowledged"),
        ({b"a": (3, False)}, [[(0, b"a", 2, False)]], "a ends with 2, 3 was acknowledged"),
        ({b"a": (3, True)}, [[(0, b"a", 2, False)]], "a ends with 2, 3 was acknowledged"),
    ],
)
def test_what_a_pass_finds(acknowledged: dict[bytes, tuple[int, bool]], batches: list[list[Said]], words: str) -> None:
    assert any(words in each for each in faults(acknowledged, batches))


def test_an_offset_that_comes_twice() -> None:
    class Repeating(FakeClient):
        def fetch(self, _layout: TopicLayout, offsets: dict[int, int], *_: Any) -> list[Fetched]:
            found = [batch for data in self.batches for batch in iter_batches(data)]
            return [Fetched(0, 0, self.end, self.end, 0, found, [])]

    client: Any = Repeating([[(0, b"a", 1, False), (1, b"b", 2, False)], [(1, b"c", 3, False)]], end=2)
    model, counters = Model(0), Counters()
    reader = Reader("", "stress", {0: model}, counters, 1.0)
    reader.one_pass(client, _LAYOUT, model)
    assert counters.faults == ["stress-0: offset 1 comes after 1"]


def test_a_deletion_that_a_slow_pass_missed_is_no_fault() -> None:
    old = [[(0, b"a", 2, False)]]
    assert faults({b"a": (3, True)}, old, keeps=1000.0)
    assert not faults({b"a": (3, True)}, old, keeps=0.0)
    assert faults({b"a": (3, False)}, old, keeps=0.0), "a value is never missed"


def test_a_log_that_ends_before_its_end() -> None:
    (found,) = faults({}, [[(0, b"a", 1, False)]], end=9)
    assert "nothing is read at offset 1, the log ends at 9" in found


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([[(0, b"a", 1, False), (1, b"a", 3, False)]], "a is there twice in a clean log"),
        ([[(1, b"a", 4, False)]], "a is (4, False), not (3, False)"),
        ([[(1, b"a", 3, True)]], "a is (3, True), not (3, False)"),
        ([[(1, b"a", 3, False), (2, b"z", 9, False)]], "nobody wrote z"),
    ],
)
def test_what_is_asked_of_a_clean_log(batches: list[list[Said]], words: str) -> None:
    assert not faults({b"a": (3, False)}, [[(1, b"a", 3, False)]], is_clean=True)
    assert any(words in each for each in faults({b"a": (3, False)}, batches, is_clean=True))


def test_a_batch_that_is_damaged_is_not_read_over() -> None:
    client: Any = FakeClient([[(0, b"a", 1, False)]])
    client.batches[0] = client.batches[0][:-1] + bytes([client.batches[0][-1] ^ 1])
    model, counters = Model(0), Counters()
    with pytest.raises(Exception, match="CRC"):
        Reader("", "stress", {0: model}, counters, 1.0).one_pass(client, _LAYOUT, model)


def written(monkeypatch: pytest.MonkeyPatch, shape: Shape, answers: Callable[[int], None]) -> tuple[Any, ...]:
    """(models, batches that were acknowledged, counters) of a writer with a client of the test."""
    stopping, taken = threading.Event(), []
    models, counters = {0: Model(0), 1: Model(1)}, Counters()
    asked = 0

    class Client:
        def __init__(self, _bootstrap: str) -> None:
            pass

        def layout(self, topic: str) -> TopicLayout:
            return TopicLayout(topic, {0: 1, 1: 1})

        def produce(self, _layout: TopicLayout, partition: int, batch: bytes, *_: int) -> int:
            nonlocal asked
            asked += 1
            if asked >= 30:
                stopping.set()
            answers(asked)
            taken.append((partition, batch))
            return 0

        def close(self) -> None:
            pass

    monkeypatch.setattr("compactd.scripts.stress_model.KafkaClient", Client)
    monkeypatch.setattr("compactd.scripts.stress_model._RECONNECT_SECONDS", 0.0)
    Writer("", "stress", models, shape, (0, 1), counters).run(stopping)
    return models, taken, counters


def test_the_model_is_what_was_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(asked: int) -> None:
        if asked % 3 == 0:
            raise StorageIOError(path="server", action="sending", reason="it closed the connection")

    models, taken, counters = written(monkeypatch, Shape(keys=20, batch_records=10, tombstones=0.3), answers)
    expected: dict[int, dict[bytes | None, tuple[int, bool]]] = {0: {}, 1: {}}
    codecs = set()
    for partition, data in taken:
        for batch in iter_batches(data):
            codecs.add(batch.header.codec)
            for record in batch.records():
                expected[partition][record.key] = (int(record.headers[0][1] or b""), record.value is None)
    assert {number: model.latest for number, model in models.items()} == expected
    assert counters.written == 10 * len(taken) and counters.reconnects and not counters.faults
    assert len(codecs) > 2 and any(deletes for _, deletes in models[0].latest.values())
    assert not set(models[0].latest) & set(models[1].latest), "a key has one partition"


def test_a_writer_gives_up_on_what_will_not_get_better(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(_: int) -> None:
        raise ServerError(what="stress-0", reason="INVALID_RECORD")

    monkeypatch.setattr("compactd.scripts.stress_model._PATIENCE_SECONDS", -1.0)
    _, _, counters = written(monkeypatch, Shape(keys=20), answers)
    (fault,) = counters.faults
    assert "INVALID_RECORD" in fault


def test_skew_and_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(keys=100, skew=10, sizes=(5, 6), tombstones=0, codecs=CODECS[:1])
    _, taken, _ = written(monkeypatch, shape, lambda _: None)
    keys: dict[bytes | None, int] = {}
    for _, data in taken:
        for batch in iter_batches(data):
            for record in batch.records():
                keys[record.key] = keys.get(record.key, 0) + 1
                assert len(record.value or b"") in (5, 6)
    assert max(keys.values()) > sum(keys.values()) / 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--value-bytes", "5", "4"), "5 is more than 4"),
        (("--kill", "1", "--bootstrap-server", "127.0.0.1:1"), "not of --bootstrap-server"),
        (("--codec", "brotli"), "brotli"),
        (("--seconds", "0"), "--seconds"),
    ],
)
def test_what_it_refuses(run: Callable[..., Result], arguments: tuple[str, ...], words: str) -> None:
    result = run("stress", *arguments)
    assert result.exit_code == 2 and words in result.stderr


def test_nobody_listens(run: Callable[..., Result]) -> None:
    result = run("stress", "--bootstrap-server", "127.0.0.1:1")
    assert result.exit_code == 4 and "127.0.0.1:1" in result.stderr
