"""`compactd users`: who may log in with SCRAM, at a running daemon. The first user can be made here: no login is needed."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from pathlib import Path

import click

from compactd.config.errors import RefusedError, UsageError
from compactd.coordinator.control.messages import CatalogueAnswer, ChangeCatalogue, GetUsers, Users
from compactd.coordinator.control.socket import ControlClient
from compactd.scripts.output import Table, print_json, print_line
from compactd.scripts.running import connect, daemon_options
from compactd.scripts.values import printable
from compactd.workers.broker.security.scram import SCRAM_MECHANISMS, ScramMechanism
from compactd.workers.catalogue_messages import results_of, to_raw
from compactd.workers.credential_messages import (
    AlterCredentials,
    CredentialDeletion,
    CredentialResults,
    CredentialUpsertion,
)

_SETTINGS = {"help_option_names": ["-h", "--help"]}
_EPILOG = "Exit codes: 0 done, 2 wrong usage, 3 refused or no daemon runs, 4 I/O error."
_SECONDS = 30.0
_SALT_BYTES = 24
_ITERATIONS = 8192
_BY_NAME = {mechanism.name: mechanism for mechanism in SCRAM_MECHANISMS}
_BY_NUMBER = {mechanism.number: mechanism.name for mechanism in SCRAM_MECHANISMS}

_json = click.option("--json", "as_json", is_flag=True, help="JSON lines.")
_mechanisms = click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(sorted(_BY_NAME)),
    help="Default: both. Repeatable.",
)


@click.group(name="users", context_settings=_SETTINGS, epilog=_EPILOG)
def command() -> None:
    """List, set and remove users who log in with SCRAM-SHA-256 or SCRAM-SHA-512.

    Users of PLAIN stand in the settings: listener.name.NAME.plain.sasl.jaas.config.

    \b
    Examples:
      compactd users set admin
      compactd users set app --password-stdin <app.password
      compactd users list
      compactd users remove app
    """


@command.command(name="list", context_settings=_SETTINGS)
@_json
@daemon_options
def list_users(as_json: bool, config: Path | None, run_dir: Path | None) -> None:
    """All users, and how they may log in."""
    with connect(config, run_dir) as daemon:
        users = daemon.ask(GetUsers())
    assert isinstance(users, Users)
    if as_json:
        for each in users.users:
            print_json({"user": each.user, "mechanism": _BY_NUMBER[each.mechanism], "iterations": each.iterations})
        return
    if not users.users:
        print_line("nobody may log in with SCRAM; `compactd users set NAME` adds a user")
        return
    table = Table(("user", "mechanism", ">iterations"))
    for each in users.users:
        table.row(printable(each.user), _BY_NUMBER[each.mechanism], each.iterations)
    table.show()


@command.command(name="set", context_settings=_SETTINGS)
@click.argument("name", metavar="USER")
@_mechanisms
@click.option("--iterations", type=click.IntRange(4096, 16_384), default=_ITERATIONS, show_default=True, metavar="N")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input, its first line.")
@daemon_options
def set_user(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    password_stdin: bool,
    config: Path | None,
    run_dir: Path | None,
) -> None:
    """Add a user, or give one a new password. The password is asked for; it is never an argument, nor kept."""
    password = _password(name, password_stdin)
    with connect(config, run_dir) as daemon:
        for mechanism in mechanisms or sorted(_BY_NAME):
            upsertion = _upsertion(name, password, _BY_NAME[mechanism], iterations)
            _change(daemon, AlterCredentials(deletions=(), upsertions=(upsertion,)))
            print_line(f"user {name} may log in with {mechanism}")


@command.command(name="remove", context_settings=_SETTINGS)
@click.argument("name", metavar="USER")
@_mechanisms
@daemon_options
def remove_user(name: str, mechanisms: tuple[str, ...], config: Path | None, run_dir: Path | None) -> None:
    """Remove a user. Who has logged in stays until the connection ends or has to log in again."""
    with connect(config, run_dir) as daemon:
        users = daemon.ask(GetUsers())
        assert isinstance(users, Users)
        known = [_BY_NUMBER[each.mechanism] for each in users.users if each.user == name]
        wanted = list(mechanisms) or known
        if not wanted or not set(wanted) <= set(known):
            missing = next((each for each in wanted if each not in known), "SCRAM")
            raise RefusedError(
                path=f"user {name}",
                reason=f"does not log in with {missing}",
                advice="`compactd users list` shows who does.",
            )
        for mechanism in wanted:
            deletion = CredentialDeletion(user=name, mechanism=_BY_NAME[mechanism].number)
            _change(daemon, AlterCredentials(deletions=(deletion,), upsertions=()))
            print_line(f"user {name} may log in with {mechanism} no more")


def _password(name: str, from_stdin: bool) -> str:
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    elif os.isatty(0):
        password = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise UsageError(detail="there is no terminal to ask for the password: give it with --password-stdin")
    if not password:
        raise UsageError(detail="the password is empty")
    return password


def _upsertion(name: str, password: str, mechanism: ScramMechanism, iterations: int) -> CredentialUpsertion:
    salt = secrets.token_bytes(_SALT_BYTES)
    stored_key, server_key = mechanism.keys(
        hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)
    )
    return CredentialUpsertion(
        user=name,
        mechanism=mechanism.number,
        iterations=iterations,
        salt=salt,
        stored_key=stored_key,
        server_key=server_key,
    )


def _change(daemon: ControlClient, arguments: AlterCredentials) -> None:
    """RefusedError with Kafka's reason."""
    answer = daemon.ask(ChangeCatalogue(operation="alter_credentials", arguments=to_raw(arguments)), _SECONDS)
    assert isinstance(answer, CatalogueAnswer)
    results = results_of("alter_credentials", answer.results)
    assert isinstance(results, CredentialResults)
    for result in results.results:
        if result.error:
            raise RefusedError(path=f"user {result.user}", reason=(result.message or "").rstrip("."), advice="")
