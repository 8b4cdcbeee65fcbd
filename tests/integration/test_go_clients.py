"""sarama and segmentio/kafka-go, besides franz-go (clients/franz.py): each does the same on both brokers and is told the same."""

from __future__ import annotations

import difflib
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.clients.go_build import CannotBuildError, build
from tests.integration.servers import Server

pytestmark = pytest.mark.kafka

_SOURCE = Path(__file__).parent / "go_clients"


def told(program: Path, server: Server, before: tuple[str, ...], topic: str, now: int) -> list[str]:
    """What it printed. The bootstrap servers come first, then `before`."""
    done = subprocess.run(
        [str(program), server.bootstrap, *before, topic, str(now)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return re.sub(r"\b127\.0\.0\.1:\d+", "<broker>", done.stdout).splitlines()


@pytest.mark.parametrize(
    ("package", "before"), [("sarama", ("1.0.0",)), ("sarama", ("4.0.0",)), ("kafkago", ())], ids=str
)
def test_is_told_the_same(
    package: str, before: tuple[str, ...], compactd_server: Server, kafka_server: Server, topic: str
) -> None:
    try:
        program = build(_SOURCE, package)
    except CannotBuildError as error:
        pytest.skip(f"no {package}: {error}")
    now = int(time.time() * 1000)
    kafka, ours = (told(program, server, before, topic, now) for server in (kafka_server, compactd_server))
    # It got to the end, which is the deletion of its topic, and read what it wrote.
    assert len(kafka) > 100
    assert kafka == ours, "\n".join(difflib.unified_diff(kafka, ours, "kafka", "compactd", lineterm="", n=1))
