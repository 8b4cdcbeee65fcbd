"""InitProducerId v0 to v5: ids for idempotent producers (facts: kafka-protocol 15.3)."""

from __future__ import annotations

import asyncio
from typing import Any

from compactd.config.errors import CompactdError
from compactd.workers.broker.api_keys import INIT_PRODUCER_ID
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.catalogue_messages import AllocateProducerIds, ProducerIdBlock


class ProducerIds:
    """Ids that nobody else gets, taken from the catalogue in blocks."""

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


class NoProducerIdsError(CompactdError):
    """No producer id was to be had: {detail}."""


@handles(INIT_PRODUCER_ID, 0, 5)
async def init_producer_id(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Without a transactional id: a new id with epoch 0, whatever the producer had before."""
    producer_id, epoch = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    if (producer_id == -1) != (epoch == -1) or request.transactional_id == "":
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        # FindCoordinator has told it so already.
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    try:
        return {
            "error_code": ErrorCode.NONE,
            "producer_id": await context.part(ProducerIds).next(),
            "producer_epoch": 0,
        }
    except NoProducerIdsError:
        return _refused(ErrorCode.UNKNOWN_SERVER_ERROR)
    except (CompactdError, TimeoutError):
        # As Kafka, while it has no block yet: producers ask again.
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _refused(error: ErrorCode) -> dict[str, Any]:
    return {"error_code": error, "producer_id": -1, "producer_epoch": -1}
