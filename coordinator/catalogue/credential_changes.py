"""Setting and removing SCRAM credentials: from a request and the image to results and records, nothing written yet.

Checks, their order, codes and texts are those of Kafka 4.4.0's ScramControlManager (facts: kafka-protocol 16.4).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from compactd.storage.metadata.image import MetadataImage
from compactd.storage.metadata.record_types import METADATA_VERSION, MetadataRecord, RecordType
from compactd.workers.catalogue_messages import ErrorCode
from compactd.workers.credential_messages import (
    AlterCredentials,
    CredentialDeletion,
    CredentialResult,
    CredentialUpsertion,
)

#: metadata.version of Kafka 3.5-IV2, the first with SCRAM credentials.
_SCRAM_LEVEL = 11
_MECHANISMS = (1, 2)
_MIN_ITERATIONS, _MAX_ITERATIONS = 4096, 16_384

_Refusal = tuple[ErrorCode, str]


@dataclass(slots=True)
class CredentialPlan:
    """Results, refusals first, and the records for one batch."""

    results: list[CredentialResult] = field(default_factory=list)
    records: list[MetadataRecord] = field(default_factory=list)


def plan_credentials(request: AlterCredentials, image: MetadataImage) -> CredentialPlan:
    """A user may be named once, whatever the mechanism."""
    refused: dict[str, _Refusal] = {}
    deletions: dict[str, CredentialDeletion] = {}
    upsertions: dict[str, CredentialUpsertion] = {}
    is_known = image.features.get(METADATA_VERSION, 0) >= _SCRAM_LEVEL
    changes: list[CredentialDeletion | CredentialUpsertion] = [*request.deletions, *request.upsertions]
    for change in changes:
        user = change.user
        if user in refused:
            continue
        fault: _Refusal | None
        if not is_known:
            fault = (ErrorCode.UNSUPPORTED_VERSION, "The current metadata version does not support SCRAM")
        elif user in deletions or user in upsertions:
            deletions.pop(user, None)
            upsertions.pop(user, None)
            fault = (ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
        elif isinstance(change, CredentialDeletion):
            fault = _deletion_fault(change, image)
        else:
            fault = _upsertion_fault(change)
        if fault is not None:
            refused[user] = fault
        elif isinstance(change, CredentialDeletion):
            deletions[user] = change
        else:
            upsertions[user] = change
    results = [CredentialResult(user=user, error=code, message=text) for user, (code, text) in refused.items()]
    results += [CredentialResult(user=user) for user in (*deletions, *upsertions)]
    records = [_removal(each) for each in deletions.values()] + [_credential(each) for each in upsertions.values()]
    return CredentialPlan(results, records)


def _fault(user: str, mechanism: int) -> _Refusal | None:
    if not user:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if mechanism not in _MECHANISMS:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    return None


def _deletion_fault(deletion: CredentialDeletion, image: MetadataImage) -> _Refusal | None:
    fault = _fault(deletion.user, deletion.mechanism)
    if fault is None and (deletion.user, deletion.mechanism) not in image.scram:
        return ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
    return fault


def _upsertion_fault(upsertion: CredentialUpsertion) -> _Refusal | None:
    fault = _fault(upsertion.user, upsertion.mechanism)
    if fault is None and upsertion.iterations < _MIN_ITERATIONS:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
    if fault is None and upsertion.iterations > _MAX_ITERATIONS:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
    return fault


def _removal(deletion: CredentialDeletion) -> MetadataRecord:
    return MetadataRecord(
        RecordType.REMOVE_USER_SCRAM_CREDENTIAL, {"name": deletion.user, "mechanism": deletion.mechanism}
    )


def _credential(upsertion: CredentialUpsertion) -> MetadataRecord:
    data = {
        "name": upsertion.user,
        "mechanism": upsertion.mechanism,
        "salt": base64.b64encode(upsertion.salt).decode(),
        "storedKey": base64.b64encode(upsertion.stored_key).decode(),
        "serverKey": base64.b64encode(upsertion.server_key).decode(),
        "iterations": upsertion.iterations,
    }
    return MetadataRecord(RecordType.USER_SCRAM_CREDENTIAL, data)
