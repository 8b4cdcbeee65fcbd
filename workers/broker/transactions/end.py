"""EndTxn v0 to v5: a transaction is committed or aborted (facts: kafka-protocol 15.2)."""

from __future__ import annotations

from typing import Any

from compactd.workers.broker.api_keys import END_TXN
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.transactions.coordinator import TransactionCoordinator
from compactd.workers.broker.transactions.transaction import NO_PRODUCER, Producer, TransactionError

#: Before this version PRODUCER_FENCED is not known; from the other on the epoch is raised with each transaction.
_KNOWS_FENCED, _BUMPS_EPOCH = 2, 5


@handles(END_TXN, 0, 5)
async def end_transaction(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """From v5 on the answer has what the producer goes on with."""
    if not context.part(Authorizer).allows(
        header, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id
    ):
        return _answer(header, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        following = await context.part(TransactionCoordinator).end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            request.committed,
            2 if header.version >= _BUMPS_EPOCH else 0,
        )
    except TransactionError as error:
        if header.version < _KNOWS_FENCED and error.code is ErrorCode.PRODUCER_FENCED:
            return _answer(header, ErrorCode.INVALID_PRODUCER_EPOCH)
        return _answer(header, error.code)
    return _answer(header, ErrorCode.NONE, following)


def _answer(header: RequestHeader, error: ErrorCode, producer: Producer = NO_PRODUCER) -> dict[str, Any]:
    if header.version < _BUMPS_EPOCH:
        return {"error_code": error}
    return {"error_code": error, "producer_id": producer.producer_id, "producer_epoch": producer.epoch}
