"""Producer ids that nobody else gets, taken from the catalogue in blocks (RPCProducerIdManager)."""

from __future__ import annotations

import asyncio

from compactd.config.errors import CompactdError
from compactd.workers.broker.context import Context
from compactd.workers.catalogue_messages import AllocateProducerIds, ProducerIdBlock


class NoProducerIdsError(CompactdError):
    """No producer id was to be had: {detail}."""


class ProducerIds:
    """`context.part(ProducerIds)`."""

    def __init__(self, context: Context) -> None:
        self._catalogue = context.catalogue
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """CompactdError, TimeoutError: no block was to be had."""
        async with self._lock:
            if self._next == self._end:
                block = await self._catalogue.change("allocate_producer_ids", AllocateProducerIds(), ProducerIdBlock)
                if block.error:
                    raise NoProducerIdsError(detail=block.message or "the catalogue gave none")
                self._next, self._end = block.first, block.first + block.count
            self._next += 1
            return self._next - 1
