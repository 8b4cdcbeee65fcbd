"""Records of every kind, by every client in every codec, read by every client: the same from both brokers."""

from __future__ import annotations

import pytest

from tests.integration.clients.interface import Client
from tests.integration.conftest import CLIENTS, the_client
from tests.integration.records import (
    CODECS,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    Message,
    Record,
    Refused,
    as_read,
    assortment,
    in_order,
)
from tests.integration.servers import Server, until
from tests.integration.tools import Tools

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="session")
def written_before() -> dict[str, dict[str, list[Record]]]:
    """By server: a session may come back to one, and what depends on which of them it is is made again then."""
    return {}


@pytest.fixture(scope="session")
def written(
    server: Server, clients: dict[str, Client], written_before: dict[str, dict[str, list[Record]]]
) -> dict[str, list[Record]]:
    """A topic a client, a partition a codec: what has to be read."""
    if server.name in written_before:
        return written_before[server.name]
    found: dict[str, list[Record]] = {}
    for seed, client in enumerate(clients.values()):
        topic = f"written-by-{client.name}"
        server.create(topic, len(CODECS))
        found[client.name] = []
        for partition, codec in enumerate(CODECS):
            messages = [client.sendable(message) for message in assortment(partition, seed)]
            outcomes = client.produce(server, topic, messages, codec)
            assert outcomes == list(range(len(messages))), f"{client.name} with {codec}"
            found[client.name] += as_read(messages, outcomes)
    written_before[server.name] = found
    return found


@pytest.mark.parametrize("writer", CLIENTS)
def test_every_client_reads_what_every_client_wrote_in_every_codec(
    server: Server, written: dict[str, list[Record]], clients: dict[str, Client], client: Client, writer: str
) -> None:
    the_client(clients, writer)
    assert in_order(client.consume(server, f"written-by-{writer}")) == written[writer]


def test_codecs_lie_on_disk_as_they_were_sent(server: Server, written: dict[str, list[Record]], tools: Tools) -> None:
    """DumpLogSegments of Kafka on the files of either."""
    for name in written:
        for partition, codec in enumerate(CODECS):
            segment = server.partition_dir(f"written-by-{name}", partition) / f"{0:020d}.log"
            shown = tools.run(None, "DumpLogSegments", "--files", str(segment), "--deep-iteration")
            batches = [line for line in shown.splitlines() if line.startswith("baseOffset:")]
            assert batches and all(f"compresscodec: {codec} " in line for line in batches), shown
            assert sum(line.startswith("| offset:") for line in shown.splitlines()) == 60


@pytest.mark.parametrize(("acks", "idempotent"), [(0, False), (1, False), (-1, False), (-1, True)])
def test_acks(server: Server, client: Client, topic: str, acks: int, idempotent: bool) -> None:
    server.create(topic)
    messages = [client.sendable(message) for message in assortment(seed=9)]
    outcomes = client.produce(server, topic, messages, acks=acks, idempotent=idempotent)
    assert outcomes == ([-1] * 60 if acks == 0 else list(range(60)))
    until(lambda: server.offsets(topic) == 60, "what was sent without acks")
    assert client.consume(server, topic) == as_read(messages, range(60))


def test_900_kilobytes_pass_and_more_than_the_limit_does_not(server: Server, client: Client, topic: str) -> None:
    server.create(topic)
    sizes = (900 << 10, 2 << 20, 900 << 10, 10)
    found = [client.produce(server, topic, [Message(b"x" * size)])[0] for size in sizes]
    assert found == [0, MESSAGE_TOO_LARGE, 1, 2]
    assert [len(each.value or b"") for each in client.consume(server, topic)] == [900 << 10, 900 << 10, 10]


def test_a_topics_own_limit(server: Server, client: Client, topic: str) -> None:
    server.create(topic, max_message_bytes=2_000)
    found = [client.produce(server, topic, [Message(b"x" * size)])[0] for size in (1_500, 2_500)]
    assert found == [0, MESSAGE_TOO_LARGE]


def test_a_compacted_topic_wants_keys(server: Server, client: Client, topic: str) -> None:
    server.create(topic, cleanup_policy="compact")
    for key, expected in ((None, INVALID_RECORD), (b"", 0), (b"k", 1)):
        assert client.produce(server, topic, [Message(b"v", key)]) == [expected]
    assert [(each.key, each.value) for each in client.consume(server, topic)] == [(b"", b"v"), (b"k", b"v")]


def test_timestamps_of_clients_and_of_brokers(server: Server, client: Client, topic: str) -> None:
    server.create(topic, message_timestamp_type="LogAppendTime")
    old = 1_500_000_000_000
    assert client.produce(server, topic, [Message(b"v", timestamp=old), Message(b"w", timestamp=old)]) == [0, 1]
    stamps = [each.timestamp for each in client.consume(server, topic)]
    assert len(set(stamps)) == 1 and stamps[0] > old
    assert server.offsets(topic, timestamp=old + 1) == 0


def test_timestamps_that_are_too_far_off(server: Server, client: Client, topic: str) -> None:
    server.create(topic, message_timestamp_before_max_ms=3_600_000, message_timestamp_after_max_ms=3_600_000)
    now = assortment()[0].timestamp
    assert now is not None
    outcomes = [
        client.produce(server, topic, [Message(b"v", timestamp=stamp)])[0]
        for stamp in (now - 7_200_000, now, now + 7_200_000)
    ]
    assert outcomes == [INVALID_TIMESTAMP, 0, INVALID_TIMESTAMP]


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_topics_own_codec(server: Server, clients: dict[str, Client], tools: Tools, topic: str, codec: str) -> None:
    """The broker writes batches anew; and `uncompressed` takes the compression off."""
    server.create(topic, compression_type=codec)
    for name, sent in (("java", "none"), ("librdkafka", "gzip" if codec != "gzip" else "zstd")):
        clients[name].produce(server, topic, assortment(), sent)
    plain = f"{topic}-plain"
    server.create(plain, compression_type="uncompressed")
    clients["java"].produce(server, plain, assortment(), codec)
    for where, expected, count in ((topic, codec, 120), (plain, "none", 60)):
        segment = server.partition_dir(where) / f"{0:020d}.log"
        shown = tools.run(None, "DumpLogSegments", "--files", str(segment), "--deep-iteration")
        batches = [line for line in shown.splitlines() if line.startswith("baseOffset:")]
        assert batches and all(f"compresscodec: {expected} " in line for line in batches), shown
        for client in clients.values():
            assert [each.value for each in client.consume(server, where)] == [each.value for each in assortment()] * (
                count // 60
            )


@pytest.mark.parametrize("name", ["librdkafka", "franz-go"])
def test_a_topic_that_is_not_there(server: Server, clients: dict[str, Client], name: str) -> None:
    """The client is told, and the topic is not made. (The others look for a topic for as long as anything may take.)"""
    outcomes = the_client(clients, name).produce(server, "nowhere", [Message(b"v")])
    assert isinstance(outcomes[0], Refused)
    with server.connect() as raw:
        assert all(each.name != "nowhere" for each in raw.ask(3, 9, {"topics": None}).topics)
