"""compactd with two broker workers, each with half of the partitions: clients see two brokers, and nothing else differs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration import servers
from tests.integration.clients.interface import Client
from tests.integration.records import CODECS, Message, as_read, assortment, in_order
from tests.integration.servers import Server, until
from tests.integration.test_groups import committed, write

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.compactd(tmp_path_factory.mktemp("two-workers") / "home", broker_workers=2) as server:
        yield server


def create(server: Server, topic: str) -> None:
    server.create(topic, 4)
    with server.connect() as raw:
        found = raw.ask(3, 9, {"topics": [{"name": topic}]})
    assert len(found.brokers) == 2
    assert len({each.leader_id for each in found.topics[0].partitions}) == 2, "both have partitions"


def test_records_of_every_client(two: Server, client: Client, topic: str) -> None:
    create(two, topic)
    expected = []
    for partition, codec in enumerate(CODECS[:4]):
        messages = [client.sendable(message) for message in assortment(partition)]
        expected += as_read(messages, client.produce(two, topic, messages, codec, idempotent=partition % 2 == 0))
    assert in_order(client.consume(two, topic)) == expected


def test_groups_of_every_client(two: Server, client: Client, topic: str) -> None:
    create(two, topic)
    for protocol in client.group_protocols:
        group = f"g-{topic}-{protocol}"
        write(two, topic)
        ends = sum(two.offsets(topic, number) for number in range(4))
        assert len(client.read_as_member(two, topic, group, ends, protocol)) == ends
        assert sum(committed(two, group).values()) == ends


def test_transactions_of_every_client(two: Server, client: Client, topic: str) -> None:
    """Over partitions of both workers, with the offsets of a group."""
    create(two, topic)
    target = f"{topic}-out"
    create(two, target)
    messages = [Message(b"%d" % number, partition=number % 4) for number in range(40)]
    for commit in (False, True):
        client.transact(two, topic, messages, f"x-{topic}", commit)
    until(lambda: len(client.consume(two, topic, "read_committed")) == 40, "what was committed")
    assert len(client.consume(two, topic)) == 80
    assert client.transform(two, topic, target, f"g-{topic}", 40) == 40
    until(lambda: len(client.consume(two, target, "read_committed")) == 40, "what was moved on")
    until(lambda: len(committed(two, f"g-{topic}")) == 4, "the offsets")
