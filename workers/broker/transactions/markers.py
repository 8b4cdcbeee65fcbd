"""Writes the markers that end a transaction: here, and through its peers on what other brokers own (facts: kafka-protocol 15.6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Literal

import msgspec

from compactd.config.errors import CompactdError
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode, error_of
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.records import OFFSETS_TOPIC
from compactd.workers.broker.partition import Partition
from compactd.workers.broker.peers import PeerError, Peers
from compactd.workers.broker.transactions.open_at_load import OpenAtLoad, OpenTransaction
from compactd.workers.broker.transactions.partition_errors import PartitionErrors
from compactd.workers.broker.transactions.transaction import EPOCH_BUMPS, TopicPartitionKey
from compactd.workers.broker.turns import in_turns

_LOGGER = logging.getLogger(__name__)

_OPERATION = "transaction_markers"


class Marker(msgspec.Struct, frozen=True):
    """How a transaction of a producer ended, and where that is to be noted."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    #: 2: the epoch was raised for the marker, one that is not newer than the data is of another transaction (KIP-1228).
    transaction_version: int
    partitions: tuple[TopicPartitionKey, ...]
    #: When the transaction's coordinator decided it, ms; -1: somebody else ends it.
    decided_ms: int = -1


class MarkerWriter:
    """`context.part(MarkerWriter)`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open = context.part(OpenAtLoad)
        context.part(Peers).serve(_OPERATION, Marker, self._asked)

    async def write(self, marker: Marker) -> dict[TopicPartitionKey, ErrorCode]:
        """Each partition's error: 0 written, 3 there is no such partition, 6 and 56 try again, 47 and 52 never."""
        image, ours = self._context.image, self._context.worker
        errors: dict[TopicPartitionKey, ErrorCode] = {}
        here: list[TopicPartitionKey] = []
        elsewhere: dict[int, list[TopicPartitionKey]] = {}
        for key in marker.partitions:
            known = image.partition(*key)
            if known is None:
                errors[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif known.worker == ours:
                here.append(key)
            else:
                elsewhere.setdefault(known.worker, []).append(key)
        asked = [self._ask(worker, marker, keys) for worker, keys in elsewhere.items()]
        for found in await asyncio.gather(self.write_here(marker, here), *asked):
            errors.update(found)
        return errors

    async def write_here(self, marker: Marker, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, ErrorCode]:
        """As `write`, for partitions of this broker."""
        return {key: await self._write_one(marker, key) async for key in in_turns(keys)}

    async def _write_one(self, marker: Marker, key: TopicPartitionKey) -> ErrorCode:
        partition = self._context.partitions.get(*key)
        if partition is None:
            # It is about to be loaded, or about to go.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition.error:
            return partition.error
        kind: Literal["commit", "abort"] = "commit" if marker.commit else "abort"
        try:
            if (found := self._open.find(key, marker.producer_id)) is not None and marker.decided_ms >= 0:
                if marker.transaction_version >= EPOCH_BUMPS and found.epoch + 1 < marker.producer_epoch:
                    # It is of a transaction before: not this one's to decide.
                    return ErrorCode.NOT_LEADER_OR_FOLLOWER
                if marker.transaction_version < EPOCH_BUMPS and await self._is_written(found, marker):
                    return ErrorCode.NONE
            await partition.append_marker(
                kind,
                marker.producer_id,
                marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
        except CompactdError as error:
            return error_of(error)
        if key[0] == OFFSETS_TOPIC:
            await self._tell_groups(partition, marker)
        return ErrorCode.NONE

    async def _is_written(self, found: OpenTransaction, marker: Marker) -> bool:
        """Of an older client: the marker is there, and what is open is the next transaction, of which no record is left."""
        if found.epoch != marker.producer_epoch:
            return False
        return await self._context.in_thread(lambda: found.is_behind_marker(marker.decided_ms))

    async def _tell_groups(self, partition: Partition, marker: Marker) -> None:
        """What the transaction committed for groups counts from now on, or never."""
        number = partition.topic_partition.partition
        await self._context.part(GroupCoordinator).transaction_marker(number, marker.producer_id, marker.commit)

    async def _ask(
        self, worker: int, marker: Marker, keys: list[TopicPartitionKey]
    ) -> dict[TopicPartitionKey, ErrorCode]:
        asked = msgspec.structs.replace(marker, partitions=tuple(keys))
        try:
            results = await self._context.part(Peers).ask(worker, _OPERATION, asked, PartitionErrors)
        except PeerError as error:
            _LOGGER.info("markers of producer %d: %s", marker.producer_id, error)
            return dict.fromkeys(keys, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return results.by_partition()

    async def _asked(self, marker: Marker) -> PartitionErrors:
        return PartitionErrors.of(await self.write_here(marker, marker.partitions))
