"""How many connections are taken, from whom, and how quickly (Kafka's ConnectionQuotas; KIP-402, 612).

Of the settings and the quotas that name hosts, those whose names are no addresses count once they are looked up.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from compactd.config.connection_limits import parse_overrides
from compactd.workers.broker.quotas.counts import ThrottleCounts
from compactd.workers.broker.quotas.limits import CONNECTION_CREATION_RATE, IP
from compactd.workers.broker.quotas.rates import Rate, Rates, Windows
from compactd.workers.broker.security.listeners import Listeners
from compactd.workers.messages import Throttles

if TYPE_CHECKING:
    from compactd.config.settings import DaemonConfig
    from compactd.workers.broker.context import Context
    from compactd.workers.catalogue_update import ClientQuota

_UNLIMITED = 2**31 - 1


class ConnectionQuotas:
    """`context.part(ConnectionQuotas)`. On the broker's loop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.windows = Windows(context.config.quota_window_num, context.config.quota_window_size_seconds)
        self._listeners = context.part(Listeners)
        #: By listener; "" for all together.
        self._taken: dict[str, Rate] = {}
        self._rates: Rates[str] = Rates(self.windows)
        self._seen: tuple[ClientQuota, ...] = ()
        self._default: int | None = None
        self._by_address: dict[str, int] = {}
        self._config: DaemonConfig | None = None
        self._most_by_address: dict[str, int] = {}
        self._addresses: dict[str, str | None] = {}
        self._counts = context.part(ThrottleCounts)

    def _now_ms(self) -> int:
        return int(self._context.clock.monotonic() * 1000)

    # ---- what counts

    def most_from(self, address: str) -> int:
        """Connections that one address may have: max.connections.per.ip and its overrides."""
        config = self._context.config
        if config is not self._config:
            self._config = config
            self._most_by_address = self._known(parse_overrides(config.max_connections_per_ip_overrides))
        return self._most_by_address.get(address, config.max_connections_per_ip)

    def _limit_of(self, address: str) -> int | None:
        """New connections per second from an address."""
        quotas = self._context.image.quotas
        if quotas is not self._seen:
            self._seen = quotas
            named = {
                quota.entity[0][1]: int(quota.values[CONNECTION_CREATION_RATE])
                for quota in quotas
                if quota.entity[0][0] == IP and CONNECTION_CREATION_RATE in quota.values
            }
            self._default = named.pop(None, None)
            self._by_address = self._known({name: limit for name, limit in named.items() if name is not None})
        return self._by_address.get(address, self._default)

    def _known(self, by_name: Mapping[str, int]) -> dict[str, int]:
        """By address, as far as the names are known; the others are looked up, and everything is asked for again."""
        found: dict[str, int] = {}
        unknown = []
        for name, value in by_name.items():
            address = literal_address(name) or self._addresses.get(name)
            if address is not None:
                found[address] = value
            elif name not in self._addresses:
                unknown.append(name)
        if unknown:
            self._context.spawn(self._look_up(unknown))
        return found

    async def _look_up(self, names: Iterable[str]) -> None:
        found = await self._context.in_thread(lambda: {name: address_of(name) for name in names})
        self._addresses.update(found)
        self._seen, self._config = (), None

    # ---- connections

    def taken(self, listener: str) -> int:
        """A connection was taken: how many milliseconds it, and all that come after it, wait before it is served."""
        limits = (
            ("", self._context.config.max_connection_creation_rate),
            (listener, self._listeners.of(listener).max_connection_rate),
        )
        now_ms, throttle_ms = self._now_ms(), 0
        for name, limit in limits:
            if limit < _UNLIMITED:
                rate = self._taken.get(name)
                if rate is None:
                    rate = self._taken[name] = Rate(self.windows)
                rate.record(1, now_ms)
                throttle_ms = max(throttle_ms, self._bounded(rate, limit, now_ms))
        if throttle_ms:
            self._counts.count(Throttles.CONNECTION, throttle_ms)
        return throttle_ms

    def throttled(self, address: str, listener: str) -> int:
        """0: the address may have it. Else the milliseconds after which it is closed, unserved."""
        limit = self._limit_of(address)
        if limit is None:
            return 0
        now_ms = self._now_ms()
        rate = self._rates.of(address, now_ms)
        rate.record(1, now_ms)
        throttle_ms = self._bounded(rate, limit, now_ms)
        if throttle_ms:
            self._counts.count(Throttles.CONNECTION, throttle_ms)
            # What is turned away counts for nobody.
            rate.record(-1, now_ms)
            for name in ("", listener):
                if name in self._taken:
                    self._taken[name].record(-1, now_ms)
        return throttle_ms

    def _bounded(self, rate: Rate, limit: int, now_ms: int) -> int:
        """At most one window; a limit of 0 lets nobody in."""
        longest = self.windows.seconds * 1000
        return min(rate.throttle_ms(limit, now_ms), longest) if limit > 0 else longest


def plain_address(host: str) -> str:
    """The address of a client as Java shows it: of one that came over IPv6 from an IPv4 address, that."""
    return host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host


def literal_address(host: str) -> str | None:
    """Of an address, as it is written by the system; None for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return str(getattr(address, "ipv4_mapped", None) or address)


def address_of(host: str) -> str | None:
    """The address that a name, or an address, stands for; None: none. May ask a name server: not on the loop."""
    found = literal_address(host)
    if found is not None:
        return found
    for family in (socket.AF_INET, socket.AF_INET6):  # the first one of Java's InetAddress.getByName
        with contextlib.suppress(OSError, UnicodeError):
            return plain_address(str(socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)[0][4][0]))
    return None
