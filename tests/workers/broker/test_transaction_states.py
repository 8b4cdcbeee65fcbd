"""The state of one transactional id, by Kafka's tables (facts: kafka-protocol 15.2), and its record byte for byte (B4, B6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compactd.storage.records.varint import MalformedError
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.transactions.claims import Opened, Verdict, verdict_on
from compactd.workers.broker.transactions.java_order import by_topic, ordered_union, partition_of
from compactd.workers.broker.transactions.records import (
    decode_record,
    encode_tombstone,
    encode_transition,
    what_is_unknown,
)
from compactd.workers.broker.transactions.transaction import (
    NO_EPOCH,
    NO_ID,
    ProducerIdNeeded,
    State,
    Transaction,
    TransactionError,
    Transition,
)

_NOW = 1_796_000_000_000
_FENCED, _STATE, _CONCURRENT = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.CONCURRENT_TRANSACTIONS
_MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
_LAST = 32_766


def transaction(state: State = State.EMPTY, epoch: int = 5, **more: object) -> Transaction:
    """Of producer 7; what is open or decided has partitions."""
    fields: dict[str, object] = {"timeout_ms": 60_000, "update_ms": _NOW - 50, "previous_producer_id": 7}
    fields |= {"epoch": epoch, "state": state, "last_epoch": epoch - 1}
    if state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT):
        fields["partitions"] = (("t", 0), ("t", 1))
    if state is not State.EMPTY:
        fields["start_ms"] = _NOW - 100
    return Transaction("tx", 7, **{**fields, **more})  # type: ignore[arg-type]


def outcome(plan: Callable[[], object]) -> object:
    """The code of a refusal, or what was planned."""
    try:
        return plan()
    except TransactionError as error:
        return error.code


# ---- InitProducerId


def test_a_new_id_begins_with_epoch_0() -> None:
    fresh = Transaction("tx", 7, 60_000, _NOW)
    to = fresh.initialize(1000, _NOW)
    assert to == Transition(State.EMPTY, 7, 7, NO_ID, 0, NO_EPOCH, 1000, (), -1, _NOW, 0)
    fresh.complete(to)
    assert (fresh.state, fresh.epoch, fresh.timeout_ms, fresh.pending) == (State.EMPTY, 0, 1000, None)
    # An id that the client believes to have does not matter while nobody else has one.
    assert Transaction("tx", 7, 1, _NOW).initialize(1, _NOW, (99, 3)) == replace(to, timeout_ms=1, last_epoch=NO_EPOCH)


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_the_next_epoch_fences_the_one_before(state: State) -> None:
    to = transaction(state).initialize(1000, _NOW)
    assert to is not None
    assert (to.state, to.producer_id, to.epoch, to.last_epoch, to.partitions, to.start_ms) == (
        State.EMPTY,
        7,
        6,
        -1,
        (),
        -1,
    )
    known = transaction(state).initialize(1000, _NOW, (7, 5))
    assert known is not None
    assert (known.epoch, known.last_epoch) == (6, 5)
    again = transaction(state, 6, last_epoch=5).initialize(1000, _NOW, (7, 5))
    assert again is not None
    assert (again.epoch, again.last_epoch) == (6, 5)
    for wrong in ((7, 3), (7, 9), (8, 5)):
        assert outcome(lambda wrong=wrong: transaction(state).initialize(1000, _NOW, wrong)) is _FENCED  # type: ignore[misc]


def test_an_open_transaction_has_to_be_aborted_first_and_a_decided_one_waited_for() -> None:
    assert transaction(State.ONGOING).initialize(1000, _NOW) is None
    for state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert outcome(lambda state=state: transaction(state).initialize(1000, _NOW)) is _CONCURRENT  # type: ignore[misc]
    waiting = transaction(pending=State.ONGOING)
    assert outcome(lambda: waiting.initialize(1000, _NOW)) is _CONCURRENT


@pytest.mark.parametrize("epoch", [_LAST, _LAST + 1])
def test_an_id_whose_epochs_are_used_up_gives_way_to_a_new_one(epoch: int) -> None:
    worn = transaction(epoch=epoch)
    with pytest.raises(ProducerIdNeeded):
        worn.initialize(1000, _NOW)
    to = worn.initialize(1000, _NOW, spare_id=8)
    assert to is not None
    assert (to.producer_id, to.previous_producer_id, to.epoch, to.last_epoch) == (8, 7, 0, -1)
    known = worn.initialize(1000, _NOW, (7, epoch), spare_id=8)
    assert known is not None
    worn.complete(known)
    assert (worn.producer_id, worn.epoch, worn.last_epoch) == (8, 0, epoch)
    # Its answer was lost: the client still has the old one.
    again = worn.initialize(1000, _NOW, (7, epoch))
    assert again is not None
    assert (again.producer_id, again.epoch) == (8, 0)


# ---- AddPartitionsToTxn


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_the_first_partition_begins_the_transaction(state: State) -> None:
    to = transaction(state).add(7, 5, [("t", 1)], 2, _NOW)
    assert to is not None
    assert (to.state, to.partitions, to.start_ms, to.update_ms, to.client_version) == (
        State.ONGOING,
        (("t", 1),),
        _NOW,
        _NOW,
        2,
    )


def test_more_partitions_join_and_known_ones_write_nothing() -> None:
    ongoing = transaction(State.ONGOING)
    to = ongoing.add(7, 5, [("u", 0), ("t", 1)], 0, _NOW)
    assert to is not None
    assert (set(to.partitions), to.start_ms) == ({("t", 0), ("t", 1), ("u", 0)}, _NOW - 100)
    assert ongoing.add(7, 5, [("t", 1), ("t", 0)], 0, _NOW) is None


@pytest.mark.parametrize(
    ("state", "producer", "error"),
    [
        (State.EMPTY, (8, 5), _MAPPING),
        (State.EMPTY, (7, 4), _FENCED),
        (State.EMPTY, (7, 6), _FENCED),
        (State.PREPARE_COMMIT, (7, 5), _CONCURRENT),
        (State.PREPARE_ABORT, (7, 5), _CONCURRENT),
        (State.PREPARE_ABORT, (7, 4), _FENCED),
    ],
)
def test_who_may_not_add(state: State, producer: tuple[int, int], error: ErrorCode) -> None:
    assert outcome(lambda: transaction(state).add(*producer, [("t", 0)], 0, _NOW)) is error
    assert outcome(lambda: transaction(state).verify(*producer)) is error


def test_a_pending_record_keeps_others_from_adding_but_not_from_asking() -> None:
    waiting = transaction(State.ONGOING, pending=State.ONGOING)
    assert outcome(lambda: waiting.add(8, 5, [("t", 0)], 0, _NOW)) is _CONCURRENT
    assert waiting.verify(7, 5) == {("t", 0), ("t", 1)}
    assert transaction(State.EMPTY).verify(7, 5) == frozenset()


# ---- EndTxn, as in the table: state, then commit and abort of a client of each kind, with its epoch and with the one before

_OLDER = {
    State.EMPTY: (_STATE, _STATE),
    State.ONGOING: (State.PREPARE_COMMIT, State.PREPARE_ABORT),
    State.PREPARE_COMMIT: (_CONCURRENT, _STATE),
    State.PREPARE_ABORT: (_STATE, _CONCURRENT),
    State.COMPLETE_COMMIT: (None, _STATE),
    State.COMPLETE_ABORT: (_STATE, None),
}
_NEWER = {
    State.EMPTY: (_STATE, State.PREPARE_ABORT),
    State.ONGOING: (State.PREPARE_COMMIT, State.PREPARE_ABORT),
    State.PREPARE_COMMIT: (_FENCED, _FENCED),
    State.PREPARE_ABORT: (_FENCED, _FENCED),
    State.COMPLETE_COMMIT: (_STATE, State.PREPARE_ABORT),
    State.COMPLETE_ABORT: (_STATE, State.PREPARE_ABORT),
}
_NEWER_AGAIN = {
    State.EMPTY: (_FENCED, _FENCED),
    State.ONGOING: (_FENCED, _FENCED),
    State.PREPARE_COMMIT: (_CONCURRENT, _STATE),
    State.PREPARE_ABORT: (_STATE, _CONCURRENT),
    State.COMPLETE_COMMIT: (None, _STATE),
    State.COMPLETE_ABORT: (_STATE, None),
}


def _end(state: State, epoch: int, version: int, commit: bool) -> object:
    found = outcome(lambda: transaction(state).end(7, epoch, commit, version, _NOW))
    return found.state if isinstance(found, Transition) else found


@pytest.mark.parametrize("state", _OLDER)
def test_the_end_for_older_clients(state: State) -> None:
    assert tuple(_end(state, 5, 0, commit) for commit in (True, False)) == _OLDER[state]
    for epoch in (4, 6):
        assert tuple(_end(state, epoch, 0, commit) for commit in (True, False)) == (_FENCED, _FENCED)


@pytest.mark.parametrize("state", _NEWER)
def test_the_end_for_newer_clients(state: State) -> None:
    assert tuple(_end(state, 5, 2, commit) for commit in (True, False)) == _NEWER[state]
    assert tuple(_end(state, 4, 2, commit) for commit in (True, False)) == _NEWER_AGAIN[state]
    for epoch in (3, 6):
        assert tuple(_end(state, epoch, 2, commit) for commit in (True, False)) == (_FENCED, _FENCED)
    assert outcome(lambda: transaction(state).end(8, 5, True, 2, _NOW)) is _MAPPING


def test_what_the_end_writes() -> None:
    to = transaction(State.ONGOING).end(7, 5, True, 0, _NOW)
    assert to == Transition(
        State.PREPARE_COMMIT, 7, 7, NO_ID, 5, 4, 60_000, (("t", 0), ("t", 1)), _NOW - 100, _NOW, 0
    )  # fmt: skip
    newer = transaction(State.ONGOING).end(7, 5, True, 2, _NOW)
    assert newer == replace(to, epoch=6, last_epoch=5, client_version=2)
    nothing = transaction(State.COMPLETE_COMMIT).end(7, 5, False, 2, _NOW)
    assert nothing is not None
    assert (nothing.state, nothing.partitions, nothing.start_ms, nothing.epoch) == (State.PREPARE_ABORT, (), _NOW, 6)


def test_the_last_epoch_of_a_newer_client_brings_a_new_id() -> None:
    worn = transaction(State.ONGOING, _LAST)
    with pytest.raises(ProducerIdNeeded):
        worn.end(7, _LAST, True, 2, _NOW)
    to = worn.end(7, _LAST, True, 2, _NOW, spare_id=8)
    assert to is not None
    assert (to.producer_id, to.next_producer_id, to.epoch, to.last_epoch) == (7, 8, _LAST + 1, _LAST)
    worn.complete(to)
    worn.marked(worn.partitions)
    done = worn.finish(_NOW)
    assert (done.state, done.producer_id, done.previous_producer_id, done.next_producer_id, done.epoch, done.last_epoch) == (
        State.COMPLETE_COMMIT, 8, 7, NO_ID, 0, _LAST,
    )  # fmt: skip
    worn.complete(done)
    # The client's repetition, with what it had.
    assert worn.end(7, _LAST, True, 2, _NOW) is None
    assert outcome(lambda: worn.end(7, _LAST, False, 2, _NOW)) is _STATE
    # An older client's id lasts on: nothing is bumped.
    older = transaction(State.ONGOING, _LAST).end(7, _LAST, True, 0, _NOW)
    assert older is not None
    assert older.epoch == _LAST


# ---- what the coordinator does by itself


def test_a_fence_raises_the_epoch_once() -> None:
    old = transaction(State.ONGOING)
    to = old.fence(0, _NOW)
    assert (to.state, to.epoch, to.last_epoch, to.client_version) == (State.PREPARE_ABORT, 6, -1, 0)
    # The record was not written: nobody has the epoch, and it is not raised again.
    assert outcome(lambda: old.add(7, 5, [("t", 0)], 0, _NOW)) is _FENCED
    old.failed_fence = True
    assert old.fence(0, _NOW).epoch == 6
    new = transaction(State.ONGOING)
    assert (new.fence(2, _NOW).epoch, new.epoch) == (6, 5)
    assert outcome(lambda: transaction(State.EMPTY).fence(2, _NOW)) is _CONCURRENT
    assert transaction(State.ONGOING, _LAST + 1).fence(0, _NOW).epoch == _LAST + 1


def test_age() -> None:
    ongoing = transaction(State.ONGOING, start_ms=_NOW - 60_000)
    assert (ongoing.is_timed_out(_NOW), ongoing.is_timed_out(_NOW + 1)) == (False, True)
    assert not transaction(State.ONGOING, start_ms=0, pending=State.PREPARE_ABORT).is_timed_out(_NOW)
    assert not transaction(State.PREPARE_ABORT, start_ms=0).is_timed_out(_NOW)
    assert not transaction(State.ONGOING, start_ms=0, timeout_ms=2**31 - 1).is_timed_out(_NOW)
    old = transaction(State.COMPLETE_ABORT, update_ms=_NOW - 1000)
    assert (old.is_expired(_NOW, 1000), old.is_expired(_NOW, 1001)) == (True, False)
    for state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert not transaction(state, update_ms=0).is_expired(_NOW, 1000)


# ---- records

_KEY = bytes.fromhex("0000000474782d31")
#: Values that Kafka 4.4.0 wrote.
_GOLDEN = [
    "0001000000000000000100000000ea600000000001a22a857701ffffffffffffffff0100080000000000000001",
    "0001000000000000000100000000ea60010306616c7068610200000000000667616d6d61020000000000000001a22a857746000001a22a857746"
    "0100080000000000000001",
    "0001000000000000000200000000ea6001020667616d6d61020000000000000001a22a86e6a4000001a22a86e6a4020008000000000000000202020002",
    "0001000000000000000200010000ea6002020667616d6d61020000000000000001a22a86e76d000001a22a86e6a4020008000000000000000202020002",
    "0001000000000000000200010000ea600401000001a22a86e771000001a22a86e6a4020008000000000000000202020002",
]


def _as_transition(found: Transaction) -> Transition:
    return Transition(
        found.state, found.producer_id, found.previous_producer_id, found.next_producer_id, found.epoch, found.last_epoch,
        found.timeout_ms, found.partitions, found.start_ms, found.update_ms, found.client_version,
    )  # fmt: skip


@pytest.mark.parametrize("value", _GOLDEN)
def test_records_are_kafkas(value: str) -> None:
    found = decode_record(_KEY, bytes.fromhex(value))
    assert found.transactional_id == "tx-1"
    key, again = encode_transition("tx-1", _as_transition(found), 2)
    assert (key, again.hex()) == (_KEY, value)
    # What a cluster without transaction.version writes has no tags.
    _, plain = encode_transition("tx-1", _as_transition(found), 0)
    old = decode_record(_KEY, plain)
    assert (plain[:2], old.state, old.epoch, sorted(old.partitions)) == (
        b"\0\0",
        found.state,
        found.epoch,
        sorted(found.partitions),
    )


def test_tombstones_and_what_is_not_known() -> None:
    assert encode_tombstone("tx-1") == (_KEY, None)
    assert what_is_unknown(_KEY, None) == what_is_unknown(_KEY, b"\0\1") == what_is_unknown(b"\0", b"\0") == ""
    assert what_is_unknown(b"\0\5\0\0", b"") == "type 5"
    assert what_is_unknown(_KEY, b"\0\x09anything") == "version 9"
    value = bytearray.fromhex(_GOLDEN[0])
    for damaged in (bytes(value[:-1]), bytes(value) + b"\0", bytes(value[:16]) + b"\x09" + bytes(value[17:]), b"\0"):
        with pytest.raises(MalformedError):
            decode_record(_KEY, damaged)
    with pytest.raises(MalformedError):
        # An open transaction has a list of partitions.
        decode_record(_KEY, bytes(value[:16]) + b"\1" + bytes(value[17:]))


_PARTITIONS = st.lists(
    st.tuples(st.sampled_from(["alpha", "gamma", "__consumer_offsets", "grüppe", "😀"]), st.integers(0, 60)),
    max_size=40,
)


@given(_PARTITIONS, _PARTITIONS)
def test_partitions_stay_a_set_in_the_order_of_javas(old: list[tuple[str, int]], added: list[tuple[str, int]]) -> None:
    first = ordered_union((), old)
    both = ordered_union(first, added)
    assert sorted(first) == sorted(set(old))
    assert sorted(both) == sorted({*old, *added})
    grouped = by_topic(both)
    assert sorted((topic, number) for topic, numbers in grouped.items() for number in numbers) == sorted(both)


@pytest.mark.parametrize(
    ("name", "partition"), [("classic-g", 36), ("new-g", 8), ("tx-1", 20), ("grüppe", 12), ("😀", 49)]
)
def test_the_partition_of_an_id_is_kafkas(name: str, partition: int) -> None:
    assert partition_of(name, 50) == partition


# ---- what always holds


class Clients(RuleBasedStateMachine):
    """Clients of both kinds, one of which is the rightful producer, and a coordinator whose records may not get written."""

    def __init__(self) -> None:
        super().__init__()
        self.tx = Transaction("tx", 1, 60_000, 0)
        self.now = 0
        self.next_id = 2
        #: Every (id, epoch) that a client was given, in order; the last one alone may do anything.
        self.given: list[tuple[int, int]] = []
        self.decided: list[tuple[tuple[tuple[str, int], ...], bool]] = []

    def _write(self, to: Transition | None, written: bool) -> bool:
        """Over the log, as it would be read again."""
        if to is None:
            return False
        self.now += 1
        if not written:
            return False
        before = self.tx.last_epoch
        loaded = decode_record(*encode_transition("tx", to, 2))
        self.tx.complete(to)
        loaded.last_epoch, loaded.failed_fence = self.tx.last_epoch, self.tx.failed_fence
        assert loaded == self.tx, before
        return True

    def _spare(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    @rule(written=st.booleans(), knows=st.booleans(), jump=st.booleans())
    def init(self, written: bool, knows: bool, jump: bool) -> None:
        if jump and self.tx.state.is_over and self.tx.epoch < _LAST - 2 and self.given:
            # So many transactions later.
            self.tx.epoch = _LAST - 2
            self.given.append((self.tx.producer_id, self.tx.epoch))
        expected = self.given[-1] if knows and self.given else None
        try:
            to = self.tx.initialize(60_000, self.now, expected, self._spare())
        except TransactionError as error:
            assert (
                error.code is _CONCURRENT or self.tx.failed_fence or (expected != (self.tx.producer_id, self.tx.epoch))
            )
            return
        if to is None:
            return
        if self._write(to, written):
            self.given.append((to.producer_id, to.epoch))

    @precondition(lambda self: self.given)
    @rule(number=st.integers(0, 5), newer=st.booleans(), written=st.booleans(), data=st.data())
    def add(self, number: int, newer: bool, written: bool, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(self.given))
        try:
            to = self.tx.add(*who, [("t", number)], 2 if newer else 0, self.now)
        except TransactionError:
            return
        assert who == (self.tx.producer_id, self.tx.epoch)
        self._write(to, written)

    @precondition(lambda self: self.given)
    @rule(commit=st.booleans(), newer=st.booleans(), written=st.booleans(), data=st.data())
    def end(self, commit: bool, newer: bool, written: bool, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(self.given))
        before = self.tx.partitions
        try:
            to = self.tx.end(*who, commit, 2 if newer else 0, self.now, self._spare())
        except TransactionError:
            return
        if to is None:
            # A repetition, which is told what came of it.
            assert self.decided[-1][1] is commit
            return
        assert who == (self.tx.producer_id, self.tx.epoch)
        if self._write(to, written):
            self.decided.append((before, commit))
            if newer:
                following = (to.producer_id, to.epoch) if to.next_producer_id == NO_ID else (to.next_producer_id, 0)
                self.given.append(following)

    @precondition(lambda self: self.tx.state is State.ONGOING)
    @rule(server=st.sampled_from([0, 2]), written=st.booleans())
    def time_out(self, server: int, written: bool) -> None:
        before = self.tx.partitions
        if self._write(self.tx.fence(server, self.now, self._spare()), written):
            self.decided.append((before, False))
        elif server < 2:
            self.tx.failed_fence = True

    @precondition(lambda self: self.tx.state.is_prepared)
    @rule(written=st.booleans())
    def mark(self, written: bool) -> None:
        if self.tx.partitions:
            self.tx.marked(self.tx.partitions[:1])
        else:
            self._write(self.tx.finish(self.now), written)

    @invariant()
    def nobody_has_an_epoch_of_the_future(self) -> None:
        for producer_id, epoch in self.given:
            assert (producer_id, epoch) <= (self.tx.producer_id, self.tx.epoch) or (producer_id, epoch) == (
                self.tx.next_producer_id,
                0,
            )
        assert self.tx.epoch <= _LAST + 1

    @invariant()
    def epochs_given_only_rise(self) -> None:
        assert all(one <= other for one, other in zip(self.given, self.given[1:], strict=False))

    @invariant()
    def only_open_transactions_have_partitions(self) -> None:
        assert not self.tx.partitions or self.tx.state is State.ONGOING or self.tx.state.is_prepared


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


_OPENED = Opened(("t", 0), 7, 3)


def _known(state: State, epoch: int, *partitions: tuple[str, int], pending: State | None = None) -> Transaction:
    return Transaction("x", 7, 1000, 0, epoch=epoch, state=state, partitions=partitions, pending=pending)


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        (_known(State.ONGOING, 3, ("t", 0)), Verdict.GOES_ON),
        (_known(State.ONGOING, 3, ("t", 1)), Verdict.ADOPT),
        (_known(State.ONGOING, 3, ("t", 1), pending=State.ONGOING), Verdict.LATER),
        (_known(State.ONGOING, 2, ("t", 0)), Verdict.ADOPT),
        (_known(State.ONGOING, 4, ("t", 0)), Verdict.UNKNOWN),
        (_known(State.EMPTY, 3), Verdict.ADOPT),
        (_known(State.COMPLETE_COMMIT, 3), Verdict.ADOPT),
        (_known(State.COMPLETE_COMMIT, 4), Verdict.UNKNOWN),
        (_known(State.PREPARE_COMMIT, 3, ("t", 0), pending=State.COMPLETE_COMMIT), Verdict.LATER),
        (_known(State.PREPARE_COMMIT, 4, ("t", 0), pending=State.COMPLETE_COMMIT), Verdict.LATER),
        (_known(State.PREPARE_ABORT, 5, ("t", 0), pending=State.COMPLETE_ABORT), Verdict.UNKNOWN),
    ],
)
def test_what_is_open_since_the_load(known: Transaction, verdict: Verdict) -> None:
    assert verdict_on(known, _OPENED) is verdict


@pytest.mark.parametrize(("epoch", "goes_on_as"), [(3, 3), (5, 5), (1, 3)])
def test_a_lost_record_is_made_again(epoch: int, goes_on_as: int) -> None:
    known = _known(State.ONGOING, 3, ("t", 0))
    known.complete(known.adopt(epoch, [("u", 1)], 50))
    assert (known.state, known.epoch, set(known.partitions)) == (State.ONGOING, goes_on_as, {("t", 0), ("u", 1)})


def test_a_state_that_may_be_behind_gets_a_fresh_producer_id() -> None:
    known = _known(State.EMPTY, 3)
    known.may_be_behind = True
    with pytest.raises(ProducerIdNeeded):
        known.initialize(1000, 50)
    to = known.initialize(1000, 50, spare_id=9)
    assert to is not None
    known.complete(to)
    assert (known.producer_id, known.epoch, known.may_be_behind) == (9, 0, False)
