"""What every test gets: an isolated environment, a look for what it left behind, Kafka as an oracle on request."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from compactd.storage.kernel import native_kernel
from tests.oracle.driver import Oracle, build, why_not
from tests.strategies import SCALES, profile

for _name, _scale in SCALES.items():
    settings.register_profile(
        _name,
        max_examples=20 if _name == "quick" else round(100 * max(1.0, _scale)),
        deadline=None,
        print_blob=True,
        phases=tuple(Phase) if _name == "soak" else (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile(profile() if profile() in SCALES else "default")

#: Settings of the tests themselves; every other COMPACTD_* variable is somebody's and must not reach the tests.
_KEPT = ("COMPACTD_ORACLE_",)


def pytest_configure(config: pytest.Config) -> None:
    # Whoever runs the tests in the background may have them ignore Ctrl-C, and with them what they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in list(os.environ):
        if name.startswith("COMPACTD_") and not name.startswith(_KEPT):
            del os.environ[name]


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [f"compactd: {_kernel()}; {_java()}", f"codecs: {_codecs()}; hypothesis profile {profile()}"]


def _kernel() -> str:
    native = native_kernel() is not None
    return "native kernel" if native else "reference kernel only, the native one is not built"


def _java() -> str:
    reason = why_not()
    if reason is not None:
        return f"no Kafka oracle: {reason}"
    found = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return "Kafka oracle on " + (found.stderr.splitlines() or ["?"])[0]


def _codecs() -> str:
    import cramjam  # noqa: PLC0415  only for the header
    import zstandard  # noqa: PLC0415

    version = ".".join(map(str, zstandard.ZSTD_VERSION))
    return f"libzstd {version}, cramjam {cramjam.__version__}"


@pytest.fixture(scope="session")
def oracle_classpath() -> str:
    """Classpath of Kafka 4.4.0 with its tools; the test is skipped where Kafka cannot run."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"Kafka comparison not run: {reason}")
    return build()


@pytest.fixture(scope="session")
def _oracle_process(oracle_classpath: str) -> Iterator[Oracle]:
    with Oracle() as running:
        yield running


@pytest.fixture
def oracle(_oracle_process: Oracle) -> Iterator[Oracle]:
    """Apache Kafka 4.4.0's log layer; one JVM for the session, no open log at the start of a test."""
    _oracle_process.reset()
    yield _oracle_process
    _oracle_process.reset()


@pytest.fixture
def fast_dir() -> Iterator[Path]:
    """An empty directory, in memory where the machine has such a file system: these tests write many small files."""
    memory = Path("/dev/shm")
    root = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="compactd-test-", dir=root))
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test may leave neither processes nor sockets nor open files nor files beside its temporary directories."""
    if not sys.platform.startswith("linux"):
        yield
        return
    # Session fixtures are made before the first look, or they would count as left behind by the first test that asks.
    if "oracle" in request.fixturenames:
        request.getfixturevalue("_oracle_process")
    children, opened, beside = _children(), _open_files(), _beside()
    yield
    assert _children() <= children, "the test left child processes running or unreaped"
    assert _open_files() <= opened, "the test left files or sockets open"
    assert _beside() == beside, "the test wrote beside its temporary directories"


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (task / "children").read_text().split()))
        except FileNotFoundError:
            continue  # that thread ended meanwhile
    return found


def _open_files() -> set[str]:
    """Sockets and files of tests among the open descriptors; pytest captures into files that are deleted already."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue  # the descriptor of this very listing
        if target.startswith("socket:") or (target.startswith("/") and _is_ours(target)):
            found.add(target)
    return found


def _is_ours(target: str) -> bool:
    return target.startswith((tempfile.gettempdir(), "/dev/shm/")) and not target.endswith(" (deleted)")


def _beside() -> set[str]:
    """Names in the working directory, but those that tools write as they go."""
    ours = {".hypothesis", ".pytest_cache", "__pycache__", ".coverage", "build", ".mypy_cache", ".ruff_cache"}
    return {path.name for path in Path().iterdir() if path.name not in ours}
