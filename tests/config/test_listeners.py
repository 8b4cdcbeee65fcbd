from __future__ import annotations

import pytest

from compactd.config.errors import SettingError
from compactd.config.listeners import (
    DEFAULT_PROTOCOLS,
    Listener,
    SecurityProtocol,
    format_address,
    open_listeners,
    parse_address,
    parse_listener,
    parse_protocols,
    told_listeners,
)
from compactd.config.settings import DaemonConfig


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Listener("PLAINTEXT", "127.0.0.1", 9092)),
        ("plaintext://:0", Listener("PLAINTEXT", "", 0)),
        (" PLAINTEXT://[::1]:9092 ", Listener("PLAINTEXT", "::1", 9092)),
        ("CONTROLLER://kafka.example:65535", Listener("CONTROLLER", "kafka.example", 65535)),
    ],
)
def test_listeners_are_read_as_kafka_writes_them(text: str, expected: Listener) -> None:
    assert parse_listener(text) == expected
    assert parse_listener(f"{expected.name}://{expected.address}") == expected


@pytest.mark.parametrize(
    "text",
    ["", "9092", "PLAINTEXT:9092", "PLAINTEXT://host", "PLAINTEXT://::1:9092", "PLAINTEXT://h:65536", "A://h:-1"],
)
def test_other_text_is_no_listener(text: str) -> None:
    with pytest.raises(ValueError, match=r"form|65535"):
        parse_listener(text)


def test_addresses() -> None:
    assert parse_address("localhost:80") == ("localhost", 80)
    assert parse_address("[fe80::1%eth0]:80") == ("fe80::1%eth0", 80)
    assert format_address("::1", 80) == "[::1]:80"
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address("localhost")


PLAIN, SASL, TLS = SecurityProtocol.PLAINTEXT, SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SSL
PROTOCOLS = {"PLAINTEXT": PLAIN, "INSIDE": PLAIN, "OUTSIDE": SASL, "TLS": TLS}


def test_security_protocols_by_name() -> None:
    assert parse_protocols(" inside:plaintext, OUTSIDE:SASL_PLAINTEXT ,") == {"INSIDE": PLAIN, "OUTSIDE": SASL}
    assert list(parse_protocols(DEFAULT_PROTOCOLS)) == ["SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT"]
    assert all(name == protocol.name for name, protocol in parse_protocols(DEFAULT_PROTOCOLS).items())
    assert [each.name for each in SecurityProtocol if each.encrypted] == ["SSL", "SASL_SSL"]
    assert [each.name for each in SecurityProtocol if each.asks_who] == ["SASL_PLAINTEXT", "SASL_SSL"]
    for text in ("INSIDE", "INSIDE:KERBEROS", ":SSL", "A B:SSL"):
        with pytest.raises(ValueError, match=r"NAME:PROTOCOL|no security protocol"):
            parse_protocols(text)


def test_listeners_of_the_quorum_are_not_opened() -> None:
    texts = ["CONTROLLER://:9093", "outside://h:1", "INSIDE://h:2"]
    assert open_listeners(texts, ["controller"], PROTOCOLS) == (
        Listener("OUTSIDE", "h", 1, SASL),
        Listener("INSIDE", "h", 2, PLAIN),
    )
    assert Listener("OUTSIDE", "h", 1).prefix == "listener.name.outside."


@pytest.mark.parametrize(
    ("texts", "workers", "fault"),
    [
        ([], 1, "must be a listener for clients"),
        (["CONTROLLER://h:1"], 1, "must be a listener for clients"),
        (["QUORUM://h:1"], 1, "no protocol for QUORUM"),
        (["INSIDE://h:1", "inside://h:2"], 1, "INSIDE is there twice"),
        (["INSIDE://h:1", "OUTSIDE://:1"], 1, "INSIDE and OUTSIDE have the same port"),
        (["INSIDE://h:1", "OUTSIDE://:2"], 2, "ports that 2 workers of each need"),
        (["INSIDE://h:65535"], 2, "ports up to 65536"),
    ],
)
def test_listeners_that_cannot_be_opened(texts: list[str], workers: int, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        open_listeners(texts, ["CONTROLLER"], PROTOCOLS, workers)


def test_listeners_may_share_port_0_and_one_port_of_each_ip_version() -> None:
    assert len(open_listeners(["INSIDE://h:0", "OUTSIDE://h:0"], [], PROTOCOLS, 4)) == 2
    assert len(open_listeners(["INSIDE://127.0.0.1:9", "OUTSIDE://[::1]:9"], [], PROTOCOLS)) == 2
    assert len(open_listeners(["INSIDE://h:1", "OUTSIDE://h:3"], [], PROTOCOLS, 2)) == 2


def test_what_clients_are_told_names_open_listeners() -> None:
    opened = open_listeners(["INSIDE://:1", "OUTSIDE://:2"], [], PROTOCOLS)
    outside = (Listener("OUTSIDE", "example", 92, SASL),)
    assert told_listeners(["OUTSIDE://example:92"], [], opened) == outside
    assert told_listeners(["OUTSIDE://example:92", "CONTROLLER://example:93"], ["CONTROLLER"], opened) == outside
    for texts, fault in (
        (["TLS://h:1"], "not among the listeners, which are INSIDE, OUTSIDE"),
        (["CONTROLLER://h:1"], "must be told"),
        (["INSIDE://h:1", "INSIDE://h:2"], "twice"),
        ([], "must be told"),
    ):
        with pytest.raises(ValueError, match=fault):
            told_listeners(texts, ["CONTROLLER"], opened)


def test_the_daemons_listeners_are_checked_with_the_settings() -> None:
    config = DaemonConfig.from_strings(
        {"listeners": "PLAINTEXT://:0,CONTROLLER://:1", "controller.listener.names": "CONTROLLER", "node.id": 7}
    )
    assert ([each.address for each in config.open_listeners], config.node_id) == ([":0"], 7)
    assert config.told_listeners == config.open_listeners
    advertised = DaemonConfig.from_strings({"advertised.listeners": "PLAINTEXT://example:99"})
    assert [each.address for each in advertised.told_listeners] == ["example:99"]
    for values, name in (
        ({"listeners": "PLAINTEXT://h:1,CONTROLLER://h:2"}, "controller.listener.names"),
        ({"listeners": "OTHER://h:1"}, "listeners"),
        ({"listener.security.protocol.map": "PLAINTEXT:NONE"}, "listener.security.protocol.map"),
        ({"broker.workers": 2, "listeners": "PLAINTEXT://h:1,SSL://h:2"}, "listeners"),
        ({"advertised.listeners": "nowhere"}, "advertised.listeners"),
        ({"metrics.listener": "9308"}, "metrics.listener"),
    ):
        with pytest.raises(SettingError, match=name):
            DaemonConfig.from_strings(values)
