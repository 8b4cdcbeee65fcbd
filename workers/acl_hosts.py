"""Hosts of ACLs: addresses as Java writes them, and ranges of addresses (KIP-1276; Kafka's CidrUtils, commons-net's SubnetUtils).

Kafka compares the host of an ACL with Java's text of the client's address, which for IPv6 is not shortened:
`0:0:0:0:0:0:0:1`. Ranges are `10.0.0.0/8` or `2001:db8::/32`; the bits of the host may be set.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_FOUR = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})/(\d{1,2})", re.ASCII)
_PREFIX = re.compile(r"[+-]?[0-9]{1,9}")
_SIX_BITS = 128


@dataclass(frozen=True, slots=True)
class AddressRange:
    """Addresses of one family between two numbers, both included."""

    version: int
    first: int
    last: int

    def contains(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        """Whether it lies inside. 0.0.0.0 lies in none, as in commons-net."""
        number = int(address)
        return (
            address.version == self.version and self.first <= number <= self.last and bool(number or self.version == 6)
        )


def parse_range(text: str) -> AddressRange:
    """A range that Kafka takes. ValueError says what is wrong, as Kafka does."""
    if ":" in text:
        return _parse_six(text)
    match = _FOUR.fullmatch(text)
    if match is None:
        raise ValueError(f"Could not parse [{text}]")
    *parts, bits = map(int, match.groups())
    for part in parts:
        if part > 255:
            raise ValueError(f"Value [{part}] not in range [0,255]")
    if bits > 32:
        raise ValueError(f"Value [{bits}] not in range [0,32]")
    return _range(4, int.from_bytes(bytes(parts), "big"), 32 - bits)


def _parse_six(text: str) -> AddressRange:
    host, slash, prefix = text.partition("/")
    if not slash or not _PREFIX.fullmatch(prefix):
        raise ValueError(f"Could not parse [{text}] - invalid prefix length")
    bits = int(prefix)
    if not 0 <= bits <= _SIX_BITS:
        raise ValueError(f"Could not parse [{text}] - prefix length must be between 0 and {_SIX_BITS}")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.IPv6Address(bare)
    except ValueError:
        raise ValueError(f"Could not parse [{host}]") from None
    if address.scope_id is not None:
        raise ValueError(f"Could not parse [{host}]")
    if address.ipv4_mapped is not None:
        raise ValueError(f"Could not parse [{host}] - not an IPv6 address")
    return _range(6, int(address), _SIX_BITS - bits)


def _range(version: int, number: int, free_bits: int) -> AddressRange:
    mask = (1 << free_bits) - 1
    return AddressRange(version, number & ~mask, number | mask)


def parse_host(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A client's address; one of IPv4 that comes in an IPv6 one is what it stands for. None for what is no address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def host_text(text: str) -> str:
    """A client's address as Java's getHostAddress writes it, and Kafka compares it."""
    address = parse_host(text)
    if address is None:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    scope = text.partition("%")
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":")) + scope[1] + scope[2]
