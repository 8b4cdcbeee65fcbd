"""SCRAM credentials set and removed: each check with Kafka's code and text, and what is written and told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactd.coordinator.catalogue.catalogue import Catalogue
from compactd.workers.catalogue_messages import ErrorCode as E
from compactd.workers.catalogue_update import CatalogueUpdate, ScramCredential
from compactd.workers.credential_messages import (
    AlterCredentials,
    CredentialDeletion,
    CredentialResult,
    CredentialResults,
    CredentialUpsertion,
)
from tests.coordinator.catalogue.test_catalogue_topics import records
from tests.coordinator.catalogues import opened, started

_TWICE = "A user credential cannot be altered twice in the same request"


@pytest.fixture
def catalogue(fast_dir: Path) -> Iterator[Catalogue]:
    found = started([fast_dir])
    yield found
    found.close()


def upsertion(user: str, mechanism: int = 1, iterations: int = 4096) -> CredentialUpsertion:
    return CredentialUpsertion(
        user=user,
        mechanism=mechanism,
        iterations=iterations,
        salt=b"salt",
        stored_key=b"stored",
        server_key=b"server",
    )


def credential(user: str, mechanism: int = 1, iterations: int = 4096) -> ScramCredential:
    return ScramCredential(user, mechanism, b"salt", b"stored", b"server", iterations)


def alter(
    catalogue: Catalogue, *changes: CredentialUpsertion | tuple[str, int]
) -> tuple[dict[str, tuple[int, str | None]], CatalogueUpdate | None]:
    """Pairs are deletions."""
    arguments = AlterCredentials(
        deletions=tuple(
            CredentialDeletion(user=each[0], mechanism=each[1]) for each in changes if isinstance(each, tuple)
        ),
        upsertions=tuple(each for each in changes if isinstance(each, CredentialUpsertion)),
    )
    results, update = catalogue.apply("alter_credentials", arguments)
    assert isinstance(results, CredentialResults)
    assert all(isinstance(each, CredentialResult) for each in results.results)
    return {each.user: (each.error, each.message) for each in results.results}, update


def test_credentials_are_written_as_kafka_writes_them_and_told(catalogue: Catalogue) -> None:
    results, update = alter(catalogue, upsertion("alice"), upsertion("bob", 2, 16_384))
    assert results == {"alice": (0, None), "bob": (0, None)}
    assert update is not None
    assert update.credentials == (credential("alice"), credential("bob", 2, 16_384))
    assert (update.acls, update.quotas, update.topics) == (None, None, ())
    assert [(kind, data["name"], data["mechanism"]) for kind, data in records(catalogue, 0)[-2:]] == [
        ("USER_SCRAM_CREDENTIAL_RECORD", "alice", 1),
        ("USER_SCRAM_CREDENTIAL_RECORD", "bob", 2),
    ]
    results, update = alter(catalogue, ("bob", 2), upsertion("alice", iterations=5000))
    assert results == {"alice": (0, None), "bob": (0, None)}
    assert update is not None
    assert update.credentials == (credential("alice", iterations=5000),)
    assert [kind for kind, _ in records(catalogue, 0)[-2:]] == [
        "REMOVE_USER_SCRAM_CREDENTIAL_RECORD",
        "USER_SCRAM_CREDENTIAL_RECORD",
    ]


def test_credentials_outlive_a_restart(fast_dir: Path) -> None:
    catalogue = started([fast_dir])
    alter(catalogue, upsertion("alice"), upsertion("bob", 2))
    catalogue.close()
    again = opened([fast_dir])
    try:
        assert set(again.full_update().credentials or ()) == {credential("alice"), credential("bob", 2)}
    finally:
        again.close()


def test_what_is_refused_changes_nothing(catalogue: Catalogue) -> None:
    before = records(catalogue, 0)
    for change, code, text in (
        (upsertion("u", iterations=4095), E.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        (upsertion("u", iterations=16_385), E.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        (upsertion(""), E.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        (upsertion("u", 3), E.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        (("u", 0), E.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        (("u", 1), E.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"),
    ):
        user = change[0] if isinstance(change, tuple) else change.user
        assert alter(catalogue, change) == ({user: (code, text)}, None)
    assert records(catalogue, 0) == before


def test_a_user_may_come_once(catalogue: Catalogue) -> None:
    results, update = alter(catalogue, upsertion("u", 1), upsertion("u", 2), upsertion("v"))
    assert results == {"u": (E.DUPLICATE_RESOURCE, _TWICE), "v": (0, None)}
    assert update is not None
    assert update.credentials == (credential("v"),)
    results, update = alter(catalogue, ("v", 1), upsertion("v", 2))
    assert (results, update) == ({"v": (E.DUPLICATE_RESOURCE, _TWICE)}, None)
    # The first fault of a user is told.
    assert alter(catalogue, ("w", 1), upsertion("w"))[0] == {
        "w": (E.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    }
