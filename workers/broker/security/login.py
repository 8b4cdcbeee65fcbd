"""Words common to the SASL mechanisms."""

from __future__ import annotations

from typing import Protocol


class LoginError(Exception):
    """A client failed to log in, for a reason that is logged; the client itself is told no more than that."""


class LoginRefusedError(LoginError):
    """A client failed to log in, and may be told why."""


class LoginBrokenError(LoginError):
    """A client sent what nobody who logs in sends: the connection is closed without an answer."""


class Exchange(Protocol):
    """One login by one mechanism: tokens of the client in, tokens of the server out."""

    #: Who logged in; None: not yet.
    user: str | None

    def evaluate(self, token: bytes) -> bytes:
        """The answer to a token. LoginError and the classes above."""
