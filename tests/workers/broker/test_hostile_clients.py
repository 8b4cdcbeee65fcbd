"""Clients that mean harm, or know no better: what they may cost others, and what they may not do."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from compactd.workers.broker import connection, fetch_sessions, turns
from compactd.workers.broker.context import Context
from compactd.workers.broker.decoding import decode
from compactd.workers.broker.encoding import encode
from compactd.workers.broker.groups.consumer import regex
from compactd.workers.broker.groups.consumer.heartbeat import resolver
from compactd.workers.broker.groups.consumer.regex import TopicPattern
from compactd.workers.broker.groups.consumer.regex_syntax import RegexError
from compactd.workers.broker.quotas import administration
from compactd.workers.broker.requests import Peer, RequestHeader, answer, load_handlers
from compactd.workers.broker.schemas import request_class
from tests.workers.broker.acl_requests import REQUESTS
from tests.workers.broker.batches import FETCH, batch, fetch_body, produce
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient, request_frame
from tests.workers.broker.sasl_client import log_in
from tests.workers.broker.transactional import RawProducer, ready

API_VERSIONS, FIND_COORDINATOR, LIST_TRANSACTIONS, ALTER_QUOTAS = 18, 10, 66, 49
#: Each character of a name leads through all of its states.
COSTLY = "((.?){249}){20}"


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir]) as running:
        yield running


def test_an_expression_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = TopicPattern(COSTLY)
    names = [f"{number}-" + "x" * 30 for number in range(3)]
    assert pattern.topics(names) == frozenset(names)
    monkeypatch.setattr(regex, "MOST_WORK", 50_000)
    other = TopicPattern(COSTLY)
    with pytest.raises(RegexError, match="takes too long"):
        other.topics(names)
    # Every question has the time anew; a group with such an expression reads nothing by it.
    regex.compiled.cache_clear()
    assert TopicPattern(".*").topics(names) == frozenset(names)
    found = resolver([COSTLY, "0-x*"], names, 1, 2)
    assert {each: resolved.topics for each, resolved in found.items()} == {COSTLY: frozenset(), "0-x*": {names[0]}}
    regex.compiled.cache_clear()


def test_others_are_served_while_transactions_are_looked_for(
    broker: CatalogueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regex, "MOST_WORK", 3_000_000)
    with RawClient(broker.port) as client, RawClient(broker.port) as other:
        client.ask(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ["0"]})
        for number in range(3):
            assert RawProducer(client, f"{number}{'x' * 800}", False).init() == 0
        other.ask(API_VERSIONS, 0, {})
        filters = {"state_filters": (), "producer_id_filters": (), "transactional_id_pattern": COSTLY}
        client.send(LIST_TRANSACTIONS, 2, filters)
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(client.receive(LIST_TRANSACTIONS, 2)))
        waiting.start()
        served = 0
        while waiting.is_alive():
            other.ask(API_VERSIONS, 0, {})
            served += 1
        waiting.join()
        assert served > 3
        assert answers[0].error_code == 128


# ---- connections


def test_strangers_take_no_memory_from_clients(log_dir: Path) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "queued.max.request.bytes": 100_000,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
        ),
    }
    with (
        CatalogueBroker([log_dir], settings) as broker,
        broker.connect("SASL_PLAINTEXT") as stranger,
        broker.connect("SASL_PLAINTEXT") as alice,
        broker.connect() as client,
    ):
        log_in(alice, "alice", "secret")
        stranger.send_bytes(struct.pack(">i", 500_000) + b"\0" * 10)
        while not broker.in_loop(lambda _: any(each._unbudgeted for each in broker._broker.server._connections)):
            time.sleep(0.005)
        for each in (client, alice):
            assert each.ask(API_VERSIONS, 0, {}).error_code == 0
        # From whoever is let in it is taken, and given back.
        alice.send_bytes(struct.pack(">i", 90_000) + b"\0" * 10)
        while not broker.in_loop(lambda _: broker._broker.server.budget.used):
            time.sleep(0.005)
        alice.close()
        while broker.in_loop(lambda _: broker._broker.server.budget.used):
            time.sleep(0.005)
        assert client.ask(API_VERSIONS, 0, {}).error_code == 0


def test_one_who_asks_much_at_once_does_not_hold_the_loop(
    broker: CatalogueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks, seen = 0, []

    async def slow(context: Context, frame: memoryview, peer: Peer) -> Any:
        time.sleep(0.01)
        seen.append(ticks)
        return await answer(context, frame, peer)

    async def count() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    monkeypatch.setattr(connection, "answer", slow)
    with RawClient(broker.port) as client:
        broker.in_loop(lambda context: [context.spawn(count())])
        frame = request_frame(API_VERSIONS, 0, 1, {}, "a")
        client.send_bytes((struct.pack(">i", len(frame)) + frame) * 6)
        for _ in range(6):
            client.receive_frame()
    # Others had a turn between any two that took so long.
    assert len(set(seen)) == 6


def test_who_leaves_behind_requests_that_wait_is_let_go(log_dir: Path) -> None:
    with CatalogueBroker([log_dir], {"connections.max.idle.ms": 1500}) as broker, RawClient(broker.port) as other:
        ready(other, {"t": 1})
        waits = {**fetch_body(), "max_wait": 1 << 30, "min_bytes": 1000}
        with RawClient(broker.port) as stays, RawClient(broker.port) as leaves:
            for client in (stays, leaves):
                client.send(FETCH, 12, waits)
            for _ in range(2):
                leaves.send(FETCH, 12, waits)
            broker.wait_for_watchers("t", 2)
            leaves.close()
            end = time.monotonic() + 60
            while broker.connections > 1:
                assert time.monotonic() < end
                time.sleep(0.01)
            # One who is still there is waited for.
            assert broker.connections == 1
            with RawClient(broker.port) as writer:
                produce(writer, batch([b"v" * 2000]))
            assert stays.receive(FETCH, 12).responses[0].partitions[0].records


def test_sessions_remember_so_many_partitions_in_all(broker: CatalogueBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MOST_REMEMBERED", 25)

    def body(count: int, session: int = 0, epoch: int = 0, first: int = 0) -> dict[str, Any]:
        rows = [
            {"partition": number, "fetch_offset": 0, "partition_max_bytes": 1} for number in range(first, first + count)
        ]
        return {
            **fetch_body(), "max_wait": 0, "session_id": session, "session_epoch": epoch,
            "topics": [{"topic": "nowhere", "partitions": rows}],
        }  # fmt: skip

    with RawClient(broker.port) as client:
        first = client.ask(FETCH, 12, body(20))
        assert first.session_id
        # No room for another one: it is answered without a session.
        other = client.ask(FETCH, 12, body(10))
        assert (other.session_id, len(other.responses[0].partitions)) == (0, 10)
        assert client.ask(FETCH, 12, body(5, first.session_id, 1, 20)).session_id == first.session_id
        # One that grows too large is over.
        assert client.ask(FETCH, 12, body(1, first.session_id, 2, 30)).error_code == 70
        assert client.ask(FETCH, 12, body(25)).session_id


_MANY = 20_000
_NAMES = [f"g{number}" for number in range(_MANY)]
_NUMBERS = list(range(_MANY))
#: Requests about many things, each of which is answered at once.
LONG = {
    "OffsetForLeaderEpoch": (23, 4, {"topics": [{"topic": "t", "partitions": [
        {"partition": number, "current_leader_epoch": -1, "leader_epoch": 0} for number in _NUMBERS]}]}),
    "DeleteRecords": (21, 2, {"timeout": 1000, "topics": [{"name": "t", "partitions": [
        {"partition_index": number, "offset": 0} for number in _NUMBERS]}]}),
    "FindCoordinator": (10, 4, {"key_type": 7, "coordinator_keys": _NAMES}),
    "DescribeGroups": (15, 5, {"groups": _NAMES}),
    "ConsumerGroupDescribe": (69, 1, {"group_ids": _NAMES}),
    "DeleteGroups": (42, 2, {"groups_names": _NAMES}),
    "OffsetFetch": (9, 8, {"groups": [{"group_id": name, "topics": None} for name in _NAMES]}),
    "DescribeTransactions": (65, 0, {"transactional_ids": _NAMES}),
    "DescribeProducers": (61, 0, {"topics": [{"name": "t", "partition_indexes": _NUMBERS}]}),
    "ListOffsets": (2, 9, {"replica_id": -1, "topics": [{"name": "t", "partitions": [
        {"partition_index": number, "timestamp": -1} for number in _NUMBERS]}]}),
    "OffsetCommit": (8, 9, {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": [
        {"name": "t", "partitions": [{"partition_index": number % 2, "committed_offset": 1} for number in _NUMBERS]}]}),
    "TxnOffsetCommit": (28, 3, {"transactional_id": "x", "group_id": "g", "producer_id": 1, "producer_epoch": 0, "topics": [
        {"name": "t", "partitions": [{"partition_index": number % 2, "committed_offset": 1} for number in _NUMBERS]}]}),
    "AddPartitionsToTxn": (24, 3, {"v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 0, "v3_and_below_topics": [{"name": "t", "partitions": _NUMBERS}]}),
    "AddPartitionsToTxn of brokers": (24, 5, {"transactions": [
        {"transactional_id": name, "producer_id": 1, "producer_epoch": 0, "verify_only": False,
         "topics": [{"name": "t", "partitions": [0]}]} for name in _NAMES]}),
    "LeaveGroup": (13, 5, {"group_id": "g", "members": [{"member_id": name} for name in _NAMES]}),
    "ElectLeaders": (43, 2, {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": _NUMBERS}]}),
    "AlterPartitionReassignments": (45, 0, {"topics": [{"name": "t", "partitions": [
        {"partition_index": number, "replicas": [1]} for number in _NUMBERS]}]}),
    "AlterReplicaLogDirs": (34, 2, {"dirs": [{"path": "/nowhere", "topics": [{"name": "t", "partitions": _NUMBERS}]}]}),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_others_have_their_turn_in_the_middle_of_a_long_request(
    broker: CatalogueBroker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Counted in turns of the loop while the handler runs: how long each takes depends on the machine."""
    monkeypatch.setattr(turns, "_HELD_SECONDS", 0.001)
    api_key, version, body = LONG[name]
    with RawClient(broker.port) as client:
        client.ask(api_key, version, {key: [] if isinstance(value, list) else value for key, value in body.items()})

        async def run(context: Context) -> tuple[Any, int]:
            count = 0

            async def other() -> None:
                nonlocal count
                while True:
                    await asyncio.sleep(0)
                    count += 1

            request = decode(request_class(api_key, version), encode(request_class(api_key, version), body))
            beside = asyncio.ensure_future(other())
            header = RequestHeader(api_key, version, 1, "", Peer("127.0.0.1", 1))
            answered = await load_handlers().apis[api_key].handler(context, header, request)
            beside.cancel()
            return answered, count

        answered, count = broker.in_loop(run)
        assert answered
        assert count > 3


# ---- clients that leave


@pytest.mark.parametrize("abruptly", [False, True])
def test_nothing_is_left_of_clients_that_leave_before_their_answer(
    broker: CatalogueBroker, caplog: pytest.LogCaptureFixture, abruptly: bool
) -> None:
    """Every request, the last of each API twice in a row; then neither connections, tasks nor descriptors are left."""
    with RawClient(broker.port) as client:
        ready(client, {"open": 1, "shut": 1, "seen": 1})

        def left() -> tuple[int, int]:
            """Connections besides this one, and tasks."""
            return broker.connections - 1, broker.in_loop(lambda _: len(asyncio.all_tasks()))

        def settled(most: int) -> None:
            end = time.monotonic() + 60
            while (now := left())[0] > 0 or now[1] > most:
                assert time.monotonic() < end, now
                time.sleep(0.02)

        def leave(api_key: int, version: int, body: Any, count: int) -> None:
            with RawClient(broker.port) as leaves:
                for _ in range(count):
                    leaves.send(api_key, version, body)
                if abruptly:
                    leaves.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        topics = {name: uuid.UUID(int=1) for name in ("open", "shut", "seen")}
        requests = [
            (api_key, max(versions), body(topics) if callable(body) else body)
            for api_key, versions, body in REQUESTS.values()
        ]
        for api_key, version, body in requests:
            leave(api_key, version, body, 1)
        settled(1 << 20)
        tasks, descriptors = left()[1], len(list(Path("/proc/self/fd").iterdir()))
        for count in (1, 2):
            for api_key, version, body in requests:
                leave(api_key, version, body, count)
        settled(tasks + 5)
        assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors + 20
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# ---- names of hosts


def test_names_that_nobody_answers_for_take_one_thread(
    broker: CatalogueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most, gate = 0, 0, threading.Event()
    asked: list[str] = []

    def slow(host: str) -> str | None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        asked.append(host)
        gate.wait(30)
        at_once -= 1
        return None

    monkeypatch.setattr(administration, "address_of", slow)

    def body(names: list[str]) -> dict[str, Any]:
        ops = [{"key": "connection_creation_rate", "value": 5.0, "remove": False}]
        entries = [{"entity": [{"entity_type": "ip", "entity_name": name}], "ops": ops} for name in names]
        return {"entries": entries, "validate_only": True}

    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.port)) for _ in range(12)]
        for number, client in enumerate(clients[1:]):
            client.send(ALTER_QUOTAS, 1, body([f"host-{number}.invalid", "10.0.0.1"]))
        while not asked:
            time.sleep(0.005)
        # Who asks for no name waits for nobody.
        assert [each.error_code for each in clients[0].ask(ALTER_QUOTAS, 1, body(["10.0.0.2"])).entries] == [0]
        gate.set()
        for client in clients[1:]:
            assert sorted(each.error_code for each in client.receive(ALTER_QUOTAS, 1).entries) == [0, 42]
        assert (most, len(asked)) == (1, 11)
        asked.clear()
        many = clients[0].ask(ALTER_QUOTAS, 1, body([f"host-{number}.invalid" for number in range(150)]))
        assert {each.error_code for each in many.entries} == {42}
        assert len(asked) == 100
