"""Fixtures of the command-line tests: a log dir to fill, and compactd in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from compactd.scripts.main import main
from tests.scripts.helpers import Broker


class _Whole:
    """The whole command as CliRunner calls it: errors become messages and exit codes as at a prompt."""

    name = "compactd"

    def main(self, args: Sequence[str], prog_name: str, **_: Any) -> None:
        main(list(args))


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "log-dir")


@pytest.fixture
def run() -> Callable[..., Result]:
    """Runs compactd in this process."""

    def runner(*arguments: object, env: dict[str, str] | None = None, given: str | None = None) -> Result:
        return CliRunner().invoke(_Whole(), [str(argument) for argument in arguments], env=env, input=given)  # type: ignore[arg-type]

    return runner


@pytest.fixture
def compactd() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the real command in a process of its own."""

    def runner(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "compactd.scripts", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, **(env or {})},
            timeout=120,
            check=False,
        )

    return runner
