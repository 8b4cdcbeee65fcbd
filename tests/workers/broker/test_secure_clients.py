"""Real clients that log in and that speak TLS: librdkafka, kafka-python, aiokafka, Kafka's own tools."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.certificates import Certificates, make_certificates
from tests.workers.broker.sasl_client import SCRAM, salted

_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_USERS = f'{_PLAIN_MODULE} required user_alice="alice-secret";'
_MECHANISMS = ("PLAIN", *SCRAM)
_LISTENERS = ("SASL_PLAINTEXT", "SASL_SSL")
_TOPIC, _COUNT = "t", 200
_VALUES = [b"value %d" % number for number in range(_COUNT)]
ALTER_SCRAM, CREATE_TOPICS = 51, 19


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def broker(certificates: Certificates, fast_dir: Path) -> Iterator[CatalogueBroker]:
    names = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL")
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in names),
        "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
        # Short enough that a client logs in again while a test runs.
        "listener.name.sasl_plaintext.connections.max.reauth.ms": "2500",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": _USERS,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": _USERS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.store("server")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "ssl.client.auth": "required",
    }
    with CatalogueBroker([fast_dir], settings) as running:
        with running.connect() as client:
            for mechanism, (number, _) in SCRAM.items():
                upsertion = {
                    "name": "alice",
                    "mechanism": number,
                    "iterations": 8192,
                    "salt": b"some salt",
                    "salted_password": salted(mechanism, "alice-secret", b"some salt", 8192),
                }
                answer = client.ask(ALTER_SCRAM, 0, {"deletions": [], "upsertions": [upsertion]})
                assert answer.results[0].error_code == 0
            topics = [{"name": _TOPIC, "num_partitions": 1, "replication_factor": 1}]
            assert client.ask(CREATE_TOPICS, 7, {"topics": topics, "timeout": 9000}).topics[0].error_code == 0
        yield running


def _address(broker: CatalogueBroker, listener: str) -> str:
    return f"127.0.0.1:{broker.ports[listener]}"


# ---- librdkafka


def _librdkafka(broker: CatalogueBroker, listener: str, certificates: Certificates, **more: Any) -> dict[str, Any]:
    settings = {"bootstrap.servers": _address(broker, listener), "security.protocol": listener, **more}
    if listener.endswith("SSL"):
        settings["ssl.ca.location"] = str(certificates.authority)
    return settings


def _through_librdkafka(settings: dict[str, Any]) -> list[bytes]:
    confluent = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    producer = confluent.Producer(settings)
    for value in _VALUES:
        producer.produce(_TOPIC, value)
    assert producer.flush(30) == 0
    consumer = confluent.Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    found: list[bytes] = []
    try:
        consumer.subscribe([_TOPIC])
        while len(found) < _COUNT:
            messages = consumer.consume(_COUNT, 10.0)
            assert messages, "nothing came for ten seconds"
            for message in messages:
                assert message.error() is None
                found.append(message.value())
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("mechanism", _MECHANISMS)
@pytest.mark.parametrize("listener", _LISTENERS)
def test_librdkafka_logs_in(broker: CatalogueBroker, certificates: Certificates, listener: str, mechanism: str) -> None:
    login = {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": "alice-secret"}
    assert _through_librdkafka(_librdkafka(broker, listener, certificates, **login)) == _VALUES


def test_librdkafka_shows_a_certificate(broker: CatalogueBroker, certificates: Certificates) -> None:
    own = {
        "ssl.certificate.location": str(certificates.certificate("client")),
        "ssl.key.location": str(certificates.key("client")),
    }
    assert _through_librdkafka(_librdkafka(broker, "SSL", certificates, **own)) == _VALUES


def test_librdkafka_is_told_why_it_may_not_come_in(broker: CatalogueBroker, certificates: Certificates) -> None:
    confluent = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    errors: list[str] = []
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "wrong"}
    settings = _librdkafka(broker, "SASL_PLAINTEXT", certificates, **login)
    producer = confluent.Producer({**settings, "error_cb": lambda error: errors.append(str(error))})
    for _ in range(100):
        producer.poll(0.1)
        if any("Invalid username or password" in error for error in errors):
            return
    raise AssertionError(errors)


def test_librdkafka_logs_in_again_and_keeps_its_connections(
    broker: CatalogueBroker, certificates: Certificates
) -> None:
    confluent = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password": "alice-secret"}
    producer = confluent.Producer(_librdkafka(broker, "SASL_PLAINTEXT", certificates, **login))
    producer.produce(_TOPIC, b"first")
    assert producer.flush(30) == 0
    before = {(each.host, each.port) for each in broker.peers() if each.principal == "User:alice"}
    assert before
    # Twice the time that a login counts for.
    for _ in range(50):
        producer.produce(_TOPIC, b"more")
        assert producer.flush(30) == 0
        time.sleep(0.1)
    after = {(each.host, each.port) for each in broker.peers() if each.principal == "User:alice"}
    assert before & after


# ---- kafka-python


@pytest.mark.parametrize("mechanism", _MECHANISMS)
@pytest.mark.parametrize("listener", _LISTENERS)
def test_kafka_python_logs_in(
    broker: CatalogueBroker, certificates: Certificates, listener: str, mechanism: str
) -> None:
    kafka = pytest.importorskip("kafka", reason="kafka-python is not installed")
    settings = {
        "bootstrap_servers": _address(broker, listener),
        "security_protocol": listener,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": "alice-secret",
        **({"ssl_cafile": str(certificates.authority)} if listener.endswith("SSL") else {}),
    }
    producer = kafka.KafkaProducer(**settings)
    for value in _VALUES:
        producer.send(_TOPIC, value)
    producer.flush(30)
    producer.close()
    consumer = kafka.KafkaConsumer(
        _TOPIC, **settings, auto_offset_reset="earliest", group_id="g", consumer_timeout_ms=20_000
    )
    found = []
    for message in consumer:
        found.append(message.value)
        if len(found) == _COUNT:
            break
    consumer.close()
    assert found == _VALUES


# ---- aiokafka


@pytest.mark.parametrize("mechanism", _MECHANISMS)
@pytest.mark.parametrize("listener", _LISTENERS)
def test_aiokafka_logs_in(broker: CatalogueBroker, certificates: Certificates, listener: str, mechanism: str) -> None:
    aiokafka = pytest.importorskip("aiokafka", reason="aiokafka is not installed")
    from aiokafka.helpers import create_ssl_context  # noqa: PLC0415

    settings = {
        "bootstrap_servers": _address(broker, listener),
        "security_protocol": listener,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": "alice-secret",
    }
    if listener.endswith("SSL"):
        settings["ssl_context"] = create_ssl_context(cafile=str(certificates.authority))

    async def through() -> list[bytes]:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            for value in _VALUES:
                await producer.send(_TOPIC, value)
            await producer.flush()
        async with aiokafka.AIOKafkaConsumer(
            _TOPIC, **settings, auto_offset_reset="earliest", group_id="g"
        ) as consumer:
            return [(await asyncio.wait_for(anext(consumer), 20)).value for _ in range(_COUNT)]

    assert asyncio.run(through()) == _VALUES


# ---- Kafka's own


class Tools:
    """Kafka's tools, each in a JVM."""

    def __init__(self, classpath: str, broker: CatalogueBroker, directory: Path) -> None:
        self._classpath = classpath
        self._broker = broker
        self._directory = directory

    def run(self, tool: str, listener: str, login: dict[str, str], *arguments: str, given: str = "") -> str:
        """Standard output; the tool has to succeed."""
        properties = self._directory / "client.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in login.items()))
        java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", self._classpath]
        server = ["--bootstrap-server", _address(self._broker, listener)]
        done = subprocess.run(
            [*java, tool, *server, "--command-config", str(properties), *arguments],
            input=given, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, (done.stderr + done.stdout)[-3000:]
        return done.stdout


@pytest.fixture
def tools(oracle_classpath: str, broker: CatalogueBroker, tmp_path: Path) -> Tools:
    return Tools(oracle_classpath, broker, tmp_path)


def _java(listener: str, mechanism: str, user: str, password: str, certificates: Certificates) -> dict[str, str]:
    module = _PLAIN_MODULE if mechanism == "PLAIN" else _SCRAM_MODULE
    login = {
        "security.protocol": listener,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
    }
    if listener.endswith("SSL"):
        login |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificates.authority)}
    return login


@pytest.mark.kafka
@pytest.mark.parametrize(("listener", "mechanism"), [("SASL_PLAINTEXT", "SCRAM-SHA-512"), ("SASL_SSL", "PLAIN")])
def test_kafkas_console_tools_log_in(tools: Tools, certificates: Certificates, listener: str, mechanism: str) -> None:
    login = _java(listener, mechanism, "alice", "alice-secret", certificates)
    lines = [value.decode() for value in _VALUES]
    tools.run(
        "org.apache.kafka.tools.ConsoleProducer", listener, login, "--topic", _TOPIC, given="\n".join(lines) + "\n"
    )
    read = tools.run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", listener, login,
        "--topic", _TOPIC, "--from-beginning", "--max-messages", str(_COUNT), "--timeout-ms", "30000",
    )  # fmt: skip
    assert read.splitlines() == lines


@pytest.mark.kafka
def test_users_are_made_and_removed_with_kafka_configs(
    broker: CatalogueBroker, tools: Tools, certificates: Certificates
) -> None:
    admin = _java("SASL_PLAINTEXT", "PLAIN", "alice", "alice-secret", certificates)
    configs = "org.apache.kafka.tools.ConfigCommand"
    user = ("--entity-type", "users", "--entity-name", "new")
    made = tools.run(
        configs,
        "SASL_PLAINTEXT",
        admin,
        "--alter",
        *user,
        "--add-config",
        "SCRAM-SHA-256=[iterations=4096,password=pw]",
    )
    assert "Completed updating config for user new." in made
    told = tools.run(configs, "SASL_PLAINTEXT", admin, "--describe", *user)
    assert "SCRAM credential configs for user-principal 'new' are SCRAM-SHA-256=iterations=4096" in told
    settings = _librdkafka(
        broker, "SASL_PLAINTEXT", certificates,
        **{"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "new", "sasl.password": "pw"},
    )  # fmt: skip
    assert _through_librdkafka(settings) == _VALUES
    tools.run(configs, "SASL_PLAINTEXT", admin, "--alter", *user, "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM" not in tools.run(configs, "SASL_PLAINTEXT", admin, "--describe", *user)
