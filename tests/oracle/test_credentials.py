"""Users on disks that Kafka and this program serve in turn: who could log in there can log in here, and back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.oracle.broker import CLUSTER_ID, Broker
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.sasl_client import SCRAM, log_in, salted

pytestmark = pytest.mark.kafka

ALTER_SCRAM = 51
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_SECURITY = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.plaintext.scram-sha-256.sasl.jaas.config": f"{_MODULE} required;",
    "listener.name.plaintext.scram-sha-512.sasl.jaas.config": (
        f'{_MODULE} required username="admin" password="admin-secret";'
    ),
}
#: For Kafka to talk to itself.
_ALONE = {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512", "inter.broker.listener.name": "PLAINTEXT"}


def _format(classpath: str, kafka: Broker, home: Path) -> None:
    command = ["java", "-Xmx256m", "-cp", classpath, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID]
    command += ["-c", str(home / "server.properties")]
    for user, mechanism in (("admin", "SCRAM-SHA-512"), ("early", "SCRAM-SHA-256")):
        command += ["--add-scram", f"{mechanism}=[name={user},password={user}-secret]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout


def _works(port: int, user: str, password: str, mechanism: str) -> bool:
    with RawClient(port) as client:
        try:
            log_in(client, user, password, mechanism)
        except AssertionError:
            return False
        return True


def _set(client: RawClient, user: str, password: str, mechanism: str) -> None:
    number = SCRAM[mechanism][0]
    upsertion = {
        "name": user,
        "mechanism": number,
        "iterations": 4096,
        "salt": b"salty",
        "salted_password": salted(mechanism, password, b"salty", 4096),
    }
    answer = client.ask(ALTER_SCRAM, 0, {"deletions": [], "upsertions": [upsertion]})
    assert [int(each.error_code) for each in answer.results] == [0]


def _remove(client: RawClient, user: str, mechanism: str) -> None:
    deletion = {"name": user, "mechanism": SCRAM[mechanism][0]}
    answer = client.ask(ALTER_SCRAM, 0, {"deletions": [deletion], "upsertions": []})
    assert [int(each.error_code) for each in answer.results] == [0]


def test_users_outlive_a_change_of_the_program_and_back(oracle_classpath: str, tmp_path: Path) -> None:
    log_dir = tmp_path / "log"
    log_dir.mkdir()
    home = tmp_path / "kafka"
    settings = {**_SECURITY, **_ALONE}
    kafka = Broker(oracle_classpath, home, [log_dir], settings)
    _format(oracle_classpath, kafka, home)
    port = int(kafka.bootstrap.split(":")[1])
    with kafka:
        assert _works(port, "early", "early-secret", "SCRAM-SHA-256")
        with RawClient(port) as client:
            log_in(client, "admin", "admin-secret", "SCRAM-SHA-512")
            _set(client, "kafkas", "one", "SCRAM-SHA-256")
            _set(client, "kafkas", "two", "SCRAM-SHA-512")
            _set(client, "doomed", "gone", "SCRAM-SHA-256")
    ours = {**_SECURITY, "listeners": "PLAINTEXT://127.0.0.1:0"}
    with CatalogueBroker([log_dir], ours) as broker:
        assert _works(broker.port, "early", "early-secret", "SCRAM-SHA-256")
        assert _works(broker.port, "kafkas", "one", "SCRAM-SHA-256")
        assert _works(broker.port, "kafkas", "two", "SCRAM-SHA-512")
        assert not _works(broker.port, "kafkas", "two", "SCRAM-SHA-256")
        with broker.connect() as client:
            log_in(client, "admin", "admin-secret", "SCRAM-SHA-512")
            _set(client, "ours", "three", "SCRAM-SHA-512")
            _set(client, "kafkas", "four", "SCRAM-SHA-256")
            _remove(client, "doomed", "SCRAM-SHA-256")
    with kafka:
        assert _works(port, "ours", "three", "SCRAM-SHA-512")
        assert _works(port, "kafkas", "four", "SCRAM-SHA-256")
        assert not _works(port, "kafkas", "one", "SCRAM-SHA-256")
        assert not _works(port, "doomed", "gone", "SCRAM-SHA-256")
        assert kafka.complaints() == []
    with CatalogueBroker([log_dir], ours) as broker:
        assert _works(broker.port, "ours", "three", "SCRAM-SHA-512")
