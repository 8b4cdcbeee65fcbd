from __future__ import annotations

import pytest

from compactd.config.errors import SettingError
from compactd.config.listeners import Listener, format_address, parse_address, parse_listener, plaintext
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


def test_the_one_plaintext_listener_counts() -> None:
    assert plaintext(["CONTROLLER://:9093", "PLAINTEXT://h:1"]).address == "h:1"
    for texts in ([], ["SSL://h:1"], ["PLAINTEXT://h:1", "PLAINTEXT://h:2"]):
        with pytest.raises(ValueError, match="one listener with the name PLAINTEXT"):
            plaintext(texts)


def test_the_daemons_listeners_are_checked_with_the_settings() -> None:
    config = DaemonConfig.from_strings({"listeners": "PLAINTEXT://:0,CONTROLLER://:1", "node.id": 7})
    assert (config.listener.port, config.node_id) == (0, 7)
    assert config.advertised_listener == config.listener
    advertised = DaemonConfig.from_strings({"advertised.listeners": "PLAINTEXT://example:99"})
    assert advertised.advertised_listener.address == "example:99"
    for values, name in (
        ({"listeners": "SSL://h:1"}, "listeners"),
        ({"advertised.listeners": "nowhere"}, "advertised.listeners"),
        ({"metrics.listener": "9308"}, "metrics.listener"),
    ):
        with pytest.raises(SettingError, match=name):
            DaemonConfig.from_strings(values)
