"""Both servers and all clients of a session; a test that takes `server` runs against either."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests import leftovers
from tests.integration import servers
from tests.integration.clients import franz
from tests.integration.clients.aio_kafka import AioKafka
from tests.integration.clients.go_build import CannotBuildError
from tests.integration.clients.interface import Client
from tests.integration.clients.java import Java
from tests.integration.clients.kafka_python import KafkaPython
from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.servers import Server
from tests.integration.tools import Tools
from tests.oracle.driver import Oracle

CLIENTS = ("java", "librdkafka", "kafka-python", "aiokafka", "franz-go")
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def compactd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`compactd serve`, the same for the whole session."""
    with servers.compactd(tmp_path_factory.mktemp("compactd") / "home") as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server(oracle_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Kafka, the same for the whole session."""
    with servers.kafka(oracle_classpath, tmp_path_factory.mktemp("kafka") / "home") as server:
        yield server


@pytest.fixture(scope="session")
def pair(oracle_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Kafka and compactd, of which each test uses both alike: whatever one lists, the other has to list."""
    home = tmp_path_factory.mktemp("pair")
    with servers.kafka(oracle_classpath, home / "kafka") as kafka, servers.compactd(home / "compactd") as ours:
        yield kafka, ours


@pytest.fixture(scope="session", params=["compactd", "kafka"])
def server(request: pytest.FixtureRequest) -> Server:
    """Either of them: a test that asks for it holds what it asserts against both."""
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture(scope="session")
def clients(_oracle_process: Oracle) -> Iterator[dict[str, Client]]:
    """By name, but franz-go where there is no Go."""
    with ExitStack() as stack:
        found: list[Client] = [Java(_oracle_process), Librdkafka(), KafkaPython(), AioKafka()]
        try:
            go = stack.enter_context(franz.Franz(franz.build()))
            stack.enter_context(leftovers.revived(go.revive))
            found.append(go)
        except CannotBuildError as error:
            _MISSING["franz-go"] = str(error)
        yield {client.name: client for client in found}


_MISSING: dict[str, str] = {}


def the_client(clients: dict[str, Client], name: str) -> Client:
    """Skips the test where the client is not on this machine."""
    if name not in clients:
        pytest.skip(f"no {name}: {_MISSING[name]}")
    return clients[name]


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, clients: dict[str, Client]) -> Client:
    """Each of the client libraries."""
    return the_client(clients, request.param)


@pytest.fixture(scope="session")
def tools(_oracle_process: Oracle) -> Tools:
    """Kafka's command-line tools."""
    return Tools(_oracle_process)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return f"t{next(_NUMBERS)}"
