"""max.connections.per.ip.overrides: host:number,host:number."""

from __future__ import annotations


def parse_overrides(text: str) -> dict[str, int]:
    """Hosts, as they are written, to numbers of connections. ValueError says what is wrong."""
    found: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        host, colon, number = part.rpartition(":")
        host = host.strip().removeprefix("[").removesuffix("]")
        if not colon or not host or not number.strip().isascii() or not number.strip().isdigit():
            raise ValueError(f"{part} is not HOST:NUMBER")
        found[host] = int(number)
    return found
