"""Programs in Go, built at first use into the oracle's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from pathlib import Path


class CannotBuildError(Exception):
    """Why there is no such program here."""


def build(module: Path, package: str = ".") -> Path:
    """A package of the module in a folder. CannotBuildError without Go or its modules."""
    if shutil.which("go") is None:
        raise CannotBuildError("go is not on the PATH")
    sources = sorted(path for path in module.rglob("*") if path.is_file())
    stamp = zlib.crc32(b"".join(path.read_bytes() for path in sources))
    home = Path(os.environ.get("COMPACTD_ORACLE_HOME", Path.home() / ".cache" / "compactd-oracle"))
    program = home / f"{module.name if package == '.' else package}-{stamp:08x}"
    if not program.exists():
        home.mkdir(parents=True, exist_ok=True)
        made = home / f"{program.name}.{os.getpid()}"
        command = ["go", "build", "-o", str(made), f"./{package}"]
        try:
            done = subprocess.run(command, cwd=module, capture_output=True, text=True, check=False, timeout=200)
        except subprocess.TimeoutExpired:
            raise CannotBuildError("go build: no end after 200 s") from None
        if done.returncode != 0:
            raise CannotBuildError(f"go build: {done.stderr.strip()[-500:]}")
        made.rename(program)
    return program
