"""A real daemon with one log dir for the tests of the commands that talk to one; only its cleaning side is scripted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

import msgspec
import yaml

from compactd.coordinator.control.messages import CleaningStatus, GetStatus, Status
from compactd.coordinator.control.socket import ControlClient
from tests.ports import free_ports

_STAND_IN = Path(__file__).parent / "stand_in_serve.py"
_PATIENCE_SECONDS = 60.0


class RunningDaemon:
    """`with RunningDaemon(directory) as daemon:` serves at daemon.address."""

    def __init__(self, directory: Path, real: bool = False, **settings: object) -> None:
        """`real`: compactd serve as it is, its cleaning side, too."""
        self.directory, self.real = directory, real
        self.log_dir, self.run_dir = directory / "d1", directory / "run"
        self.config = directory / "compactd.yaml"
        self._told, self._cleaning = directory / "told", directory / "cleaning.json"
        workers = settings.get("broker_workers", 1)
        assert isinstance(workers, int)
        self.settings: dict[str, object] = {
            "log.dirs": str(self.log_dir),
            # The same when a worker comes back.
            "listeners": f"PLAINTEXT://127.0.0.1:{free_ports(workers)[0]}",
            "run.dir": str(self.run_dir),
            "log.cleaner.threads": 0,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self.write()
        self.process: subprocess.Popen[str] | None = None

    def write(self, **changes: object) -> None:
        """Writes its configuration, with changes."""
        self.settings |= {name.replace("_", "."): value for name, value in changes.items()}
        self.config.write_text(yaml.safe_dump(self.settings))

    def cleaning(self, status: CleaningStatus) -> None:
        """What the cleaning side says from now on."""
        self._cleaning.write_bytes(msgspec.json.encode(status))

    @property
    def told(self) -> list[str]:
        """What the cleaning side was told to do."""
        return self._told.read_text().splitlines() if self._told.exists() else []

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def status(self) -> Status:
        with ControlClient(self.run_dir) as client:
            answer = client.ask(GetStatus(all_partitions=True), _PATIENCE_SECONDS)
        assert isinstance(answer, Status)
        return answer

    @property
    def address(self) -> str:
        """Where clients connect."""
        return next(worker.address for worker in self.status().workers if worker.kind == "broker")

    def __enter__(self) -> RunningDaemon:
        command = [str(_STAND_IN), str(self.config), str(self._told), str(self._cleaning)]
        if self.real:
            command = ["-m", "compactd.scripts", "serve", "--config", str(self.config)]
        with open(self.directory / "log", "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("compactd serves " if self.real else "running"), self.log
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
