"""Ports that stay free while whoever listens on them is away."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
from pathlib import Path

#: Below those that systems give to outgoing connections (Linux from 32768, others from 49152): a client that tries and
#: tries to reach a broker that is away would else be given the broker's own port one day, and connect to itself.
_PORTS = range(20_000, 32_000)
#: Where this process looks next; sessions beside each other begin apart.
_next = os.getpid() * 97 % len(_PORTS)
#: Whose byte of a port's number is locked by the session that has the port: also while nobody listens there.
_taken = open(Path(tempfile.gettempdir()) / f"compactd-test-ports-{os.getuid()}", "ab")  # noqa: SIM115  for good


def free_ports(count: int) -> list[int]:
    """So many in a row; a session gets each of them once before it gets any again."""
    global _next  # noqa: PLW0603
    for _ in range(0, len(_PORTS), count):
        if _next + count > len(_PORTS):
            _next = 0
        found = list(_PORTS[_next : _next + count])
        _next += count
        if all(map(_is_ours, found)) and _are_free(found):
            return found
    raise AssertionError(f"no {count} free ports in a row between {_PORTS[0]} and {_PORTS[-1]}")


def _is_ours(port: int) -> bool:
    try:
        fcntl.lockf(_taken, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _are_free(ports: list[int]) -> bool:
    with contextlib.ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
