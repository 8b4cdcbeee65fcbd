"""SaslHandshake and SaslAuthenticate of clients that have nothing to log in for, or did so before (facts: kafka-protocol 16.1).

On the way of a login itself these requests are served by `sasl`.
"""

from __future__ import annotations

from typing import Any

from compactd.workers.broker.api_keys import SASL_AUTHENTICATE, SASL_HANDSHAKE
from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.requests import RequestHeader, handles


@handles(SASL_HANDSHAKE, 0, 1)
async def sasl_handshake(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Refused; the connection stays."""
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}


@handles(SASL_AUTHENTICATE, 0, 2)
async def sasl_authenticate(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Refused; the connection stays."""
    return {
        "error_code": ErrorCode.ILLEGAL_SASL_STATE,
        "error_message": "SaslAuthenticate request received after successful authentication",
        "auth_bytes": b"",
    }
