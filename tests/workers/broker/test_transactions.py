"""Transactions at a broker: fenced, forgotten, timed out, loaded, damaged, and with topics that go away under them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compactd.storage import files
from compactd.storage.log import Origin
from compactd.storage.records.batch import iter_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import Peer, RequestHeader
from compactd.workers.broker.transactions.coordinator import TransactionCoordinator
from compactd.workers.broker.transactions.counts import TransactionCounts
from compactd.workers.broker.transactions.describe import list_transactions
from compactd.workers.broker.transactions.java_order import partition_of
from compactd.workers.broker.transactions.markers import MarkerWriter
from compactd.workers.broker.transactions.records import decode_record, encode_tombstone, encode_transition
from compactd.workers.broker.transactions.transaction import State, Transaction, TransactionError, Transition
from tests.workers.broker.batches import batch, produce
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_partitions import _NoWrites
from tests.workers.broker.transactional import (
    CONCURRENT,
    DESCRIBE_PRODUCERS,
    END,
    FEW,
    LIST,
    NOT_COORDINATOR,
    STATE_TOPIC,
    WRITE_MARKERS,
    RawProducer,
    batches_of,
    committed,
    described,
    fetched,
    group_offset,
    ready,
    settled,
)

DELETE_TOPICS = 20
QUICK = {
    **FEW,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 20,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 20,
}
_SECONDS = 60.0


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir], QUICK) as running:
        with running.connect() as client:
            ready(client, {"t": 2})
        yield running


@pytest.fixture
def client(broker: CatalogueBroker) -> Iterator[RawClient]:
    with broker.connect() as connected:
        yield connected


@pytest.fixture(params=[False, True], ids=["older", "newer"])
def newer(request: pytest.FixtureRequest) -> bool:
    """Whether the client is of the kind that leaves it to the broker to add partitions."""
    return bool(request.param)


def begun(client: RawClient, newer: bool = False, name: str = "tx", **more: Any) -> RawProducer:
    """A producer with a record in an open transaction."""
    producer = RawProducer(client, name, newer, **more)
    assert producer.init() == 0
    assert producer.send("t", b"first") == 0
    return producer


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def state_records(broker: CatalogueBroker, name: str = "tx") -> list[tuple[str, int] | None]:
    """State and epoch of an id, in the order in which they were written; None: a tombstone."""
    log = broker.partition(STATE_TOPIC, partition_of(name, FEW["transaction.state.log.num.partitions"])).log
    found: list[tuple[str, int] | None] = []
    offset = 0
    while offset < log.log_end_offset:
        with log.read(offset, 1 << 24, "log_end") as read:  # of one segment
            batches = list(iter_batches(read.read()))
        offset = batches[-1].header.next_offset
        for record in [record for each in batches for record in each.records()]:
            if record.key == encode_tombstone(name)[0]:
                state = None if record.value is None else decode_record(record.key, record.value)
                found.append(None if state is None else (state.state.title, state.epoch))
    return found


# ---- the usual way


def test_committed_records_are_seen_and_aborted_ones_never(client: RawClient, newer: bool) -> None:
    producer = begun(client, newer)
    assert committed(client, "t") == []
    assert producer.send("t", b"other", 1) == 0
    assert producer.end(True) == 0
    assert producer.send("t", b"no") == 0
    assert producer.end(False) == 0
    assert producer.send("t", b"second") == 0
    assert producer.end(True) == 0
    settled(client, "tx")
    assert (committed(client, "t"), committed(client, "t", 1)) == ([b"first", b"second"], [b"other"])
    everything = [record.value for each in batches_of(client, "t", isolation=0) for record in each.records()]
    assert [value for value in everything if value in (b"first", b"no", b"second")] == [b"first", b"no", b"second"]


def test_what_is_written_down_of_each_kind_of_client(broker: CatalogueBroker, client: RawClient, newer: bool) -> None:
    producer = begun(client, newer)
    producer.send("t", b"v", 1)
    producer.end(True)
    settled(client, "tx")
    last = 1 if newer else 0
    assert state_records(broker) == [
        ("Empty", 0), ("Ongoing", 0), ("Ongoing", 0), ("PrepareCommit", last), ("CompleteCommit", last),
    ]  # fmt: skip
    marker = [each.header for each in batches_of(client, "t")][-1]
    assert (marker.is_control, marker.producer_epoch, marker.attributes) == (True, last, 0x30)


def test_a_second_producer_of_the_id_fences_the_first(client: RawClient, newer: bool) -> None:
    first = begun(client, newer)
    second = RawProducer(client, "tx", newer)
    assert second.init() == 0
    assert (second.producer_id, second.epoch > first.epoch) == (first.producer_id, True)
    assert first.write("t", b"late") == 47
    assert first.end(True) == 90
    assert second.send("t", b"mine") == 0
    assert second.end(True) == 0
    settled(client, "tx")
    assert committed(client, "t") == [b"mine"]


def test_offsets_count_with_the_transaction(client: RawClient, newer: bool) -> None:
    producer = begun(client, newer)
    assert producer.commit_offset("g", "t", 5) == 0
    assert producer.end(False) == 0
    settled(client, "tx")
    assert group_offset(client, "g", "t") == -1
    assert producer.commit_offset("g", "t", 6) == 0
    assert producer.end(True) == 0
    assert group_offset(client, "g", "t") == 6


def test_the_next_transaction_need_not_wait(client: RawClient, newer: bool) -> None:
    """Markers of this broker's partitions are there when the end is answered."""
    producer = begun(client, newer)
    for number in range(20):
        assert producer.end_once(number % 2 == 0) == 0
        assert described(client, "tx").transaction_state.startswith("Complete")
        if not newer:
            assert producer.add("t") == 0
        assert producer.write("t", b"v%d" % number) == 0


def test_many_producers_at_once(broker: CatalogueBroker) -> None:
    """Nobody sees what another one has open, and nobody's records get lost."""
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            with broker.connect() as client:
                producer = RawProducer(client, f"tx-{number}", number % 2 == 0)
                assert producer.init() == 0
                for turn in range(10):
                    for partition in (0, 1):
                        assert producer.send("t", b"%d %d" % (number, turn), partition) == 0
                    assert producer.end(turn % 3 != 0) == 0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with broker.connect() as client:
        for number in range(8):
            settled(client, f"tx-{number}")
        expected = sorted(b"%d %d" % (number, turn) for number in range(8) for turn in range(10) if turn % 3)
        for partition in (0, 1):
            assert sorted(filter(None, committed(client, "t", partition))) == expected
            answer = fetched(client, "t", partition)
            assert answer.last_stable_offset == answer.high_watermark


# ---- what a producer is told of its first batch


def _write(client: RawClient, producer: RawProducer, version: int, **other: Any) -> int:
    fields = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch, "base_sequence": 0, **other}
    name = fields.pop("name", producer.name)
    records = batch([b"v"], transactional=True, **fields)
    return int(produce(client, records, version=version, transactional_id=name).error_code)


@pytest.mark.parametrize(("version", "error"), [(3, 48), (9, 48), (10, 48), (11, 120)])
def test_older_clients_have_to_add_partitions_first(client: RawClient, version: int, error: int) -> None:
    producer = RawProducer(client, "tx", False)
    assert producer.init() == 0
    assert producer.until_told(lambda: _write(client, producer, version)) == error
    assert producer.add("t", 1) == 0
    assert _write(client, producer, version) == error
    assert producer.add("t") == 0
    assert _write(client, producer, version) == 0


@pytest.mark.parametrize("version", [9, 11, 12])
def test_who_may_not_write(client: RawClient, version: int) -> None:
    producer = RawProducer(client, "tx", False)
    assert producer.init() == 0
    assert producer.add("t") == 0
    assert producer.until_told(lambda: _write(client, producer, version, producer_epoch=7)) == 47
    assert _write(client, producer, version, producer_id=1_000_000) == 49
    assert _write(client, producer, version, name="nobody") == 49
    assert _write(client, producer, version, name="") == 42
    assert _write(client, producer, version) == 0


def test_while_the_transaction_before_ends(
    broker: CatalogueBroker, client: RawClient, newer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older clients can't be told so; for newer ones the broker waits a little."""
    producer = begun(client, newer)
    real, gate = MarkerWriter.write, threading.Event()

    async def late(self: MarkerWriter, marker: Any) -> Any:
        while not gate.is_set():
            await asyncio.sleep(0.005)
        return await real(self, marker)

    monkeypatch.setattr(MarkerWriter, "write", late)
    started = time.monotonic()
    assert producer.end_once(True) == 0
    assert described(client, "tx").transaction_state == "PrepareCommit"
    assert producer.write("t", b"next", 1) == (CONCURRENT if newer else 19)
    if newer:
        assert time.monotonic() - started > 0.1
        # It stays patient for as long as this machine needs to end the one before.
        monkeypatch.setattr(broker.clock, "monotonic", lambda: 0.0)
        threading.Timer(0.04, gate.set).start()
        assert producer.write("t", b"next", 1) == 0
    else:
        gate.set()
        assert producer.send("t", b"next", 1) == 0
    assert producer.end(True) == 0
    settled(client, "tx")
    assert committed(client, "t", 1) == [b"next"]


def test_ids_are_found_by_patterns_states_producers_and_age(broker: CatalogueBroker, client: RawClient) -> None:
    for name in ("app-1", "app-2", "Über/app 3"):
        begun(client, name=name)
    done = begun(client, name="done", timeout_ms=900_000)
    broker.clock.moved_ms += 10_000
    assert done.end(True) == 0
    settled(client, "done")

    def listed(**filters: Any) -> set[str]:
        answer = client.ask(LIST, 2, {"state_filters": (), "producer_id_filters": (), **filters})
        assert answer.error_code == 0
        return {each.transactional_id for each in answer.transaction_states}

    everything = {"app-1", "app-2", "Über/app 3", "done"}
    assert listed() == listed(transactional_id_pattern=".*") == everything
    assert listed(transactional_id_pattern="app-[0-9]") == {"app-1", "app-2"}
    assert listed(transactional_id_pattern=r"\p{Lu}.*/[^x]* \d") == {"Über/app 3"}
    assert listed(transactional_id_pattern="(a+)+b") == set()
    assert listed(state_filters=["CompleteCommit"]) == listed(producer_id_filters=[done.producer_id]) == {"done"}
    assert listed(state_filters=["Ongoing"], duration_filter=9_000) == everything - {"done"}
    assert listed(state_filters=["Ongoing"], duration_filter=100_000) == set()
    bad = client.ask(LIST, 2, {"state_filters": (), "producer_id_filters": (), "transactional_id_pattern": "(?<=a)b"})
    assert bad.error_code == 128
    odd = client.ask(LIST, 0, {"state_filters": ["Ongoing", "Asleep"], "producer_id_filters": ()})
    assert (odd.unknown_state_filters, len(odd.transaction_states)) == (("Asleep",), 3)


def test_others_are_served_while_very_many_ids_are_listed(broker: CatalogueBroker, client: RawClient) -> None:
    assert begun(client).end(True) == 0
    settled(client, "tx")

    async def run(context: Any) -> tuple[int, int]:
        (shard, *_) = context.part(TransactionCoordinator)
        for number in range(50_000):
            shard.by_id[f"id-{number}"] = Transaction(f"id-{number}", number, 60_000, context.clock.now_ms(), epoch=0)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beside = asyncio.ensure_future(other())
        header = RequestHeader(LIST, 0, 1, "", Peer("127.0.0.1", 1))
        request = SimpleNamespace(state_filters=["Empty"], producer_id_filters=[])
        answer = await list_transactions(context, header, request)
        beside.cancel()
        return len(answer["transaction_states"]), turns

    count, turns = broker.in_loop(run)
    assert count == 50_000
    # How many depends on the machine; without giving way there would be none.
    assert turns > 0


def test_an_id_that_fits_no_record_is_refused(client: RawClient) -> None:
    assert RawProducer(client, "x" * 32_767, False).init() == 0
    assert RawProducer(client, "x" * 32_768, False).init() == -1


def test_a_client_that_leaves_does_not_take_its_transaction_along(
    broker: CatalogueBroker, client: RawClient, newer: bool
) -> None:
    """What a request has begun is finished, whatever becomes of its connection."""
    producer = begun(client, newer)
    partition = broker.partition(STATE_TOPIC, partition_of("tx", 2))
    held, waits = asyncio.Event(), threading.Event()

    async def hold() -> None:
        async with partition.lock:
            waits.set()
            await held.wait()

    broker.in_loop(lambda context: context.spawn(hold()) and None)
    assert waits.wait(_SECONDS)
    with broker.connect() as other:
        body = {
            "transactional_id": "tx",
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "committed": True,
        }
        other.send(END, 5 if newer else 3, body)

        def is_pending(context: Any) -> bool:
            return context.part(TransactionCoordinator).shard("tx").by_id["tx"].pending is State.PREPARE_COMMIT

        until(lambda: bool(broker.in_loop(is_pending)))
        # As an idle sweep does, or a session that has expired.
        broker.in_loop(lambda _: [each.close() for each in broker._broker.server._connections if each.is_serving])  # type: ignore[func-returns-value]
    broker.in_loop(lambda _: held.set())
    until(lambda: described(client, "tx").transaction_state == "CompleteCommit")
    assert committed(client, "t") == [b"first"]


def test_a_marker_that_is_refused_as_fenced_keeps_nobody_waiting(
    broker: CatalogueBroker, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka leaves such a transaction in PrepareCommit for ever, and its id without use."""
    producer = begun(client)
    assert producer.send("t", b"other", 1) == 0

    async def newer(context: Any) -> None:
        partition = context.partitions.get("t", 1)
        await partition.append_marker("abort", producer.producer_id, producer.epoch + 5, coordinator_epoch=0)

    broker.in_loop(newer)
    assert producer.end(True) == 0
    assert settled(client, "tx").transaction_state == "CompleteCommit"
    assert "t-1 takes no marker" in caplog.text
    # What the newer one said of its partition stands; the others have the commit; and the id goes on.
    assert (committed(client, "t"), committed(client, "t", 1)) == ([b"first"], [])
    assert producer.init() == 0
    assert producer.send("t", b"next") == 0
    assert producer.end(True) == 0
    settled(client, "tx")
    assert committed(client, "t") == [b"first", b"next"]


# ---- time


def test_a_transaction_that_is_too_old_is_aborted_and_its_producer_fenced(
    broker: CatalogueBroker, client: RawClient, newer: bool
) -> None:
    producer = begun(client, newer)
    broker.clock.moved_ms += 59_000
    time.sleep(0.1)
    assert described(client, "tx").transaction_state == "Ongoing"
    broker.clock.moved_ms += 2_000
    until(lambda: described(client, "tx").transaction_state == "CompleteAbort")
    assert producer.write("t", b"late") == 47
    # To a newer client it looks as if it had aborted it itself, and now would commit it.
    assert producer.end(True) == (48 if newer else 90)
    answer = fetched(client, "t")
    assert (committed(client, "t"), answer.last_stable_offset) == ([], answer.high_watermark)
    assert [each[1] for each in state_records(broker) if each is not None] == [0, 0, 1, 1]
    assert producer.init() == 0
    assert producer.epoch == 2


def test_ids_that_nobody_uses_are_forgotten(broker: CatalogueBroker, client: RawClient) -> None:
    used = begun(client, name="used", timeout_ms=900_000)
    idle = begun(client, name="idle")
    assert idle.end(True) == 0
    settled(client, "idle")
    broker.clock.moved_ms += 604_800_000 - 1_000
    time.sleep(0.1)
    assert described(client, "idle").error_code == 0
    broker.clock.moved_ms += 2_000
    until(lambda: described(client, "idle").error_code == 105)
    until(lambda: state_records(broker, "idle")[-1] is None)
    assert idle.add("t") == 49
    # The other one has been aborted long ago, and has aged from then on.
    assert described(client, "used").transaction_state == "CompleteAbort"
    assert idle.init() == 0
    assert idle.producer_id != used.producer_id


def _aged(shard: Any, now_ms: int, names: Sequence[str]) -> dict[str, Transaction]:
    """Ids that the shard knows, idle since the beginning of time."""
    made = {name: Transaction(name, 7_000 + number, 60_000, 0, epoch=0) for number, name in enumerate(names)}
    assert all(each.is_expired(now_ms, 1000) for each in made.values())
    shard.by_id.update(made)
    return made


def _forgets(broker: CatalogueBroker, names: Sequence[str], meanwhile: Callable[[dict[str, Transaction]], Any]) -> Any:
    """What `meanwhile` gives, which runs while the first of these ids are being forgotten, and which ids are left."""

    async def run(context: Any) -> Any:
        (shard, *_) = context.part(TransactionCoordinator)
        made = _aged(shard, context.clock.now_ms(), names)
        usual, found = shard._append, []

        async def append(records: Any) -> None:
            await usual(records)
            if not found:
                found.append(meanwhile(made))

        shard._append = append
        try:
            await shard.forget(context.clock.now_ms(), 1000)
        finally:
            del shard._append
        return found[0], set(shard.by_id) & set(names)

    return broker.in_loop(run)


def test_an_id_that_is_used_again_while_others_are_forgotten_stays(broker: CatalogueBroker, client: RawClient) -> None:
    settled_ids = begun(client)
    assert settled_ids.end(True) == 0
    names = [f"old-{number}" for number in range(300)]

    def comes_back(made: dict[str, Transaction]) -> Transaction:
        late = made[names[-1]]
        assert late.pending is None
        late.pending = State.ONGOING  # a record of its client's is being written
        return late

    late, left = _forgets(broker, names, comes_back)
    assert left == {names[-1]}
    # Whoever writes it counts on nobody else planning anything.
    assert late.pending is State.ONGOING


def test_long_ids_are_forgotten_in_batches_that_fit(broker: CatalogueBroker, client: RawClient) -> None:
    settled_ids = begun(client)
    assert settled_ids.end(True) == 0
    names = [f"{number}-" + "x" * 20_000 for number in range(100)]
    _, left = _forgets(broker, names, lambda made: None)
    assert left == set()


# ---- restarts


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_an_open_transaction_goes_on_after_a_restart(log_dir: Path, newer: bool, clean: bool) -> None:
    with CatalogueBroker([log_dir], QUICK) as broker, broker.connect() as client:
        ready(client, {"t": 2})
        producer = begun(client, newer)
    with CatalogueBroker([log_dir], QUICK, clean=clean) as broker, broker.connect() as client:
        settled(client, "tx")
        producer.client = client
        assert described(client, "tx").transaction_state == "Ongoing"
        assert producer.send("t", b"second") == 0
        assert producer.end(True) == 0
        settled(client, "tx")
        assert committed(client, "t") == [b"first", b"second"]


def written_state(log_dir: Path, value: Callable[[int], bytes | None], name: str = "tx") -> Any:
    """A broker stopped with a record of `name` in its log, made of the producer id that the log dir is at."""
    with CatalogueBroker([log_dir], FEW) as broker, broker.connect() as client:
        ready(client, {"t": 2})
        producer = begun(client, name="other")
        number = partition_of(name, 2)

        async def write(context: Any) -> None:
            partition = context.partitions.get(STATE_TOPIC, number)
            key = b"\0\0" + len(name).to_bytes(2, "big") + name.encode()
            data = build_batch([Record(0, 1, key, value(producer.producer_id))], base_offset=0)
            await partition.append(bytearray(data), origin=Origin.COORDINATOR)

        broker.in_loop(write)
        assert producer.end(True) == 0


def _prepared(producer_id: int, *partitions: tuple[str, int]) -> bytes:
    to = Transition(State.PREPARE_COMMIT, producer_id, producer_id, -1, 3, -1, 1000, partitions, 1, 1, 0)
    return encode_transition("tx", to, 2)[1]


def test_what_was_decided_is_finished_at_the_start(log_dir: Path) -> None:
    """Also for partitions of topics that are gone."""
    written_state(log_dir, lambda used: _prepared(used, ("t", 1), ("gone", 0)))
    with CatalogueBroker([log_dir], FEW) as broker, broker.connect() as client:
        found = settled(client, "tx")
        assert (found.transaction_state, found.producer_epoch, found.topics) == ("CompleteCommit", 3, ())
        marker = list(batches_of(client, "t", 1))[-1]
        assert (marker.header.is_control, marker.header.producer_epoch) == (True, 3)


def test_records_of_versions_to_come_are_passed_over(log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    written_state(log_dir, lambda _: b"\0\x07of the future")
    with CatalogueBroker([log_dir], FEW) as broker, broker.connect() as client:
        assert settled(client, "other").transaction_state == "CompleteCommit"
        assert settled(client, "tx").error_code == 105
    assert "1 records of version 7 are passed over" in caplog.text


def test_a_damaged_log_keeps_its_ids_from_being_served(log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = {partition_of(name, 2): name for name in ("a", "b", "c", "d")}
    damaged, sound = names[partition_of("tx", 2)], names[1 - partition_of("tx", 2)]
    written_state(log_dir, lambda _: b"\0\1\0")
    with CatalogueBroker([log_dir], FEW) as broker, broker.connect() as client:
        until(lambda: described(client, damaged).error_code == 16)
        assert RawProducer(client, sound, False).init() == 0
        assert RawProducer(client, damaged, False).init_once() == 16
        # The others can be listed.
        listed = client.ask(LIST, 2, {"state_filters": (), "producer_id_filters": ()})
        assert sound in [each.transactional_id for each in listed.transaction_states]
    assert "can not be loaded" in caplog.text


# ---- what else may go wrong


def test_a_topic_that_is_deleted_does_not_keep_a_transaction_open(client: RawClient, newer: bool) -> None:
    producer = begun(client, newer)
    assert client.ask(19, 7, {"topics": [{"name": "u", "num_partitions": 1, "replication_factor": 1}], "timeout": 9000})
    assert producer.send("u", b"v") == 0
    client.ask(20, 5, {"topic_names": ["u"], "timeout": 9000})
    assert producer.end(True) == 0
    found = settled(client, "tx")
    assert (found.transaction_state, committed(client, "t")) == ("CompleteCommit", [b"first"])


def test_a_partition_that_fails_keeps_the_transaction_decided(fast_dir: Path, newer: bool) -> None:
    """The client is told that it is committed; the next transaction has to wait for a log dir that works."""
    dirs = [fast_dir / "one", fast_dir / "two"]
    for each in dirs:
        each.mkdir()
    with CatalogueBroker(dirs, FEW) as broker, broker.connect() as client:
        ready(client, {"t": 8})
        until(
            lambda: (
                broker.in_loop(lambda context: sum(context.partitions.get("t", n) is not None for n in range(8))) == 8
            )
        )
        places = {number: broker.partition("t", number).log_dir for number in range(8)}
        state_dir = broker.partition(STATE_TOPIC, partition_of("tx", 2)).log_dir
        bad = next(path for path in map(str, dirs) if path != state_dir)
        there = next(number for number, place in places.items() if place == bad)
        here = next(number for number, place in places.items() if place != bad)
        producer = begun(client, newer)
        assert producer.send("t", b"v", there) == 0
        assert producer.send("t", b"v", here) == 0
        broker.in_loop(lambda context: context.partitions.log_dir_failed(bad))
        assert producer.end(True) == 0
        until(lambda: len(described(client, "tx").topics[0].partitions) < 3)
        found = described(client, "tx")
        assert found.transaction_state == "PrepareCommit"
        assert there in found.topics[0].partitions
        assert here not in found.topics[0].partitions
        assert committed(client, "t", here)[-1] == b"v"
        assert producer.init_once() == CONCURRENT
        assert (producer.write("t", b"v", here) if newer else producer.add("t")) == CONCURRENT


def test_a_state_that_can_not_be_stored_has_not_come_about(broker: CatalogueBroker, client: RawClient) -> None:
    producer = begun(client)
    partition = broker.partition(STATE_TOPIC, partition_of("tx", 2))
    with files.replaced(_NoWrites(partition.log_dir)):
        assert producer.end_once(True) == 16
    # The log dir is offline from here on; nobody else coordinates the id.
    assert producer.init_once() == 16
    assert described(client, "tx").error_code == 16


def test_too_many_partitions_for_a_record_are_refused(broker: CatalogueBroker, client: RawClient) -> None:
    producer = begun(client)
    number = partition_of("tx", 2)
    small = broker.partition(STATE_TOPIC, number).log.config

    def shrink(context: Any) -> None:
        import msgspec  # noqa: PLC0415

        config = msgspec.structs.replace(small, max_message_bytes=100)
        context.partitions.get(STATE_TOPIC, number).log.update_config(config)

    broker.in_loop(shrink)
    assert producer.add("t", 1) == -1
    broker.in_loop(lambda context: context.partitions.get(STATE_TOPIC, number).log.update_config(small))
    # It is as it was before.
    assert producer.add("t", 1) == 0
    assert producer.end(True) == 0


def test_the_verification_of_older_clients_can_be_turned_off(log_dir: Path) -> None:
    settings = {**FEW, "transaction.partition.verification.enable": "false"}
    with CatalogueBroker([log_dir], settings) as broker, broker.connect() as client:
        ready(client, {"t": 1})
        producer = RawProducer(client, "tx", False)
        assert producer.init() == 0
        assert producer.until_told(lambda: producer.write("t", b"hanging")) == 0
        assert described(client, "tx").transaction_state == "Empty"
        # Those that leave it to the broker are added all the same.
        other = RawProducer(client, "ty", True)
        assert other.init() == 0
        assert other.send("t", b"v") == 0
        assert described(client, "ty").transaction_state == "Ongoing"


def test_an_operator_ends_a_transaction_that_hangs(log_dir: Path) -> None:
    """Its coordinator knows nothing of it, as after a partition was restored from a backup."""
    settings = {**FEW, "transaction.partition.verification.enable": "false"}
    with CatalogueBroker([log_dir], settings) as broker, broker.connect() as client:
        ready(client, {"t": 1})
        producer = RawProducer(client, "tx", False)
        assert producer.init() == 0
        assert producer.until_told(lambda: producer.write("t", b"hanging")) == 0
        produce(client, batch([b"behind"]))
        assert committed(client, "t") == []
        asked = {"topics": [{"name": "t", "partition_indexes": [0]}]}
        found = client.ask(DESCRIBE_PRODUCERS, 0, asked).topics[0].partitions[0].active_producers[0]
        assert (found.producer_id, found.current_txn_start_offset) == (producer.producer_id, 0)
        marker = {
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "transaction_result": False,
            "topics": asked["topics"],
            "coordinator_epoch": max(found.coordinator_epoch, 0),
        }
        answer = client.ask(WRITE_MARKERS, 1, {"markers": [marker]}).markers[0]
        assert answer.topics[0].partitions[0].error_code == 0
        assert committed(client, "t") == [b"behind"]


def test_ids_in_rotation(broker: CatalogueBroker, client: RawClient, newer: bool) -> None:
    """After 32,767 epochs a producer gets a new id, in the midst of its transactions or between them."""
    producer = begun(client, newer)
    assert producer.end(True) == 0
    settled(client, "tx")
    first = producer.producer_id

    def wear(context: Any) -> None:
        coordinator = context.part(TransactionCoordinator)
        coordinator.shard("tx").by_id["tx"].epoch = 32_764

    broker.in_loop(wear)
    if not newer:
        seen = []
        for _ in range(4):
            assert producer.init() == 0
            seen.append((producer.producer_id == first, producer.epoch))
        assert seen == [(True, 32_765), (True, 32_766), (False, 0), (False, 1)]
        return
    assert producer.init() == 0
    seen = []
    for number in range(4):
        assert producer.send("t", b"%d" % number) == 0
        assert producer.end(True) == 0
        seen.append((producer.producer_id == first, producer.epoch))
    assert seen == [(True, 32_766), (False, 0), (False, 1), (False, 2)]
    settled(client, "tx")
    assert committed(client, "t") == [b"first", b"0", b"1", b"2", b"3"]


def test_ends_are_counted(broker: CatalogueBroker, client: RawClient) -> None:
    for name, commit in (("one", True), ("two", True), ("three", False)):
        assert begun(client, name=name).end(commit) == 0
        settled(client, name)
    begun(client, name="slow", timeout_ms=5_000)
    begun(client, name="open", timeout_ms=900_000)
    broker.clock.moved_ms += 10_000
    until(lambda: settled(client, "slow").transaction_state == "CompleteAbort")

    def taken(context: Context) -> tuple[dict[str, int], int]:
        is_open = [
            each.state is State.ONGOING
            for shard in context.part(TransactionCoordinator)
            for each in shard.by_id.values()
        ]
        return context.part(TransactionCounts).take(), sum(is_open)

    assert broker.in_loop(taken) == ({"committed": 2, "aborted": 2, "timed_out": 1}, 1)
    assert broker.in_loop(taken)[0] == {"committed": 0, "aborted": 0, "timed_out": 0}


@pytest.mark.parametrize("decided", [False, True], ids=["open", "decided"])
def test_the_coordinators_topic_is_deleted_under_a_transaction(
    broker: CatalogueBroker, client: RawClient, caplog: pytest.LogCaptureFixture, decided: bool
) -> None:
    """Nothing is known of it then, as in Kafka; whoever uses the id begins anew."""
    producer = begun(client)
    if decided:
        # No marker can be written, so that it is tried again and again.
        broker.in_loop(lambda context: context.partitions.get("t", 0).fail(ErrorCode.KAFKA_STORAGE_ERROR))
        assert producer.end_once(True) == 0
        assert described(client, "tx").transaction_state == "PrepareCommit"
    deleted = client.ask(DELETE_TOPICS, 5, {"topic_names": [STATE_TOPIC], "timeout": 10_000}).responses[0]
    assert deleted.error_code == 0
    until(lambda: producer.end_once(True) == NOT_COORDINATOR)
    until(lambda: not broker.in_loop(lambda context: context.part(TransactionCoordinator)._finishing))
    ready(client, {})
    assert producer.end(True) == 49
    again = RawProducer(client, "tx", newer=False)
    assert again.init() == 0
    assert again.producer_id != producer.producer_id
    assert again.send("t", b"anew", 1) == 0
    assert again.end(True) == 0
    settled(client, "tx")
    assert committed(client, "t", 1) == [b"anew"]
    assert "a bug" not in caplog.text


@pytest.mark.parametrize("client_version", [0, 2], ids=["older", "newer"])
def test_of_requests_about_one_id_at_the_same_time_one_counts(
    broker: CatalogueBroker, client: RawClient, client_version: int
) -> None:
    assert begun(client).end(True) == 0  # its coordinator is there

    async def at_once(requests: list[Coroutine[Any, Any, Any]]) -> tuple[list[Any], set[ErrorCode]]:
        answers = await asyncio.gather(*requests, return_exceptions=True)
        refusals = {each.code for each in answers if isinstance(each, TransactionError)}
        told = [each for each in answers if not isinstance(each, TransactionError)]
        assert not [each for each in told if isinstance(each, BaseException)]
        return told, refusals

    async def run(context: Any) -> None:
        coordinator = context.part(TransactionCoordinator)
        told, refusals = await at_once([coordinator.initialize("one", 60_000, None) for _ in range(8)])
        (producer,) = told
        assert refusals == {ErrorCode.CONCURRENT_TRANSACTIONS}
        adding = [coordinator.add("one", producer, [("t", number % 2)], client_version) for number in range(8)]
        told, refusals = await at_once(adding)
        assert len(told) >= 1
        assert refusals == {ErrorCode.CONCURRENT_TRANSACTIONS}
        ending = [coordinator.end("one", producer, bool(number % 2), client_version) for number in range(8)]
        told, refusals = await at_once(ending)
        assert len(told) == 1
        assert refusals <= {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED}

    broker.in_loop(run)
    # The first that ended it was an abort.
    assert settled(client, "one").transaction_state == "CompleteAbort"
    ends = [state for state, _ in filter(None, state_records(broker, "one")) if state.startswith("Prepare")]
    assert ends == ["PrepareAbort"]


def test_producer_ids_out_of_the_air_leave_nothing_behind(
    client: RawClient, broker: CatalogueBroker, newer: bool
) -> None:
    producer = begun(client, newer)
    stranger = RawProducer(client, "tx", newer)
    for number in range(20):
        stranger.producer_id, stranger.epoch = 1_000_000 + number, 0
        assert stranger.write("t", b"no") == 49
    producers = broker.partition("t").log.producers
    assert producers.verifications == {}
    assert len(producers) == 1
    # One that is known, but not to be let in yet, is kept: what it sends next must not get ahead of this.
    late = RawProducer(client, "late", newer=False)
    assert late.init() == 0
    late.write("t", b"not added")
    assert list(producers.verifications) == [late.producer_id]
    assert producer.end(True) == 0
