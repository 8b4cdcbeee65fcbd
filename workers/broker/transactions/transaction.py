"""One transactional id: its state, and what requests make of it (TransactionMetadata, TransactionCoordinator; KIP-98, 360, 890).

Pure: nothing here reads a clock or writes a log. A function that plans returns a `Transition`, which counts only once its
record is in the log: `pending` is set from then until `complete` or `give_up`, and nothing else may be planned meanwhile.
Facts: kafka-protocol 15.2 has the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.transactions.java_order import ordered_union

NO_ID = -1
NO_EPOCH = -1
_LARGEST_EPOCH = 32767
#: Epochs from here on are never given to a client, so that there is always one left to fence it with.
_EXHAUSTED = _LARGEST_EPOCH - 1
#: Clients of this transaction.version and above get a new epoch with each transaction (KIP-890).
EPOCH_BUMPS = 2
#: A transaction of this timeout (two-phase commit) is never aborted for its age.
_NO_TIMEOUT_MS = 2**31 - 1

#: (topic, partition)
TopicPartitionKey = tuple[str, int]


class Producer(NamedTuple):
    """What a client may go on with."""

    producer_id: int
    epoch: int


NO_PRODUCER = Producer(NO_ID, NO_EPOCH)


class State(IntEnum):
    """Kafka's TransactionState; the number is that of the log's record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    #: About to be forgotten; never in the log.
    DEAD = 6
    #: Kept for filters: it is a name of Kafka's, of a state that no client sees here.
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """As Kafka's tools print it."""
        return _TITLES[self]

    @property
    def is_over(self) -> bool:
        """No transaction is open: the id may be forgotten when it gets old."""
        return self in _OVER

    @property
    def is_prepared(self) -> bool:
        """Decided, its markers not all written yet."""
        return self in _PREPARED


_TITLES = {state: "".join(part.capitalize() for part in state.name.split("_")) for state in State}
_OVER = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
_PREPARED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})

STATES_BY_TITLE = {title: state for state, title in _TITLES.items()}


class TransactionError(Exception):
    """A request about a transaction is refused."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class ProducerIdNeeded(Exception):  # noqa: N818 - not an error: ask again with one
    """The epochs of the producer id are used up: plan again with a fresh id as `spare_id`."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What a transactional id is about to be: the content of the record. Times of day in ms, -1 for none."""

    state: State
    producer_id: int
    #: The id before this record, which mostly is the same.
    previous_producer_id: int
    #: The id that follows with the end of this transaction; NO_ID: the same.
    next_producer_id: int
    epoch: int
    last_epoch: int
    timeout_ms: int
    #: In the order in which Kafka's hash maps would list them.
    partitions: tuple[TopicPartitionKey, ...]
    start_ms: int
    update_ms: int
    #: transaction.version of the client that brought it about.
    client_version: int


@dataclass(slots=True)
class Transaction:
    """The state of one transactional id. Changed by `complete` only, but for what is noted at each field."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    update_ms: int
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    epoch: int = NO_EPOCH
    #: The epoch before, for a client that repeats InitProducerId. Not in the log.
    last_epoch: int = NO_EPOCH
    state: State = State.EMPTY
    #: Of the open transaction; while it is prepared those whose marker is not written yet (`marked`).
    partitions: tuple[TopicPartitionKey, ...] = ()
    start_ms: int = -1
    client_version: int = 0
    #: A record with this state is being written. Set by whoever writes it.
    pending: State | None = None
    #: A record that was to fence the producer could not be written: its epoch is raised already, nobody has it.
    failed_fence: bool = False
    #: Read from a log whose end may be lost: partitions may know larger epochs of this producer, with sequences that must
    #: not be taken for those of another.
    may_be_behind: bool = field(default=False, compare=False)

    # ---- planning

    def initialize(
        self, timeout_ms: int, now_ms: int, expected: tuple[int, int] | None = None, spare_id: int | None = None
    ) -> Transition | None:
        """InitProducerId of a client; `expected`: the (id, epoch) that it says it has.

        None: a transaction is open, which has to be aborted (`fence`) before the client may go on. Raises
        TransactionError, ProducerIdNeeded.
        """
        self._check_pending()
        if expected is not None and not self._knows(*expected):
            raise TransactionError(ErrorCode.PRODUCER_FENCED)
        if self.state.is_prepared:
            raise TransactionError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if self.state is State.ONGOING:
            return None
        if (self._is_exhausted or self.may_be_behind) and (expected is None or expected[1] == self.epoch):
            if spare_id is None:
                raise ProducerIdNeeded
            last = NO_EPOCH if expected is None else self.epoch
            return self._to(State.EMPTY, now_ms, producer_id=spare_id, epoch=0, last_epoch=last, timeout_ms=timeout_ms)
        if expected is None:
            epoch, last = self.epoch + 1, NO_EPOCH
        elif self.epoch == NO_EPOCH or expected[1] == self.epoch:
            epoch, last = self.epoch + 1, self.epoch
        elif expected[1] == self.last_epoch:
            # The same request again: its first answer was lost.
            epoch, last = self.epoch, self.last_epoch
        else:
            raise TransactionError(ErrorCode.PRODUCER_FENCED)
        return self._to(State.EMPTY, now_ms, epoch=epoch, last_epoch=last, timeout_ms=timeout_ms)

    def add(
        self, producer_id: int, epoch: int, partitions: Iterable[TopicPartitionKey], client_version: int, now_ms: int
    ) -> Transition | None:
        """Partitions join the transaction, which begins with the first. None: all are in it. Raises TransactionError."""
        # First of all: with an id that rotates the producer may know the new one while that is only pending.
        self._check_pending()
        self._check_producer(producer_id, epoch)
        if self.state.is_prepared:
            raise TransactionError(ErrorCode.CONCURRENT_TRANSACTIONS)
        added = tuple(partitions)
        if self.state is State.ONGOING and set(added) <= set(self.partitions):
            return None
        return self._to(
            State.ONGOING,
            now_ms,
            partitions=ordered_union(self.partitions, added),
            start_ms=self.start_ms if self.state is State.ONGOING else now_ms,
            client_version=client_version,
        )

    def adopt(self, epoch: int, partitions: Iterable[TopicPartitionKey], now_ms: int) -> Transition:
        """Partitions that have a transaction of this producer open join it, though the log has no record of that (any more).

        Afterwards it is to be fenced, unless it is the open one: the producer may believe in what is lost. TransactionError.
        """
        self._check_pending()
        is_open = self.state is State.ONGOING
        return self._to(
            State.ONGOING,
            now_ms,
            epoch=max(self.epoch, epoch),
            partitions=ordered_union(self.partitions if is_open else (), partitions),
            start_ms=self.start_ms if is_open else now_ms,
        )

    def verify(self, producer_id: int, epoch: int) -> frozenset[TopicPartitionKey]:
        """The partitions that the producer may write to. Raises TransactionError.

        A record that is pending does not matter: the log has the last word when the data is appended.
        """
        self._check_producer(producer_id, epoch)
        if self.state.is_prepared:
            raise TransactionError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return frozenset(self.partitions)

    def end(
        self,
        producer_id: int,
        epoch: int,
        commit: bool,
        client_version: int,
        now_ms: int,
        spare_id: int | None = None,
    ) -> Transition | None:
        """EndTxn of a client. None: this very transaction has ended so already. Raises TransactionError, ProducerIdNeeded."""
        if client_version >= EPOCH_BUMPS:
            return self._end_with_bump(producer_id, epoch, commit, client_version, now_ms, spare_id)
        self._check_producer(producer_id, epoch)
        self._check_pending()
        if self.state is State.ONGOING:
            return self._prepared(commit, 0, now_ms, None)
        if self.state.is_prepared and commit == (self.state is State.PREPARE_COMMIT):
            raise TransactionError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if self.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT):
            return None
        raise TransactionError(ErrorCode.INVALID_TXN_STATE)

    def _end_with_bump(
        self, producer_id: int, epoch: int, commit: bool, client_version: int, now_ms: int, spare_id: int | None
    ) -> Transition | None:
        """The same epoch means the next transaction here, so a repetition is told by the epoch before."""
        self._check_pending()
        overflowed = self.previous_producer_id == producer_id and epoch == _EXHAUSTED and self.epoch == 0
        bumped = self.epoch == epoch + 1
        if self.producer_id != producer_id and not overflowed:
            raise TransactionError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if self.state.is_prepared:
            is_known = bumped
        else:
            is_known = epoch == self.epoch or (
                self.state is not State.EMPTY and self.state.is_over and (bumped or overflowed)
            )
        if not is_known:
            raise TransactionError(ErrorCode.PRODUCER_FENCED)
        if self.state is State.ONGOING:
            return self._prepared(commit, client_version, now_ms, spare_id)
        if self.state.is_prepared:
            same = commit == (self.state is State.PREPARE_COMMIT)
            raise TransactionError(ErrorCode.CONCURRENT_TRANSACTIONS if same else ErrorCode.INVALID_TXN_STATE)
        if self.state is not State.EMPTY and (bumped or overflowed):
            if commit == (self.state is State.COMPLETE_COMMIT):
                return None
        elif not commit:
            # Nothing was added yet, so there is nothing to undo, but the epoch.
            return self._prepared(False, client_version, now_ms, spare_id, start_ms=now_ms)
        raise TransactionError(ErrorCode.INVALID_TXN_STATE)

    def fence(self, server_version: int, now_ms: int, spare_id: int | None = None) -> Transition:
        """Aborts the open transaction without its producer, which is locked out by a new epoch that nobody gets.

        With `server_version` below 2 the epoch is raised at once. Raises TransactionError, ProducerIdNeeded.
        """
        self._check_pending()
        if self.state is not State.ONGOING:
            raise TransactionError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if server_version >= EPOCH_BUMPS:
            return self._prepared(False, server_version, now_ms, spare_id)
        if not self.failed_fence and self.epoch < _LARGEST_EPOCH:
            self.epoch += 1
        self.last_epoch = NO_EPOCH
        return self._prepared(False, 0, now_ms, None)

    def finish(self, now_ms: int) -> Transition:
        """All markers are written."""
        self.failed_fence = False
        rotates = self.client_version >= EPOCH_BUMPS and self.next_producer_id != NO_ID
        return self._to(
            State.COMPLETE_COMMIT if self.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
            now_ms,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            epoch=0 if rotates else self.epoch,
            last_epoch=self.last_epoch,
            start_ms=self.start_ms,
        )

    # ---- what comes of it

    def complete(self, to: Transition) -> None:
        """The record is in the log."""
        self.state = to.state
        self.may_be_behind &= to.producer_id == self.producer_id
        self.producer_id, self.previous_producer_id = to.producer_id, to.previous_producer_id
        self.next_producer_id = to.next_producer_id
        self.epoch, self.last_epoch = to.epoch, to.last_epoch
        self.timeout_ms, self.partitions = to.timeout_ms, to.partitions
        self.start_ms, self.update_ms = to.start_ms, to.update_ms
        self.client_version = to.client_version
        self.pending = None

    def marked(self, partitions: Iterable[TopicPartitionKey]) -> None:
        """Their markers are written, or not needed."""
        gone = set(partitions)
        self.partitions = tuple(each for each in self.partitions if each not in gone)

    def is_timed_out(self, now_ms: int) -> bool:
        """The open transaction is older than its client allowed."""
        is_open = self.state is State.ONGOING and self.pending is None and self.timeout_ms != _NO_TIMEOUT_MS
        return is_open and self.start_ms + self.timeout_ms < now_ms

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Nobody has used the id for so long that it is forgotten."""
        return self.pending is None and self.state.is_over and self.update_ms <= now_ms - expiration_ms

    # ---- inside

    @property
    def _is_exhausted(self) -> bool:
        return self.epoch >= _EXHAUSTED

    def _knows(self, producer_id: int, epoch: int) -> bool:
        """A producer id that the client may have: this one, or the one before it whose epochs were used up."""
        if self.epoch == NO_EPOCH or producer_id == self.producer_id:
            return True
        return producer_id == self.previous_producer_id and epoch >= _EXHAUSTED

    def _check_pending(self) -> None:
        if self.pending is not None:
            raise TransactionError(ErrorCode.CONCURRENT_TRANSACTIONS)

    def _check_producer(self, producer_id: int, epoch: int) -> None:
        if self.producer_id != producer_id:
            raise TransactionError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if self.epoch != epoch:
            raise TransactionError(ErrorCode.PRODUCER_FENCED)

    def _prepared(
        self, commit: bool, client_version: int, now_ms: int, spare_id: int | None, start_ms: int | None = None
    ) -> Transition:
        state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        epoch, last, next_id = self.epoch, self.last_epoch, NO_ID
        if client_version >= EPOCH_BUMPS:
            if self._is_exhausted:
                if spare_id is None:
                    raise ProducerIdNeeded
                next_id = spare_id
            last = self.epoch
            # An epoch that is the largest of all should not be; the abort goes through nevertheless, and mends it.
            epoch = min(self.epoch + 1, _LARGEST_EPOCH)
        return self._to(
            state,
            now_ms,
            epoch=epoch,
            last_epoch=last,
            next_producer_id=next_id,
            partitions=self.partitions,
            start_ms=self.start_ms if start_ms is None else start_ms,
            client_version=client_version,
        )

    def _to(
        self,
        state: State,
        now_ms: int,
        *,
        producer_id: int | None = None,
        epoch: int | None = None,
        last_epoch: int | None = None,
        next_producer_id: int = NO_ID,
        timeout_ms: int | None = None,
        partitions: tuple[TopicPartitionKey, ...] = (),
        start_ms: int = -1,
        client_version: int | None = None,
    ) -> Transition:
        return Transition(
            state,
            self.producer_id if producer_id is None else producer_id,
            self.producer_id,
            next_producer_id,
            self.epoch if epoch is None else epoch,
            self.last_epoch if last_epoch is None else last_epoch,
            self.timeout_ms if timeout_ms is None else timeout_ms,
            partitions,
            start_ms,
            now_ms,
            self.client_version if client_version is None else client_version,
        )
