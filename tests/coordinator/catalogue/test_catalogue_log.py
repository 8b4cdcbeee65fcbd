"""What operators read of changes that clients made."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from compactd.coordinator.catalogue.catalogue import Catalogue
from compactd.workers.acl_messages import (
    AclFilter,
    CreateAcls,
    DeleteAcls,
    Operation,
    PatternType,
    Permission,
    Resource,
)
from compactd.workers.catalogue_messages import (
    NO_ID,
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    ResourceChange,
    Struct,
)
from compactd.workers.credential_messages import AlterCredentials, CredentialDeletion, CredentialUpsertion
from compactd.workers.quota_messages import AlterClientQuotas, EntityChange, QuotaChange
from tests.coordinator.catalogue.test_catalogue_acls import acl
from tests.coordinator.catalogues import started

ALICE = CredentialUpsertion(
    user="alice", mechanism=2, iterations=4096, salt=b"salt", stored_key=b"stored", server_key=b"server"
)


def said(catalogue: Catalogue, caplog: pytest.LogCaptureFixture, operation: str, arguments: Struct) -> list[str]:
    caplog.clear()
    catalogue.apply(operation, arguments)
    return [record.getMessage() for record in caplog.records if record.name == "compactd.catalogue"]


def test_every_change_is_told_and_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="compactd.catalogue")
    catalogue = started([tmp_path / "d1"])
    assert not [record for record in caplog.records if record.name == "compactd.catalogue"], "a start changes nothing"

    def change(operation: str, arguments: Struct) -> list[str]:
        return said(catalogue, caplog, operation, arguments)

    (line,) = change("create_topics", CreateTopics(topics=(NewTopic(name="users", num_partitions=3),)))
    topic_id = catalogue.image.topics["users"].topic_id
    assert line == f"topic users was created: 3 partitions, id {topic_id}"
    assert change("create_partitions", CreatePartitions(topics=(MorePartitions(name="users", count=4),))) == [
        "topic users was given 1 partition more"
    ]

    def configure(kind: int, name: str, setting: str, value: str | None) -> list[str]:
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        changes = (ConfigChange(name=setting, operation=operation, value=value),)
        resources = (ResourceChange(type=kind, name=name, configs=changes),)
        return change("alter_configs", AlterConfigs(resources=resources))

    assert configure(2, "users", "retention.ms", "1000") == ["topic users: retention.ms is set to '1000'"]
    assert configure(2, "users", "retention.ms", None) == ["topic users: retention.ms is no longer set"]
    assert configure(4, "", "log.retention.ms", "86400000") == ["every broker: log.retention.ms is set to '86400000'"]
    assert configure(2, "users", "retention.msx", "1") == [], "a refusal changes nothing"

    secret = "listener.name.plaintext.ssl.key.password"
    (line,) = configure(4, "1", secret, "hunter2")
    assert line.startswith(f"broker 1: {secret} is set to ") and "hunter2" not in line

    for expected in ("may log in with", "has a new password for"):
        assert change("alter_credentials", AlterCredentials(deletions=(), upsertions=(ALICE,))) == [
            f"user alice {expected} SCRAM-SHA-512"
        ]
    gone = CredentialDeletion(user="alice", mechanism=2)
    assert change("alter_credentials", AlterCredentials(deletions=(gone,), upsertions=())) == [
        "user alice may no longer log in with SCRAM-SHA-512"
    ]

    rule = "User:alice ALLOW READ on LITERAL TOPIC orders from *"
    assert change("create_acls", CreateAcls(acls=(acl(),))) == [f"ACL added: {rule}"]
    every = AclFilter(
        resource_type=Resource.ANY,
        resource_name=None,
        pattern_type=PatternType.ANY,
        principal=None,
        host=None,
        operation=Operation.ANY,
        permission=Permission.ANY,
    )
    assert change("delete_acls", DeleteAcls(filters=(every,))) == [f"ACL removed: {rule}"]

    def limit(value: float | None) -> list[str]:
        quota = QuotaChange(key="producer_byte_rate", value=value)
        entity = EntityChange(entity=(("user", "alice"), ("client-id", None)), changes=(quota,))
        return change("alter_client_quotas", AlterClientQuotas(entities=(entity,)))

    whose = "quota of client-id <default>, user alice: producer_byte_rate is"
    assert limit(1000.0) == [f"{whose} 1000"]
    assert limit(None) == [f"{whose} no longer set"]

    assert change("delete_topics", DeleteTopics(topics=(("users", NO_ID),))) == [
        f"topic users was deleted, id {topic_id}"
    ]
    catalogue.close()
