"""Passwords and keys: what a daemon writes and tells has none of them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

from click.testing import Result

from compactd.coordinator.control.messages import GetStatus, Status
from compactd.coordinator.control.socket import ControlClient
from compactd.workers.broker.security.scram import SCRAM_MECHANISMS
from tests.scripts.daemons import RunningDaemon
from tests.workers.broker.harness import RawClient
from tests.workers.broker.sasl_client import authenticate, handshake, log_in, plain_token

DESCRIBE, ALTER, DESCRIBE_SCRAM, ALTER_SCRAM = 32, 44, 50, 51
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_JAAS = "listener.name.inside.plain.sasl.jaas.config"
#: Of the file, of clients, of settings that are changed, and of some that are refused.
PASSWORDS = ("Sw0rdOfTheFile", "Sw0rdOfAClient", "Sw0rdThatIsNew", "Sw0rdThatIsRefused", "Sw0rdOfAKey", "Sw0rdSalted")
SALTED, SALT = hashlib.pbkdf2_hmac("sha256", b"Sw0rdSalted", b"salt" * 6, 4096), b"SaltOfTheUserOfScram"


def _secrets() -> list[bytes]:
    keys = SCRAM_MECHANISMS[0].keys(SALTED)
    told = [each.encode() for each in PASSWORDS]
    for secret in (SALTED, SALT, *keys):
        told += [secret, base64.b64encode(secret), secret.hex().encode(), repr(secret)[2:-1].encode()]
    return told


def _altered(client: RawClient, name: str, value: str, node: str = "1") -> int:
    configs = [{"name": name, "config_operation": 0, "value": value}]
    body = {"resources": [{"resource_type": 4, "resource_name": node, "configs": configs}], "validate_only": False}
    return int(client.ask(ALTER, 1, body).responses[0].error_code)


def test_no_secret_is_told_to_anybody(tmp_path: Path, run: Callable[..., Result]) -> None:
    settings = {
        "node.id": 1,
        "listeners": "INSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "connection.failed.authentication.delay.ms": 0,
        "metrics.listener": "127.0.0.1:0",
        "log.level": "debug",
        _JAAS: f'{_MODULE} user_admin="Sw0rdOfTheFile";',
    }
    with RunningDaemon(tmp_path, real=True, **settings) as daemon:
        told: dict[str, bytes] = {}
        port = int(daemon.address.rpartition(":")[2])
        with RawClient(port) as client:
            log_in(client, "admin", "Sw0rdOfTheFile")
            row = {"name": "scram", "mechanism": 1, "iterations": 4096, "salt": SALT, "salted_password": SALTED}
            assert client.ask(ALTER_SCRAM, 0, {"deletions": [], "upsertions": [row]}).results[0].error_code == 0
            new = f'{_MODULE} user_admin="Sw0rdThatIsNew";'
            refused = f'{_MODULE} user_admin="Sw0rdThatIsRefused'
            told["answer"] = b""
            for node in ("1", ""):
                for name, value in (
                    (_JAAS, refused),
                    ("ssl.key.password", "Sw0rdOfAKey"),
                    ("sasl.jaas.config", refused),
                ):
                    configs = [{"name": name, "config_operation": 0, "value": value}]
                    resource = {"resource_type": 4, "resource_name": node, "configs": configs}
                    client.send(ALTER, 1, {"resources": [resource], "validate_only": False})
                    told["answer"] += client.receive_frame()
            assert _altered(client, _JAAS, new) == 0
            for node in ("1", ""):
                resource = {"resource_type": 4, "resource_name": node, "configuration_keys": None}
                body = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
                client.send(DESCRIBE, 4, body)
                told[f"settings of {node}"] = client.receive_frame()
            client.send(DESCRIBE_SCRAM, 0, {"users": None})
            told["users"] = client.receive_frame()
            assert b"scram" in told["users"]
        with RawClient(port) as client:
            handshake(client, "PLAIN")
            assert authenticate(client, plain_token("admin", "Sw0rdOfAClient")).error_code == 58
        with RawClient(port) as client:
            log_in(client, "admin", "Sw0rdThatIsNew")
        with ControlClient(daemon.run_dir) as control:
            status = control.ask(GetStatus(all_partitions=True), 60)
            assert isinstance(status, Status)
            told["status"] = repr(status).encode()
        told["metrics"] = urlopen(f"http://{status.metrics}/metrics", timeout=60).read()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if str(daemon.run_dir).encode() in (process / "cmdline").read_bytes():
                    told[f"process {process.name}"] = (process / "cmdline").read_bytes() + (
                        process / "environ"
                    ).read_bytes()
            except OSError:
                continue  # it has ended
        assert len([what for what in told if what.startswith("process")]) > 1
        for file in daemon.run_dir.rglob("*"):
            if file.is_file():
                told[str(file)] = file.read_bytes()
        for arguments in (["users", "list", "--json"], ["status", "--json"]):
            told[" ".join(arguments)] = run(*arguments, "--run-dir", daemon.run_dir).output.encode()
        for arguments in (["config", "--config", daemon.config], ["config", "--json", "--config", daemon.config]):
            told[" ".join(map(str, arguments))] = run(*arguments).output.encode()
    told["log"] = daemon.log.encode()
    metadata = daemon.log_dir / "__cluster_metadata-0"
    for file in (*metadata.glob("*.log"), *metadata.glob("*.checkpoint")):
        for form in (["--records"], ["--records", "--json"]):
            shown = run("dump", file, *form)
            assert shown.exit_code == 0
            told[f"dump {file.name} {form}"] = shown.output.encode()
    assert any(b"scram" in text and b"4096" in text for what, text in told.items() if what.startswith("dump"))
    assert json.loads(told["config --json --config " + str(daemon.config)].splitlines()[0])
    found = {(what, secret) for what, text in told.items() for secret in _secrets() if secret in text}
    assert not found
