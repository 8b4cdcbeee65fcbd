"""InitProducerId v0 to v5: ids for idempotent and for transactional producers (facts: kafka-protocol 15.3)."""

from __future__ import annotations

from typing import Any

from compactd.config.errors import CompactdError
from compactd.workers.broker.api_keys import INIT_PRODUCER_ID
from compactd.workers.broker.context import Context
from compactd.workers.broker.decoding import milliseconds
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.transactions.coordinator import TransactionCoordinator
from compactd.workers.broker.transactions.producer_ids import NoProducerIdsError, ProducerIds
from compactd.workers.broker.transactions.transaction import NO_PRODUCER, Producer, TransactionError

#: Before this version PRODUCER_FENCED is not known.
_KNOWS_FENCED = 4


@handles(INIT_PRODUCER_ID, 0, 5)
async def init_producer_id(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Without a transactional id: a new id with epoch 0, whatever the producer had before."""
    refused = _refused_by_acl(context, header, request)
    if refused:
        return _answer(refused)
    had = Producer(getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1))
    if (had.producer_id == -1) != (had.epoch == -1) or request.transactional_id == "":
        return _answer(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return await _idempotent(context)
    try:
        producer = await context.part(TransactionCoordinator).initialize(
            request.transactional_id, milliseconds(request.transaction_timeout), None if had == NO_PRODUCER else had
        )
    except TransactionError as error:
        if header.version < _KNOWS_FENCED and error.code is ErrorCode.PRODUCER_FENCED:
            return _answer(ErrorCode.INVALID_PRODUCER_EPOCH)
        return _answer(error.code)
    return _answer(ErrorCode.NONE, producer)


def _refused_by_acl(context: Context, header: RequestHeader, request: Any) -> ErrorCode:
    authorizer = context.part(Authorizer)
    if request.transactional_id is not None:
        allowed = authorizer.allows(header, Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id)
        return ErrorCode.NONE if allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    allowed = authorizer.allows(header, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, log=False)
    if allowed or authorizer.allows_some(header, Operation.WRITE, Resource.TOPIC):
        return ErrorCode.NONE
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def _idempotent(context: Context) -> dict[str, Any]:
    try:
        return _answer(ErrorCode.NONE, Producer(await context.part(ProducerIds).next(), 0))
    except NoProducerIdsError:
        return _answer(ErrorCode.UNKNOWN_SERVER_ERROR)
    except (CompactdError, TimeoutError):
        # As Kafka, while it has no block yet: producers ask again.
        return _answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _answer(error: ErrorCode, producer: Producer = NO_PRODUCER) -> dict[str, Any]:
    return {"error_code": error, "producer_id": producer.producer_id, "producer_epoch": producer.epoch}
