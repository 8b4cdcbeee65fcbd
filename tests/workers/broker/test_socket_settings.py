"""The buffers and the backlog of sockets, and how often flush.ms is looked at, are those of the settings."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from compactd.config.setting import LONG_MAX
from compactd.workers.broker.partitions import FLUSH_CHECK_SECONDS
from tests.workers.broker.harness import InProcessBroker

API_VERSIONS = 18


def _buffers(tmp_path: Path, settings: Mapping[str, object]) -> tuple[int, int]:
    """SO_RCVBUF and SO_SNDBUF of a client's connection at the broker."""
    with InProcessBroker([tmp_path], settings) as broker, broker.connect() as client:
        client.ask(API_VERSIONS, 0, {})
        (connection,) = broker._broker.server._connections
        taken = connection._socket
        return (
            taken.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
            taken.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
        )


def _system(size: int) -> int:
    """What the system makes of a size that is asked for."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        return one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def test_buffers_of_sockets_have_the_sizes_that_were_asked_for(tmp_path: Path) -> None:
    settings = {"socket.receive.buffer.bytes": 20_000, "socket.send.buffer.bytes": 30_000}
    assert _buffers(tmp_path, settings) == (_system(20_000), _system(30_000))


def test_the_system_chooses_unless_sizes_are_asked_for(tmp_path: Path) -> None:
    received, sent = _buffers(tmp_path, {})
    assert received != _system(102_400)
    assert sent != _system(102_400)


@pytest.mark.parametrize(
    ("given", "seconds"), [(250, 0.25), (90_000, 90.0), (LONG_MAX, FLUSH_CHECK_SECONDS), (0, FLUSH_CHECK_SECONDS)]
)
def test_flushes_are_looked_for_as_often_as_is_asked(tmp_path: Path, given: int, seconds: float) -> None:
    with InProcessBroker([tmp_path]) as broker:
        partitions = broker._broker.context.partitions
        partitions.check_flushes_every(given)
        assert partitions._flush_check_seconds == seconds
