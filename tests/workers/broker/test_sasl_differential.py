"""The same logins to Kafka 4.4.0 and to this broker, step by step: answers, texts, and when the connection is closed."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.oracle.broker import Broker
from tests.ports import free_ports
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.sasl_client import (
    API_VERSIONS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SCRAM,
    ScramClient,
    plain_token,
    salted,
)

pytestmark = pytest.mark.kafka

DESCRIBE_SCRAM, ALTER_SCRAM, DESCRIBE_CLUSTER, FIND_COORDINATOR, DESCRIBE_CONFIGS = 50, 51, 60, 10, 32
INCREMENTAL_ALTER_CONFIGS = 44
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT,AGAIN:SASL_PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "connection.failed.authentication.delay.ms": "20",
    # Whoever comes in unasked may do everything, who logs in may do nothing.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "listener.name.again.connections.max.reauth.ms": "2500",
    **{
        f"listener.name.{listener}.{mechanism}.sasl.jaas.config": jaas
        for listener in ("outside", "again")
        for mechanism, jaas in (
            ("plain", f'{_PLAIN_MODULE} required username="a" password="b" user_alice="secret" user_bob="other";'),
            ("scram-sha-256", f"{_SCRAM_MODULE} required;"),
            ("scram-sha-512", f"{_SCRAM_MODULE} required;"),
        )
    },
}
_FUTURE = 99
_USER, _PASSWORD, _SALT = "carl=,x", "p\u00e4ss", b"0123456789abcdef"


class Side:
    """One of the two."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.ports = ports
        #: Ours.
        self.broker: CatalogueBroker | None = None

    def plain(self) -> RawClient:
        return RawClient(self.ports["PLAINTEXT"])


@pytest.fixture(scope="module")
def sides(oracle_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Side]]:
    home = tmp_path_factory.mktemp("sasl")
    dirs = [home / "kafka", home / "ours"]
    for each in dirs:
        each.mkdir()
    kafka = Broker(oracle_classpath, home, [dirs[0]], _SETTINGS)
    ports = {
        "PLAINTEXT": int(kafka.bootstrap.split(":")[1]),
        **dict(zip(("OUTSIDE", "AGAIN"), free_ports(2), strict=True)),
    }
    properties = home / "server.properties"
    text = properties.read_text()
    listeners = next(line for line in text.splitlines() if line.startswith("listeners="))
    more = "".join(f",{name}://127.0.0.1:{ports[name]}" for name in ("OUTSIDE", "AGAIN"))
    properties.write_text(f"{text}{listeners}{more}\nadvertised.listeners=PLAINTEXT://{kafka.bootstrap}{more}\n")
    kafka.format()
    ours = {**_SETTINGS, "listeners": "PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0,AGAIN://127.0.0.1:0"}
    with kafka, CatalogueBroker([dirs[1]], ours) as broker:
        both = [Side(ports), Side(broker.ports)]
        for side in both:
            with side.plain() as client:
                _add_users(client)
        both[1].broker = broker
        yield both


@pytest.fixture(autouse=True)
def _all_gone(sides: list[Side]) -> Iterator[None]:
    """The broker closes its ends a little later than the clients do."""
    yield
    broker = sides[1].broker
    assert broker is not None
    deadline = time.monotonic() + 60
    while broker.in_loop(lambda _: broker.connections):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _add_users(client: RawClient) -> None:
    for mechanism, (number, _) in SCRAM.items():
        upsertion = {
            "name": _USER,
            "mechanism": number,
            "iterations": 4096,
            "salt": _SALT,
            "salted_password": salted(mechanism, _PASSWORD, _SALT, 4096),
        }
        answer = client.ask(ALTER_SCRAM, 0, {"deletions": [], "upsertions": [upsertion]})
        assert [int(each.error_code) for each in answer.results] == [0]
    deadline = time.monotonic() + 60
    while len(client.ask(DESCRIBE_SCRAM, 0, {"users": [{"name": _USER}]}).results[0].credential_infos) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ---- scripts


class Play:
    """What happens to a client that goes on and on."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.seen: list[Any] = []
        #: Seconds, on purpose.
        self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self.slept += seconds

    def ask(self, api_key: int, version: int, body: Any, tell: Callable[[Any], Any] = lambda answer: answer) -> Any:
        """Notes what `tell` takes from the answer."""
        try:
            answer = self.client.ask(api_key, version, body)
        except (ConnectionError, BrokenPipeError):
            self.seen.append("closed")
            return None
        self.seen.append((api_key, version, tell(answer)))
        return answer

    def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> Any:
        return self.ask(SASL_HANDSHAKE, version, {"mechanism": mechanism}, _handshaken)

    def authenticate(self, token: bytes, version: int = 2) -> Any:
        return self.ask(SASL_AUTHENTICATE, version, {"auth_bytes": token}, _authenticated)

    def versions(self, version: int = 3, name: str = "raw") -> Any:
        if version not in range(6):
            self.client.send_frame(struct.pack(">hhih", API_VERSIONS, version, 7, -1) + b"\0whatever")
            self.seen.append(self.client.receive_frame())
            return None
        body = {"client_software_name": name, "client_software_version": "1"} if version >= 3 else {}
        return self.ask(API_VERSIONS, version, body, lambda answer: int(answer.error_code))

    def metadata(self) -> Any:
        return self.ask(METADATA, 9, {"topics": []}, lambda answer: answer.controller_id)

    def raw(self, token: bytes) -> None:
        """A token without a header."""
        try:
            self.client.send_frame(token)
            self.seen.append(self.client.receive_frame())
        except (ConnectionError, BrokenPipeError):
            self.seen.append("closed")

    def scram(self, client: ScramClient, *, nonce: str | None = None, proof: bytes | None = None) -> None:
        first = self.ask(
            SASL_AUTHENTICATE, 2, {"auth_bytes": client.first},
            lambda answer: (int(answer.error_code), answer.error_message, answer.auth_bytes[-27:]),
        )  # fmt: skip
        if first is None or first.error_code:
            return
        final = client.final(first.auth_bytes, nonce)
        if proof is not None:
            final = final[: final.index(b",p=") + 3] + proof
        self.ask(
            SASL_AUTHENTICATE, 2, {"auth_bytes": final},
            lambda answer: (int(answer.error_code), answer.error_message, answer.auth_bytes == client.expected),
        )  # fmt: skip


def _handshaken(answer: Any) -> Any:
    return int(answer.error_code), sorted(answer.mechanisms)


def _authenticated(answer: Any) -> Any:
    lifetime = getattr(answer, "session_lifetime", None)
    return int(answer.error_code), answer.error_message, answer.auth_bytes, lifetime


Script = Callable[[Play], None]
_SCRIPTS: dict[str, Script] = {}


def _script(call: Script) -> Script:
    _SCRIPTS[call.__name__.strip("_")] = call
    return call


@_script
def _usual(play: Play) -> None:
    play.versions()
    play.handshake()
    play.authenticate(plain_token("alice", "secret"))
    play.versions()
    play.metadata()
    play.authenticate(plain_token("alice", "secret"))
    play.handshake()
    play.metadata()


@_script
def _without_versions(play: Play) -> None:
    play.handshake()
    play.authenticate(plain_token("alice", "secret", "alice"), 0)
    play.metadata()


@_script
def _versions_twice(play: Play) -> None:
    play.versions()
    play.versions()


@_script
def _bad_versions_may_be_repeated(play: Play) -> None:
    play.versions(_FUTURE)
    play.versions(-5)
    play.versions(3, "no name")
    play.versions(0)
    play.handshake()


@_script
def _versions_after_the_handshake(play: Play) -> None:
    play.handshake()
    play.versions()


@_script
def _other_requests_first(play: Play) -> None:
    play.metadata()


@_script
def _tokens_first(play: Play) -> None:
    play.authenticate(plain_token("alice", "secret"))


@_script
def _other_requests_after_versions(play: Play) -> None:
    play.versions()
    play.metadata()


@_script
def _other_requests_after_the_handshake(play: Play) -> None:
    play.handshake()
    play.ask(FIND_COORDINATOR, 3, {"key": "g", "key_type": 0}, lambda answer: int(answer.error_code))
    play.metadata()


@_script
def _two_handshakes(play: Play) -> None:
    play.handshake()
    play.handshake()


@_script
def _unknown_mechanism(play: Play) -> None:
    play.versions()
    play.handshake("GSSAPI")
    play.metadata()


@_script
def _mechanism_of_other_case(play: Play) -> None:
    play.handshake("plain")


@_script
def _old_tokens(play: Play) -> None:
    play.handshake(version=0)
    play.raw(plain_token("alice", "secret"))
    play.metadata()


@_script
def _wrong_old_tokens(play: Play) -> None:
    play.handshake(version=0)
    play.raw(plain_token("alice", "wrong"))


@_script
def _old_scram_tokens(play: Play) -> None:
    client = ScramClient("SCRAM-SHA-256", _USER, _PASSWORD)
    play.handshake("SCRAM-SHA-256", 0)
    play.client.send_frame(client.first)
    first = play.client.receive_frame()
    play.client.send_frame(client.final(first))
    play.seen.append(play.client.receive_frame() == client.expected)
    play.metadata()


def _refused_plain(token: bytes) -> Script:
    def script(play: Play) -> None:
        play.handshake()
        play.authenticate(token)
        play.metadata()

    return script


for _name, _token in {
    "wrong_password": plain_token("alice", "wrong"),
    "unknown_user": plain_token("nobody", "secret"),
    "other_authzid": plain_token("alice", "secret", "bob"),
    "no_user": b"\0\0secret",
    "no_password": b"\0alice\0",
    "two_parts": b"alice\0secret",
    "four_parts": b"\0alice\0secret\0",
    "nothing": b"",
    "no_utf8": b"\0alice\0\xff\xfe",
}.items():
    _SCRIPTS[f"plain_{_name}"] = _refused_plain(_token)


def _scram(mechanism: str, client: Callable[[], ScramClient], **more: Any) -> Script:
    def script(play: Play) -> None:
        play.handshake(mechanism)
        play.scram(client(), **more)
        play.metadata()

    return script


for _mechanism in SCRAM:
    _SCRIPTS[f"{_mechanism}_usual"] = _scram(
        _mechanism, lambda mechanism=_mechanism: ScramClient(mechanism, _USER, _PASSWORD)
    )
    _SCRIPTS[f"{_mechanism}_wrong_password"] = _scram(
        _mechanism, lambda mechanism=_mechanism: ScramClient(mechanism, _USER, "wrong")
    )
_256 = "SCRAM-SHA-256"
_SCRIPTS |= {
    "scram_unknown_user": _scram(_256, lambda: ScramClient(_256, "nobody", "x")),
    "scram_other_authzid": _scram(_256, lambda: ScramClient(_256, _USER, _PASSWORD, acts_as="bob")),
    "scram_extensions": _scram(_256, lambda: ScramClient(_256, _USER, _PASSWORD, extensions=",ext=val")),
    "scram_delegation_token": _scram(_256, lambda: ScramClient(_256, _USER, "x", extensions=",tokenauth=true")),
    "scram_no_delegation_token": _scram(
        _256, lambda: ScramClient(_256, _USER, _PASSWORD, extensions=",tokenauth=false")
    ),
    "scram_other_nonce": _scram(_256, lambda: ScramClient(_256, _USER, _PASSWORD), nonce="other"),
    "scram_no_proof": _scram(_256, lambda: ScramClient(_256, _USER, _PASSWORD), proof=b""),
    "scram_short_proof": _scram(_256, lambda: ScramClient(_256, _USER, _PASSWORD), proof=b"AAAA"),
    "scram_no_base64": _scram(_256, lambda: ScramClient(_256, _USER, _PASSWORD), proof=b"****"),
}


def _raw_scram(first: bytes) -> Script:
    def script(play: Play) -> None:
        play.handshake(_256)
        play.authenticate(first)

    return script


for _number, _first in enumerate(
    (
        b"",
        b"n,,",
        b"y,,n=carl,r=x",
        b"n,,n=carl",
        b"n,,n=ca rl,r=x y",
        b"n,,n=c\xc3\xa4,r=x",
        b"n,,n==3d,r=x",
        b"p=tls,,n=c,r=x",
    )
):
    _SCRIPTS[f"scram_first_{_number}"] = _raw_scram(_first)


@pytest.mark.parametrize("name", _SCRIPTS)
def test_a_login_goes_as_at_kafka(sides: list[Side], name: str) -> None:
    seen = []
    for side in sides:
        with RawClient(side.ports["OUTSIDE"]) as client:
            play = Play(client)
            _SCRIPTS[name](play)
            seen.append(play.seen)
    assert seen[1] == seen[0]
    assert seen[0]


@pytest.mark.parametrize("size", [-1, 524_289])
def test_long_requests_of_strangers_are_not_taken(sides: list[Side], size: int) -> None:
    for side in sides:
        with RawClient(side.ports["OUTSIDE"]) as client:
            client.send_bytes(struct.pack(">i", size))
            assert client.is_closed()


@pytest.mark.parametrize("with_ids", [True, False])
def test_api_versions_of_version_5_before_the_login(sides: list[Side], with_ids: bool) -> None:
    body: dict[str, Any] = {"client_software_name": "raw", "client_software_version": "1"}
    if with_ids:
        body |= {"cluster_id": "somewhere", "node_id": 5}
    codes = []
    for side in sides:
        with RawClient(side.ports["OUTSIDE"]) as client:
            codes.append(int(client.ask(API_VERSIONS, 5, body).error_code))
    assert codes[1] == codes[0]


def test_the_same_versions_before_and_after_the_login(sides: list[Side]) -> None:
    with RawClient(sides[1].ports["OUTSIDE"]) as client, sides[1].plain() as other:
        body = {"client_software_name": "raw", "client_software_version": "1"}
        assert client.ask(API_VERSIONS, 3, body).api_keys == other.ask(API_VERSIONS, 3, body).api_keys


# ---- logging in again


def _again(*steps: Callable[[Play], Any]) -> Script:
    def script(play: Play) -> None:
        play.handshake()
        play.authenticate(plain_token("alice", "secret"))
        for step in steps:
            step(play)

    return script


_AGAIN: dict[str, Script] = {
    "same": _again(
        lambda play: play.metadata(),
        lambda play: play.handshake(),
        lambda play: play.authenticate(plain_token("alice", "secret")),
        lambda play: play.metadata(),
        # Too soon.
        lambda play: play.handshake(),
        lambda play: play.metadata(),
    ),
    "wrong_password": _again(
        lambda play: play.handshake(),
        lambda play: play.authenticate(plain_token("alice", "wrong")),
        lambda play: play.metadata(),
    ),
    "other_user": _again(
        lambda play: play.handshake(),
        lambda play: play.authenticate(plain_token("bob", "other")),
        lambda play: play.metadata(),
    ),
    "other_mechanism": _again(
        lambda play: play.handshake(_256),
        lambda play: play.authenticate(b"n,,n=alice,r=x"),
    ),
    "unknown_mechanism": _again(lambda play: play.handshake("GSSAPI"), lambda play: play.metadata()),
    "other_request": _again(lambda play: play.handshake(), lambda play: play.metadata()),
    "bad_token": _again(lambda play: play.handshake(), lambda play: play.authenticate(b"x")),
    "too_late": _again(
        lambda play: play.sleep(1.5),
        lambda play: play.metadata(),
        lambda play: play.sleep(1.3),
        lambda play: play.metadata(),
    ),
    "late_but_not_too_late": _again(
        lambda play: play.sleep(2.8),
        lambda play: play.handshake(),
        lambda play: play.authenticate(plain_token("alice", "secret")),
        lambda play: play.metadata(),
    ),
}
#: What has a limit of a second, or a second before one, must not take longer because the machine is busy.
_IN_TIME_SECONDS = 0.8


@pytest.mark.parametrize("name", _AGAIN)
def test_logging_in_again_goes_as_at_kafka(sides: list[Side], name: str) -> None:
    assert _played_in_time(sides[1], name) == _played_in_time(sides[0], name)


def _played_in_time(side: Side, name: str) -> list[Any]:
    while True:
        with RawClient(side.ports["AGAIN"]) as client:
            play = Play(client)
            begun = time.monotonic()
            _AGAIN[name](play)
        if time.monotonic() - begun - play.slept < _IN_TIME_SECONDS:
            return play.seen


# ---- addresses


def test_clients_of_each_listener_are_told_its_address(sides: list[Side]) -> None:
    for side in sides:
        for listener in ("PLAINTEXT", "OUTSIDE"):
            with RawClient(side.ports[listener]) as client:
                if listener == "OUTSIDE":
                    play = Play(client)
                    play.handshake()
                    play.authenticate(plain_token("alice", "secret"))
                told = [(each.host, each.port) for each in client.ask(METADATA, 9, {"topics": []}).brokers]
                told += [
                    (each.host, each.port)
                    for each in client.ask(
                        DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False}
                    ).brokers
                ]
                assert set(told) == {("127.0.0.1", side.ports[listener])}


# ---- settings


def test_secrets_of_the_settings_are_told_as_at_kafka(sides: list[Side]) -> None:
    told = []
    for side in sides:
        with side.plain() as client:
            for name in ("of.a.plugin", "listener.name.again.scram-sha-256.sasl.jaas.config"):
                change = {"name": name, "config_operation": 0, "value": f"{_SCRAM_MODULE} required more=x;"}
                resources = [{"resource_type": 4, "resource_name": "1", "configs": [change]}]
                answer = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": False})
                assert [int(each.error_code) for each in answer.responses] == [0]
            resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
            body = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
            (result,) = client.ask(DESCRIBE_CONFIGS, 4, body).results
            told.append(
                {
                    each.name: (
                        each.value,
                        each.is_sensitive,
                        each.read_only,
                        int(each.config_source),
                        int(each.config_type),
                        [(synonym.name, synonym.value, int(synonym.source)) for synonym in each.synonyms],
                    )
                    for each in result.configs
                }
            )
    kafka, ours = told
    assert ours["of.a.plugin"] == kafka["of.a.plugin"]
    names = [
        name
        for name in ours
        if name.startswith(("listener.name.", "sasl.", "ssl.", "principal.", "connections.max.re"))
    ]
    assert len([name for name in names if ours[name][1]]) > 10
    assert {name: ours[name] for name in names} == {name: kafka[name] for name in names}
    assert {name for name in kafka if name.startswith("listener.name.")} == {
        name for name in ours if name.startswith("listener.name.")
    }


# ---- credentials


def _upsertion(user: str, mechanism: int = 1, iterations: int = 4096) -> dict[str, Any]:
    return {
        "name": user,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt",
        "salted_password": b"salted",
    }


@pytest.mark.parametrize(
    ("deletions", "upsertions"),
    [
        ([], [_upsertion("u1"), _upsertion("u2", 2, 16_384)]),
        ([], [_upsertion("u1", iterations=4095), _upsertion("u2", iterations=16_385)]),
        ([], [_upsertion("u1", 0), _upsertion("u2", 3), _upsertion("")]),
        ([], [_upsertion("u1", 1), _upsertion("u1", 2), _upsertion("u3")]),
        ([("u3", 1)], [_upsertion("u3", 2)]),
        ([("u3", 1), ("u3", 2)], []),
        ([("u3", 2), ("nobody", 1), ("", 1), ("u2", 9)], []),
        ([("u1", 1), ("u2", 2), ("u3", 1)], []),
        ([], []),
    ],
)
def test_altering_credentials_comes_to_the_same(
    sides: list[Side], deletions: list[tuple[str, int]], upsertions: list[dict[str, Any]]
) -> None:
    body = {
        "deletions": [{"name": name, "mechanism": mechanism} for name, mechanism in deletions],
        "upsertions": upsertions,
    }
    answers = []
    for side in sides:
        with side.plain() as client:
            results = client.ask(ALTER_SCRAM, 0, body).results
            answers.append(sorted((each.user, int(each.error_code), each.error_message) for each in results))
    assert answers[1] == answers[0]


@pytest.mark.parametrize(
    "users", [None, [], [_USER], ["nobody"], [_USER, _USER], [_USER, "nobody", "nobody", "", "other"]]
)
def test_describing_credentials_comes_to_the_same(sides: list[Side], users: list[str] | None) -> None:
    body = {"users": None if users is None else [{"name": user} for user in users]}
    answers = []
    for side in sides:
        with side.plain() as client:
            answer = client.ask(DESCRIBE_SCRAM, 0, body)
            rows = [
                (
                    each.user,
                    int(each.error_code),
                    each.error_message,
                    sorted((int(info.mechanism), int(info.iterations)) for info in each.credential_infos),
                )
                for each in answer.results
                if each.user == _USER or users
            ]
            answers.append((int(answer.error_code), answer.error_message, sorted(rows)))
    assert answers[1] == answers[0]


def test_who_may_not_see_or_alter_credentials_is_told_as_at_kafka(sides: list[Side]) -> None:
    seen = []
    for side in sides:
        with RawClient(side.ports["OUTSIDE"]) as client:
            play = Play(client)
            play.handshake()
            play.authenticate(plain_token("alice", "secret"))
            for users in ([], [{"name": _USER}, {"name": "u"}]):  # of null users Kafka never answers
                play.ask(
                    DESCRIBE_SCRAM, 0, {"users": users},
                    lambda answer: (
                        int(answer.error_code), answer.error_message,
                        [(each.user, int(each.error_code), each.error_message) for each in answer.results],
                    ),
                )  # fmt: skip
            play.ask(
                ALTER_SCRAM, 0, {"deletions": [{"name": "u", "mechanism": 1}], "upsertions": [_upsertion("v")]},
                # What Kafka says there is how Java prints the request.
                lambda answer: sorted((each.user, int(each.error_code)) for each in answer.results),
            )  # fmt: skip
            seen.append(play.seen)
    assert seen[1] == seen[0]


def test_a_credential_counts_from_its_answer_on_and_a_removed_one_no_more(sides: list[Side]) -> None:
    user = _upsertion("new")
    user["salted_password"] = salted(_256, "first", b"salt", 4096)
    with sides[1].plain() as admin:
        admin.ask(ALTER_SCRAM, 0, {"deletions": [], "upsertions": [user]})
        with RawClient(sides[1].ports["OUTSIDE"]) as client:
            play = Play(client)
            play.handshake(_256)
            play.scram(ScramClient(_256, "new", "first"))
            assert play.seen[-1][2] == (0, "", True)
        admin.ask(ALTER_SCRAM, 0, {"deletions": [{"name": "new", "mechanism": 1}], "upsertions": []})
        with RawClient(sides[1].ports["OUTSIDE"]) as client:
            play = Play(client)
            play.handshake(_256)
            play.scram(ScramClient(_256, "new", "first"))
            assert play.seen[-1][2][0] == 58
