"""Consumer groups of every client, on both protocols: who reads what, what is committed, who takes over from whom."""

from __future__ import annotations

import pytest

from tests.integration.clients.interface import Client
from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.conftest import CLIENTS, the_client
from tests.integration.records import Message
from tests.integration.servers import Server, until
from tests.integration.tools import Tools

pytestmark = pytest.mark.kafka
OFFSET_FETCH = 9
_CLASSIC = [(name, "classic") for name in CLIENTS]
_CONSUMER = [(name, "consumer") for name in ("java", "librdkafka", "franz-go")]


def committed(server: Server, group: str) -> dict[tuple[str, int], int]:
    """Offsets of a group, by topic and partition."""
    with server.connect_to_coordinator(group) as raw:
        found = raw.ask(OFFSET_FETCH, 9, {"groups": [{"group_id": group, "topics": None}]}).groups[0]
    assert found.error_code == 0, found
    return {
        (topic.name, each.partition_index): each.committed_offset for topic in found.topics for each in topic.partitions
    }


def write(server: Server, topic: str, count: int = 40) -> set[tuple[int, bytes | None]]:
    messages = [Message(b"%d" % number, partition=number % 4) for number in range(count)]
    Librdkafka().produce(server, topic, messages)
    return {(each.partition, each.value) for each in messages}


@pytest.mark.parametrize(("name", "protocol"), _CLASSIC + _CONSUMER)
def test_a_member_reads_commits_and_another_goes_on(
    server: Server, clients: dict[str, Client], topic: str, name: str, protocol: str
) -> None:
    client = the_client(clients, name)
    server.create(topic, 4)
    sent = write(server, topic)
    group = f"g-{topic}"
    read = client.read_as_member(server, topic, group, 40, protocol)
    assert {(each.partition, each.value) for each in read} == sent
    assert committed(server, group) == {(topic, number): 10 for number in range(4)}
    write(server, topic)
    more = client.read_as_member(server, topic, group, 40, protocol)
    assert {each.offset for each in more} == set(range(10, 20))
    assert committed(server, group) == {(topic, number): 20 for number in range(4)}


def test_clients_take_over_from_each_other(server: Server, clients: dict[str, Client], topic: str) -> None:
    """One group of all clients, one after another, on whichever protocol they speak: it goes back and forth."""
    server.create(topic, 4)
    group = f"g-{topic}"
    turns = [(client, protocol) for client in clients.values() for protocol in client.group_protocols]
    for turn, (client, protocol) in enumerate(turns):
        write(server, topic)
        read = client.read_as_member(server, topic, group, 40, protocol)
        assert {each.offset for each in read} == set(range(10 * turn, 10 * turn + 10)), (client.name, protocol)
    assert committed(server, group) == {(topic, number): 10 * len(turns) for number in range(4)}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_two_members_share(server: Server, tools: Tools, topic: str, protocol: str) -> None:
    """Two console consumers: each has a half; when one leaves, the other has everything."""
    server.create(topic, 4)
    group = f"g-{topic}"
    start = (
        "consumer.ConsoleConsumer", "--topic", topic, "--group", group, "--from-beginning", "--command-property",
        f"group.protocol={protocol}", "--formatter-property", "print.partition=true", "--timeout-ms", "120000",
    )  # fmt: skip
    first, second = tools.start(server, *start), tools.start(server, *start)

    def shares() -> list[str]:
        shown = tools.ran(server, "consumer.group.ConsumerGroupCommand", "--describe", "--group", group, "--members")
        return sorted(row[-1] for line in shown.lines if (row := line.split()) and row[0] == group)

    until(lambda: shares() == ["2", "2"], "a half for each")
    write(server, topic, 40)
    until(lambda: first.said().count("\n") + second.said().count("\n") == 40, "all records")
    halves = [{line.split("\t")[0] for line in tool.said().splitlines()} for tool in (first, second)]
    assert [len(half) for half in halves] == [2, 2] and not halves[0] & halves[1]
    second.interrupt()
    second.result()
    until(lambda: shares() == ["4"], "everything for the one that stays")
    write(server, topic, 40)
    until(lambda: first.said().count("\n") == 20 + 40, "the records after that")
    first.interrupt()
    first.result()
    until(lambda: committed(server, group) == {(topic, number): 20 for number in range(4)}, "the last commit")
