"""ACLs on disk: Kafka 4.4.0 goes by those that we wrote, we by those that it wrote."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactd.workers.acl_messages import Operation, PatternType, Permission, Resource
from tests.oracle.broker import Broker
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, LIST_OFFSETS = 29, 30, 31, 2
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
_EVERY = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}

#: Type, name, pattern, principal, host, operation, permission.
Acl = tuple[int, str, int, str, str, int, int]
_ACLS: list[Acl] = [
    (Resource.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW),
    (Resource.TOPIC, "ord", PatternType.PREFIXED, "User:CN=a,O=ü", "10.0.0.0/8", Operation.WRITE, Permission.DENY),
    (Resource.GROUP, "*", PatternType.LITERAL, "User:*", "2001:db8::/32", Operation.ALL, Permission.ALLOW),
    (Resource.CLUSTER, "kafka-cluster", PatternType.LITERAL, "User:a", "127.0.0.1", Operation.IDEMPOTENT_WRITE, Permission.ALLOW),
    (Resource.TRANSACTIONAL_ID, "tx", PatternType.PREFIXED, "User:alice", "*", Operation.TWO_PHASE_COMMIT, Permission.ALLOW),
    (Resource.DELEGATION_TOKEN, "t", PatternType.LITERAL, "User:alice", "*", Operation.DESCRIBE, Permission.ALLOW),
    (Resource.USER, "User:bob", PatternType.LITERAL, "User:alice", "*", Operation.CREATE_TOKENS, Permission.ALLOW),
]  # fmt: skip


def _create(client: RawClient, acls: list[Acl]) -> None:
    names = (
        "resource_type",
        "resource_name",
        "resource_pattern_type",
        "principal",
        "host",
        "operation",
        "permission_type",
    )
    answer = client.ask(CREATE_ACLS, 3, {"creations": [dict(zip(names, acl, strict=True)) for acl in acls]})
    assert [result.error_code for result in answer.results] == [0] * len(acls)


def _delete(client: RawClient, **which: Any) -> None:
    answer = client.ask(DELETE_ACLS, 3, {"filters": [{**_EVERY, **which}]})
    assert [result.error_code for result in answer.filter_results] == [0]


def _found(client: RawClient) -> set[Acl]:
    return {
        (r.resource_type, r.resource_name, r.pattern_type, a.principal, a.host, a.operation, a.permission_type)
        for r in client.ask(DESCRIBE_ACLS, 3, _EVERY).resources
        for a in r.acls
    }


def _until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_acls_go_from_one_broker_to_the_other_and_back(oracle_classpath: str, tmp_path: Path) -> None:
    log_dir = tmp_path / "d1"
    log_dir.mkdir()
    with CatalogueBroker([log_dir], SETTINGS) as ours, ours.connect() as client:
        _create(client, _ACLS)
        _create(client, [*_ACLS[:2], (*_ACLS[0][:3], "User:gone", *_ACLS[0][4:])])
        _delete(client, principal_filter="User:gone")
        assert _found(client) == set(_ACLS)
    kafka = Broker(oracle_classpath, tmp_path, [log_dir], SETTINGS)
    more: Acl = (*_ACLS[0][:3], "User:carol", *_ACLS[0][4:])
    with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        _until(lambda: _found(client) == set(_ACLS))
        _create(client, [more, *_ACLS])
        _delete(client, resource_type_filter=Resource.GROUP)
        after = {more, *_ACLS} - {_ACLS[2]}
        _until(lambda: _found(client) == after)
    assert not kafka.complaints()
    # A snapshot of ours holds them too.
    with CatalogueBroker([log_dir], {**SETTINGS, "metadata.log.max.record.bytes.between.snapshots": 1}) as ours:
        with ours.connect() as client:
            assert _found(client) == after
            _create(client, [_ACLS[2]])
        ours.catalogue.maintain()
    with (
        Broker(oracle_classpath, tmp_path, [log_dir], SETTINGS) as kafka,
        RawClient(int(kafka.bootstrap.split(":")[1])) as client,
    ):
        _until(lambda: _found(client) == {more, *_ACLS})
