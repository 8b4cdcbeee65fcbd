"""A real Kafka broker (KRaft, one node) on log dirs of a test; listens on 127.0.0.1 only."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.ports import free_ports

CLUSTER_ID = "Y29tcGFjdGQtdGVzdHMtMQ"
_JAVA = ("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Broker:
    """`with Broker(...) as broker:` starts it and stops it in order. `log_dirs` may hold what an earlier one left."""

    def __init__(
        self,
        classpath: str,
        home: Path,
        log_dirs: Sequence[Path],
        settings: Mapping[str, object] | None = None,
        told: Sequence[str] = (),
    ) -> None:
        """`told`: loggers whose lines of level INFO are kept as well."""
        self.log_dirs = list(log_dirs)
        self._loggers = [f"-Dorg.slf4j.simpleLogger.log.{name}=info" for name in told]
        self._classpath = classpath
        self._properties = home / "server.properties"
        #: What the broker printed, warnings and errors.
        self.output = home / "broker.txt"
        home.mkdir(parents=True, exist_ok=True)
        port, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        lines = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": ",".join(map(str, self.log_dirs)),
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 2,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 2,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.initial.task.delay.ms": 500,
            "log.index.size.max.bytes": 65536,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            **(settings or {}),
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def format(self) -> None:
        """Makes empty log dirs ones of this cluster."""
        command = [*_JAVA, "-cp", self._classpath, "kafka.tools.StorageTool", "format"]
        command += ["-t", CLUSTER_ID, "-c", str(self._properties), "--ignore-formatted"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr + done.stdout

    def __enter__(self) -> Broker:
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    *_JAVA,
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                    *self._loggers,
                    "-cp",
                    self._classpath,
                    "kafka.Kafka",
                    str(self._properties),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait_until_it_listens(240)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """An orderly shutdown; a broker that takes more than a minute for it is killed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    def kill(self) -> None:
        """As a crash of the process does."""
        self._process.kill()
        self._process.wait()

    def complaints(self) -> list[str]:
        """Errors that the broker printed."""
        return [line for line in self.output.read_text(errors="replace").splitlines() if " ERROR " in line]

    def _wait_until_it_listens(self, seconds: float) -> None:
        host, port = self.bootstrap.split(":")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex((host, int(port))) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the broker did not start: {self.output.read_text(errors='replace')[-4000:]}")
