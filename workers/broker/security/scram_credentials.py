"""DescribeUserScramCredentials and AlterUserScramCredentials v0 (KIP-554; facts: kafka-protocol 16.4)."""

from __future__ import annotations

from typing import Any

from compactd.workers.broker.api_keys import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS
from compactd.workers.broker.asking import Unanswered, ask_catalogue
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.security.credentials import ScramCredentials
from compactd.workers.broker.security.scram import SCRAM_MECHANISMS
from compactd.workers.credential_messages import (
    AlterCredentials,
    CredentialDeletion,
    CredentialResult,
    CredentialResults,
    CredentialUpsertion,
)

_NEEDS_ALTER = "The request needs ALTER permission on the cluster."
_BY_NUMBER = {mechanism.number: mechanism for mechanism in SCRAM_MECHANISMS}


@handles(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0)
async def describe_user_scram_credentials(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Mechanisms and iterations of the users asked for, or of all; never a salt or a key."""
    if not context.part(Authorizer).allows(header, Operation.DESCRIBE, Resource.CLUSTER):
        # Kafka, too, names nobody.
        refused = {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "error_message": None}
        return {**refused, "results": [{"user": "", **refused} for _ in request.users or ()]}
    known = context.part(ScramCredentials).all()
    names = [each.name for each in request.users or ()]
    return {
        "error_code": ErrorCode.NONE,
        "error_message": "",
        "results": [_described(known, user, names.count(user) > 1) for user in dict.fromkeys(names or sorted(known))],
    }


def _described(known: dict[str, dict[int, Any]], user: str, is_twice: bool) -> dict[str, Any]:
    if is_twice:
        text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        return {"user": user, "error_code": ErrorCode.DUPLICATE_RESOURCE, "error_message": text}
    if user not in known:
        text = f"Attempt to describe a user credential that does not exist: {user}"
        return {"user": user, "error_code": ErrorCode.RESOURCE_NOT_FOUND, "error_message": text}
    infos = [{"mechanism": number, "iterations": each.iterations} for number, each in sorted(known[user].items())]
    return {"user": user, "error_code": ErrorCode.NONE, "error_message": "", "credential_infos": infos}


@handles(ALTER_USER_SCRAM_CREDENTIALS, 0, 0)
async def alter_user_scram_credentials(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Sets and removes credentials. From the answer on the new ones count."""
    deletions = tuple(CredentialDeletion(user=each.name, mechanism=each.mechanism) for each in request.deletions)
    upsertions = tuple(_upsertion(each) for each in request.upsertions)
    users = dict.fromkeys([each.user for each in deletions] + [each.user for each in upsertions])
    if not context.part(Authorizer).allows(header, Operation.ALTER, Resource.CLUSTER):
        error, message = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, _NEEDS_ALTER
        return {"results": [_result(CredentialResult(user=user, error=error, message=message)) for user in users]}
    arguments = AlterCredentials(deletions=deletions, upsertions=upsertions)
    outcome = await ask_catalogue(context, "alter_credentials", arguments, CredentialResults)
    if not isinstance(outcome, Unanswered):
        return {"results": [_result(each) for each in outcome.results]}
    error, message = outcome
    return {"results": [_result(CredentialResult(user=user, error=error, message=message)) for user in users]}


def _upsertion(asked: Any) -> CredentialUpsertion:
    mechanism = _BY_NUMBER.get(asked.mechanism)
    stored_key, server_key = (b"", b"") if mechanism is None else mechanism.keys(asked.salted_password)
    return CredentialUpsertion(
        user=asked.name,
        mechanism=asked.mechanism,
        iterations=asked.iterations,
        salt=asked.salt,
        stored_key=stored_key,
        server_key=server_key,
    )


def _result(result: CredentialResult) -> dict[str, Any]:
    return {"user": result.user, "error_code": result.error, "error_message": result.message}
