"""DescribeClientQuotas and AlterClientQuotas (KIP-546; facts: kafka-protocol 17)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from compactd.workers.broker.api_keys import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from compactd.workers.broker.asking import Unanswered, ask_catalogue
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.quotas.connections import address_of, literal_address
from compactd.workers.broker.quotas.limits import CLIENT_ID, IP, USER
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.catalogue_update import ClientQuota
from compactd.workers.quota_messages import AlterClientQuotas, EntityChange, QuotaChange, QuotaResult, QuotaResults

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
_TYPES = (USER, CLIENT_ID, IP)
#: Names of one request that a name server is asked for.
_MOST_LOOKED_UP = 100
_NOT_ALLOWED = "Cluster authorization failed."


class _RefusedError(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# ---- describing


@handles(DESCRIBE_CLIENT_QUOTAS, 0, 1)
async def describe_client_quotas(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """The quotas of all entities that fit the filter."""
    if not context.part(Authorizer).allows(header, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER):
        return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "error_message": None, "entries": None}
    try:
        wanted = _filter(request.components)
    except _RefusedError as refusal:
        return {"error_code": refusal.code, "error_message": refusal.message, "entries": None}
    return {
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "entries": [_described(quota) for quota in context.image.quotas if _fits(quota, wanted, request.strict)],
    }


class _Any:
    """Matches every name, the default too."""


def _filter(components: Any) -> Mapping[str, str | type[_Any] | None]:
    """Type to the name that it has to have. Raises _RefusedError as Kafka's ClientQuotasImage.describe does."""
    wanted: dict[str, str | type[_Any] | None] = {}
    for each in components:
        kind = each.entity_type
        if not kind:
            raise _RefusedError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in wanted:
            text = f"Entity type {kind} cannot appear more than once in the filter."
            raise _RefusedError(ErrorCode.INVALID_REQUEST, text)
        if kind not in _TYPES:
            raise _RefusedError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if each.match_type not in (_EXACT, _DEFAULT, _SPECIFIED):
            raise _RefusedError(ErrorCode.INVALID_REQUEST, f"Unknown match type {each.match_type}")
        if each.match_type == _EXACT and each.match is None:
            text = "Request specified MATCH_TYPE_EXACT, but set match string to null."
            raise _RefusedError(ErrorCode.INVALID_REQUEST, text)
        if each.match_type != _EXACT and each.match is not None:
            name = "MATCH_TYPE_DEFAULT" if each.match_type == _DEFAULT else "MATCH_TYPE_SPECIFIED"
            text = f"Request specified {name}, but also specified a match string."
            raise _RefusedError(ErrorCode.INVALID_REQUEST, text)
        wanted[kind] = _Any if each.match_type == _SPECIFIED else each.match
    if IP in wanted and len(wanted) > 1:
        raise _RefusedError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component.",
        )
    return wanted


def _fits(quota: ClientQuota, wanted: Mapping[str, str | type[_Any] | None], strict: bool) -> bool:
    """`strict`: entities of other types besides do not fit, so that a strict filter for nothing finds nothing."""
    entity = dict(quota.entity)
    if strict and entity.keys() != wanted.keys():
        return False
    return all(kind in entity and name in (_Any, entity[kind]) for kind, name in wanted.items())


def _described(quota: ClientQuota) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in quota.entity],
        "values": [{"key": key, "value": value} for key, value in quota.values.items()],
    }


# ---- altering


@handles(ALTER_CLIENT_QUOTAS, 0, 1)
async def alter_client_quotas(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Sets and removes quotas; they count as soon as this is answered."""
    entities = tuple(
        EntityChange(
            # Of a type that is named twice the last counts.
            entity=tuple({part.entity_type: part.entity_name for part in entry.entity}.items()),
            changes=tuple(QuotaChange(key=op.key, value=None if op.remove else op.value) for op in entry.ops),
        )
        for entry in request.entries
    )
    if not context.part(Authorizer).allows(header, Operation.ALTER_CONFIGS, Resource.CLUSTER):
        return _refused(entities, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, _NOT_ALLOWED)
    if not entities:
        return {"entries": []}
    hosts = dict.fromkeys(name for entity in entities for kind, name in entity.entity if kind == IP and name)
    names = [host for host in hosts if literal_address(host) is None]
    unknown = await context.part(_Lookups).unknown(names) if names else ()
    arguments = AlterClientQuotas(entities=entities, unknown_hosts=unknown, validate_only=request.validate_only)
    done = await ask_catalogue(context, "alter_client_quotas", arguments, QuotaResults)
    return _refused(entities, *done) if isinstance(done, Unanswered) else _answer(done.results)


class _Lookups:
    """Asks name servers, which may take long to answer: for one request at a time, so that clients who ask for many names
    have one of our threads, and for so many of them; the others are unknown."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = asyncio.Lock()

    async def unknown(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those that stand for no address."""
        asked, others = names[:_MOST_LOOKED_UP], names[_MOST_LOOKED_UP:]
        async with self._lock:
            found = await self._context.in_thread(lambda: tuple(name for name in asked if address_of(name) is None))
        return (*found, *others)


def _refused(entities: tuple[EntityChange, ...], error: ErrorCode, message: str) -> dict[str, Any]:
    return _answer(tuple(QuotaResult(entity=each.entity, error=error, message=message) for each in entities))


def _answer(results: tuple[QuotaResult, ...]) -> dict[str, Any]:
    return {
        "entries": [
            {
                "error_code": result.error,
                "error_message": result.message,
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in result.entity],
            }
            for result in results
        ]
    }
