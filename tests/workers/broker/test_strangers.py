"""What the log says of clients that speak something else than the listener."""

from __future__ import annotations

import ssl

import pytest

from compactd.workers.broker import strangers
from tests.workers.broker.harness import InProcessBroker


def _hello() -> bytes:
    """What a client sends first that wants TLS."""
    sent = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    talk = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        talk.do_handshake()
    return sent.read()


@pytest.mark.parametrize(
    ("sent", "guess"),
    [
        (_hello(), "(looks like TLS: this listener is without, "),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "(looks like HTTP)"),
        (b"\x7f\xff\xff\xff", "are taken"),
    ],
)
def test_on_a_listener_without_tls(
    broker: InProcessBroker, caplog: pytest.LogCaptureFixture, sent: bytes, guess: str
) -> None:
    with caplog.at_level("INFO", "compactd.workers.broker.connection"), broker.connect() as client:
        client.send_bytes(sent)
        assert client.is_closed()
    (said,) = [record.getMessage() for record in caplog.records if "is disconnected" in record.getMessage()]
    assert guess in said


def test_what_is_no_stranger_is_not_called_one() -> None:
    assert strangers.without_tls(b"\0\0\0\x20") == strangers.without_tls(b"\x7f\xff\xff\xff") == ""
    assert strangers.with_tls("CERTIFICATE_VERIFY_FAILED") == ""
