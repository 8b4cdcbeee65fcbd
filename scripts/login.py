"""How `compactd produce` and `compactd consume` come in where a listener asks who they are: Kafka's client settings.

security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="app" password="...";
ssl.truststore.type=PEM
ssl.truststore.location=authority.pem
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from compactd.config.errors import ConnectionFailedError, ServerError, UsageError
from compactd.config.jaas import parse_jaas
from compactd.config.listener_settings import MECHANISMS, PLAIN
from compactd.config.listeners import SecurityProtocol
from compactd.config.properties import properties_dict
from compactd.workers.broker.security.scram import SCRAM_MECHANISMS, ScramMechanism

#: Sends a token; the server's.
Exchange = Callable[[bytes], bytes]

_SCRAM = {mechanism.name: mechanism for mechanism in SCRAM_MECHANISMS}
_MAX_ITERATIONS = 1 << 20


@dataclass(frozen=True, slots=True)
class Login:
    """How to connect."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    def encrypted(self, plain: socket.socket, host: str) -> socket.socket:
        """The socket to talk over. OSError where the server is not who it should be."""
        return plain if self.tls is None else self.tls.wrap_socket(plain, server_hostname=host)

    def log_in(self, ask: Exchange, address: str) -> None:
        """One login. ServerError: the server does not prove that it knows the password."""
        if self.mechanism == PLAIN:
            ask(f"\0{self.user}\0{self.password}".encode())
            return
        mechanism = _SCRAM[self.mechanism]
        nonce = secrets.token_urlsafe(24)
        bare = f"n={self.user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        first = ask(f"n,,{bare}".encode()).decode("utf-8", "replace")
        final, expected = _proof(mechanism, self.password, bare, nonce, first, address)
        if not hmac.compare_digest(ask(final), expected):
            raise ServerError(what=address, reason="it does not know the password, so it is not who it should be")


def _proof(
    mechanism: ScramMechanism, password: str, bare: str, nonce: str, first: str, address: str
) -> tuple[bytes, bytes]:
    """The client's last message, and the server's."""
    parts = dict(part.split("=", 1) for part in first.split(",") if "=" in part)
    try:
        salt, iterations = base64.b64decode(parts["s"], validate=True), int(parts["i"])
    except (KeyError, ValueError):
        raise ServerError(what=address, reason="what it says of the login cannot be read") from None
    if not parts.get("r", "").startswith(nonce) or not 0 < iterations <= _MAX_ITERATIONS:
        raise ServerError(what=address, reason="what it says of the login is not about this one")
    key = hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)
    stored_key, server_key = mechanism.keys(key)
    unproved = f"c=biws,r={parts['r']}"
    message = f"{bare},{first},{unproved}".encode()
    client_key = mechanism.mac(key, b"Client Key")
    signature = mechanism.mac(stored_key, message)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return (
        f"{unproved},p={base64.b64encode(proof).decode()}".encode(),
        b"v=" + base64.b64encode(mechanism.mac(server_key, message)),
    )


def load_login(path: Path) -> Login:
    """From a file of client settings, as --command-config names it. UsageError."""
    try:
        settings = properties_dict(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(detail=f"{path}: cannot be read: {error.strerror}") from error
    name = settings.get("security.protocol", "PLAINTEXT").strip().upper()
    try:
        protocol = SecurityProtocol[name]
    except KeyError:
        raise UsageError(detail=f"{path}: security.protocol={name} is none") from None
    mechanism, user, password = _credentials(path, settings) if protocol.asks_who else ("", "", "")
    tls = _context(path, settings) if protocol.encrypted else None
    return Login(protocol, mechanism, user, password, tls)


def _credentials(path: Path, settings: Mapping[str, str]) -> tuple[str, str, str]:
    mechanism = settings.get("sasl.mechanism", "GSSAPI").strip()
    if mechanism not in MECHANISMS:
        raise UsageError(detail=f"{path}: sasl.mechanism={mechanism} cannot be had: there are {', '.join(MECHANISMS)}")
    try:
        options = parse_jaas(settings.get("sasl.jaas.config", "")).options
    except ValueError as fault:
        raise UsageError(detail=f"{path}: sasl.jaas.config: {fault}") from None
    if not options.get("username") or not options.get("password"):
        raise UsageError(detail=f"{path}: sasl.jaas.config needs username and password")
    return mechanism, options["username"], options["password"]


def _context(path: Path, settings: Mapping[str, str]) -> ssl.SSLContext:
    for store in ("truststore", "keystore"):
        kind = settings.get(f"ssl.{store}.type", "JKS").strip()
        if settings.get(f"ssl.{store}.location") and kind.upper() != "PEM":
            raise UsageError(detail=f"{path}: ssl.{store}.type={kind} cannot be read: write it as PEM")
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    trusted, own = settings.get("ssl.truststore.location"), settings.get("ssl.keystore.location")
    key_password = settings.get("ssl.key.password", "")
    try:
        if trusted:
            context.load_verify_locations(trusted)
        if own:
            context.load_cert_chain(own, password=lambda: key_password)
    except (OSError, ValueError) as error:
        raise UsageError(detail=f"{path}: {trusted or own}: {error}") from error
    if settings.get("ssl.endpoint.identification.algorithm", "https").strip() == "":
        context.check_hostname = False
    return context


def refused(address: str, what: str) -> ConnectionFailedError:
    """A login that failed, in the server's words."""
    return ConnectionFailedError(path=address, action="logging in", reason=what)
