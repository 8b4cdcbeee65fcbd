"""Logins without a Kafka beside: mechanisms by themselves, connections over the wire (test_sasl_differential has the rest)."""

from __future__ import annotations

import base64
import logging
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.workers.broker import main, requests
from compactd.workers.broker.requests import load_handlers
from compactd.workers.broker.security import sasl, scram
from compactd.workers.broker.security.login import LoginError, LoginRefusedError
from compactd.workers.broker.security.plain import PlainLogin
from compactd.workers.broker.security.scram import SCRAM_MECHANISMS, ScramLogin
from compactd.workers.catalogue_update import CatalogueUpdate, ScramCredential
from compactd.workers.messages import BrokerCounts, Reconfigure
from tests.workers.broker.harness import CLUSTER_ID, InProcessBroker, RawClient
from tests.workers.broker.sasl_client import (
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SCRAM,
    ScramClient,
    authenticate,
    handshake,
    log_in,
    plain_token,
    salted,
)

_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
_SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "connection.failed.authentication.delay.ms": "0",
    _JAAS: f'{_MODULE} required user_alice="secret" user_bob="other";',
}


def credential(user: str, password: str, mechanism: str = "SCRAM-SHA-256", iterations: int = 4096) -> ScramCredential:
    found = next(each for each in SCRAM_MECHANISMS if each.name == mechanism)
    salt = b"a salt of " + user.encode()
    stored_key, server_key = found.keys(salted(mechanism, password, salt, iterations))
    return ScramCredential(user, found.number, salt, stored_key, server_key, iterations)


# ---- mechanisms


def test_the_example_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram.secrets, "token_urlsafe", lambda _: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    stored_key, server_key = SCRAM_MECHANISMS[0].keys(salted("SCRAM-SHA-256", "pencil", salt, 4096))
    known = {"user": ScramCredential("user", 1, salt, stored_key, server_key, 4096)}
    login = ScramLogin(SCRAM_MECHANISMS[0], known.get)
    first = login.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert login.user is None
    final = login.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert login.user == "user"


@pytest.mark.parametrize("mechanism", SCRAM)
def test_each_login_has_a_nonce_of_its_own(mechanism: str) -> None:
    found = next(each for each in SCRAM_MECHANISMS if each.name == mechanism)
    known = credential("alice", "secret", mechanism)
    seen = set()
    for _ in range(5):
        login, client = ScramLogin(found, lambda _: known), ScramClient(mechanism, "alice", "secret")
        first = login.evaluate(client.first)
        seen.add(first)
        assert login.evaluate(client.final(first)) == client.expected
        assert login.user == "alice"
        with pytest.raises(LoginError):
            login.evaluate(b"more")
    assert len(seen) == 5


def test_a_proof_counts_for_one_login_only() -> None:
    known = credential("alice", "secret")
    one, other = (ScramLogin(SCRAM_MECHANISMS[0], lambda _: known) for _ in range(2))
    client = ScramClient("SCRAM-SHA-256", "alice", "secret")
    final = client.final(one.evaluate(client.first))
    other.evaluate(client.first)
    with pytest.raises(LoginError):
        other.evaluate(final)
    assert other.user is None


def test_too_few_iterations_are_not_taken() -> None:
    login = ScramLogin(SCRAM_MECHANISMS[0], lambda _: credential("alice", "secret", iterations=4095))
    with pytest.raises(LoginError, match="Iterations 4095"):
        login.evaluate(ScramClient("SCRAM-SHA-256", "alice", "secret").first)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_token_does_more_than_fail(first: bytes, second: bytes) -> None:
    known = credential("alice", "secret")
    for login in (PlainLogin({"alice": "secret"}), ScramLogin(SCRAM_MECHANISMS[0], lambda _: known)):
        for token in (first, second):
            try:
                login.evaluate(token)
            except LoginError:
                break
        assert login.user is None


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_plain_takes_the_password_of_the_user_and_no_other(acts_as: str, user: str, password: str) -> None:
    users = {"alice": "secret", "": "", "b\u00f6b": "p\u00e4ss"}
    login = PlainLogin(users)
    is_right = bool(user) and users.get(user) == password and acts_as in ("", user)
    try:
        assert login.evaluate(plain_token(user, password, acts_as)) == b""
    except LoginRefusedError as error:
        assert not is_right
        assert login.user is None
        assert len(password) < 4 or password not in str(error)
    else:
        assert is_right
        assert login.user == user


def test_plain_takes_what_is_not_ascii() -> None:
    login = PlainLogin({"b\u00f6b": "p\u00e4ss"})
    login.evaluate(plain_token("b\u00f6b", "p\u00e4ss"))
    assert login.user == "b\u00f6b"


# ---- connections


@pytest.fixture
def broker(fast_dir: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker([fast_dir], _SETTINGS) as running:
        running.create("t")
        yield running


def _tell(broker: InProcessBroker, *credentials: ScramCredential) -> None:
    """As after AlterUserScramCredentials."""
    broker.channel.put(
        CatalogueUpdate(full=False, metadata_offset=9, cluster_id=CLUSTER_ID, topics=(), credentials=credentials)
    )
    end = time.monotonic() + 60
    while broker.in_loop(lambda context: context.image.credentials) != credentials:
        assert time.monotonic() < end


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
def test_who_has_logged_in_is_who_asks(broker: InProcessBroker, mechanism: str) -> None:
    _tell(broker, *(credential("alice", "secret", each) for each in SCRAM))
    with broker.connect("SASL_PLAINTEXT") as client, broker.connect() as other:
        assert other.ask(METADATA, 9, {"topics": []}).cluster_id
        log_in(client, "alice", "secret", mechanism)
        assert client.ask(METADATA, 9, {"topics": []}).brokers[0].port == broker.ports["SASL_PLAINTEXT"]
        assert {(each.listener, each.principal) for each in broker.peers()} == {
            ("SASL_PLAINTEXT", "User:alice"),
            ("PLAINTEXT", "User:ANONYMOUS"),
        }


def test_a_new_password_counts_for_the_next_login(broker: InProcessBroker) -> None:
    _tell(broker, credential("alice", "old"))
    with broker.connect("SASL_PLAINTEXT") as client:
        log_in(client, "alice", "old", "SCRAM-SHA-256")
        _tell(broker, credential("alice", "new"))
        # Who is in stays in.
        assert client.ask(METADATA, 9, {"topics": []}).cluster_id
    with broker.connect("SASL_PLAINTEXT") as client:
        log_in(client, "alice", "new", "SCRAM-SHA-256")
    with broker.connect("SASL_PLAINTEXT") as client, pytest.raises(AssertionError):
        log_in(client, "alice", "old", "SCRAM-SHA-256")


def test_users_of_plain_change_without_a_restart(broker: InProcessBroker) -> None:
    broker.channel.put(Reconfigure(settings={_JAAS: f'{_MODULE} required user_carl="fresh";'}))
    end = time.monotonic() + 60
    while "carl" not in broker.in_loop(lambda context: context.config.listener_settings.get(_JAAS, "")):
        assert time.monotonic() < end
    with broker.connect("SASL_PLAINTEXT") as client:
        log_in(client, "carl", "fresh")
    with broker.connect("SASL_PLAINTEXT") as client:
        handshake(client, "PLAIN")
        assert authenticate(client, plain_token("alice", "secret")).error_code == 58


def test_who_logs_in_again_needs_the_password_of_now(log_dir: Path) -> None:
    with (
        InProcessBroker([log_dir], {**_SETTINGS, "connections.max.reauth.ms": 60_000}) as broker,
        broker.connect("SASL_PLAINTEXT") as stays,
        broker.connect("SASL_PLAINTEXT") as leaves,
    ):
        log_in(stays, "alice", "secret")
        log_in(leaves, "bob", "other")
        broker.channel.put(Reconfigure(settings={_JAAS: f'{_MODULE} required user_alice="fresh";'}))
        end = time.monotonic() + 60
        while "fresh" not in broker.in_loop(lambda context: context.config.listener_settings.get(_JAAS, "")):
            assert time.monotonic() < end
        log_in(stays, "alice", "fresh")
        assert stays.ask(METADATA, 9, {"topics": []}).cluster_id == CLUSTER_ID
        handshake(leaves, "PLAIN")
        assert authenticate(leaves, plain_token("bob", "other")).error_code == 58
        assert leaves.is_closed()


def test_logins_are_counted(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_COUNT_SECONDS", 0.05)
    monkeypatch.setattr(sasl, "_LOGIN_SECONDS", 0.0)
    with (
        InProcessBroker([log_dir], {**_SETTINGS, "connections.max.reauth.ms": 60_000}) as broker,
        broker.connect() as plain,
        broker.connect("SASL_PLAINTEXT") as stays,
    ):
        plain.ask(METADATA, 9, {"topics": []})
        log_in(stays, "alice", "secret")
        log_in(stays, "alice", "secret")
        for password in ("wrong", "wronger"):
            with broker.connect("SASL_PLAINTEXT") as client:
                handshake(client, "PLAIN")
                assert authenticate(client, plain_token("bob", password)).error_code == 58
                assert client.is_closed()
        handshake(stays, "PLAIN")
        assert authenticate(stays, plain_token("alice", "wrong")).error_code == 58
        assert stays.is_closed()
        counted = [0, 0, 0, 0]
        while counted != [1, 2, 1, 1]:
            told = broker.channel.wait_for(lambda message: isinstance(message, BrokerCounts))
            assert told.listeners.get("PLAINTEXT", (1, 0, 0, 0, 0)) == (1, 0, 0, 0, 0)
            _, *logins = told.listeners.get("SASL_PLAINTEXT", (0, 0, 0, 0, 0))
            counted = [count + more for count, more in zip(counted, logins, strict=True)]
        told = broker.channel.wait_for(lambda message: isinstance(message, BrokerCounts))
        assert told.listeners["SASL_PLAINTEXT"] == (0, 0, 0, 0, 0)


def test_whatever_is_sent_in_place_of_a_token_is_no_bug(
    broker: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for api in load_handlers().apis.values():
        for version in {api.min_version, api.max_version}:
            for before in ((), (SASL_HANDSHAKE,)):
                with broker.connect("SASL_PLAINTEXT") as client:
                    for _ in before:
                        handshake(client, "PLAIN")
                    client.send(api.key, version, b"\0" * 64)
                    client.is_closed()
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_what_strangers_send_is_got_ready_for_beside_the_loop(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making the classes of a version takes tens of milliseconds, and there are hundreds of versions."""
    made: list[str] = []

    def make(cls: type) -> None:
        made.append(threading.current_thread().name)

    monkeypatch.setattr(requests, "_READY", set())
    monkeypatch.setattr(requests, "prepare_writer", make)
    with broker.connect("SASL_PLAINTEXT") as client:
        handshake(client, "PLAIN")
        client.send(METADATA, 9, {"topics": []})
        client.receive_frame()
        assert client.is_closed()
    assert len(made) == 2
    assert all(name.startswith("disk") for name in made)


def test_no_secret_is_logged(broker: InProcessBroker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for token in (plain_token("alice", "hush-hush"), plain_token("nobody", "hush-hush"), b"hush-hush"):
            with broker.connect("SASL_PLAINTEXT") as client:
                handshake(client, "PLAIN")
                assert authenticate(client, token).error_code == 58
                assert client.is_closed()
        with broker.connect("SASL_PLAINTEXT") as client:
            log_in(client, "alice", "secret")
    assert "failed to log in on SASL_PLAINTEXT: PLAIN: Authentication failed" in caplog.text
    assert "hush-hush" not in caplog.text
    assert "secret" not in caplog.text


def test_strangers_may_not_send_long_requests_and_clients_may(broker: InProcessBroker) -> None:
    with broker.connect("SASL_PLAINTEXT") as client:
        client.send_bytes(struct.pack(">i", 524_289))
        assert client.is_closed()
    with broker.connect("SASL_PLAINTEXT") as client:
        log_in(client, "alice", "secret")
        topics = [{"name": f"no-such-topic-{number:0100}"} for number in range(6000)]
        body = {"topics": topics, "allow_auto_topic_creation": False}
        assert len(client.ask(METADATA, 9, body).topics) == 6000


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\4\0\x11\0\1",
        struct.pack(">ihhih", 12, SASL_HANDSHAKE, 1, 7, -1) + b"\0\x7f",
        struct.pack(">ihhih", 10, SASL_HANDSHAKE, 2, 7, -1),
        struct.pack(">ihhih", 10, SASL_AUTHENTICATE, 2, 7, -1),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_nonsense_closes_the_connection_and_hurts_nobody(broker: InProcessBroker, data: bytes) -> None:
    with broker.connect("SASL_PLAINTEXT") as client:
        client.send_bytes(data)
        assert client.is_closed()
    with broker.connect("SASL_PLAINTEXT") as client:
        log_in(client, "alice", "secret")


def test_every_cut_of_a_login_closes_or_waits(broker: InProcessBroker) -> None:
    """A login that ends anywhere leaves nothing behind."""
    with broker.connect("SASL_PLAINTEXT") as whole:
        log_in(whole, "alice", "secret")
    frames = b"".join(
        struct.pack(">i", len(frame)) + frame
        for frame in (
            struct.pack(">hhih", SASL_HANDSHAKE, 1, 1, -1) + b"\0\5PLAIN",
            struct.pack(">hhih", SASL_AUTHENTICATE, 0, 2, -1) + struct.pack(">i", 13) + plain_token("alice", "secret"),
        )
    )
    for end in range(0, len(frames), 3):
        with broker.connect("SASL_PLAINTEXT") as client:
            client.send_bytes(frames[:end])
    end_time = time.monotonic() + 60
    while broker.in_loop(lambda _: broker.connections):
        assert time.monotonic() < end_time
    # Sent in one piece it is taken, too.
    with broker.connect("SASL_PLAINTEXT") as client:
        client.send_bytes(frames)
        client.receive_frame()
        assert client.receive_frame()[4:6] == b"\0\0"
        assert client.ask(METADATA, 9, {"topics": []}).cluster_id


def test_a_listener_may_have_a_limit_of_its_own(fast_dir: Path) -> None:
    settings = {**_SETTINGS, "listener.name.sasl_plaintext.max.connections": "2"}
    with InProcessBroker([fast_dir], settings) as broker, broker.connect() as plain:
        with broker.connect("SASL_PLAINTEXT") as one, broker.connect("SASL_PLAINTEXT") as two:
            log_in(one, "alice", "secret")
            log_in(two, "bob", "other")
            with broker.connect("SASL_PLAINTEXT") as third:
                # It waits in the kernel, while others come and go.
                third.send(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
                with broker.connect() as another:
                    assert another.ask(METADATA, 9, {"topics": []}).cluster_id
                assert len([each for each in broker.peers() if each.listener == "SASL_PLAINTEXT"]) == 2
                two.close()
                assert third.receive(SASL_HANDSHAKE, 1).error_code == 0
        assert plain.ask(METADATA, 9, {"topics": []}).cluster_id


def test_a_listener_that_clients_are_not_told_of_has_no_leaders(fast_dir: Path) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:PLAINTEXT",
    }
    with InProcessBroker([fast_dir], settings) as broker:
        hidden = broker.ports.pop("SSL")
        broker.create("t")
        broker._update(full=True)
        with broker.connect() as client, RawClient(hidden) as other:
            assert client.ask(METADATA, 9, {"topics": [{"name": "t"}]}).topics[0].partitions[0].error_code == 0
            for version, code in ((5, 5), (6, 72), (9, 72)):
                answer = other.ask(METADATA, version, {"topics": [{"name": "t"}]})
                assert answer.brokers == ()
                partition = answer.topics[0].partitions[0]
                assert (int(partition.error_code), int(partition.leader_id)) == (code, -1)
