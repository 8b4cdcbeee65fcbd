"""The power fails at every step of transactions and of groups; what is promised is in docs/durability.md.

With `log.flush.interval.messages=1` nothing that was acknowledged is lost, and of a transaction there is all or nothing.
Without it (Kafka's default, here too) the disk decides how much is left of each partition; but that is the beginning of
what was written, nothing is seen that nobody committed, and nothing stays open.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactd.storage import files
from tests.disk_images import Image, ImagingLayer, Lost
from tests.workers.broker.batches import batch, produce
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.transactional import (
    FEW,
    STATE_TOPIC,
    RawProducer,
    batches_of,
    committed,
    fetched,
    group_offset,
    ready,
    settled,
)

_TOPICS = {"t": 3, "u": 1}
#: Open transactions end soon without their producer.
SETTINGS = {**FEW, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 20}
#: Longer than the producer's timeout.
_LONG_MS = 90_000
_SECONDS = 60.0
_FLUSHED = {"flush.messages": "1"}


#: By the first byte of its values: how it ends, None: not at all; and where it writes.
_TRANSACTIONS = ((b"a", True), (b"b", False), (b"c", True), (b"d", None))
_PARTITIONS = {b"a": range(3), b"b": range(3), b"c": (2, 0), b"d": range(3)}


@dataclass
class Story:
    """What clients asked for and were told so far."""

    #: Transactions (first byte of their values) whose commit was asked for, and acknowledged.
    asked: set[bytes] = field(default_factory=set)
    done: set[bytes] = field(default_factory=set)
    #: Plain records, and the plain offset of the group "p".
    plain: list[bytes] = field(default_factory=list)
    offset: int = -1

    def known(self) -> Story:
        return Story(set(self.asked), set(self.done), list(self.plain), self.offset)


def _told(client: RawClient, story: Story) -> None:
    """A record without a transaction, and an offset."""
    value = b"%d" % len(story.plain)
    assert produce(client, batch([value]), "u").error_code == 0
    story.plain.append(value)
    row = {"partition_index": 0, "committed_offset": len(story.plain), "committed_metadata": ""}
    body = {
        "group_id": "p",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "u", "partitions": [row]}],
    }
    answer = client.ask(8, 7, body).topics[0].partitions[0]
    assert answer.error_code == 0
    story.offset = len(story.plain)


def _run(log_dir: Path, layer: ImagingLayer, newer: bool, config: Mapping[str, str]) -> None:
    """Three transactions of one producer, the second aborted; the fourth is open at the end."""
    story = Story()
    with (
        files.replaced(layer),
        CatalogueBroker([log_dir], SETTINGS, log_config=config) as broker,
        broker.connect() as client,
    ):
        ready(client, _TOPICS)
        producer = RawProducer(client, "tx", newer)
        assert producer.init() == 0
        layer.begin(story.known)
        for name, commit in _TRANSACTIONS:
            for number in _PARTITIONS[name]:
                assert producer.send("t", name + b"%d" % number, number) == 0
            assert producer.commit_offset("g", "t", ord(name)) == 0
            _told(client, story)
            if commit is None:
                break
            if commit:
                story.asked.add(name)
            assert producer.end(commit) == 0
            if commit:
                story.done.add(name)
            _told(client, story)
        layer.end()
    layer.close_all()


def _images(root: Path, newer: bool, config: Mapping[str, str]) -> list[Image]:
    log_dir = root / "log"
    log_dir.mkdir()
    layer = ImagingLayer(log_dir, root / "images")
    _run(log_dir, layer, newer, config)
    return layer.images


@dataclass
class Found:
    """What clients see of it afterwards."""

    #: Values of committed records, and of all, by partition.
    seen: list[list[bytes]]
    there: list[list[bytes]]
    #: Of transactions for the group "g"; -1: none.
    group: int
    plain: list[bytes]
    offset: int


def _look(log_dir: Path, newer: bool, config: Mapping[str, str], where: str) -> Found:
    """Nobody comes back at first: whatever is open ends by itself. Then the producer does, and goes on."""
    with CatalogueBroker([log_dir], SETTINGS, clean=False, log_config=config) as broker, broker.connect() as client:
        everything = [*(("t", number) for number in range(3)), ("u", 0), ("__consumer_offsets", 0)]
        broker.clock.moved_ms += _LONG_MS
        _until_decided(client, everything, where)
        found = _found(client)
        producer = RawProducer(client, "tx", newer)
        assert producer.init() == 0
        assert settled(client, "tx").transaction_state == "Empty"
        assert _found(client) == found, where
        for commit in (False, True):
            for number in range(3):
                assert producer.send("t", b"z%d" % commit, number) == 0, where
            assert producer.commit_offset("g", "t", 1000 + commit) == 0, where
            assert producer.end(commit) == 0, where
            settled(client, "tx")
        _until_decided(client, everything, where)
        after = _found(client)
        assert after.seen == [[*values, b"z1"] for values in found.seen], where
        assert after.group == 1001
    return found


def _until_decided(client: RawClient, keys: list[tuple[str, int]], where: str) -> None:
    end = time.monotonic() + _SECONDS
    for topic, number in keys:
        while True:
            answer = fetched(client, topic, number)
            if not answer.error_code and answer.last_stable_offset == answer.high_watermark:
                break
            assert time.monotonic() < end, f"{where}: {topic}-{number} stays open: {answer}"
            time.sleep(0.002)


def _found(client: RawClient) -> Found:
    return Found(
        [[value for value in committed(client, "t", number) if value] for number in range(3)],
        [_values(client, number) for number in range(3)],
        group_offset(client, "g", "t"),
        [value for value in committed(client, "u") if value],
        group_offset(client, "p", "u"),
    )


def _values(client: RawClient, number: int) -> list[bytes]:
    data = (batch for batch in batches_of(client, "t", number, isolation=0) if not batch.header.is_control)
    return [record.value for batch in data for record in batch.records() if record.value]


def _cases(images: list[Image]) -> list[tuple[str, Image, Lost | int | None]]:
    """Every other step, in turn as a killed process leaves it, with everything lost, and with something lost."""
    return [
        (f"behind call {number}, {image.call}, lost {lost}", image, lost)
        for number, image in list(enumerate(images))[::2]
        for lost in ((None, Lost.ALL, number)[number % 3],)
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])
def test_everything_flushed(fast_dir: Path, newer: bool) -> None:
    images = _images(fast_dir, newer, _FLUSHED)
    assert len(images) > 50
    for number, (where, image, lost) in enumerate(_cases(images)):
        left = fast_dir / f"left-{number}"
        image.restore(left, lost)
        found = _look(left, newer, _FLUSHED, where)
        told: Story = image.known
        whole = [name for name in (b"a", b"c") if any(name in value for values in found.seen for value in values)]
        assert told.done <= set(whole) <= told.asked, where
        wanted = [[b"a%d" % n] if b"a" in whole else [] for n in range(3)]
        for n in (0, 2) if b"c" in whole else ():
            wanted[n].append(b"c%d" % n)
        assert found.seen == wanted, where
        assert found.group == max((ord(name) for name in whole), default=-1), where
        assert found.plain[: len(told.plain)] == told.plain, where
        assert found.offset >= told.offset, where


@pytest.mark.timeout(600)
@pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])
def test_nothing_flushed(fast_dir: Path, newer: bool) -> None:
    images = _images(fast_dir, newer, {})
    assert len(images) > 30
    for number, (where, image, lost) in enumerate(_cases(images)):
        left = fast_dir / f"left-{number}"
        image.restore(left, lost)
        _check_unflushed(_look(left, newer, {}, where), image.known, newer, where)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])
def test_the_coordinators_log_is_lost(fast_dir: Path, newer: bool) -> None:
    """And nothing else is."""
    images = _images(fast_dir, newer, {})
    for number, image in list(enumerate(images))[::4]:
        where = f"behind call {number}, {image.call}"
        left = _mixed(fast_dir, number, image, rest=None, coordinator=Lost.ALL)
        _check_unflushed(_look(left, newer, {}, where), image.known, newer, where)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("newer", [False, True], ids=["older", "newer"])
def test_the_coordinators_log_is_kept(fast_dir: Path, newer: bool) -> None:
    """Of everything else some is lost: what is left of a transaction that was committed is seen."""
    images = _images(fast_dir, newer, {})
    for number, image in list(enumerate(images))[::4]:
        where = f"behind call {number}, {image.call}, seed {number}"
        left = _mixed(fast_dir, number, image, rest=number, coordinator=None)
        found = _look(left, newer, {}, where)
        _check_unflushed(found, image.known, newer, where)
        if newer:
            # Of an older client's, whether a marker was lost or another transaction begun can't be told.
            for seen, there in zip(found.seen, found.there, strict=True):
                assert {value for value in there if value[:1] in image.known.done} <= set(seen), where


def _mixed(root: Path, number: int, image: Image, rest: Lost | int | None, coordinator: Lost | int | None) -> Path:
    """One outcome for `__transaction_state`, another one for all other partitions."""
    left, other = root / f"left-{number}", root / f"other-{number}"
    image.restore(left, rest)
    image.restore(other, coordinator)
    for partition in other.glob(f"{STATE_TOPIC}-*"):
        shutil.rmtree(left / partition.name, ignore_errors=True)
        shutil.copytree(partition, left / partition.name)
    return left


def _check_unflushed(found: Found, told: Story, newer: bool, where: str) -> None:
    # An older client's transactions have one epoch: a record whose abort marker was lost may be taken for the next one's.
    allowed = told.asked if newer else told.asked | {b"b"}
    for number, seen in enumerate(found.seen):
        whole = [name + b"%d" % number for name, _ in _TRANSACTIONS if number in _PARTITIONS[name]]
        if newer:
            whole = [value for value in whole if value[:1] in allowed]
            assert seen == whole[: len(seen)], f"{where}: {seen} of {whole}"
        assert {value[:1] for value in seen} <= allowed, f"{where}: {seen}"
        assert seen == [value for value in whole if value in seen], f"{where}: {seen} of {whole}"
    assert found.group in {-1, *map(ord, allowed)}, where
    assert found.plain == [b"%d" % n for n in range(len(found.plain))], where
    assert found.offset in range(-1, len(told.plain) + 2), where
