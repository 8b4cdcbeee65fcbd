from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A log dir on a file system of its own that has room for 6 MiB."""
    path = tmp_path / "d2"
    path.mkdir()
    mounted = None
    if os.geteuid() == 0 and shutil.which("mount"):
        command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(path)]
        mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted is None or mounted.returncode != 0:
        pytest.skip("only root can mount a small file system, where that is allowed at all")
    yield path
    subprocess.run(["umount", str(path)], check=True)
