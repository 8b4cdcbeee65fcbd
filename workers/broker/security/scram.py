"""SASL SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802; Kafka's ScramSaslServer, ScramMessages; facts: kafka-protocol 16.3).

What is stored of a password is neither the password nor enough to log in with. As in Kafka, passwords are not prepared
(no SASLprep), and the channel binding that a client names is not looked at: there is none.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from compactd.workers.broker.security.login import LoginBrokenError, LoginError, LoginRefusedError
from compactd.workers.catalogue_update import ScramCredential

#: Fewest iterations that a login is taken with.
MIN_ITERATIONS = 4096
#: Characters of a user that are logged.
_SHOWN = 100

_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_SASL_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = rf"(?:,[A-Za-z]+={_VALUE})*"
_BASE64 = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_FIRST = re.compile(
    rf"n,(?:a=(?P<acts_as>{_SASL_NAME}))?,(?P<bare>(?:m={_VALUE},)?n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_NONCE})"
    rf"(?P<extensions>{_EXTENSIONS}))"
)
_FINAL = re.compile(
    rf"(?P<unproved>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_NONCE}))(?P<extensions>{_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)


@dataclass(frozen=True, slots=True)
class ScramMechanism:
    """One of the two; `number`: as credentials name it."""

    name: str
    number: int
    digest: Callable[[bytes], bytes]
    hash_name: str

    def mac(self, key: bytes, message: bytes) -> bytes:
        """HMAC."""
        return hmac.digest(key, message, self.hash_name)

    def keys(self, salted_password: bytes) -> tuple[bytes, bytes]:
        """StoredKey and ServerKey."""
        return self.digest(self.mac(salted_password, b"Client Key")), self.mac(salted_password, b"Server Key")


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _sha512(data: bytes) -> bytes:
    return hashlib.sha512(data).digest()


SCRAM_MECHANISMS = (
    ScramMechanism("SCRAM-SHA-256", 1, _sha256, "sha256"),
    ScramMechanism("SCRAM-SHA-512", 2, _sha512, "sha512"),
)


class ScramLogin:
    """See `login.Exchange`. `find`: the credential of a user for this mechanism."""

    def __init__(self, mechanism: ScramMechanism, find: Callable[[str], ScramCredential | None]) -> None:
        self._mechanism = mechanism
        self._find = find
        self._name = ""
        self._credential: ScramCredential | None = None
        self._nonce = ""
        #: Client's first message without its header, and the server's.
        self._begun = ""
        self.user: str | None = None

    def evaluate(self, token: bytes) -> bytes:
        """The client's first message, then its final one."""
        text = token.decode("utf-8", "replace")
        if self._credential is None:
            return self._first(text)
        if self.user is not None:
            raise LoginError("a token after the last one")
        return self._final(text, self._credential)

    def _first(self, text: str) -> bytes:
        match = _FIRST.fullmatch(text)
        if match is None:
            raise LoginError("Invalid SCRAM first message format")
        if re.search(r",tokenauth=true(?:,|$)", match["extensions"], re.I):
            raise LoginError("there are no delegation tokens")
        name = match["name"].replace("=2C", ",").replace("=3D", "=")
        credential = self._find(name)
        if credential is None:
            raise LoginError(f"Invalid user credentials: {name[:_SHOWN]!r} has none for {self._mechanism.name}")
        if match["acts_as"] is not None and match["acts_as"] != name:
            raise LoginRefusedError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        if credential.iterations < MIN_ITERATIONS:
            raise LoginError(
                f"Iterations {credential.iterations} is less than the minimum {MIN_ITERATIONS} for {self._mechanism.name}"
            )
        self._name, self._credential = name, credential
        self._nonce = match["nonce"] + secrets.token_urlsafe(24)
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._begun = f"{match['bare']},{answer}"
        return answer.encode()

    def _final(self, text: str, credential: ScramCredential) -> bytes:
        match = _FINAL.fullmatch(text)
        if match is None:
            raise LoginError("Invalid SCRAM client final message format")
        if not hmac.compare_digest(match["nonce"], self._nonce):
            raise LoginError("Invalid client nonce in the final client message.")
        message = f"{self._begun},{match['unproved']}".encode()
        proof = base64.b64decode(match["proof"])
        signature = self._mechanism.mac(credential.stored_key, message)
        if len(proof) != len(signature):
            raise LoginBrokenError(f"a proof of {len(proof)} bytes")
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        if not hmac.compare_digest(self._mechanism.digest(client_key), credential.stored_key):
            raise LoginError("Invalid client credentials")
        self.user = self._name
        return b"v=" + base64.b64encode(self._mechanism.mac(credential.server_key, message))
