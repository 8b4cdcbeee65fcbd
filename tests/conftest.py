"""What every test gets: an isolated environment, a look for what it left behind, Kafka as an oracle on request."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from compactd.storage.kernel import native_kernel
from tests import leftovers
from tests.oracle.driver import Oracle, build, why_not
from tests.strategies import SCALES, profile

for _name, _scale in SCALES.items():
    settings.register_profile(
        _name,
        max_examples=20 if _name == "quick" else round(100 * max(1.0, _scale)),
        deadline=None,
        # CI judges a change by examples that were there before it; new ones are for those who look for them (soak).
        derandomize=_name == "ci",
        print_blob=True,
        phases=tuple(Phase) if _name == "soak" else (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile(profile() if profile() in SCALES else "default")

#: Settings of the tests themselves; every other COMPACTD_* variable is somebody's and must not reach the tests.
_KEPT = ("COMPACTD_ORACLE_",)

_FAILED = pytest.StashKey[bool]()
_STATUS = pytest.StashKey[int]()


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
    with Oracle() as running, leftovers.revived(running.revive):
        yield running


@pytest.fixture
def oracle(_oracle_process: Oracle) -> Iterator[Oracle]:
    """Apache Kafka 4.4.0's log layer; one JVM for the session, no open log at the start of a test."""
    _oracle_process.reset()
    yield _oracle_process
    if _oracle_process.is_running:
        _oracle_process.reset()


@pytest.fixture
def fast_dir() -> Iterator[Path]:
    """An empty directory, in memory where the machine has such a file system: these tests write many small files."""
    memory = Path("/dev/shm")
    root = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="compactd-test-", dir=root))
    yield path
    shutil.rmtree(path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test may leave neither processes nor threads nor sockets nor open files nor files beside its temporary directories.

    One that failed has its cause to tell, not what it left behind.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    # What is made for a whole session is made before this.
    for revive in leftovers.revivers:
        revive()
    before, undisturbed = leftovers.look(), not leftovers.is_anything_at_large()
    yield
    failed = request.node.stash.get(_FAILED, False)
    if failed:
        leftovers.drop_what_the_failure_holds()
    if left := leftovers.left_since(before):
        leftovers.let_go(before)
        print("\n".join(left))
        assert failed or not undisturbed, "; ".join(left)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    # The interpreter would wait for threads that failed tests left behind; xdist ends its processes itself.
    left = [each.name for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    if left and not hasattr(config, "workerinput"):
        print(f"ended although threads run on: {left}", flush=True)
        os._exit(config.stash.get(_STATUS, 1))
