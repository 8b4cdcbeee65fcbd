"""TLS of a listener, on OpenSSL: its context, read again when the files change, and who the owner of a certificate is."""

from __future__ import annotations

import logging
import os
import re
import ssl
import time
from pathlib import Path

from compactd.config.listeners import Listener
from compactd.config.tls import TlsConfig
from compactd.workers.broker.security.distinguished_names import subject_of

_LOGGER = logging.getLogger(__name__)

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_BLOCK = re.compile(r"-+BEGIN ([A-Z0-9 ]+)-+([A-Za-z0-9+/=\s]+)-+END \1-+")
#: Files are looked at no more often.
_LOOK_SECONDS = 1.0


class TlsError(Exception):
    """Keys or certificates cannot be used."""


class Tls:
    """One listener's."""

    def __init__(self, listener: Listener, config: TlsConfig) -> None:
        """TlsError names the file or setting."""
        self.config = config
        self._listener = listener
        self._context = build_context(config)
        self._seen = self._times()
        self._looked = time.monotonic()

    def context(self) -> ssl.SSLContext:
        """Of the files as they are. Files that cannot be used change nothing, and are told of."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            times = self._times()
            if times != self._seen:
                self._seen = times
                try:
                    self._context = build_context(self.config)
                    _LOGGER.info("%s has new certificates", self._listener.name)
                except TlsError as error:
                    _LOGGER.error("%s goes on with its old certificates: %s", self._listener.name, error)
        return self._context

    def principal_of(self, certificate: bytes | None) -> str:
        """`certificate`: the client's, DER. ValueError where no rule says what its owner is called."""
        if certificate is None:
            return "User:ANONYMOUS"
        subject = subject_of(certificate)
        name = self.config.name_of(subject)
        if name is None:
            raise ValueError(f"no rule of ssl.principal.mapping.rules is about {subject}")
        return f"User:{name}"

    def _times(self) -> tuple[int, ...]:
        times = []
        for path in self.config.files:
            try:
                times.append(Path(path).stat().st_mtime_ns)
            except OSError:
                times.append(-1)
        return tuple(times)


def build_context(config: TlsConfig) -> ssl.SSLContext:
    """TlsError says which file or setting is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [_VERSIONS[each] for each in config.protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if config.ciphers:
        try:
            context.set_ciphers(":".join(config.ciphers))
        except ssl.SSLError as error:
            raise TlsError(f"ssl.cipher.suites: OpenSSL has none of them: {error}") from error
    _load_key(context, config)
    context.verify_mode = _CLIENT_AUTH[config.client_auth]
    if config.client_auth != "none":
        _load_trusted(context, config)
    return context


def _load_key(context: ssl.SSLContext, config: TlsConfig) -> None:
    # OpenSSL must never ask the terminal for a password.
    password = (config.key_password or "").encode()
    if config.keystore_location is not None:
        try:
            context.load_cert_chain(config.keystore_location, password=lambda: password)
        except (OSError, ValueError) as error:
            raise TlsError(f"ssl.keystore.location {config.keystore_location}: {_reason(error)}") from error
        return
    text = _normal(config.key or "") + _normal(config.certificate_chain or "")
    # In memory: a key that was given as text is not put on a disk.
    descriptor = os.memfd_create("keystore", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: password)
    except (OSError, ValueError) as error:
        raise TlsError(f"ssl.keystore.key with ssl.keystore.certificate.chain: {_reason(error)}") from error
    finally:
        os.close(descriptor)


def _load_trusted(context: ssl.SSLContext, config: TlsConfig) -> None:
    name = "ssl.truststore.certificates"
    try:
        if config.truststore_location is not None:
            name = f"ssl.truststore.location {config.truststore_location}"
            text = Path(config.truststore_location).read_text("ascii", "replace")
        else:
            text = _normal(config.trusted or "")
        context.load_verify_locations(cadata=text)
    except (OSError, ValueError) as error:
        raise TlsError(f"{name}: {_reason(error)}") from error


def _normal(text: str) -> str:
    """PEM as OpenSSL wants it: settings may have it all in one line."""
    blocks = [(match[1], "".join(match[2].split())) for match in _BLOCK.finditer(text)]
    return "".join(
        f"-----BEGIN {kind}-----\n{_lines(content)}-----END {kind}-----\n" for kind, content in blocks
    )  # fmt: skip


def _lines(content: str) -> str:
    return "".join(f"{content[start : start + 64]}\n" for start in range(0, len(content), 64))


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason in ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_OR_CRL_FOUND", "NO_START_LINE"):
            return {
                "KEY_VALUES_MISMATCH": "the key is not that of the first certificate",
                "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in it",
                "NO_START_LINE": "there is no PEM in it",
            }[error.reason]
        return f"it cannot be read, the key may need another ssl.key.password ({error.reason or error})"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
