"""Clients that log in by hand: PLAIN and SCRAM from the client's side, written apart from the server's."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

from tests.workers.broker.harness import RawClient

SASL_HANDSHAKE, SASL_AUTHENTICATE, API_VERSIONS, METADATA = 17, 36, 18, 3
SCRAM = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}


def plain_token(user: str, password: str, acts_as: str = "") -> bytes:
    return f"{acts_as}\0{user}\0{password}".encode()


def salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(SCRAM[mechanism][1], password.encode(), salt, iterations)


class ScramClient:
    """The two messages of a client."""

    def __init__(self, mechanism: str, user: str, password: str, acts_as: str = "", extensions: str = "") -> None:
        self.mechanism = mechanism
        self.password = password
        self.nonce = "fyko+d2lbbFgONRv9qkxdawL"
        name = user.replace("=", "=3D").replace(",", "=2C")
        self.bare = f"n={name},r={self.nonce}{extensions}"
        self.first = f"n,{f'a={acts_as}' if acts_as else ''},{self.bare}".encode()

    def final(self, server_first: bytes, nonce: str | None = None) -> bytes:
        parts = dict(part.split("=", 1) for part in server_first.decode().split(","))
        assert parts["r"].startswith(self.nonce)
        key = salted(self.mechanism, self.password, base64.b64decode(parts["s"]), int(parts["i"]))
        unproved = f"c=biws,r={nonce or parts['r']}"
        message = f"{self.bare},{server_first.decode()},{unproved}".encode()
        hash_name = SCRAM[self.mechanism][1]
        client_key = hmac.digest(key, b"Client Key", hash_name)
        signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), message, hash_name)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self.expected = b"v=" + base64.b64encode(
            hmac.digest(hmac.digest(key, b"Server Key", hash_name), message, hash_name)
        )
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()


def handshake(client: RawClient, mechanism: str, version: int = 1) -> Any:
    return client.ask(SASL_HANDSHAKE, version, {"mechanism": mechanism})


def authenticate(client: RawClient, token: bytes, version: int = 2) -> Any:
    return client.ask(SASL_AUTHENTICATE, version, {"auth_bytes": token})


def log_in(client: RawClient, user: str, password: str, mechanism: str = "PLAIN") -> Any:
    """The last answer; AssertionError for a login that failed."""
    assert handshake(client, mechanism).error_code == 0
    if mechanism == "PLAIN":
        answer = authenticate(client, plain_token(user, password))
    else:
        scram = ScramClient(mechanism, user, password)
        first = authenticate(client, scram.first)
        assert first.error_code == 0, first
        answer = authenticate(client, scram.final(first.auth_bytes))
        assert answer.error_code != 0 or answer.auth_bytes == scram.expected
    assert answer.error_code == 0, answer
    return answer
