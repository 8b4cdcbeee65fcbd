"""A whole daemon with ACLs: users log in, and do what kafka-acls.sh lets them, on every worker, also after restarts."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError

from compactd.coordinator.control.messages import GetStatus, Status, WorkerStatus
from tests.coordinator.serving import until
from tests.daemon.daemons import Daemon
from tests.daemon.test_security import _login
from tests.ports import free_ports
from tests.workers.broker.harness import RawClient
from tests.workers.broker.sasl_client import log_in

pytestmark = pytest.mark.timeout(600)

_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_USERS = {"root": "r00t", "alice": "wonder", "bob": "builder"}
_JAVA = (
    "java",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)

Acls = Callable[..., str]


def _settings(port: int) -> dict[str, Any]:
    users = " ".join(f'user_{name}="{password}"' for name, password in _USERS.items())
    return {
        "broker_workers": 2,
        "listeners": f"OUTSIDE://127.0.0.1:{port}",
        "listener.security.protocol.map": "OUTSIDE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.outside.plain.sasl.jaas.config": f"{_MODULE} required {users};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:root",
    }


def _as(port: int, user: str) -> dict[str, Any]:
    return _login(port, user, _USERS[user])


def _acls(classpath: str, home: Path, port: int) -> Acls:
    """kafka-acls.sh of a user; what it printed."""

    def run(user: str, *arguments: str, code: int = 0) -> str:
        client = home / f"{user}.properties"
        login = f'{_MODULE} required username="{user}" password="{_USERS[user]}";'
        client.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
        command = [*_JAVA, "-cp", classpath, "org.apache.kafka.tools.AclCommand", "--command-config", str(client)]
        done = subprocess.run(
            [*command, "--bootstrap-server", f"127.0.0.1:{port}", *arguments],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def _write(port: int, user: str, topic: str, value: bytes = b"v") -> str:
    """Writes to both partitions; the name of the error, "" for none."""
    producer = KafkaProducer(**_as(port, user), enable_idempotence=False, max_block_ms=60_000, retries=50)
    try:
        for number in (0, 1):
            producer.send(topic, value, partition=number).get(60)
    except KafkaError as error:
        return type(error).__name__
    finally:
        producer.close()
    return ""


def _read(port: int, user: str, topic: str, group: str) -> list[bytes] | str:
    """What a consumer of a group reads; the name of the error."""
    consumer = KafkaConsumer(topic, **_as(port, user), group_id=group, auto_offset_reset="earliest")
    found: list[bytes] = []
    try:

        def more() -> bool:
            for records in consumer.poll(300).values():
                found.extend(record.value for record in records)
            return len(found) >= 2

        until(more, "two records")
        consumer.commit()
    except KafkaError as error:
        return type(error).__name__
    finally:
        consumer.close()
    return sorted(found)


def _seen(port: int, user: str) -> list[str]:
    """Topics that a user is told of."""
    with RawClient(port) as client:
        log_in(client, user, _USERS[user])
        return [topic.name for topic in client.ask(3, 9, {"topics": None}).topics]


def _worker(daemon: Daemon, number: int) -> WorkerStatus:
    status = daemon.ask(GetStatus())
    assert isinstance(status, Status)
    return next(each for each in status.workers if each.kind == "broker" and each.number == number)


@pytest.mark.kafka
def test_users_do_what_acls_let_them_on_every_worker(oracle_classpath: str, tmp_path: Path) -> None:
    port = free_ports(2)[0]
    acls = _acls(oracle_classpath, tmp_path, port)
    with Daemon(tmp_path, **_settings(port)) as daemon:
        admin = KafkaAdminClient(**_as(port, "root"))
        admin.create_topics([NewTopic("orders", 2, 1), NewTopic("secret", 2, 1)])
        admin.close()
        assert _write(port, "root", "secret") == ""
        assert _write(port, "alice", "orders") == "TopicAuthorizationFailedError"
        assert "ClusterAuthorizationException" in acls("alice", "--list", code=1)
        said = acls("root", "--add", "--allow-principal", "User:alice", "--producer", "--topic", "ord",
                    "--resource-pattern-type", "prefixed")  # fmt: skip
        assert "(principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW)" in said
        assert _write(port, "alice", "orders", b"a") == ""
        assert _write(port, "alice", "secret") == "TopicAuthorizationFailedError"
        assert _write(port, "bob", "orders") == "TopicAuthorizationFailedError"
        acls("root", "--add", "--allow-principal", "User:bob", "--consumer", "--topic", "orders", "--group", "bobs")
        assert _read(port, "bob", "orders", "bobs") == [b"a", b"a"]
        assert _read(port, "bob", "orders", "others") == "GroupAuthorizationFailedError"
        assert _seen(port + 1, "bob") == ["orders"]
        # A worker that is started anew knows the ACLs, and so does the next daemon.
        before = _worker(daemon, 1)
        assert before.pid is not None
        os.kill(before.pid, signal.SIGKILL)
        until(lambda: _worker(daemon, 1).pid not in (None, before.pid) and _worker(daemon, 1).phase == "serving")
        assert _write(port, "alice", "orders") == ""
        assert _write(port, "bob", "orders") == "TopicAuthorizationFailedError"
        daemon.stop()
        daemon.start()
        listed = acls("root", "--list", "--topic", "orders", "--resource-pattern-type", "match")
        assert "resourceType=TOPIC, name=ord, patternType=PREFIXED" in listed
        assert "resourceType=TOPIC, name=orders, patternType=LITERAL" in listed
        acls("root", "--add", "--deny-principal", "User:alice", "--deny-host", "127.0.0.0/8", "--operation", "Write",
             "--topic", "orders")  # fmt: skip
        assert _write(port, "alice", "orders") == "TopicAuthorizationFailedError"
        acls("root", "--remove", "--force", "--topic", "ord", "--resource-pattern-type", "prefixed")
        acls("root", "--remove", "--force", "--topic", "orders", "--resource-pattern-type", "any")
        assert "operation" not in acls("root", "--list", "--topic", "orders", "--resource-pattern-type", "match")
        assert _seen(port, "bob") == []
        assert "may not WRITE" in daemon.log()
        daemon.stop()
