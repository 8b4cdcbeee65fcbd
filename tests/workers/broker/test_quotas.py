"""Clients over their quotas: what they are told, and that their connections then stay unread."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.workers.broker import main
from compactd.workers.broker.quotas.clients import ClientQuotas
from compactd.workers.broker.quotas.connections import ConnectionQuotas, literal_address, plain_address
from compactd.workers.broker.quotas.counts import ThrottleCounts
from compactd.workers.broker.quotas.limits import ClientLimits
from compactd.workers.broker.quotas.rates import Rates, Windows
from compactd.workers.broker.requests import Peer
from compactd.workers.catalogue_update import ClientQuota
from compactd.workers.messages import BrokerCounts, Throttles
from tests.workers.broker.batches import FETCH, PRODUCE, batch, fetch_body, produce_body
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import InProcessBroker, RawClient
from tests.workers.broker.quota_requests import ALTER, alter_body, described, limit
from tests.workers.broker.sasl_client import log_in

API_VERSIONS, METADATA, CREATE_TOPICS = 18, 3, 19
_KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir]) as running:
        with running.connect() as client:
            rows = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
            client.ask(CREATE_TOPICS, 7, {"topics": rows, "timeout": 10_000})
        end = time.monotonic() + 60
        # What the coordinator waits for before it answers.
        while running.in_loop(lambda context: context.partitions.get("t", 0)) is None:
            assert time.monotonic() < end
            time.sleep(0.005)
        yield running


def _ms(answer: Any) -> int:
    return round(answer.throttle_time.total_seconds() * 1000)


def test_the_most_specific_quota_counts() -> None:
    entities: list[tuple[tuple[str, str | None], ...]] = [
        (("client-id", "c"), ("user", "u")),
        (("client-id", None), ("user", "u")),
        (("user", "u"),),
        (("client-id", "c"), ("user", None)),
        (("client-id", None), ("user", None)),
        (("user", None),),
        (("client-id", "c"),),
        (("client-id", None),),
    ]
    shared = [("u", "c"), ("u", "c"), ("u", ""), ("u", "c"), ("u", "c"), ("u", ""), ("", "c"), ("", "c")]
    quotas = [ClientQuota(entity, {"k": float(number)}) for number, entity in enumerate(entities)]
    for first in range(len(entities)):
        found = ClientLimits(quotas[first:], "k").of("u", "c")
        assert found is not None
        assert (found.value, found.shared_by) == (first, shared[first])
    others = [each for each in quotas if ("user", None) not in each.entity and ("client-id", None) not in each.entity]
    assert ClientLimits(others, "k").of("somebody", "else") is None
    assert ClientLimits(quotas, "another").of("u", "c") is None
    assert not ClientLimits([ClientQuota((("ip", None),), {"k": 1.0})], "k")


def test_a_client_without_a_name_is_only_under_defaults() -> None:
    quotas = [ClientQuota((("user", "u"),), {"k": 1.0}), ClientQuota((("client-id", None), ("user", "u")), {"k": 2.0})]
    found = ClientLimits(quotas, "k").of("u", "")
    assert found is not None
    assert found.value == 2.0


def test_quotas_outlive_a_restart(log_dir: Path) -> None:
    entities: list[dict[str, str | None]] = [{"user": "a b/ü", "client-id": None}, {"client-id": "c"}, {"user": None}]
    with CatalogueBroker([log_dir]) as running, running.connect() as client:
        for number, entity in enumerate(entities):
            limit(client, entity, **dict.fromkeys(_KEYS, float(number + 1)))
        limit(client, {"user": None}, producer_byte_rate=None)
        limit(client, {"ip": "::1"}, connection_creation_rate=5.0)
        before = described(client)
    assert before[(("client-id", None), ("user", "a b/ü"))] == dict.fromkeys(_KEYS, 1.0)
    assert "producer_byte_rate" not in before[(("user", None),)]
    with CatalogueBroker([log_dir]) as running, running.connect() as client:
        assert described(client) == before


def test_a_throttled_connection_stays_unread_and_others_do_not(broker: CatalogueBroker) -> None:
    with broker.connect() as client, broker.connect() as other:
        limit(other, {"client-id": "raw"}, producer_byte_rate=100_000.0)
        # 1,000,000 bytes fit ten windows; what is a third above that waits three seconds, less what has passed of a window.
        assert _ms(client.ask(PRODUCE, 9, produce_body(batch([b"x" * 550_000])))) == 0
        begun = time.monotonic()
        told = _ms(client.ask(PRODUCE, 9, produce_body(batch([b"x" * 750_000]))))
        assert 2000 <= told <= 3010
        sent = client.send(API_VERSIONS, 0, {})
        other.send(API_VERSIONS, 0, {}, "other")
        other.receive_frame()
        assert time.monotonic() - begun < told / 1000, "the machine is too slow for this test"
        client.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(30)
        assert int.from_bytes(client.receive_frame()[:4], "big") == sent
        assert time.monotonic() - begun >= told / 1000
        assert broker.in_loop(lambda context: context.part(ClientQuotas).throttled) == 1


def test_what_made_clients_wait_is_told_to_the_coordinator(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_COUNT_SECONDS", 0.05)
    with CatalogueBroker([log_dir]) as broker, broker.connect() as admin, broker.connect() as client:
        limit(admin, {"client-id": "raw"}, controller_mutation_rate=0.1)
        limit(admin, {"ip": "192.0.2.1"}, connection_creation_rate=1)
        waits = 0
        while not waits:
            waits = broker.in_loop(lambda context: context.part(ConnectionQuotas).throttled("192.0.2.1", "PLAINTEXT"))
        topics = [{"name": name, "num_partitions": 5, "replication_factor": 1} for name in ("a", "b")]
        told_of = [_ms(client.ask(CREATE_TOPICS, 6, {"topics": [topic], "timeout": 10_000})) for topic in topics]
        assert told_of[-1] > 0
        with broker.connect() as other:
            limit(admin, {"user": "ANONYMOUS", "client-id": "raw"}, request_percentage=0.0001)
            of_time = _ms(other.ask(METADATA, 9, {"topics": None}))
        found: dict[str, tuple[int, int]] = {}
        while len(found) < 3:
            told = broker.channel.wait_for(lambda message: isinstance(message, BrokerCounts))
            for quota, (count, milliseconds) in told.throttles.items():
                before = found.get(quota, (0, 0))
                found[quota] = (before[0] + count, before[1] + milliseconds)
        assert found["connection"] == (1, waits)
        assert found["controller_mutation"] == (len([each for each in told_of if each]), sum(told_of))
        assert found["request"][0] >= 1
        assert found["request"][1] >= of_time
        assert broker.in_loop(lambda context: context.part(ThrottleCounts).take()).keys() <= {"request"}


def test_the_longer_of_two_pauses_is_counted(broker: CatalogueBroker) -> None:
    def counted(work: Callable[..., Any]) -> dict[str, tuple[int, int]]:
        def run(context: Any) -> dict[str, tuple[int, int]]:
            counts = context.part(ThrottleCounts)
            counts.take()
            work(context.part(ClientQuotas))
            taken: dict[str, tuple[int, int]] = counts.take()
            return taken

        found: dict[str, tuple[int, int]] = broker.in_loop(run)
        return found

    peer = Peer("127.0.0.1", 1)
    for kind, of_kind, of_time, expected in (
        (Throttles.PRODUCE, 30, 20, {"produce": (1, 30)}),
        (Throttles.FETCH, 20, 30, {"request": (1, 30)}),
        (Throttles.FETCH, 30, 30, {"fetch": (1, 30)}),
        (Throttles.CONTROLLER_MUTATION, 0, 0, {}),
    ):
        asked = (peer, kind, of_kind, of_time)
        assert counted(lambda quotas, asked=asked: quotas._mute(*asked)) == expected


def test_without_an_answer_bytes_count_and_mute_as_well(broker: CatalogueBroker) -> None:
    with broker.connect() as client, broker.connect() as other:
        limit(other, {"user": "ANONYMOUS"}, producer_byte_rate=50_000.0)
        begun = time.monotonic()
        client.send(PRODUCE, 9, produce_body(batch([b"x" * 550_000]), acks=0))
        client.ask(API_VERSIONS, 0, {})
        assert time.monotonic() - begun >= 0.9


def test_a_throttled_fetch_gives_nothing_and_its_session_forgets_nothing(broker: CatalogueBroker) -> None:
    with broker.connect() as writer:
        writer.send(PRODUCE, 9, produce_body(batch([b"x" * 3000])), "writer")
        writer.receive_frame()
        with broker.connect() as client:
            body = fetch_body(0, session_id=0, session_epoch=0)
            opened = client.ask(FETCH, 11, body)
            assert opened.session_id
            # The next answer is empty, and the one after the throttling has what that one would have had.
            writer.send(PRODUCE, 9, produce_body(batch([b"y" * 3000])), "writer")
            writer.receive_frame()
            limit(writer, {"user": "ANONYMOUS"}, consumer_byte_rate=1000.0)
            used = broker.in_loop(lambda context: context.part(ClientQuotas))
            rows = {**body, "session_id": opened.session_id, "session_epoch": 1}
            answers = [client.ask(FETCH, 11, {**rows, "session_epoch": epoch}) for epoch in range(1, 4)]
            limit(writer, {"user": "ANONYMOUS"}, consumer_byte_rate=None)
            answers.append(client.ask(FETCH, 11, {**rows, "session_epoch": 4}))
        throttled = [_ms(answer) > 0 for answer in answers]
        assert throttled[0] is False
        told = [([len(p.records) for t in each.responses for p in t.partitions], _ms(each)) for each in answers]
        assert any(throttled), told
        assert used.throttled == sum(throttled)
        for answer, was in zip(answers, throttled, strict=True):
            assert answer.session_id == opened.session_id
            assert int(answer.error_code) == 0
            sizes = [len(part.records) for topic in answer.responses for part in topic.partitions]
            assert (sizes == []) is was
    with broker.connect() as client, broker.connect() as writer:
        limit(writer, {"user": "ANONYMOUS"}, consumer_byte_rate=1.0)
        answer = client.ask(FETCH, 11, fetch_body(0, session_id=0, session_epoch=0, max_wait=0))
        assert _ms(answer) > 0
        assert answer.session_id == 0


def test_time_is_counted_and_bounded_by_a_window(broker: CatalogueBroker) -> None:
    with broker.connect() as client, broker.connect() as other:
        other.send(ALTER, 1, alter_body(({"client-id": "raw"}, {"request_percentage": 0.0001})), "other")
        other.receive_frame()
        told = _ms(client.ask(METADATA, 9, {"topics": None}))
        assert told == 1000, "any request takes more than a hundred-thousandth of a second of ten"
        other.send(ALTER, 1, alter_body(({"client-id": "raw"}, {"request_percentage": 1e6})), "other")
        other.receive_frame()
        assert _ms(client.ask(METADATA, 9, {"topics": None})) == 0
        assert _ms(client.ask(PRODUCE, 9, produce_body(batch([b"x"])))) == 0
        assert _ms(client.ask(FETCH, 11, fetch_body(0))) == 0


def test_a_client_that_leaves_while_it_is_muted_is_let_go(
    broker: CatalogueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compactd.workers.broker.connection._LOOK_AFTER_SECONDS", 0.02)
    with broker.connect() as other:
        limit(other, {"client-id": "raw"}, producer_byte_rate=1.0)
        with broker.connect() as client:
            assert _ms(client.ask(PRODUCE, 9, produce_body(batch([b"x" * 10_000])))) > 100_000
            server = broker._broker.server
            assert broker.in_loop(lambda _: server.connections) == 2
        end = time.monotonic() + 60
        while broker.in_loop(lambda _: server.connections) > 1:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_the_broker_stops_while_clients_are_muted(log_dir: Path) -> None:
    with CatalogueBroker([log_dir]) as running, running.connect() as client:
        limit(client, {"client-id": "raw"}, request_percentage=1e-9)
        client.ask(API_VERSIONS, 0, {})


# ---- connections


def _answers(port: int) -> bool:
    """Whether a new connection is served."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        client = RawClient.__new__(RawClient)
        client.socket, client._correlation = sock, 0
        try:
            client.ask(API_VERSIONS, 0, {})
        except ConnectionError:
            return False
        return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", None])
def test_addresses_that_connect_too_often_are_closed_after_a_while(broker: CatalogueBroker, host: str | None) -> None:
    with broker.connect() as client:
        limit(client, {"ip": host}, connection_creation_rate=1.0)
        if host == "localhost":
            # Names count once they are looked up.
            end = time.monotonic() + 60
            while broker.in_loop(lambda context: context.part(ConnectionQuotas)._limit_of("127.0.0.1")) is None:
                assert time.monotonic() < end
                time.sleep(0.01)
        served = [_answers(broker.port) for _ in range(12)]
        assert served[:9] == [True] * 9
        assert not served[-1]
        # What is turned away does not count: the rate is not above the limit now.
        limit(client, {"ip": host}, connection_creation_rate=None)
        assert _answers(broker.port)


def test_a_rate_of_all_connections_makes_new_ones_wait(log_dir: Path) -> None:
    with CatalogueBroker([log_dir], {"max.connection.creation.rate": 1}) as running:
        begun = time.monotonic()
        assert all(_answers(running.port) for _ in range(12))
        assert time.monotonic() - begun >= 0.9


def test_a_rate_of_the_connections_of_one_listener(log_dir: Path) -> None:
    settings = {"listener.name.plaintext.max.connection.creation.rate": 1}
    with CatalogueBroker([log_dir], settings) as running:
        begun = time.monotonic()
        assert all(_answers(running.port) for _ in range(12))
        assert time.monotonic() - begun >= 0.9


def test_addresses_with_numbers_of_their_own(log_dir: Path) -> None:
    settings = {"max.connections.per.ip": 1, "max.connections.per.ip.overrides": "127.0.0.1:2,[::1]:5,10.0.0.1:0"}
    with InProcessBroker([log_dir], settings) as running, running.connect(), running.connect():
        assert not _answers(running.port)
        most = running.in_loop(lambda context: context.part(ConnectionQuotas).most_from)
        assert [most(each) for each in ("::1", "10.0.0.1", "10.0.0.2")] == [5, 0, 1]


def test_where_all_places_are_taken_clients_wait(log_dir: Path) -> None:
    with InProcessBroker([log_dir], {"max.connections": 2}) as running:
        with running.connect() as first, running.connect() as second:
            first.ask(API_VERSIONS, 0, {})
            second.ask(API_VERSIONS, 0, {})
            third = running.connect()
            third.send(API_VERSIONS, 0, {})
            third.socket.settimeout(0.1)
            with pytest.raises(TimeoutError):
                third.socket.recv(1)
            third.socket.settimeout(30)
        third.receive_frame()
        third.close()


def test_addresses_are_named_as_java_names_them() -> None:
    assert plain_address("::ffff:10.1.2.3") == "10.1.2.3"
    assert plain_address("::ffff:0") == "::ffff:0"
    assert literal_address("0:0:0:0:0:0:0:1") == "::1"
    assert literal_address("::ffff:10.1.2.3") == "10.1.2.3"
    assert literal_address("somewhere") is None


def test_topics_that_metadata_creates_count_as_well(log_dir: Path) -> None:
    with CatalogueBroker([log_dir], {"auto.create.topics.enable": "true"}) as running, running.connect() as client:
        limit(client, {"user": "ANONYMOUS"}, controller_mutation_rate=0.1)
        # 1.1 permits to begin with: the first two are made, and then one is owed.
        found = []
        for number in range(4):
            asked = {"topics": [{"name": f"t{number}"}], "allow_auto_topic_creation": True}
            found.append(int(client.ask(METADATA, 9, asked).topics[0].error_code))
        assert found == [0, 0, 3, 3]


def test_rates_that_are_as_good_as_new_ones_are_dropped() -> None:
    rates: Rates[int] = Rates(Windows(11, 1), most=10)
    for number in range(10):
        rates.of(number, 0).record(1, number)
    rates.of(10, 11_005).record(1, 11_005)
    # 0 to 5 were used longer ago than eleven windows reach.
    assert len(rates) == 5
    kept = rates.of(7, 11_006)
    assert kept.measure(11_006)[0] > 0
    for number in range(100, 200):
        rates.of(number, 11_006).record(1, 11_006)
    assert all(rates.of(number, 11_006).measure(11_006)[0] > 0 for number in (7, *range(100, 200)))


def test_who_has_logged_in_has_the_quota_of_his_name(log_dir: Path) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} required user_ann="a" user_bob="b";',
    }
    with CatalogueBroker([log_dir], settings) as running, running.connect() as client:
        limit(client, {"user": "ann"}, request_percentage=1e-6)
        for user, password, throttled in (("ann", "a", True), ("bob", "b", False)):
            with running.connect("SASL_PLAINTEXT") as known:
                # Logging in is nobody's quota: it would be as long as the throttling of what follows it.
                log_in(known, user, password)
                assert (_ms(known.ask(METADATA, 9, {"topics": []})) > 0) is throttled
