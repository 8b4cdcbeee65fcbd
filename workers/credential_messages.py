"""What a broker worker asks of the catalogue about SCRAM credentials. Salted passwords stay with the worker: keys are enough."""

from __future__ import annotations

from compactd.workers.catalogue_struct import Struct


class CredentialDeletion(Struct, frozen=True):
    """`mechanism`: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512, or any number that a client sent."""

    user: str
    mechanism: int


class CredentialUpsertion(Struct, frozen=True):
    """A credential that is new, or takes the place of another one."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


class AlterCredentials(Struct, frozen=True):
    """All of these in one batch; of a user that comes twice none."""

    deletions: tuple[CredentialDeletion, ...]
    upsertions: tuple[CredentialUpsertion, ...]


class CredentialResult(Struct, frozen=True):
    user: str
    error: int = 0
    message: str | None = None


class CredentialResults(Struct, frozen=True):
    """One for each user."""

    results: tuple[CredentialResult, ...]


OPERATIONS: dict[str, tuple[type[Struct], type[Struct]]] = {
    "alter_credentials": (AlterCredentials, CredentialResults),
}
