"""Transactions that a partition had open when it was loaded, as long as it is not clear who ends them (see `hanging`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compactd.workers.broker.context import Context
from compactd.workers.broker.partition import Partition
from compactd.workers.broker.replaying import replayed
from compactd.workers.broker.transactions.transaction import TopicPartitionKey

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """One of them, with the epoch of its last batch."""

    partition: Partition
    producer_id: int
    epoch: int
    first_offset: int

    @property
    def key(self) -> TopicPartitionKey:
        topic_partition = self.partition.topic_partition
        return topic_partition.topic, topic_partition.partition

    @property
    def is_there(self) -> bool:
        """Nobody has ended it yet, or gone on with it under a newer epoch."""
        entry = self.partition.log.producers.get(self.producer_id)
        return (
            not self.partition.error
            and entry is not None
            and entry.current_txn_first_offset == self.first_offset
            and entry.producer_epoch == self.epoch
        )

    def is_behind_marker(self, since_ms: int) -> bool:
        """A marker of the same epoch lies in front of it that is not older than this: it is of a later transaction.

        Blocks. Markers have the broker's own time. StorageIOError, CorruptBatchError.
        """
        log = self.partition.log
        found = log.offset_for_timestamp(since_ms)
        if found is None:
            return False
        for _, batch in replayed(log, _CHUNK, found.offset):
            header = batch.header
            if header.base_offset >= self.first_offset:
                return False
            if (
                header.is_control
                and (header.producer_id, header.producer_epoch) == (self.producer_id, self.epoch)
                and header.max_timestamp >= since_ms
            ):
                return True
        return False


class OpenAtLoad:
    """`context.part(OpenAtLoad)`."""

    def __init__(self, context: Context) -> None:
        self._open: dict[tuple[TopicPartitionKey, int], OpenTransaction] = {}
        #: Called when there are more.
        self.on_found: Callable[[], object] = lambda: None
        context.partitions.on_ready.append(self._ready)
        for partition in context.partitions:
            self._ready(partition)

    def __iter__(self) -> Iterator[OpenTransaction]:
        """Those that are still there; the others are forgotten."""
        self._open = {name: each for name, each in self._open.items() if each.is_there}
        return iter(list(self._open.values()))

    def find(self, key: TopicPartitionKey, producer_id: int) -> OpenTransaction | None:
        """What a producer had open in a partition, and has still."""
        found = self._open.get((key, producer_id))
        return found if found is not None and found.is_there else None

    def settled(self, found: OpenTransaction) -> None:
        """It is clear who ends it."""
        if self._open.get((found.key, found.producer_id)) is found:
            del self._open[found.key, found.producer_id]

    def _ready(self, partition: Partition) -> None:
        producers = partition.log.producers
        for first_offset, producer_id in producers.ongoing_txns.items():
            entry = producers.get(producer_id)
            if entry is not None:
                found = OpenTransaction(partition, producer_id, entry.producer_epoch, first_offset)
                self._open[found.key, producer_id] = found
        if self._open:
            self.on_found()
