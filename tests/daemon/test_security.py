"""A whole daemon with several listeners and workers: clients log in everywhere, also after kills, restarts and reloads."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic, UserScramCredentialUpsertion

from compactd.config.errors import SettingError
from compactd.coordinator.control.messages import GetStatus, Reload, Reloaded, Status, WorkerStatus
from tests.coordinator.serving import until
from tests.daemon.daemons import Daemon
from tests.ports import free_ports
from tests.workers.broker.harness import RawClient
from tests.workers.broker.sasl_client import log_in

_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_JAAS = "listener.name.outside.plain.sasl.jaas.config"
_PASSWORD = "pass-the-salt"


def _settings(first_port: int) -> dict[str, Any]:
    """Inside for who is trusted, outside for who has to log in; two workers, so four ports."""
    return {
        "broker_workers": 2,
        "listeners": f"INSIDE://127.0.0.1:{first_port},OUTSIDE://127.0.0.1:{first_port + 2}",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        _JAAS: f'{_MODULE} required user_admin="{_PASSWORD}";',
    }


def _login(port: int, user: str, password: str, mechanism: str = "PLAIN") -> dict[str, Any]:
    return {
        "bootstrap_servers": f"127.0.0.1:{port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


def _add_user(login: dict[str, Any], name: str, password: str) -> None:
    admin = KafkaAdminClient(**login)
    try:
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, "SCRAM-SHA-256", password)])
    finally:
        admin.close()


def _through(login: dict[str, Any], topic: str, partitions: int) -> set[tuple[int, bytes]]:
    """Writes one record to each partition; what is there then."""
    producer = KafkaProducer(**login)
    for number in range(partitions):
        producer.send(topic, b"x", partition=number)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer(**login, enable_auto_commit=False)
    try:
        there = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(there)
        consumer.seek_to_beginning(*there)
        found: set[tuple[int, bytes]] = set()

        def read() -> bool:
            for batch in consumer.poll(200).values():
                found.update((record.partition, record.value) for record in batch)
            return len({number for number, _ in found}) == partitions

        until(read, "a record of every partition")
        return found
    finally:
        consumer.close()


def _broker(daemon: Daemon, number: int) -> WorkerStatus:
    status = daemon.ask(GetStatus())
    assert isinstance(status, Status)
    return next(each for each in status.workers if each.kind == "broker" and each.number == number)


def test_clients_of_every_listener_reach_every_worker(tmp_path: Path) -> None:
    first = free_ports(4)[0]
    outside = first + 2
    with Daemon(tmp_path, **_settings(first)) as daemon:
        # This program's own commands take the listener that asks nothing.
        assert [_broker(daemon, number).address for number in (0, 1)] == [f"127.0.0.1:{first + k}" for k in (0, 1)]
        admin = KafkaAdminClient(**_login(outside, "admin", _PASSWORD))
        admin.create_topics([NewTopic("t", 4, 1)])
        told = {(each["host"], each["port"]) for each in admin.describe_cluster()["brokers"]}
        admin.close()
        assert told == {("127.0.0.1", outside), ("127.0.0.1", outside + 1)}
        _add_user(_login(outside + 1, "admin", _PASSWORD), "scram", "of the sea")
        scram = _login(outside, "scram", "of the sea", "SCRAM-SHA-256")
        assert _through(scram, "t", 4) == {(number, b"x") for number in range(4)}
        # A worker that comes back knows its users.
        before = _broker(daemon, 1)
        assert before.pid is not None
        os.kill(before.pid, signal.SIGKILL)
        until(lambda: _broker(daemon, 1).pid not in (None, before.pid) and _broker(daemon, 1).phase == "serving")
        assert len(_through(_login(outside + 1, "scram", "of the sea", "SCRAM-SHA-256"), "t", 4)) == 4
        daemon.stop()
        # So does the next daemon.
        daemon.start()
        assert len(_through(scram, "t", 4)) == 4
        with RawClient(outside) as client, pytest.raises(AssertionError, match="invalid credentials"):
            log_in(client, "scram", "wrong", "SCRAM-SHA-256")
        assert "failed to log in on OUTSIDE" in daemon.log()
        assert _PASSWORD not in daemon.log()
        assert "of the sea" not in daemon.log()
        daemon.stop()


def test_users_of_plain_are_read_again(tmp_path: Path) -> None:
    first = free_ports(4)[0]
    with Daemon(tmp_path, **_settings(first)) as daemon:
        daemon.write(**{_JAAS: f'{_MODULE} required user_admin="{_PASSWORD}" user_other="{_PASSWORD}2";'})
        answer = daemon.ask(Reload())
        assert isinstance(answer, Reloaded)
        assert answer.applied == (f"{_JAAS} = [hidden]",)
        assert not answer.refused
        for user, password in (("admin", _PASSWORD), ("other", f"{_PASSWORD}2")):
            for port in (first + 2, first + 3):
                KafkaAdminClient(**_login(port, user, password)).close()
        daemon.write(**{_JAAS: f'{_MODULE} required user_admin="{_PASSWORD}"'})
        with pytest.raises(SettingError, match="must end with a semicolon") as refusal:
            daemon.ask(Reload())
        KafkaAdminClient(**_login(first + 2, "other", f"{_PASSWORD}2")).close()
        assert _PASSWORD not in daemon.log()
        assert _PASSWORD not in str(refusal.value)
        daemon.stop()


def _listens(port: int) -> bool:
    """A daemon without topics runs a moment before its brokers take connections."""
    try:
        RawClient(port).close()
    except ConnectionError:
        return False
    return True


def test_settings_of_a_listener_change_through_clients(tmp_path: Path) -> None:
    first = free_ports(4)[0]
    outside = first + 2
    settings = {**_settings(first), "sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    del settings[_JAAS]
    with Daemon(tmp_path, **settings) as daemon:

        def change(*configs: tuple[str, str]) -> int:
            with RawClient(first) as client:
                rows = [{"name": name, "config_operation": 0, "value": value} for name, value in configs]
                resources = [{"resource_type": 4, "resource_name": "1", "configs": rows}]
                answer = client.ask(44, 1, {"resources": resources, "validate_only": False})
                return int(answer.responses[0].error_code)

        def comes_in(port: int) -> bool:
            with RawClient(port) as client:
                try:
                    log_in(client, "new", _PASSWORD)
                except (AssertionError, ConnectionError):
                    return False
                return True

        until(lambda: _listens(outside))
        assert not comes_in(outside)
        assert not change(
            (_JAAS, f'{_MODULE} required user_new="{_PASSWORD}";'),
            ("listener.name.outside.sasl.enabled.mechanisms", "PLAIN"),
        )
        until(lambda: comes_in(outside) and comes_in(outside + 1))
        # What cannot be done changes nothing while clients are served, and does not keep the daemon from starting.
        assert not change((_JAAS, "hush"))
        until(lambda: "settings of the catalogue were not applied" in daemon.log())
        assert comes_in(outside)
        assert comes_in(outside + 1)
        daemon.stop()
        daemon.start()
        assert "is passed over" in daemon.log()
        until(lambda: _listens(outside))
        assert "hush" not in daemon.log()
        assert not comes_in(outside)
        assert not change((_JAAS, f'{_MODULE} required user_new="{_PASSWORD}";'))
        until(lambda: comes_in(outside) and comes_in(outside + 1))
        assert _PASSWORD not in daemon.log()
        daemon.stop()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI cannot be had"),
        ({"listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SSL"}, "needs ssl.keystore.location"),
        (
            {
                "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "/nowhere/server.pem",
            },
            "listener OUTSIDE: ssl.keystore.location /nowhere/server.pem: No such file",
        ),
        ({"listeners": "INSIDE://127.0.0.1:9,OUTSIDE://127.0.0.1:10"}, "ports that 2 workers of each need"),
    ],
)
def test_what_would_not_protect_keeps_the_daemon_from_starting(
    tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    daemon = Daemon(tmp_path, **{**_settings(free_ports(4)[0]), **settings})
    daemon.spawn()
    code, _ = daemon.ended()
    assert code
    assert said in " ".join(daemon.log().split())
