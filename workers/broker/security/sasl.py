"""What a connection of a SASL listener may ask before its client has logged in, and when it must log in again.

The order of requests, answers and closes is that of Kafka's SaslServerAuthenticator (facts: kafka-protocol 16.1). Once a
client has logged in for good, nothing here is in its way any more.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from compactd.config.listener_security import ListenerSecurity
from compactd.config.listener_settings import PLAIN
from compactd.workers.broker.api_keys import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from compactd.workers.broker.decoding import MalformedRequestError, decode
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import (
    CLOSE,
    REGISTRY,
    Encoded,
    Peer,
    RequestHeader,
    answer,
    encode_answer,
    get_ready,
    parse_header,
)
from compactd.workers.broker.schemas import request_class
from compactd.workers.broker.security.credentials import ScramCredentials
from compactd.workers.broker.security.listeners import Listeners
from compactd.workers.broker.security.login import Exchange, LoginBrokenError, LoginError, LoginRefusedError
from compactd.workers.broker.security.login_counts import LoginCounts
from compactd.workers.broker.security.plain import PlainLogin
from compactd.workers.broker.security.scram import SCRAM_MECHANISMS, ScramLogin

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context

_LOGGER = logging.getLogger(__name__)

#: A client may log in again no more often.
_LOGIN_SECONDS = 1.0
#: Characters of what a stranger sent that are logged.
_SHOWN = 100
#: From this version on ApiVersions tells which cluster and node the client looks for.
_NAMES_CLUSTER = 5
_SCRAM = {mechanism.name: mechanism for mechanism in SCRAM_MECHANISMS}


class Connection(Protocol):
    """The connection that a session is of."""

    async def send(self, encoded: Encoded) -> None:
        """Sends an answer now."""

    def logged_in(self, for_good: bool) -> None:
        """The client may send what others may. `for_good`: it need not come to the session any more."""


class _State(enum.Enum):
    #: ApiVersions (once), or SaslHandshake.
    BEGIN = enum.auto()
    #: SaslHandshake.
    HANDSHAKE = enum.auto()
    #: SaslAuthenticate, or tokens without any header (SaslHandshake v0).
    AUTHENTICATE = enum.auto()
    TOKENS = enum.auto()
    #: Logging in again with another mechanism: the next request fails.
    OTHER_MECHANISM = enum.auto()
    DONE = enum.auto()


class _FailedError(Exception):
    """The login failed; `answer` is sent before the connection is closed."""

    def __init__(self, reason: str, told: Encoded | None = None) -> None:
        super().__init__(reason)
        self.told = told


class SaslSession:
    """The logins of one connection."""

    def __init__(self, context: Context, security: ListenerSecurity, peer: Peer) -> None:
        self._context = context
        self._security = security
        self._peer = peer
        self._state = _State.BEGIN
        self._mechanism = ""
        self._exchange: Exchange | None = None
        #: Who has logged in; when that expires and when it last began (loop time, seconds).
        self._user: str | None = None
        self._expires: float | None = None
        self._began_again: float | None = None
        self.connection: Connection | None = None

    @property
    def max_request(self) -> int:
        """Bytes of the longest request before the client has logged in."""
        return self._security.max_receive

    async def answer(self, context: Context, frame: memoryview, peer: Peer) -> Any:
        """In place of `requests.answer`: what it answers, where the client may ask."""
        if self._state is _State.DONE and not self._begins_again(frame):
            now = context.loop.time()
            if self._expires is not None and now > self._expires:
                _LOGGER.info("%s:%d is disconnected: %s did not log in again", peer.host, peer.port, peer.principal)
                return CLOSE
            return await answer(context, frame, peer)
        if self._state is not _State.TOKENS:
            await get_ready(context, frame)
        try:
            return await self._step(frame)
        except _FailedError as failure:
            again = "" if self._user is None else " again"
            context.part(LoginCounts).count(peer.listener, succeeded=False, again=bool(again))
            _LOGGER.info(
                "%s:%d failed to log in%s on %s: %s", peer.host, peer.port, again, self._security.listener.name, failure
            )
            await asyncio.sleep(context.config.connection_failed_authentication_delay_ms / 1000)
            if failure.told is not None and self.connection is not None:
                await self.connection.send(failure.told)
            return CLOSE

    def _begins_again(self, frame: memoryview) -> bool:
        """Whether the client logs in again with this request."""
        if self._expires is None or not _is_handshake(frame):
            return False
        now = self._context.loop.time()
        if self._began_again is not None and now - self._began_again < _LOGIN_SECONDS:
            return False
        self._began_again = now
        self._state = _State.HANDSHAKE
        return True

    async def _step(self, frame: memoryview) -> Encoded:
        if self._state is _State.TOKENS:
            return Encoded([self._evaluate(bytes(frame), None)])
        if self._state is _State.OTHER_MECHANISM:
            raise _FailedError("another mechanism than before")
        header, position = parse_header(frame, self._peer)
        if self._state is _State.AUTHENTICATE:
            return self._authenticate(header, frame[position:])
        if header.api_key == API_VERSIONS and self._state is _State.BEGIN:
            return await self._api_versions(header, frame[position:])
        if header.api_key == SASL_HANDSHAKE:
            return self._handshake(header, _decoded(header, frame[position:]).mechanism)
        raise _FailedError(f"API {header.api_key} before SaslHandshake")

    async def _api_versions(self, header: RequestHeader, body: memoryview) -> Encoded:
        api = REGISTRY.apis[API_VERSIONS]
        is_known = api.min_version <= header.version <= api.max_version
        request = _decoded(header, body) if is_known else None
        if header.version >= _NAMES_CLUSTER and request is not None:
            # Which cluster and node a client looks for is not asked before it has logged in.
            request = dataclasses.replace(request, cluster_id=None, node_id=-1)
        told = await api.handler(self._context, header, request)
        assert isinstance(told, Mapping)
        if not told["error_code"]:
            self._state = _State.HANDSHAKE
        return _encoded(header, told)

    def _handshake(self, header: RequestHeader, mechanism: str) -> Encoded:
        # As the settings are now: who logs in again proves that he still may.
        self._security = self._context.part(Listeners).of(self._peer.listener)
        enabled = self._security.mechanisms
        if mechanism not in enabled:
            told = {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": enabled}
            # Kafka tells only those who log in for the first time.
            raise _FailedError(
                f"mechanism {mechanism[:_SHOWN]!r} is not enabled",
                None if self._user is not None else _encoded(header, told),
            )
        if self._user is not None and mechanism != self._mechanism:
            self._state = _State.OTHER_MECHANISM
        else:
            self._mechanism = mechanism
            self._exchange = self._begin(mechanism)
            self._state = _State.AUTHENTICATE if header.version >= 1 else _State.TOKENS
        return _encoded(header, {"error_code": ErrorCode.NONE, "mechanisms": enabled})

    def _begin(self, mechanism: str) -> Exchange:
        if mechanism == PLAIN:
            return PlainLogin(self._security.users)
        scram = _SCRAM[mechanism]
        credentials = self._context.part(ScramCredentials)
        return ScramLogin(scram, lambda user: credentials.find(user, scram.number))

    def _authenticate(self, header: RequestHeader, body: memoryview) -> Encoded:
        if header.api_key != SASL_AUTHENTICATE:
            # As far as the API has room for it.
            told = _encoded(header, {"error_code": ErrorCode.ILLEGAL_SASL_STATE})
            raise _FailedError(f"API {header.api_key} in place of SaslAuthenticate", told)
        token = self._evaluate(_decoded(header, body).auth_bytes, header)
        lifetime = 0 if self._state is not _State.DONE else self._security.reauth_ms[self._mechanism]
        return _encoded(
            header,
            {"error_code": ErrorCode.NONE, "error_message": "", "auth_bytes": token, "session_lifetime": lifetime},
        )

    def _evaluate(self, token: bytes, header: RequestHeader | None) -> bytes:
        """The server's token; the client is logged in where it is the last one. `header`: of a request that may be told."""
        assert self._exchange is not None
        try:
            told = self._exchange.evaluate(token)
            if self._exchange.user is not None:
                self._check_user(self._exchange.user)
        except LoginBrokenError as error:
            raise _FailedError(f"{self._mechanism}: {error}") from None
        except LoginError as error:
            again = "re-authentication" if self._user is not None else "authentication"
            text = str(error) if isinstance(error, LoginRefusedError) else (
                f"Authentication failed during {again} due to invalid credentials with SASL mechanism {self._mechanism}"
            )  # fmt: skip
            answer_to = None
            if header is not None:
                refusal = {"error_code": ErrorCode.SASL_AUTHENTICATION_FAILED, "error_message": text, "auth_bytes": b""}
                answer_to = _encoded(header, refusal)
            raise _FailedError(f"{self._mechanism}: {error}", answer_to) from None
        if self._exchange.user is not None:
            self._logged_in(self._exchange.user)
        return told

    def _check_user(self, user: str) -> None:
        if self._user is not None and user != self._user:
            raise LoginRefusedError(
                f"Cannot change principals during re-authentication from User.{self._user}: User.{user}"
            )

    def _logged_in(self, user: str) -> None:
        self._context.part(LoginCounts).count(self._peer.listener, succeeded=True, again=self._user is not None)
        self._user = user
        self._exchange = None
        self._state = _State.DONE
        self._peer.principal = f"User:{user}"
        lifetime_ms = self._security.reauth_ms[self._mechanism]
        self._expires = self._context.loop.time() + lifetime_ms / 1000 if lifetime_ms else None
        if self.connection is not None:
            self.connection.logged_in(for_good=not lifetime_ms)


def _is_handshake(frame: memoryview) -> bool:
    return len(frame) > 1 and int.from_bytes(frame[:2], "big", signed=True) == SASL_HANDSHAKE


def _decoded(header: RequestHeader, body: memoryview) -> Any:
    return decode(request_class(header.api_key, header.version), body)


def _encoded(header: RequestHeader, told: Mapping[str, Any]) -> Encoded:
    encoded = encode_answer(header, told)
    if not isinstance(encoded, Encoded):
        raise MalformedRequestError("no answer")
    return encoded
