from __future__ import annotations

import configparser
import os
import shlex
import socket
from pathlib import Path

import pytest

from compactd.coordinator.systemd import Notifier

_UNIT = Path(__file__).parents[2] / "packaging" / "compactd.service"


def test_systemd_is_told(fast_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = fast_dir / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.bind(str(address))
        service.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        notifier = Notifier()

        def told() -> list[str]:
            return service.recv(4096).decode().split("\n")

        notifier.ready("12 partitions\nREADY=0")
        assert told() == ["READY=1", "STATUS=12 partitions READY=0"]
        notifier.reloading()
        assert told()[0] == "RELOADING=1"
        notifier.need_time(1.5)
        assert told() == ["EXTEND_TIMEOUT_USEC=1500000"]
        notifier.watchdog()
        assert told() == ["WATCHDOG=1"]
        notifier.status("loading")
        assert told() == ["STATUS=loading"]
        notifier.stopping("SIGTERM")
        assert told() == ["STOPPING=1", "STATUS=SIGTERM"]
    address.unlink()
    # Nobody listens any more: no error.
    notifier.watchdog()


def test_the_watchdog_is_for_us_or_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "@abstract")
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    assert Notifier().watchdog_seconds is None
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    assert Notifier().watchdog_seconds == 15
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + 1))
    assert Notifier().watchdog_seconds is None
    monkeypatch.setenv("WATCHDOG_PID", "x")
    assert Notifier().watchdog_seconds is None


def test_the_unit_file_runs_what_there_is() -> None:
    from compactd.scripts.serve import command  # noqa: PLC0415

    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(_UNIT)
    service = unit["Service"]
    program, name, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/compactd")
    assert name == command.name
    context = command.make_context("serve", arguments)
    assert context.params["sets"] == ("run.dir=/run/compactd",)
    assert service["RuntimeDirectory"] == "compactd"
    assert (service["KillMode"], service["Type"]) == ("mixed", "notify")
