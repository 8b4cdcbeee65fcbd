"""SASL PLAIN (RFC 4616; Kafka's PlainSaslServer): user and password in one token. Texts are Kafka's."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from compactd.workers.broker.security.login import LoginRefusedError

_PARTS = 3


class PlainLogin:
    """See `login.Exchange`."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.user: str | None = None

    def evaluate(self, token: bytes) -> bytes:
        """`token`: [authorization id] NUL user NUL password."""
        parts = token.decode("utf-8", "replace").split("\0", _PARTS)
        if len(parts) != _PARTS:
            raise LoginRefusedError(f"Invalid SASL/PLAIN response: expected {_PARTS} tokens, got {len(parts)}")
        acts_as, user, password = parts
        if not user:
            raise LoginRefusedError("Authentication failed: username not specified")
        if not password:
            raise LoginRefusedError("Authentication failed: password not specified")
        expected = self._users.get(user)
        # Compared for a user that there is not as well: how long it takes tells nothing.
        is_right = hmac.compare_digest((expected or "").encode("utf-8", "surrogatepass"), password.encode())
        if expected is None or not is_right:
            raise LoginRefusedError("Authentication failed: Invalid username or password")
        if acts_as not in ("", user):
            raise LoginRefusedError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.user = user
        return b""
