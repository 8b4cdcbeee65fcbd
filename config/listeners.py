"""Listeners as Kafka writes them: NAME://HOST:PORT (EndPoint, SocketServerConfigs), and the protocol that each speaks.

A listener is known by its name; listener.security.protocol.map says whether it asks clients who they are and whether it is
encrypted. Those of controller.listener.names are Kafka's own quorum's: this node has none, so they are not opened.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_LISTENER = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?:\[(?P<six>[0-9a-fA-F:.]+(?:%[A-Za-z0-9_.-]+)?)\]|(?P<host>[^\[\]:/]*)):(?P<port>[0-9]{1,5})"
)
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+(?:%[A-Za-z0-9_.-]+)?)\]|(?P<host>[^\[\]:/]*)):(?P<port>[0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class SecurityProtocol(enum.IntEnum):
    """What a listener speaks; the numbers are those of Kafka's registration records."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def encrypted(self) -> bool:
        """Clients and server speak TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def asks_who(self) -> bool:
        """Clients log in with SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


#: listener.security.protocol.map where it is not set: each protocol is a name of itself.
DEFAULT_PROTOCOLS = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener. An empty host means every address of this machine; port 0 means any free one."""

    name: str
    host: str
    port: int
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)

    @property
    def prefix(self) -> str:
        """What the names of settings begin with that are this listener's alone (ListenerName.configPrefix)."""
        return f"listener.name.{self.name.lower()}."


def parse_listener(text: str) -> Listener:
    """Raises ValueError for anything that is no listener. The protocol is not looked at."""
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


def parse_protocols(text: str) -> dict[str, SecurityProtocol]:
    """listener.security.protocol.map: NAME:PROTOCOL, commas between. Raises ValueError."""
    found: dict[str, SecurityProtocol] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not _NAME.fullmatch(name):
            raise ValueError(f"{entry!r} is not of the form NAME:PROTOCOL")
        try:
            found[name] = SecurityProtocol[protocol]
        except KeyError:
            known = ", ".join(each.name for each in SecurityProtocol)
            raise ValueError(f"{entry!r} names no security protocol; there are {known}") from None
    return found


def open_listeners(
    texts: Sequence[str], controllers: Iterable[str], protocols: Mapping[str, SecurityProtocol], workers: int = 1
) -> tuple[Listener, ...]:
    """Where clients connect, in the order written: all but those of `controllers`. Raises ValueError.

    Each of the `workers` takes the next port, so a listener needs as many in a row.
    """
    kept = _without(texts, controllers)
    if not kept:
        raise ValueError("there must be a listener for clients, beside those of controller.listener.names")
    found = [_with_protocol(listener, protocols) for listener in kept]
    _check_ports(found, workers)
    return tuple(found)


def told_listeners(
    texts: Sequence[str], controllers: Iterable[str], opened: Sequence[Listener]
) -> tuple[Listener, ...]:
    """What clients are told of listeners: advertised.listeners, each of which must be one of `opened`. Raises ValueError."""
    protocols = {listener.name: listener.protocol for listener in opened}
    found = []
    # Kafka's own server.properties lists the quorum's, too (KIP-853).
    for listener in _without(texts, controllers):
        if listener.name not in protocols:
            raise ValueError(f"{listener.name} is not among the listeners, which are {', '.join(protocols)}")
        found.append(Listener(listener.name, listener.host, listener.port, protocols[listener.name]))
    if not found:
        raise ValueError("clients must be told of a listener")
    return tuple(found)


def _without(texts: Sequence[str], controllers: Iterable[str]) -> list[Listener]:
    hidden = {name.strip().upper() for name in controllers}
    return [each for each in _distinct([parse_listener(text) for text in texts]) if each.name not in hidden]


def _distinct(listeners: list[Listener]) -> list[Listener]:
    """Raises ValueError where a name comes up again."""
    for number, listener in enumerate(listeners):
        for other in listeners[:number]:
            if other.name == listener.name:
                raise ValueError(f"{listener.name} is there twice")
    return listeners


def _with_protocol(listener: Listener, protocols: Mapping[str, SecurityProtocol]) -> Listener:
    protocol = protocols.get(listener.name)
    if protocol is None:
        hint = "; Kafka's own quorum's are named in controller.listener.names" if listener.name == "CONTROLLER" else ""
        raise ValueError(f"listener.security.protocol.map has no protocol for {listener.name}{hint}")
    return Listener(listener.name, listener.host, listener.port, protocol)


def _check_ports(listeners: Sequence[Listener], workers: int) -> None:
    for number, listener in enumerate(listeners):
        if listener.port and listener.port + workers - 1 > 65_535:
            raise ValueError(f"{workers} workers of {listener.name} need ports up to {listener.port + workers - 1}")
        for other in listeners[:number]:
            near = listener.port and other.port and abs(listener.port - other.port) < workers
            # A port may serve IPv4 and IPv6 under two names.
            if near and (":" in listener.host) == (":" in other.host):
                need = "the same port" if workers == 1 else f"ports that {workers} workers of each need"
                raise ValueError(f"{other.name} and {listener.name} have {need}")


def _port(text: str, digits: str) -> int:
    if int(digits) > 65_535:
        raise ValueError(f"{text!r} has a port above 65535")
    return int(digits)
