"""Transactions of every client, read by every client: all or nothing, with a group's offsets or without."""

from __future__ import annotations

import pytest

from tests.integration.clients.interface import Client
from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.records import Message, as_read, assortment, in_order
from tests.integration.servers import Server, until
from tests.integration.test_groups import committed, write
from tests.integration.tools import Tools
from tests.oracle.driver import Oracle, OracleError, encode

pytestmark = pytest.mark.kafka


def values(client: Client, server: Server, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    return [each.value for each in in_order(client.consume(server, topic, isolation))]


def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    server: Server, clients: dict[str, Client], client: Client, topic: str
) -> None:
    server.create(topic, 2)
    groups = [assortment(partition, seed) for partition in (0, 1) for seed in (partition, 8 + partition)]
    kept, dropped, plain, more = ([client.sendable(each) for each in group] for group in groups)
    assert client.transact(server, topic, kept, f"x-{topic}", commit=True) == list(range(60))
    # An offset for the marker that commits.
    assert client.transact(server, topic, dropped, f"x-{topic}", commit=False) == list(range(61, 121))
    assert client.produce(server, topic, plain) == list(range(60))
    assert client.transact(server, topic, more, f"y-{topic}", commit=True) == list(range(60, 120))
    # A commit is told as soon as it is sure to happen; markers follow.
    until(lambda: [server.offsets(topic, number, isolation=1) for number in (0, 1)] == [122, 121], "the last marker")
    expected = as_read(kept, range(60)) + as_read(plain + more, range(120))
    everything = as_read(kept + dropped, [*range(60), *range(61, 121)]) + as_read(plain + more, range(120))
    for reader in clients.values():
        assert in_order(reader.consume(server, topic, "read_committed")) == expected, reader.name
        assert in_order(reader.consume(server, topic)) == everything, reader.name


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_records_and_offsets_go_together(server: Server, client: Client, topic: str, commit: bool) -> None:
    """Read, written on, and the group's offsets, in one transaction."""
    target, group = f"{topic}-out", f"g-{topic}"
    server.create(topic, 4)
    server.create(target, 4)
    write(server, topic)
    assert client.transform(server, topic, target, group, 40, commit) >= 40
    if commit:
        until(lambda: committed(server, group) == {(topic, number): 10 for number in range(4)}, "the offsets")
        until(lambda: len(values(client, server, target)) == 40, "40 records")
        write(server, topic, 8)
        assert client.transform(server, topic, target, group, 8) == 8
        until(lambda: len(values(client, server, target)) == 48, "48 records")
    else:
        assert committed(server, group) == {}
        assert values(client, server, target) == []
        until(lambda: len(values(client, server, target, "read_uncommitted")) == 40, "40 records")
        # Nothing was taken: the next one has it all again.
        assert client.transform(server, topic, target, group, 40) >= 40
        until(lambda: len(values(client, server, target)) == 40, "40 records")


def begin(oracle: Oracle, server: Server, topic: str, transactional_id: str, value: bytes, **config: object) -> None:
    """A transaction of a Java producer that stays open."""
    record = {"topic": topic, "partition": 0, "key": None, "value": encode(value), "headers": []}
    config = {"transactional.id": transactional_id, "transaction.timeout.ms": 600_000, **config}
    oracle.request("produce", bootstrap=server.bootstrap, config=config, records=[record], close=False)


def test_an_open_transaction_holds_readers_back(
    server: Server, clients: dict[str, Client], oracle: Oracle, tools: Tools, topic: str
) -> None:
    server.create(topic)
    assert Librdkafka().transact(server, topic, [Message(b"before")], f"a-{topic}", True) == [0]
    until(lambda: server.offsets(topic, isolation=1) == 2, "its marker")
    begin(oracle, server, topic, f"b-{topic}", b"open")
    assert Librdkafka().produce(server, topic, [Message(b"after")]) == [3]
    assert [server.offsets(topic, isolation=isolation) for isolation in (0, 1)] == [4, 2]
    for client in clients.values():
        assert values(client, server, topic) == [b"before"], client.name
        assert values(client, server, topic, "read_uncommitted") == [b"before", b"open", b"after"], client.name
    shown = tools.run(server, "TransactionsCommand", "list")
    assert any(line.split()[0] == f"b-{topic}" and "Ongoing" in line for line in shown.splitlines())
    shown = tools.run(server, "TransactionsCommand", "describe", "--transactional-id", f"b-{topic}")
    assert f"{topic}-0" in shown
    shown = tools.run(server, "TransactionsCommand", "describe-producers", "--topic", topic, "--partition", "0")
    assert [line.split()[-1] for line in shown.splitlines()[1:]].count("None") == 1
    # A producer of the same id fences it: its transaction is aborted, and it cannot go on.
    assert Librdkafka().transact(server, topic, [Message(b"fencing")], f"b-{topic}", True) == [5]
    until(lambda: server.offsets(topic, isolation=1) == 7, "the last marker")
    for client in clients.values():
        assert values(client, server, topic) == [b"before", b"after", b"fencing"], client.name
    with pytest.raises(OracleError, match=r"(?i)fence|epoch"):
        config = {"transactional.id": f"b-{topic}", "transaction.timeout.ms": 600_000}
        oracle.request("produce", bootstrap=server.bootstrap, config=config, records=[], begin=False, end="commit")


def test_a_transaction_that_takes_too_long_is_aborted(server: Server, oracle: Oracle, topic: str) -> None:
    server.create(topic)
    begin(oracle, server, topic, f"slow-{topic}", b"late", **{"transaction.timeout.ms": 1000})
    assert Librdkafka().produce(server, topic, [Message(b"after")]) == [1]
    until(lambda: server.offsets(topic, isolation=1) == 3, "the end of a transaction that nobody ends")
    assert values(Librdkafka(), server, topic) == [b"after"]


def test_a_hanging_transaction_is_aborted_by_hand(server: Server, oracle: Oracle, tools: Tools, topic: str) -> None:
    """TransactionsCommand abort writes a marker (WriteTxnMarkers)."""
    server.create(topic)
    begin(oracle, server, topic, f"hangs-{topic}", b"open")
    Librdkafka().produce(server, topic, [Message(b"after")])
    tools.run(server, "TransactionsCommand", "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    until(lambda: server.offsets(topic, isolation=1) == 3, "the abort")
    assert values(Librdkafka(), server, topic) == [b"after"]


def test_a_timeout_beyond_the_limit_is_refused(server: Server, oracle: Oracle, topic: str) -> None:
    server.create(topic)
    with pytest.raises(OracleError, match=r"transaction\.max\.timeout\.ms"):
        begin(oracle, server, topic, f"long-{topic}", b"v", **{"transaction.timeout.ms": 900_001})
