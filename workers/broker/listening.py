"""The sockets that a broker worker listens on, one for each listener."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from compactd.config.errors import WorkerBootError
from compactd.config.listeners import format_address
from compactd.workers.message import Endpoint


def bind_all(wanted: Sequence[Endpoint]) -> list[tuple[Endpoint, socket.socket]]:
    """Bound sockets that do not listen yet, each with the address that it really has. WorkerBootError names the listener."""
    bound: list[tuple[Endpoint, socket.socket]] = []
    try:
        for endpoint in wanted:
            listener = _bind(endpoint)
            host, port = listener.getsockname()[:2]
            bound.append((Endpoint(endpoint.listener, host, port, endpoint.protocol), listener))
    except BaseException:
        for _, listener in bound:
            listener.close()
        raise
    return bound


def _bind(endpoint: Endpoint) -> socket.socket:
    host, port = endpoint.host, endpoint.port
    what = f"cannot listen on {format_address(host, port)} ({endpoint.listener})"
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise WorkerBootError(detail=f"{what}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not host:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise WorkerBootError(detail=f"{what}: {error.strerror or error}") from error
    return listener
