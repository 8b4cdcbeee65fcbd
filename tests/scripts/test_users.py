from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import Result

from tests.scripts.daemons import RunningDaemon
from tests.workers.broker.harness import RawClient
from tests.workers.broker.sasl_client import log_in

Users = Callable[..., Result]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """Nobody can come in before there is a user."""
    directory = tmp_path_factory.mktemp("users")
    settings = {
        "listeners": "OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "OUTSIDE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    }
    with RunningDaemon(directory, **settings) as running:
        yield running


@pytest.fixture
def users(daemon: RunningDaemon, run: Callable[..., Result]) -> Users:
    def call(command: str, *arguments: str, given: str | None = None) -> Result:
        return run("users", command, *arguments, "--run-dir", daemon.run_dir, given=given)

    return call


def _listed(users: Users) -> list[tuple[str, str, int]]:
    lines = users("list", "--json").stdout.splitlines()
    return [tuple(json.loads(line).values()) for line in lines]  # type: ignore[misc]


def test_the_life_of_a_user(daemon: RunningDaemon, users: Users) -> None:
    assert "nobody may log in" in users("list").stdout
    made = users("set", "alice", "--password-stdin", given="open sesame\n")
    assert (made.exit_code, made.stdout) == (
        0,
        "user alice may log in with SCRAM-SHA-256\nuser alice may log in with SCRAM-SHA-512\n",
    )
    assert _listed(users) == [("alice", "SCRAM-SHA-256", 8192), ("alice", "SCRAM-SHA-512", 8192)]
    port = int(daemon.address.rpartition(":")[2])
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        with RawClient(port) as client:
            log_in(client, "alice", "open sesame", mechanism)
    again = ("--mechanism", "SCRAM-SHA-512", "--iterations", "4096")
    assert users("set", "alice", *again, "--password-stdin", given="other").exit_code == 0
    with RawClient(port) as client:
        log_in(client, "alice", "other", "SCRAM-SHA-512")
    with RawClient(port) as client, pytest.raises(AssertionError):
        log_in(client, "alice", "open sesame", "SCRAM-SHA-512")
    removed = users("remove", "alice")
    assert removed.stdout.splitlines()[0] == "user alice may log in with SCRAM-SHA-256 no more"
    assert _listed(users) == []
    assert "open sesame" not in daemon.log


def test_what_is_refused(users: Users) -> None:
    gone = users("remove", "nobody")
    assert gone.exit_code == 3
    assert "user nobody: refused, does not log in with SCRAM" in gone.stderr
    assert users("set", "alice", "--password-stdin", given="\n").exit_code == 2
    assert users("set", "alice", "--iterations", "1", "--password-stdin", given="x").exit_code == 2
    nameless = users("set", "", "--password-stdin", given="x")
    assert nameless.exit_code == 3
    assert "Username must not be empty" in nameless.stderr


def test_a_terminal_is_told_nothing_by_names(users: Users) -> None:
    name = "eve\x1b[2J\nroot"
    assert users("set", name, "--mechanism", "SCRAM-SHA-256", "--password-stdin", given="x").exit_code == 0
    try:
        assert (name, "SCRAM-SHA-256", 8192) in _listed(users)
        shown = users("list").stdout
        assert "\x1b" not in shown
        assert "eve" in shown
    finally:
        assert users("remove", name).exit_code == 0
