"""Who is at the door, where it does not speak what the listener does: a guess for the log, from the first bytes."""

from __future__ import annotations

#: A handshake record of TLS, and the larger byte of its version.
_TLS = b"\x16\x03"
_HTTP = (b"GET ", b"PUT ", b"POST", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"PRI ", b"TRAC")

#: OpenSSL's reasons for what is no TLS at all.
_NOT_TLS = {
    "HTTP_REQUEST": "it speaks HTTP",
    "HTTPS_PROXY_REQUEST": "it speaks HTTP, as if to a proxy",
    "WRONG_VERSION_NUMBER": "looks like a client without TLS: this listener needs security.protocol=SSL or SASL_SSL",
}


def without_tls(first: bytes) -> str:
    """What the first four bytes tell that cannot be the size of a request, on a listener without TLS; "": nothing."""
    if first.startswith(_TLS):
        return "looks like TLS: this listener is without, security.protocol=PLAINTEXT or SASL_PLAINTEXT"
    return "looks like HTTP" if first.startswith(_HTTP) else ""


def with_tls(reason: str) -> str:
    """The same on a listener with TLS, of the reason that OpenSSL gives."""
    return _NOT_TLS.get(reason, "")
