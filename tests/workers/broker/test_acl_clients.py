"""ACLs through client libraries: confluent-kafka and kafka-python make them, find them and take them back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import confluent_kafka.admin as cka
import kafka.admin as kpa
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import TopicAuthorizationFailedError

from compactd.config.authorization import STANDARD_AUTHORIZER
from tests.workers.broker.catalogue_harness import CatalogueBroker

SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}


@pytest.fixture
def secured(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir], SETTINGS) as broker:
        yield broker


def test_confluent_kafka(secured: CatalogueBroker) -> None:
    admin = cka.AdminClient({"bootstrap.servers": secured.bootstrap})
    literal = cka.AclBinding(
        ck.admin.ResourceType.TOPIC, "orders", cka.ResourcePatternType.LITERAL, "User:alice", "*",
        cka.AclOperation.READ, cka.AclPermissionType.ALLOW,
    )  # fmt: skip
    prefixed = cka.AclBinding(
        ck.admin.ResourceType.GROUP, "or", cka.ResourcePatternType.PREFIXED, "User:bob", "10.0.0.0/8",
        cka.AclOperation.ALL, cka.AclPermissionType.DENY,
    )  # fmt: skip
    for made in admin.create_acls([literal, prefixed]).values():
        made.result(20)

    def which(kind: ck.admin.ResourceType, name: str | None, pattern: cka.ResourcePatternType) -> cka.AclBindingFilter:
        return cka.AclBindingFilter(
            kind, name, pattern, None, None, cka.AclOperation.ANY, cka.AclPermissionType.ANY
        )  # fmt: skip

    everything = which(ck.admin.ResourceType.ANY, None, cka.ResourcePatternType.ANY)
    assert set(admin.describe_acls(everything).result(20)) == {literal, prefixed}
    of_orders = which(ck.admin.ResourceType.GROUP, "orders", cka.ResourcePatternType.MATCH)
    assert admin.describe_acls(of_orders).result(20) == [prefixed]
    (deleted,) = admin.delete_acls([of_orders]).values()
    assert deleted.result(20) == [prefixed]
    assert admin.describe_acls(everything).result(20) == [literal]
    cluster = admin.describe_cluster(include_authorized_operations=True).result(20)
    assert cka.AclOperation.ALTER in cluster.authorized_operations


def test_kafka_python(secured: CatalogueBroker) -> None:
    admin = KafkaAdminClient(bootstrap_servers=secured.bootstrap)
    try:
        acl = kpa.ACL(
            principal="User:alice",
            host="*",
            operation=kpa.ACLOperation.WRITE,
            permission_type=kpa.ACLPermissionType.ALLOW,
            resource_pattern=kpa.ResourcePattern(kpa.ResourceType.TOPIC, "orders"),
        )
        admin.create_acls([acl])
        found = admin.describe_acls(
            kpa.ACLFilter(
                principal=None,
                host=None,
                operation=kpa.ACLOperation.ANY,
                permission_type=kpa.ACLPermissionType.ANY,
                resource_pattern=kpa.ResourcePatternFilter(
                    kpa.ResourceType.TOPIC, "orders", kpa.ACLResourcePatternType.ANY
                ),
            )
        )
        assert "alice" in repr(found)
    finally:
        admin.close()


def test_a_client_without_permission_is_told_so(log_dir: Path) -> None:
    with CatalogueBroker([log_dir], {"authorizer.class.name": STANDARD_AUTHORIZER}) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap, max_block_ms=60_000, enable_idempotence=False)
        try:
            with pytest.raises(TopicAuthorizationFailedError):
                producer.send("orders", b"v").get(60)
        finally:
            producer.close(1)
        errors = []
        confluent = ck.Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 60_000, "log_level": 0})
        confluent.produce("orders", b"v", on_delivery=lambda error, _: errors.append(error.code()))
        confluent.flush(60)
        assert errors == [ck.KafkaError.TOPIC_AUTHORIZATION_FAILED]
