from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from compactd.config.errors import ServerError, UsageError
from compactd.scripts.login import Login, load_login
from tests.scripts.daemons import RunningDaemon
from tests.workers.broker.certificates import Certificates, make_certificates

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def daemons(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningDaemon]]:
    """One that is not encrypted and one that is, by protocol; two workers each."""
    running: dict[str, RunningDaemon] = {}
    try:
        for protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
            settings = {
                "listeners": "OUTSIDE://127.0.0.1:0",
                "listener.security.protocol.map": f"OUTSIDE:{protocol}",
                "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
                "listener.name.outside.plain.sasl.jaas.config": f'{_PLAIN} required user_al="sesame";',
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(certificates.store("server")),
                "broker.workers": 2,
            }
            daemon = RunningDaemon(tmp_path_factory.mktemp(protocol.lower()), **settings)
            running[protocol] = daemon.__enter__()
        yield running
    finally:
        for daemon in running.values():
            daemon.__exit__(None, None, None)


def _settings(directory: Path, protocol: str, mechanism: str, password: str, certificates: Certificates) -> Path:
    module = _PLAIN if mechanism == "PLAIN" else _SCRAM
    path = directory / "client.properties"
    path.write_text(
        f"security.protocol={protocol}\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={module} required username="al" password="{password}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.authority}\n"
    )
    return path


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_commands_log_in(
    daemons: dict[str, RunningDaemon],
    certificates: Certificates,
    run: Callable[..., Result],
    tmp_path: Path,
    protocol: str,
) -> None:
    daemon = daemons[protocol]
    there = ("--run-dir", daemon.run_dir)
    assert run("topics", "create", "t", "--partitions", 4, *there).exit_code == 0
    assert run("users", "set", "al", "--password-stdin", *there, given="sesame\n").exit_code == 0
    for mechanism in _MECHANISMS:
        login = ("--command-config", _settings(tmp_path, protocol, mechanism, "sesame", certificates))
        (tmp_path / "lines").write_text("".join(f"{number}:{mechanism}\n" for number in range(20)))
        given = ("--file", tmp_path / "lines", "--key-separator", ":")
        assert run("produce", "t", *given, *login, *there).exit_code == 0
        read = run("consume", "t", "--from-beginning", "--until-end", *login, *there)
        assert read.exit_code == 0, read.output
        assert read.stdout.count(mechanism) == 20
        wrong = ("--command-config", _settings(tmp_path, protocol, mechanism, "hush", certificates))
        refused = run("consume", "t", "--from-beginning", "--until-end", *wrong, *there)
        assert refused.exit_code == 4
        assert "logging in" in refused.stderr
        assert "Invalid username or password" in refused.stderr or "invalid credentials" in refused.stderr
        assert "hush" not in refused.stderr


def test_who_does_not_log_in_is_told_how(daemons: dict[str, RunningDaemon], run: Callable[..., Result]) -> None:
    for daemon in daemons.values():
        result = run("consume", "t", "--from-beginning", "--until-end", "--run-dir", daemon.run_dir)
        assert result.exit_code == 4
        assert "needs --command-config" in result.stderr
        assert "check the disk" not in result.stderr


def test_a_server_that_is_not_the_one_that_it_should_be(
    daemons: dict[str, RunningDaemon], certificates: Certificates, run: Callable[..., Result], tmp_path: Path
) -> None:
    path = _settings(tmp_path, "SASL_SSL", "PLAIN", "sesame", certificates)
    path.write_text(path.read_text().replace(str(certificates.authority), str(certificates.certificate("stranger"))))
    login = ("--command-config", path, "--run-dir", daemons["SASL_SSL"].run_dir)
    result = run("consume", "t", "--from-beginning", "--until-end", *login)
    assert result.exit_code == 4
    assert "connecting with TLS" in result.stderr


def test_a_listener_without_tls_is_told_from_a_wrong_certificate(
    daemons: dict[str, RunningDaemon], certificates: Certificates, run: Callable[..., Result], tmp_path: Path
) -> None:
    path = _settings(tmp_path, "SASL_SSL", "PLAIN", "sesame", certificates)
    login = ("--command-config", path, "--run-dir", daemons["SASL_PLAINTEXT"].run_dir)
    result = run("consume", "t", "--from-beginning", "--until-end", *login)
    assert result.exit_code == 4
    assert "--bootstrap-server names another" in result.stderr


def test_a_server_has_to_know_the_password() -> None:
    login = Login(mechanism="SCRAM-SHA-256", user="al", password="sesame")
    for first in (b"", b"r=x", b"r=other,s=QQ==,i=4096", b"s=*,i=1"):
        with pytest.raises(ServerError, match="what it says of the login"):
            login.log_in(lambda _, first=first: first, "server")  # type: ignore[misc]

    def pretends(token: bytes) -> bytes:
        text = token.decode()
        if text.startswith("n,,"):
            return f"r={text.rpartition('r=')[2]}more,s=QUJD,i=4096".encode()
        return b"v=AAAA"

    with pytest.raises(ServerError, match="it does not know the password"):
        login.log_in(pretends, "server")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("security.protocol=KERBEROS", "KERBEROS is none"),
        ("security.protocol=SASL_PLAINTEXT", "GSSAPI cannot be had"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN", "no login module"),
        (
            f'security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={_PLAIN} required password="hush";',
            "needs username and password",
        ),
        ("security.protocol=SSL\nssl.truststore.location=/a.jks", "JKS cannot be read"),
        ("security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=/nowhere.pem", "/nowhere.pem"),
    ],
)
def test_settings_that_are_none(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text + "\n")
    with pytest.raises(UsageError, match=fault) as caught:
        load_login(path)
    assert "hush" not in str(caught.value)
    with pytest.raises(UsageError, match="cannot be read"):
        load_login(tmp_path / "absent")


def test_nothing_special_is_asked_for_by_default(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("client.id=x\n")
    assert load_login(path) == Login()
    assert "sesame" not in repr(Login(password="sesame"))
