"""Who has logged in is whom ACLs and quotas name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.config.authorization import STANDARD_AUTHORIZER
from tests.workers.broker.batches import FETCH, batch, fetch, fetch_body, produce
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.sasl_client import SCRAM, authenticate, handshake, log_in, plain_token, salted

CREATE_TOPICS, CREATE_ACLS, DELETE_ACLS, DESCRIBE_SCRAM, ALTER_SCRAM, ALTER_QUOTAS = 19, 30, 31, 50, 51, 49
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SETTINGS = {
    "listeners": "OUTSIDE://127.0.0.1:0",
    "listener.security.protocol.map": "OUTSIDE:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.outside.plain.sasl.jaas.config": f'{_MODULE} required user_admin="a" user_alice="b" user_bob="c";',
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
}


@pytest.fixture
def broker(fast_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([fast_dir], _SETTINGS) as running:
        yield running


def _client(broker: CatalogueBroker, user: str, password: str, mechanism: str = "PLAIN") -> RawClient:
    client = broker.connect()
    log_in(client, user, password, mechanism)
    return client


def _allow(admin: RawClient, user: str, operation: int) -> None:
    creation = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": f"User:{user}",
        "host": "*",
        "operation": operation,
        "permission_type": 3,
    }
    assert admin.ask(CREATE_ACLS, 3, {"creations": [creation]}).results[0].error_code == 0


def _upsertion(user: str) -> dict[str, Any]:
    return {
        "name": user,
        "mechanism": SCRAM["SCRAM-SHA-256"][0],
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": salted("SCRAM-SHA-256", "d", b"salt", 4096),
    }


def test_each_user_may_do_what_its_acls_allow(broker: CatalogueBroker) -> None:
    with (
        _client(broker, "admin", "a") as admin,
        _client(broker, "alice", "b") as alice,
        _client(broker, "bob", "c") as bob,
    ):
        topics = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
        assert alice.ask(CREATE_TOPICS, 7, {"topics": topics, "timeout": 9000}).topics[0].error_code == 29
        assert admin.ask(CREATE_TOPICS, 7, {"topics": topics, "timeout": 9000}).topics[0].error_code == 0
        for client in (alice, bob):
            assert produce(client, batch([b"x"])).error_code == 29
        _allow(admin, "alice", 4)
        _allow(admin, "bob", 3)
        assert produce(alice, batch([b"x"])).error_code == 0
        assert produce(bob, batch([b"x"])).error_code == 29
        assert fetch(alice).error_code == 29
        assert fetch(bob).error_code == 0


def test_credentials_are_for_who_may_alter_the_cluster(broker: CatalogueBroker) -> None:
    with _client(broker, "admin", "a") as admin, _client(broker, "alice", "b") as alice:
        body = {"deletions": [{"name": "eve", "mechanism": 1}], "upsertions": [_upsertion("dora"), _upsertion("eve")]}
        refused = alice.ask(ALTER_SCRAM, 0, body).results
        assert sorted((each.user, int(each.error_code)) for each in refused) == [("dora", 31), ("eve", 31)]
        assert alice.ask(DESCRIBE_SCRAM, 0, {"users": None}).error_code == 31
        made = admin.ask(ALTER_SCRAM, 0, {"deletions": [], "upsertions": [_upsertion("dora")]})
        assert made.results[0].error_code == 0
        assert [each.user for each in admin.ask(DESCRIBE_SCRAM, 0, {"users": None}).results] == ["dora"]
        _allow(admin, "dora", 3)
        topics = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
        assert admin.ask(CREATE_TOPICS, 7, {"topics": topics, "timeout": 9000}).topics[0].error_code == 0
        with _client(broker, "dora", "d", "SCRAM-SHA-256") as dora:
            assert fetch(dora).error_code == 0


def test_a_failed_login_asks_nothing_of_anybody(broker: CatalogueBroker) -> None:
    with broker.connect() as client:
        handshake(client, "PLAIN")
        assert authenticate(client, plain_token("admin", "wrong")).error_code == 58
        assert client.is_closed()
    assert {each.principal for each in broker.peers()} <= {"User:ANONYMOUS"}


@pytest.mark.parametrize("waits", [False, True], ids=["between two fetches", "while one waits"])
def test_a_session_gives_nothing_once_its_permission_is_taken_away(broker: CatalogueBroker, waits: bool) -> None:
    with _client(broker, "admin", "a") as admin, _client(broker, "bob", "c") as bob:
        topics = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
        assert admin.ask(CREATE_TOPICS, 7, {"topics": topics, "timeout": 9000}).topics[0].error_code == 0
        _allow(admin, "bob", 3)
        while produce(admin, batch([b"x"])).error_code:
            pass  # it is being made
        body = {**fetch_body(offset=1), "max_wait": 0, "session_id": 0, "session_epoch": 0}
        session = bob.ask(FETCH, 12, body).session_id
        assert session
        again = {**body, "session_id": session, "session_epoch": 1, "topics": [], "max_wait": 60_000 if waits else 0}
        if waits:
            bob.send(FETCH, 12, again)
            broker.wait_for_watchers("t")
        deleted = {"resource_type_filter": 2, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
        found = admin.ask(DELETE_ACLS, 3, {"filters": [deleted]}).filter_results[0]
        assert len(found.matching_acls) == 1
        assert produce(admin, batch([b"x"])).error_code == 0
        answer = bob.receive(FETCH, 12) if waits else bob.ask(FETCH, 12, again)
        row = answer.responses[0].partitions[0]
        assert (row.error_code, row.records or b"", row.high_watermark) == (29, b"", -1)
