"""Kafka Streams 4.4.0 with group.protocol=streams (KIP-1071), and the tool for its groups, against both brokers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.daemons import Daemon
from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.records import Message
from tests.integration.servers import SETTINGS, Server, until
from tests.integration.streams_app import StreamsApp
from tests.integration.tools import Tools
from tests.oracle.broker import Broker
from tests.oracle.driver import Oracle
from tests.workers.broker.catalogue_harness import CatalogueBroker

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

STREAMS: dict[str, object] = {
    "group.streams.min.session.timeout.ms": 3000,
    "group.streams.session.timeout.ms": 6000,
    "group.streams.min.heartbeat.interval.ms": 300,
    "group.streams.heartbeat.interval.ms": 500,
    "group.streams.initial.rebalance.delay.ms": 500,
    "group.streams.assignment.interval.ms": 200,
}
INCREMENTAL_ALTER_CONFIGS, GROUP = 44, 32
PARTITIONS = 4
#: Tasks of each of two instances, and copies: of the subtopology that has a store.
HALF = (PARTITIONS, PARTITIONS // 2)
WORDS = [f"word{number}" for number in range(23)]
GROUPS = "streams.StreamsGroupCommand"


@pytest.fixture(params=["compactd", "compactd, two workers", "kafka"])
def server(request: pytest.FixtureRequest, oracle_classpath: str, tmp_path: Path) -> Iterator[Server]:
    """One with short intervals, of its own."""
    if request.param == "kafka":
        log_dirs = (tmp_path / "d1", tmp_path / "d2")
        broker = Broker(oracle_classpath, tmp_path / "kafka", log_dirs, SETTINGS | STREAMS)
        broker.format()
        with broker:
            yield Server("kafka", broker.bootstrap, log_dirs)
        return
    settings = {name.replace(".", "_"): value for name, value in (SETTINGS | STREAMS).items()}
    (tmp_path / "compactd").mkdir()
    workers = 2 if "two" in request.param else 1
    with Daemon(tmp_path / "compactd", broker_workers=workers, **settings) as daemon:
        yield Server("compactd", daemon.bootstrap, tuple(daemon.dirs))
        daemon.stop()


@pytest.fixture
def tools(oracle: Oracle) -> Tools:
    """Kafka's command-line tools."""
    return Tools(oracle)


def lines(count: int) -> list[Message]:
    """Each word once a line and more; as many of each in all."""
    text = " ".join(WORDS)
    return [Message(text.encode(), key=b"%d" % number, partition=number % PARTITIONS) for number in range(count)]


def counted(server: Server) -> dict[str, list[int]]:
    """The counts of every word, in the order in which they came, of committed transactions alone."""
    found: dict[str, list[int]] = defaultdict(list)
    for record in Librdkafka().consume(server, "counts", isolation="read_committed"):
        assert record.key is not None and record.value is not None
        found[record.key.decode()].append(int(record.value))
    return found


def rows(text: str, group: str) -> list[list[str]]:
    return [row for line in text.splitlines() if (row := line.split()) and row[0] == group]


def test_counts_are_exact_over_a_rebalance_and_a_crash(
    server: Server, tools: Tools, oracle_classpath: str, tmp_path: Path
) -> None:
    """Two instances; one comes later, is killed in mid-work, comes back; every line counts once."""
    server.create("lines", PARTITIONS)
    server.create("counts", PARTITIONS)
    one_copy = {"name": "streams.num.standby.replicas", "config_operation": 0, "value": "1"}
    row = {"resource_type": GROUP, "resource_name": "app", "configs": [one_copy]}
    with server.connect() as client:
        answer = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [row], "validate_only": False})
    assert answer.responses[0].error_code == 0, answer
    written = 0

    def write(count: int) -> None:
        nonlocal written
        Librdkafka().produce(server, "lines", lines(count))
        written += count

    def all_counted() -> bool:
        return {len(each) for each in counted(server).values()} == {written}

    write(40)
    first = StreamsApp(oracle_classpath, server, tmp_path, "app", "first")
    second = StreamsApp(oracle_classpath, server, tmp_path, "app", "second")
    with first:
        first.run()
        until(all_counted, "the first lines")
        assert first.tasks() == (2 * PARTITIONS, 0)
        with second:
            second.run()
            until(lambda: first.tasks() == second.tasks() == HALF, "half of the tasks for each")
            write(200)
            until(lambda: any(len(each) > 60 for each in counted(server).values()), "work")
            write(100)
            second.kill()
        write(50)
        until(lambda: first.tasks()[0] == 2 * PARTITIONS, "all tasks for the one that is left")
        until(all_counted, "all lines")
        with second:
            second.run()
            until(lambda: first.tasks() == second.tasks() == HALF, "half of the tasks for each again")
            write(40)
            until(all_counted, "the last lines")
            members = tools.run(server, GROUPS, "--describe", "--group", "app", "--members", "--verbose")
            assert len(rows(members, "app")) == 2, members
            state = tools.run(server, GROUPS, "--describe", "--group", "app", "--state")
            assert "Stable" in state, state
    found = counted(server)
    assert set(found) == set(WORDS)
    # In order and without gaps: no line was counted twice, and none of the state was lost.
    assert all(each == list(range(1, written + 1)) for each in found.values())


@pytest.mark.parametrize("server", ["compactd", "kafka"], indirect=True)
def test_the_tool_for_streams_groups(server: Server, tools: Tools, oracle_classpath: str, tmp_path: Path) -> None:
    server.create("lines", PARTITIONS)
    server.create("counts", PARTITIONS)
    Librdkafka().produce(server, "lines", lines(20))
    with StreamsApp(oracle_classpath, server, tmp_path, "app", "one") as app:
        app.run()
        until(lambda: {len(each) for each in counted(server).values()} == {20}, "all lines")
        listed = tools.run(server, GROUPS, "--list", "--state")
        assert rows(listed, "app") == [["app", "Stable"]], listed
        offsets = tools.run(server, GROUPS, "--describe", "--group", "app", "--verbose")
        topics = {row[1] for row in rows(offsets, "app")}
        assert topics == {"lines", "app-words-repartition"}, offsets
        busy = tools.ran(server, GROUPS, "--delete", "--group", "app")
        assert "GroupNotEmptyException" in busy.out + busy.err, busy
    until(lambda: rows(tools.run(server, GROUPS, "--list", "--state"), "app") == [["app", "Empty"]], "an empty group")
    reset = tools.run(
        server, GROUPS, "--reset-offsets", "--group", "app", "--input-topic", "lines", "--to-earliest", "--execute"
    )
    assert {tuple(row[1:4]) for row in rows(reset, "app")} == {
        ("lines", str(number), "0") for number in range(PARTITIONS)
    }
    gone = tools.run(server, GROUPS, "--delete", "--group", "app", "--delete-all-internal-topics")
    assert "successful" in gone, gone
    assert "app" not in tools.run(server, GROUPS, "--list").split()
    left = tools.run(server, "TopicCommand", "--list").split()
    assert not [name for name in left if name.startswith("app-")], left


def test_an_application_goes_from_kafka_to_compactd_and_back(oracle_classpath: str, tmp_path: Path) -> None:
    """The same disk: offsets, transactions, group and changelog of one are what the other goes on from."""
    disk = tmp_path / "disk"
    kafka = Broker(oracle_classpath, tmp_path / "kafka", [disk], SETTINGS | STREAMS)
    kafka.format()
    written = 0

    def work(server: Server) -> None:
        """A new instance, whose state comes out of the changelog, counts on."""
        nonlocal written
        Librdkafka().produce(server, "lines", lines(30))
        written += 30
        with StreamsApp(oracle_classpath, server, tmp_path, "app", f"app{written}") as app:
            app.run()
            until(lambda: {len(each) for each in counted(server).values()} == {written}, "all lines")
        assert all(each == list(range(1, written + 1)) for each in counted(server).values())

    for turn in range(2):
        with kafka:
            server = Server("kafka", kafka.bootstrap, (disk,))
            if not turn:
                server.create("lines", PARTITIONS)
                server.create("counts", PARTITIONS)
            work(server)
        if not turn:
            with CatalogueBroker([disk], STREAMS) as ours:
                work(Server("compactd", ours.bootstrap, (disk,)))
    assert not kafka.complaints()
