"""The command as a whole: help, version, exit codes, wording of errors, interruption."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from compactd.config.errors import CorruptFileError, LogDirLockedError, SettingError, StorageIOError
from compactd.scripts import main as main_module
from compactd.scripts.main import COMMANDS
from tests.scripts.helpers import Broker, batch

Run = Callable[..., Result]
Real = Callable[..., "subprocess.CompletedProcess[str]"]


def test_help_names_every_command_and_the_exit_codes(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout
    assert "0 done, 1 faults found, 2 wrong usage, 3 refused, 4 I/O error" in result.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_every_command_gives_an_example(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0, result.stderr
    assert re.search(rf"Examples?:\n\s+compactd {name}", result.stdout)


def test_help_imports_no_subcommand() -> None:
    """Start-up stays quick: neither the engine nor rich is loaded for --help."""
    code = (
        "import sys\n"
        "from compactd.scripts.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([n for n in sys.modules if n.startswith(('rich', 'compactd.storage', 'yaml', 'zstandard', 'cramjam'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_version_names_the_kernel(run: Run) -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert re.fullmatch(r"compactd \d+\.\d+\.\d+\nkernel: (native|reference)\n", result.stdout)


def test_version_warns_of_the_reference_kernel_and_its_slowdown(run: Run) -> None:
    result = run("--version", env={"COMPACTD_KERNEL": "reference"})
    assert "kernel: reference" in result.stdout
    assert re.search(r"warning: the reference kernel is active, .* times slower than the native one", result.stderr)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingError(source="--set", name="segment.bytes", value="x", reason="not a number"), 2),
        (LogDirLockedError(path="/d"), 3),
        (CorruptFileError(path="/d/f", reason="bad", position=3, advice="Mend it."), 1),
        (StorageIOError(path="/d/f", action="writing", reason="No space left on device"), 4),
        (PermissionError(13, "Permission denied", "/d/f"), 4),
        (MemoryError(), 4),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("division by zero"), 70),
    ],
)
def test_every_error_is_one_sentence_on_stderr_with_its_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(main_module.cli, "make_context", fail)
    result = run("dump", "x")
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("compactd: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


def test_traceback_on_request(compactd: Real, tmp_path: Path) -> None:
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    asked = compactd("dump", directory, env={"COMPACTD_TRACEBACK": "1"})
    assert "Traceback" in asked.stderr
    plain = compactd("dump", directory)
    assert plain.returncode == 2
    assert "Traceback" not in plain.stderr


def test_usage_errors_exit_2(run: Run) -> None:
    assert run("nosuch").exit_code == 2
    assert run("dump").exit_code == 2
    assert run("dump", "--no-such-option", ".").exit_code == 2
    assert "No such command 'nosuch'" in run("nosuch").stderr


def test_a_reader_that_goes_away_is_no_error(broker: Broker) -> None:
    """`compactd dump … | head -1` ends quietly."""
    many = [batch(base, *[("k" * 50, "v" * 200)] * 200) for base in range(0, 20_000, 200)]
    broker.partition("t-0", [many])
    command = subprocess.Popen(
        [sys.executable, "-m", "compactd.scripts", "dump", "--records", str(broker.stop())],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdout is not None and command.stderr is not None
    command.stdout.readline()
    command.stdout.close()
    errors = command.stderr.read()
    command.stderr.close()
    assert command.wait(60) == 141
    assert errors == b""


def test_interruption_exits_130_with_a_sentence(broker: Broker) -> None:
    many = [batch(base, *[("k" * 50, "v" * 200)] * 200) for base in range(0, 40_000, 200)]
    broker.partition("t-0", [many])
    command = subprocess.Popen(
        [sys.executable, "-m", "compactd.scripts", "dump", "--records", "--json", str(broker.stop())],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdout is not None and command.stderr is not None
    command.stdout.readline()  # it is at work, and will wait for us to read on
    os.kill(command.pid, signal.SIGINT)
    deadline = time.monotonic() + 60
    while command.poll() is None and time.monotonic() < deadline:
        command.stdout.read1()  # type: ignore[attr-defined]
    errors = command.stderr.read().decode()
    command.stdout.close()
    command.stderr.close()
    assert command.returncode == 130
    assert errors == "compactd: interrupted; unfinished work was left as it was.\n"
