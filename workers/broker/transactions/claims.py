"""What becomes of a transaction that a partition has open since it was loaded: the coordinator's view of it. Pure.

Mostly it goes on. But after a power cut a log may have less than another one: the record that tells of a partition may be
gone while its data is there, or the marker while the record of the transaction's end is there. Kafka leaves such a
transaction open until somebody ends it by hand (KIP-664), or lets the producer's next commit have its records seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

from compactd.workers.broker.transactions.transaction import State, TopicPartitionKey, Transaction


class Verdict(IntEnum):
    """What is to be done about an open transaction."""

    #: No record here tells of it.
    UNKNOWN = 0
    #: Nothing: its coordinator knows that it is there.
    GOES_ON = 1
    #: Ask again: something is being done about it.
    LATER = 2
    #: A marker is to be written.
    COMMIT = 3
    ABORT = 4
    #: The coordinator has to take it in: its own record of it is lost. Not told to others, who hear LATER.
    ADOPT = 5


class Opened(msgspec.Struct, frozen=True):
    """A transaction that is open in a partition, and the epoch of its last batch there."""

    key: TopicPartitionKey
    producer_id: int
    epoch: int


class AskedClaims(msgspec.Struct, frozen=True):
    """Of a coordinator."""

    opened: tuple[Opened, ...]


class Claims(msgspec.Struct, frozen=True):
    """Its answer, in the same order."""

    verdicts: tuple[Verdict, ...]
    #: Every partition of `__transaction_state` of that broker is loaded, and all of it was understood.
    complete: bool


def verdict_on(transaction: Transaction, opened: Opened) -> Verdict:
    """What the coordinator of the producer's id makes of it; UNKNOWN: it is of a transaction before the last one.

    Only a newer client's epochs (KIP-890) tell one transaction from the next. Of an older one's, whatever is not listed as
    open is aborted, which shows nobody what was not committed.
    """
    if transaction.state.is_prepared:
        if opened.epoch >= transaction.epoch - 1:
            return Verdict.LATER
    elif transaction.pending is not None:
        return Verdict.LATER
    if opened.epoch > transaction.epoch:
        return Verdict.ADOPT
    if opened.epoch == transaction.epoch:
        is_listed = transaction.state is State.ONGOING and opened.key in transaction.partitions
        return Verdict.GOES_ON if is_listed else Verdict.ADOPT
    return Verdict.UNKNOWN


def by_producer(opened: Sequence[Opened]) -> dict[int, list[Opened]]:
    """Grouped."""
    grouped: dict[int, list[Opened]] = {}
    for each in opened:
        grouped.setdefault(each.producer_id, []).append(each)
    return grouped
