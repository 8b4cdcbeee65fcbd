"""Keys and certificates made for a test, with the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificates:
    """An authority, what it signed, and who it does not know."""

    directory: Path

    @property
    def authority(self) -> Path:
        return self.directory / "authority.crt"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.crt"

    def store(self, name: str) -> Path:
        """Key and certificate in one file, as Kafka's PEM stores have them."""
        return self.directory / f"{name}.pem"

    def make(self, name: str, subject: str, *, signed: bool = True, password: str | None = None) -> None:
        key, request, certificate = self.key(name), self.directory / f"{name}.csr", self.certificate(name)
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(key))
        if signed:
            _openssl("req", "-new", "-key", str(key), "-subj", subject, "-utf8", "-out", str(request))
            extensions = self.directory / "extensions"
            extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
            _openssl(
                "x509", "-req", "-in", str(request), "-CA", str(self.authority), "-CAkey", str(self.key("authority")),
                "-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(certificate),
            )  # fmt: skip
        else:
            _openssl(
                "req", "-x509", "-key", str(key), "-subj", subject, "-utf8", "-days", "2", "-out", str(certificate)
            )
        if password is not None:
            encrypted = self.directory / f"{name}.encrypted"
            _openssl(
                "pkcs8", "-topk8", "-in", str(key), "-passout", f"pass:{password}", "-v2", "aes-256-cbc",
                "-out", str(encrypted),
            )  # fmt: skip
            encrypted.replace(key)
        self.store(name).write_text(key.read_text() + certificate.read_text())


def make_certificates(directory: Path) -> Certificates:
    """`server`, `client` (CN=client,OU=People,O=Tests) and `stranger`, whom the authority does not know."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with the openssl command, which is not there")
    made = Certificates(directory)
    made.make("authority", "/O=Tests/CN=authority", signed=False)
    made.make("server", "/O=Tests/CN=localhost")
    made.make("client", "/O=Tests/OU=People/CN=client")
    made.make("stranger", "/CN=stranger", signed=False)
    return made


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
