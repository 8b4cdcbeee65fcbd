"""What a benchmark's figures are of, for its first lines: versions and machine."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

from compactd.scripts.bench.kafka import Kafka
from compactd.scripts.bench.machine import Machine
from compactd.storage.kernel import active_kernel


def versions() -> str:
    """Of compactd, in a line for a person."""
    return f"compactd {version('compactd')}, {active_kernel().name} kernel, Python {platform.python_version()}"


def announcement(bench: str, machine: Machine, kafka: Kafka) -> dict[str, Any]:
    """The first JSON line of a benchmark; what it measured with is added to it."""
    return {
        "type": "bench",
        "bench": bench,
        "compactd": version("compactd"),
        "kernel": active_kernel().name,
        "python": platform.python_version(),
        "kafka": kafka.version,
        "java": kafka.java_version,
        "javaOptions": kafka.java_options,
        "machine": machine.to_json(),
    }
