"""What systemd is told (sd_notify), and that the coordinator's loop still turns (watchdog). Silent without systemd."""

from __future__ import annotations

import contextlib
import os
import socket
import time


class Notifier:
    """Speaks to the socket of $NOTIFY_SOCKET. Nothing here ever fails: the service matters more than its report."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")

    @property
    def watchdog_seconds(self) -> float | None:
        """How often `watchdog` is to be called: half of what systemd waits. None: it doesn't wait for us."""
        try:
            micros = int(os.environ.get("WATCHDOG_USEC", ""))
            for_us = int(os.environ.get("WATCHDOG_PID", str(os.getpid()))) == os.getpid()
        except ValueError:
            return None
        return micros / 2_000_000 if self._address and micros > 0 and for_us else None

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def need_time(self, seconds: float) -> None:
        """Starting and stopping may take longer than systemd's limit: recovery of large logs does."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is one of the abstract namespace.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.setblocking(False)
            sender.sendto("\n".join(line.replace("\n", " ") for line in lines).encode(), address)
