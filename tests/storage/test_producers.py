"""Producer state and snapshots (ProducerStateManagerTest; facts 2.9)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from compactd.config.errors import CorruptFileError, FaultError
from compactd.storage.kernel.interface import AbortedTransaction, ActiveProducer
from compactd.storage.names import snapshot_name
from compactd.storage.producers import (
    PRODUCER_EXPIRATION_MS,
    BatchMetadata,
    CompletedTransaction,
    ProducerEntry,
    ProducerState,
    encode_snapshot,
    read_snapshot,
)
from compactd.storage.records.batch import read_batches
from compactd.storage.records.control import ControlRecordType, EndTransactionMarker, parse_end_transaction
from tests.oracle.driver import Oracle, record
from tests.strategies import examples

COMMIT = EndTransactionMarker(ControlRecordType.COMMIT, 3)
ABORT = EndTransactionMarker(ControlRecordType.ABORT, 3)
EMPTY = bytes.fromhex("0001 48674bc7 00000000")
ONE = bytes.fromhex(
    "0001 0cd74067 00000001 0000000000000009 0000 00000000 0000000000000007 00000000 0000000000000258"
    "ffffffff ffffffffffffffff"
)


@dataclass
class Header:
    """As much of a batch header as the producer state looks at."""

    producer_id: int
    base_offset: int
    last_offset: int
    max_timestamp: int = 1000
    producer_epoch: int = 0
    base_sequence: int = 0
    is_control: bool = False
    is_transactional: bool = False

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset - self.base_offset) % 2**31


def data(producer: int, first: int, last: int | None = None, txn: bool = False, **fields: int) -> Header:
    return Header(producer, first, first if last is None else last, is_transactional=txn, **fields)


def marker(producer: int, offset: int, **fields: int) -> Header:
    return Header(producer, offset, offset, base_sequence=-1, is_control=True, is_transactional=True, **fields)


def snapshot_file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / snapshot_name(8)
    path.write_bytes(content)
    return path


# ---- snapshots


def test_golden(tmp_path: Path) -> None:
    assert encode_snapshot([]) == EMPTY
    assert read_snapshot(snapshot_file(tmp_path, EMPTY)) == []
    found = read_snapshot(snapshot_file(tmp_path, ONE))
    assert len(found) == 1
    assert (found[0].producer_id, found[0].producer_epoch, found[0].coordinator_epoch) == (9, 0, -1)
    assert (found[0].last_timestamp, found[0].current_txn_first_offset) == (600, None)
    assert list(found[0].batches) == [BatchMetadata(last_sequence=0, last_offset=7, offset_delta=0, timestamp=600)]
    assert encode_snapshot(found) == ONE


def test_the_state_after_one_batch_is_the_golden_snapshot() -> None:
    state = ProducerState()
    assert state.take_snapshot() == EMPTY
    assert state.update(data(9, 7, max_timestamp=600)) is None
    assert state.take_snapshot() == ONE


def test_only_the_last_batch_is_kept() -> None:
    state = ProducerState()
    for offset in range(8):
        state.update(data(1, offset, base_sequence=offset, max_timestamp=100 + offset))
    entry = state.get(1)
    assert entry is not None
    assert [batch.last_offset for batch in entry.batches] == [3, 4, 5, 6, 7]
    assert struct.unpack_from(">qhiqiqiq", state.take_snapshot(), 10) == (1, 0, 7, 7, 0, 107, -1, -1)


entries = st.builds(
    lambda producer, epoch, coordinator, time, txn, batch: ProducerEntry(
        producer, epoch, coordinator, time, txn, *([] if batch is None else [_deque(batch)])
    ),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | st.tuples(st.integers(-1, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)),
)


def _deque(batch: tuple[int, int, int]):  # type: ignore[no-untyped-def]
    entry = ProducerEntry(0)
    entry.batches.append(BatchMetadata(*batch, timestamp=0))
    return entry.batches


@given(st.lists(entries, max_size=20))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, listed: list[ProducerEntry]) -> None:
    content = encode_snapshot(listed)
    found = read_snapshot(snapshot_file(tmp_path_factory.getbasetemp(), content))
    assert encode_snapshot(found) == content
    assert [entry.producer_id for entry in found] == [entry.producer_id for entry in listed]


def sealed(body: bytes, version: int = 1) -> bytes:
    return struct.pack(">hI", version, crc32c.crc32c(body)) + body


@pytest.mark.parametrize(
    ("content", "reason", "position"),
    [
        (b"", "the file has 0 bytes", 0),
        (EMPTY[:9], "the file has 9 bytes", 9),
        (b"\0\2" + EMPTY[2:], "version 2", 0),
        (ONE[:-1], "its CRC is", 2),
        (ONE + b"\0", "its CRC is", 2),
        (ONE[:20] + b"\xff" + ONE[21:], "its CRC is 0x0cd74067", 2),
        (sealed(struct.pack(">i", 1)), "it promises 1 producers in 10 bytes", 6),
        (sealed(struct.pack(">i", 2**31 - 1)), "it promises 2147483647 producers", 6),
        (sealed(struct.pack(">i", -1)), "it promises -1 producers", 6),
        (sealed(struct.pack(">i", 0) + bytes(46)), "it promises 0 producers in 56 bytes", 6),
    ],
)
def test_damage(tmp_path: Path, content: bytes, reason: str, position: int) -> None:
    path = snapshot_file(tmp_path, content)
    with pytest.raises(CorruptFileError) as caught:
        read_snapshot(path)
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.position == position


@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_read_or_raise_the_named_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, seal: bool
) -> None:
    path = snapshot_file(tmp_path_factory.getbasetemp(), sealed(content) if seal else content)
    try:
        found = read_snapshot(path)
    except CorruptFileError:
        return
    assert len(found) * 46 + 10 == path.stat().st_size


# ---- the order of java.util.HashMap (each case as OpenJDK 17 iterates it; "-" removes an id, "c" clears)


@pytest.mark.parametrize(
    ("operations", "order"),
    [
        ("4000 1 17 33 2 18 5 21", "4000 1 17 33 2 18 5 21"),
        ("0 16 32 48 64 80 96 112 128", "0 32 64 96 128 16 48 80 112"),
        ("160 144 128 112 96 80 64 48 32 16 0", "160 128 96 64 32 0 144 112 80 48 16"),
        ("13 12 11 10 9 8 7 6 5 4 3 2 1 33 17", "1 33 2 3 4 5 6 7 8 9 10 11 12 13 17"),
        ("1 17 33 49 -17 65 17", "1 33 49 65 17"),
        (
            "4611686018427387904 4294967296 8589934592 65536 131072 9223372036854775807 70000 1000001",
            "4611686018427387904 9223372036854775807 4294967296 65536 70000 8589934592 131072 1000001",
        ),
        ("1 2 3 4 5 6 7 8 9 10 11 12 13 14 -1 -2 -3 -4 -5 -6 -7 -8 -9 -10 40 8 72", "40 8 72 11 12 13 14"),
        ("1 2 3 4 5 6 7 8 9 10 11 12 13 c 48 16 32 0", "32 0 48 16"),
    ],
)
def test_snapshots_list_producers_as_a_java_hash_map(operations: str, order: str) -> None:
    state, expired = ProducerState(expiration_ms=10), 0
    for operation in operations.split():
        if operation == "c":
            state.clear()
        elif operation.startswith("-"):
            gone = state.get(int(operation[1:]))
            assert gone is not None
            gone.last_timestamp = 0
            expired += len(state.expire(1000))
        else:
            state.update(data(int(operation), 0))
    assert expired == operations.count("-")
    assert [entry.producer_id for entry in state.entries()] == [int(one) for one in order.split()]


# ---- batches


def test_a_new_epoch_forgets_the_batches_of_the_old_one() -> None:
    state = ProducerState()
    state.update(data(1, 0, 4, base_sequence=0))
    state.update(data(1, 5, 9, base_sequence=5))
    state.update(data(1, 10, base_sequence=0, producer_epoch=1))
    entry = state.get(1)
    assert entry is not None
    assert entry.producer_epoch == 1
    assert [batch.last_offset for batch in entry.batches] == [10]


def test_sequences_wrap() -> None:
    state = ProducerState()
    state.update(data(1, 10, 14, base_sequence=2**31 - 3))
    entry = state.get(1)
    assert entry is not None
    assert entry.last_sequence == 1
    assert entry.batches[-1].first_sequence == 2**31 - 3
    assert entry.batches[-1].first_offset == 10


def test_batches_without_a_producer_change_nothing() -> None:
    state = ProducerState()
    assert state.update(data(-1, 0)) is None
    assert len(state) == 0


# ---- transactions


def test_a_transaction_from_start_to_marker() -> None:
    state = ProducerState()
    state.update(data(1, 5, 7, txn=True))
    state.update(data(1, 8, 9, txn=True, base_sequence=3))
    assert state.ongoing_txns == {5: 1}
    assert state.first_unstable_offset() == 5
    assert state.last_stable_offset(10) == 5
    completed = state.update(marker(1, 10, max_timestamp=2000), ABORT)
    assert completed == CompletedTransaction(1, 5, 10, is_aborted=True, last_stable_offset=11)
    assert completed.as_aborted() == AbortedTransaction(1, 5, 10, 11)
    entry = state.get(1)
    assert entry is not None
    assert (entry.coordinator_epoch, entry.last_timestamp, entry.last_data_offset) == (3, 2000, 9)
    assert entry.current_txn_first_offset is None
    # Undecided until the marker is below the high watermark.
    assert state.ongoing_txns == {}
    assert state.first_unstable_offset(10) == 5
    assert state.first_unstable_offset(11) is None
    assert state.last_stable_offset(10) == 5
    assert state.last_stable_offset(11) == 11
    state.raise_high_watermark(10)
    assert state.first_unstable_offset() == 5
    state.raise_high_watermark(11)
    assert state.first_unstable_offset() is None


def test_stable_up_to_the_earliest_transaction_of_another_producer() -> None:
    state = ProducerState()
    state.update(data(1, 0, txn=True))
    state.update(data(2, 1, txn=True))
    state.update(data(3, 2, txn=True))
    assert state.update(marker(2, 3), ABORT) == CompletedTransaction(2, 1, 3, True, last_stable_offset=0)
    assert state.update(marker(1, 4), COMMIT) == CompletedTransaction(1, 0, 4, False, last_stable_offset=2)
    assert state.update(marker(3, 5), ABORT) == CompletedTransaction(3, 2, 5, True, last_stable_offset=6)


def test_last_stable_offset_stays_between_log_start_and_high_watermark() -> None:
    state = ProducerState()
    state.update(data(1, 5, txn=True))
    assert state.last_stable_offset(100, log_start_offset=3) == 5
    assert state.last_stable_offset(100, log_start_offset=8) == 8
    assert state.last_stable_offset(4) == 4
    assert ProducerState().last_stable_offset(4) == 4


def test_a_marker_without_data_completes_nothing() -> None:
    state = ProducerState()
    assert state.update(marker(1, 0, producer_epoch=4), COMMIT) is None
    assert state.update(marker(1, 1, producer_epoch=4), ABORT) is None
    assert state.unreplicated_txns == {}
    assert state.active_producers(2000) == {1: ActiveProducer(None, 4)}
    assert struct.unpack_from(">qhiqiqiq", state.take_snapshot(), 10) == (1, 4, -1, -1, 0, 1000, 3, -1)


def test_a_marker_of_a_new_epoch_fences_the_old_sequences() -> None:
    state = ProducerState()
    state.update(data(1, 0, 4, txn=True))
    completed = state.update(marker(1, 5, producer_epoch=1), ABORT)
    assert completed is not None
    assert completed.first_offset == 0
    assert state.active_producers(2000) == {1: ActiveProducer(None, 1)}


def test_an_empty_control_batch_means_a_transaction_cleaned_away() -> None:
    state = ProducerState()
    state.update(data(1, 0, txn=True))
    before = state.take_snapshot()
    assert state.update(marker(1, 1), None) is None
    assert state.take_snapshot() == before


def test_data_outside_the_open_transaction_is_a_fault() -> None:
    state = ProducerState(path="orders-0")
    state.update(data(1, 0, txn=True))
    with pytest.raises(FaultError, match=r"orders-0: producer 1 wrote offsets 3 to 4 outside .* since offset 0"):
        state.update(data(1, 3, 4))
    assert state.last_stable_offset(9) == 0


# ---- expiry and loading


def test_expiry() -> None:
    state = ProducerState(expiration_ms=100)
    state.update(data(1, 0, max_timestamp=1000))
    state.update(data(2, 1, max_timestamp=1001))
    state.update(data(3, 2, max_timestamp=0, txn=True))
    assert set(state.active_producers(1099)) == {1, 2, 3}
    assert state.active_producers(1100) == {2: ActiveProducer(1, 0), 3: ActiveProducer(2, 0)}
    assert 1 in state
    assert state.expire(1100) == [1]
    assert 1 not in state
    assert state.expire(10**15) == [2]
    assert len(state) == 1


def test_loading_skips_what_has_expired(tmp_path: Path) -> None:
    before = ProducerState()
    before.update(data(1, 0, max_timestamp=1000))
    before.update(data(2, 1, max_timestamp=2000))
    before.update(data(3, 2, max_timestamp=0, txn=True))
    entries = read_snapshot(snapshot_file(tmp_path, before.take_snapshot()))
    state = ProducerState()
    state.load(entries, now_ms=1000 + PRODUCER_EXPIRATION_MS)
    assert [entry.producer_id for entry in state.entries()] == [2, 3]
    assert state.ongoing_txns == {2: 3}
    assert state.first_unstable_offset() == 2
    completed = state.update(marker(3, 9), COMMIT)
    assert completed is not None
    assert completed.first_offset == 2


def test_clear() -> None:
    state = ProducerState()
    state.update(data(1, 0, txn=True))
    state.update(data(2, 1, txn=True))
    state.update(marker(2, 2), COMMIT)
    state.clear()
    assert (len(state), state.first_unstable_offset(), state.take_snapshot()) == (0, None, EMPTY)


class ProducersMachine(RuleBasedStateMachine):
    """Against a model that remembers the whole log and works everything out anew each time."""

    PRODUCERS = (1, 17, 33, 2)

    @initialize()
    def begin(self) -> None:
        self.state = ProducerState(expiration_ms=50)
        #: (producer, epoch, first, last, what, time) of each batch; what: "data", "txn", "commit", "abort".
        self.log: list[tuple[int, int, int, int, str, int]] = []
        self.now = 1000
        self.next = 0

    @rule(
        producer=st.sampled_from(PRODUCERS),
        bump=st.sampled_from([0, 0, 0, 1]),
        count=st.integers(1, 3),
        what=st.sampled_from(["data", "txn", "commit", "abort"]),
        tick=st.integers(0, 10),
    )
    def append(self, producer: int, bump: int, count: int, what: str, tick: int) -> None:
        self.now += tick
        epochs = [epoch for other, epoch, *_ in self.log if other == producer]
        epoch = (epochs[-1] if epochs else 0) + bump
        is_open = producer in self.open().values()
        if what == "data" and is_open:
            what = "txn"
        first, last = self.next, self.next + (count - 1 if what in ("data", "txn") else 0)
        control = {"commit": COMMIT, "abort": ABORT}.get(what)
        header = Header(producer, first, last, self.now, epoch, 0, control is not None, what != "data")
        stable = min((start for start, other in self.open().items() if other != producer), default=last + 1)
        mine = [start for start, other in self.open().items() if other == producer]
        completed = self.state.update(header, control)
        self.log.append((producer, epoch, first, last, what, self.now))
        self.next = last + 1
        if control is not None and mine:
            assert completed == CompletedTransaction(producer, mine[0], first, what == "abort", stable)
        else:
            assert completed is None

    @rule()
    def save_and_load(self) -> None:
        entries = self.state.entries()
        self.state = ProducerState(expiration_ms=50)
        self.state.load(entries, self.now - 10**6)
        assert {entry.producer_id for entry in self.state.entries()} == {entry.producer_id for entry in entries}

    def open(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for producer, _, first, _, what, _ in self.log:
            if what == "txn" and producer not in found.values():
                found[first] = producer
            elif what in ("commit", "abort"):
                found = {start: other for start, other in found.items() if other != producer}
        return found

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "state"):
            return
        assert self.state.ongoing_txns == self.open()
        expected = {}
        for producer in self.PRODUCERS:
            mine = [batch for batch in self.log if batch[0] == producer]
            if not mine or (producer not in self.open().values() and self.now - mine[-1][5] >= 50):
                continue
            epoch = mine[-1][1]
            last = [batch[3] for batch in mine if batch[4] in ("data", "txn") and batch[1] == epoch]
            expected[producer] = ActiveProducer(last[-1] if last else None, epoch)
        assert self.state.active_producers(self.now) == expected


TestProducersMachine = ProducersMachine.TestCase


# ---- Kafka itself

steps = st.lists(
    st.tuples(
        st.one_of(
            st.integers(0, 40),
            st.sampled_from([1000, 4000, 65536, 70001, 2**32, 2**33 + 1, 2**62]),
            st.integers(0, 15).map(lambda number: number * 16),
        ),
        st.sampled_from(["data", "data", "txn", "commit", "abort", "bump"]),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=60,
)


@pytest.mark.kafka
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_snapshots_are_kafkas_byte_for_byte(
    oracle: Oracle, tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, str, int]]
) -> None:
    """Kafka writes a log and, on closing it, a snapshot; the log read by compactd gives the same bytes."""
    directory = tmp_path_factory.mktemp("producers") / "orders-0"
    oracle.reset()
    oracle.open(directory, {"cleanup.policy": "delete"}, now=1_000_000)
    epochs: dict[int, int] = {}
    sequences: dict[int, int] = {}
    transactional: set[int] = set()
    for time, (producer, what, count) in enumerate(drawn, start=1_000_000):
        epoch = epochs.setdefault(producer, 0)
        if what == "bump":
            if producer not in transactional:
                epochs[producer], sequences[producer] = epoch + 1, 0
        elif what in ("commit", "abort"):
            oracle.control(what, producer, epoch=epoch, ts=time, coordinatorEpoch=2)
            transactional.discard(producer)
        else:
            sequence = sequences.get(producer, 0)
            txn = what == "txn" or producer in transactional
            records = [record(b"k", b"v", time) for _ in range(count)]
            oracle.append(records, pid=producer, epoch=epoch, seq=sequence, txn=txn)
            sequences[producer] = sequence + count
            if txn:
                transactional.add(producer)
    end = oracle.state()["logEndOffset"]
    oracle.close()
    state = ProducerState()
    for batch in read_batches(directory / f"{0:020d}.log"):
        control = None
        if batch.header.is_control:
            (one,) = batch.records()
            control = parse_end_transaction(one.key, one.value)
        state.update(batch.header, control)
    written = directory / snapshot_name(end)
    if end == 0:
        assert not written.exists() or written.read_bytes() == EMPTY
        return
    assert state.take_snapshot() == written.read_bytes()
    assert encode_snapshot(read_snapshot(written)) == written.read_bytes()
