"""ACLs created and deleted: each check with Kafka's code and text, and the records that are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactd.coordinator.catalogue.catalogue import Catalogue
from compactd.storage.metadata.record_types import MetadataRecord, RecordType
from compactd.workers.acl_messages import (
    Acl,
    AclDeletion,
    AclDeletions,
    AclFilter,
    AclResult,
    AclResults,
    CreateAcls,
    DeleteAcls,
    Operation,
    PatternType,
    Permission,
    Resource,
)
from compactd.workers.catalogue_update import CatalogueUpdate
from tests.coordinator.catalogue.test_catalogue_topics import records
from tests.coordinator.catalogues import opened, started


def acl(
    resource_type: int = Resource.TOPIC,
    resource_name: str = "orders",
    pattern_type: int = PatternType.LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    operation: int = Operation.READ,
    permission: int = Permission.ALLOW,
) -> Acl:
    return Acl(
        resource_type=resource_type,
        resource_name=resource_name,
        pattern_type=pattern_type,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


def which(
    resource_type: int = Resource.ANY,
    resource_name: str | None = None,
    pattern_type: int = PatternType.ANY,
    principal: str | None = None,
    host: str | None = None,
    operation: int = Operation.ANY,
    permission: int = Permission.ANY,
) -> AclFilter:
    return AclFilter(
        resource_type=resource_type,
        resource_name=resource_name,
        pattern_type=pattern_type,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    made = started([tmp_path / "d1"])
    yield made
    made.close()


def create(catalogue: Catalogue, *acls: Acl) -> tuple[list[AclResult], CatalogueUpdate | None]:
    results, update = catalogue.apply("create_acls", CreateAcls(acls=acls))
    assert isinstance(results, AclResults)
    return list(results.results), update


def delete(catalogue: Catalogue, *filters: AclFilter) -> tuple[list[AclDeletion], CatalogueUpdate | None]:
    results, update = catalogue.apply("delete_acls", DeleteAcls(filters=filters))
    assert isinstance(results, AclDeletions)
    return list(results.results), update


def test_an_acl_is_one_record_and_is_told(catalogue: Catalogue) -> None:
    before = catalogue.image.offset
    results, update = create(catalogue, acl(), acl(host="10.0.0.0/8", permission=Permission.DENY))
    assert results == [AclResult(), AclResult()]
    (kind, first), (_, second) = records(catalogue, before)
    assert kind == "ACCESS_CONTROL_ENTRY_RECORD"
    identity = first.pop("id")
    assert second.pop("id") != identity
    assert first == {
        "resourceType": 2, "resourceName": "orders", "patternType": 3, "principal": "User:alice", "host": "*",
        "operation": 3, "permissionType": 3,
    }  # fmt: skip
    assert (second["host"], second["permissionType"]) == ("10.0.0.0/8", 2)
    assert update is not None
    assert update.acls is not None
    assert {rule.id for rule in update.acls} == set(catalogue.image.acls)
    assert len(update.acls) == 2


def test_an_acl_that_is_there_is_not_written_again(catalogue: Catalogue) -> None:
    results, _ = create(catalogue, acl(), acl())
    assert results == [AclResult(), AclResult()]
    assert len(catalogue.image.acls) == 1
    results, update = create(catalogue, acl())
    assert results == [AclResult()]
    assert update is None
    assert len(catalogue.image.acls) == 1


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"resource_type": Resource.CLUSTER}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"resource_type": Resource.CLUSTER, "resource_name": ""},
         "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"resource_type": Resource.ANY}, "Invalid resourceType ANY"),
        ({"pattern_type": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"pattern_type": 9}, "Invalid patternType UNKNOWN"),
        ({"operation": Operation.ANY}, "Invalid operation ANY"),
        ({"operation": 16}, "Invalid operation UNKNOWN"),
        ({"permission": Permission.ANY}, "Invalid permissionType ANY"),
        ({"permission": -1}, "Invalid permissionType UNKNOWN"),
        ({"principal": "alice"}, "Could not parse principal from `alice` (no colon is present separating the principal "
                                 "type from the principal name)"),
        ({"host": ""}, "Host pattern cannot be null or empty"),
        ({"host": "10.0.0.0/33"}, "Invalid CIDR notation '10.0.0.0/33': Value [33] not in range [0,32]"),
        ({"host": "::1/x"}, "Invalid CIDR notation '::1/x': Could not parse [::1/x] - invalid prefix length"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_acl(catalogue: Catalogue, changed: dict[str, object], text: str) -> None:
    results, update = create(catalogue, acl(**changed), acl())  # type: ignore[arg-type]
    assert results == [AclResult(error=42, message=text), AclResult()]
    assert update is not None
    assert len(catalogue.image.acls) == 1


def test_ranges_need_a_metadata_version_that_knows_them(catalogue: Catalogue) -> None:
    old = MetadataRecord(RecordType.FEATURE_LEVEL, {"name": "metadata.version", "featureLevel": 31})
    catalogue._commit([old])
    (refused, taken), _ = create(catalogue, acl(host="10.0.0.0/8"), acl(host="10.0.0.1"))
    assert refused.error == 35
    assert "4.4-IV1" in (refused.message or "")
    assert not taken.error


def test_filters_choose_what_goes(catalogue: Catalogue) -> None:
    prefixed = acl(resource_name="ord", pattern_type=PatternType.PREFIXED)
    everything = acl(resource_name="*", operation=Operation.ALL, principal="User:bob")
    literal, group = acl(), acl(resource_type=Resource.GROUP, host="10.1.1.1")
    create(catalogue, prefixed, everything, literal, group)

    def found(asked: AclFilter) -> set[Acl]:
        results, _ = delete(catalogue, asked)
        create(catalogue, *results[0].acls)
        return set(results[0].acls)

    assert found(which()) == {prefixed, everything, literal, group}
    assert found(which(Resource.GROUP)) == {group}
    assert found(which(resource_name="orders")) == {literal, group}
    assert found(which(Resource.TOPIC, "orders", PatternType.MATCH)) == {prefixed, everything, literal}
    assert found(which(Resource.TOPIC, "ord", PatternType.MATCH)) == {prefixed, everything}
    assert found(which(Resource.TOPIC, "or", PatternType.MATCH)) == {everything}
    assert found(which(resource_name="ord", pattern_type=PatternType.PREFIXED)) == {prefixed}
    assert found(which(pattern_type=PatternType.PREFIXED)) == {prefixed}
    assert found(which(resource_name="orders", pattern_type=PatternType.PREFIXED)) == set()
    assert found(which(principal="User:bob")) == {everything}
    assert found(which(host="10.1.1.1")) == {group}
    assert found(which(operation=Operation.ALL)) == {everything}
    assert found(which(permission=Permission.DENY)) == set()
    assert found(which(resource_name="")) == set()


def test_what_two_filters_match_goes_once_and_is_told_of_both(catalogue: Catalogue) -> None:
    create(catalogue, acl())
    before = catalogue.image.offset
    results, update = delete(catalogue, which(), which(Resource.TOPIC), which(77), which(operation=99), which(host="x"))
    assert [result.acls for result in results] == [(acl(),), (acl(),), (), (), ()]
    assert [(result.error, result.message) for result in results] == [
        (0, None), (0, None), (42, "Unknown patternFilter."), (42, "Unknown entryFilter."), (0, None)
    ]  # fmt: skip
    assert [kind for kind, _ in records(catalogue, before)] == ["REMOVE_ACCESS_CONTROL_ENTRY_RECORD"]
    assert update is not None
    assert update.acls == ()
    assert delete(catalogue, which())[1] is None


def test_acls_outlive_a_restart_and_a_snapshot(tmp_path: Path) -> None:
    first = started([tmp_path / "d1"], metadata_log_max_record_bytes_between_snapshots=1)
    create(first, acl(), acl(resource_type=Resource.USER, operation=Operation.CREATE_TOKENS))
    delete(first, which(Resource.TOPIC))
    first.maintain()
    first.close()
    again = opened([tmp_path / "d1"])
    assert [data["resourceType"] for data in again.image.acls.values()] == [Resource.USER]
    again.close()


def test_more_than_kafka_takes_at_once(catalogue: Catalogue) -> None:
    many = tuple(acl(resource_name=f"t{number}") for number in range(10_001))
    results, update = create(catalogue, *many)
    assert {result.error for result in results} == {44}
    assert update is None
    create(catalogue, *many[:-1])
    create(catalogue, many[-1])
    deletions, update = delete(catalogue, which(), which(resource_name="t1"))
    assert [(result.error, result.acls) for result in deletions] == [(42, ()), (42, ())]
    assert update is None
    deletions, _ = delete(catalogue, which(resource_name="t1"))
    assert len(deletions[0].acls) == 1
