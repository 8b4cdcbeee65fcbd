"""Listeners as Kafka writes them: NAME://HOST:PORT (EndPoint, SocketServerConfigs)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LISTENER = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?:\[(?P<six>[0-9a-fA-F:.]+(?:%[A-Za-z0-9_.-]+)?)\]|(?P<host>[^\[\]:/]*)):(?P<port>[0-9]{1,5})"
)
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+(?:%[A-Za-z0-9_.-]+)?)\]|(?P<host>[^\[\]:/]*)):(?P<port>[0-9]{1,5})")

#: The only security protocol there is.
PLAINTEXT = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener. An empty host means every address of this machine; port 0 means any free one."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)


def parse_listener(text: str) -> Listener:
    """Raises ValueError for anything that is no listener."""
    match = _LISTENER.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not of the form PLAINTEXT://HOST:PORT")
    return Listener(match["name"].upper(), match["six"] or match["host"] or "", _port(text, match["port"]))


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, an IPv6 host in brackets. Raises ValueError."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not of the form HOST:PORT")
    return match["six"] or match["host"] or "", _port(text, match["port"])


def format_address(host: str, port: int) -> str:
    """HOST:PORT, as it is written down."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plaintext(listeners: Sequence[str]) -> Listener:
    """The one that clients use. A server.properties may list a CONTROLLER beside it, which has no use here.

    Raises ValueError when there is none or more than one.
    """
    parsed = [parse_listener(text) for text in listeners]
    found = [listener for listener in parsed if listener.name == PLAINTEXT]
    if len(found) != 1:
        raise ValueError("there must be one listener with the name PLAINTEXT")
    return found[0]


def _port(text: str, digits: str) -> int:
    if int(digits) > 65_535:
        raise ValueError(f"{text!r} has a port above 65535")
    return int(digits)
