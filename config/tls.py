"""TLS of a listener: keys and certificates in PEM (KIP-651), who has to show a certificate, what its subject is called.

Key stores of other types are Java's own and cannot be read; which settings have no meaning without a JVM, says
`config.broker_names`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

from compactd.config.errors import SettingError
from compactd.config.setting import Value

PEM = "PEM"
_PROTOCOLS = ("TLSv1.2", "TLSv1.3")
#: Cipher suites of TLS 1.3 that OpenSSL offers; which of them cannot be chosen one by one.
TLS13_SUITES = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_TLS12 = re.compile(r"TLS_(?P<kx>ECDHE_RSA|ECDHE_ECDSA|DHE_RSA|RSA)_WITH_(?P<cipher>[A-Z0-9_]+)")
_CIPHERS = {
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "AES_256_CBC_SHA256": "AES256-SHA256",
    "AES_128_CBC_SHA": "AES128-SHA",
    "AES_256_CBC_SHA": "AES256-SHA",
}
_CONVERT = (
    "only PEM can be read; write it as PEM with `openssl pkcs12 -in STORE.p12 -out STORE.pem` (a JKS store becomes PKCS12 "
    "with `keytool -importkeystore -deststoretype PKCS12`), and set {name}=PEM"
)
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<to>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*"
)
_GROUP = re.compile(r"\\(.)|\$(\d)", re.S)


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """How a subject becomes a name (KIP-371). No pattern: the subject is the name."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    #: "L" or "U": the name in small or capital letters.
    case: str = ""

    def name_of(self, subject: str) -> str | None:
        """None: the rule is not about this subject."""
        if self.pattern is None:
            return subject
        if not self.pattern.fullmatch(subject):
            return None
        name = self.pattern.sub(self.replacement, subject, count=1)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Certificates as PEM texts or files. `repr` shows no key."""

    #: A file with key and chain, or both as text.
    keystore_location: str | None = None
    certificate_chain: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore_location: str | None = None
    trusted: str | None = field(default=None, repr=False)
    #: "none", "requested" or "required".
    client_auth: str = "none"
    protocols: tuple[str, ...] = _PROTOCOLS
    #: OpenSSL's names for TLS 1.2; empty: its own choice.
    ciphers: tuple[str, ...] = ()
    rules: tuple[PrincipalRule, ...] = (PrincipalRule(),)

    @property
    def files(self) -> tuple[str, ...]:
        """Files that are read."""
        return tuple(path for path in (self.keystore_location, self.truststore_location) if path is not None)

    def name_of(self, subject: str) -> str | None:
        """What the owner of a certificate is called; None where no rule is about it."""
        return next((name for rule in self.rules if (name := rule.name_of(subject)) is not None), None)


class Settings(Protocol):
    """Settings as they count for a listener."""

    @property
    def logs_in(self) -> bool:
        """Its clients prove who they are with SASL."""

    def value(self, name: str, *, own: bool = False) -> Value:
        """A setting: the listener's, else (not with `own`) everybody's."""

    def error(self, name: str, value: Value, reason: str) -> SettingError: ...


def tls_config(settings: Settings) -> TlsConfig:
    """SettingError for what cannot be done as it is meant. Files are not read here."""
    location, chain, key = (
        _text(settings, f"ssl.keystore.{each}") for each in ("location", "certificate.chain", "key")
    )
    trust, trusted = (_text(settings, f"ssl.truststore.{each}") for each in ("location", "certificates"))
    _check_store(settings, "keystore", location, chain or key)
    _check_store(settings, "truststore", trust, trusted)
    if location is None and (chain is None or key is None):
        reason = "a TLS listener needs ssl.keystore.location, or ssl.keystore.certificate.chain and ssl.keystore.key"
        raise settings.error("ssl.keystore.location", location, reason)
    engine = _text(settings, "ssl.engine.factory.class")
    if engine is not None:
        raise settings.error("ssl.engine.factory.class", engine, "classes of your own cannot be loaded")
    # Clients that log in need a certificate only where their listener says so itself (KIP-684).
    client_auth = str(settings.value("ssl.client.auth", own=settings.logs_in) or "none")
    if client_auth != "none" and trust is None and trusted is None:
        reason = "says who may vouch for clients, with ssl.client.auth: it must be given"
        raise settings.error("ssl.truststore.location", None, reason)
    ciphers, limit = _ciphers(settings)
    return TlsConfig(
        location,
        chain,
        key,
        _text(settings, "ssl.key.password"),
        trust,
        trusted,
        client_auth,
        tuple(each for each in _protocols(settings) if limit is None or each == limit),
        ciphers,
        _rules(settings),
    )


def _text(settings: Settings, name: str) -> str | None:
    value = settings.value(name)
    return None if value in (None, "") else str(value)


def _check_store(settings: Settings, store: str, location: str | None, inline: str | None) -> None:
    name = f"ssl.{store}.type"
    kind = _text(settings, name) or "JKS"
    if kind.upper() != PEM and (location or inline):
        raise settings.error(name, kind, _CONVERT.format(name=name))
    if location and inline:
        reason = "the certificates are given in the settings as well: give them once"
        raise settings.error(f"ssl.{store}.location", location, reason)
    if _text(settings, f"ssl.{store}.password") is not None and (location or inline):
        instead = "; that of the key is ssl.key.password" if store == "keystore" else ""
        raise settings.error(f"ssl.{store}.password", "", f"a PEM file as a whole has no password{instead}")


def _protocols(settings: Settings) -> tuple[str, ...]:
    enabled = settings.value("ssl.enabled.protocols")
    assert isinstance(enabled, tuple)
    wrong = [each for each in enabled if each not in _PROTOCOLS]
    if wrong or not enabled:
        raise settings.error("ssl.enabled.protocols", enabled, f"there are {' and '.join(_PROTOCOLS)}")
    return enabled


def _ciphers(settings: Settings) -> tuple[tuple[str, ...], str | None]:
    """OpenSSL's names, and the one protocol that is left where the suites belong to one."""
    suites = settings.value("ssl.cipher.suites")
    if not isinstance(suites, tuple) or not suites:
        return (), None
    newest = [each for each in suites if each in TLS13_SUITES]
    older = [each for each in suites if each not in TLS13_SUITES]
    names = [_openssl_name(each) for each in older]
    if None in names:
        raise settings.error("ssl.cipher.suites", suites, f"{older[names.index(None)]} is not known")
    if newest and set(newest) != set(TLS13_SUITES):
        reason = f"the suites of TLSv1.3 can be had all or none: {', '.join(TLS13_SUITES)}"
        raise settings.error("ssl.cipher.suites", suites, reason)
    limit = None if newest and older else "TLSv1.3" if newest else "TLSv1.2"
    if limit is not None and limit not in _protocols(settings):
        reason = f"all of them belong to {limit}, which ssl.enabled.protocols lacks"
        raise settings.error("ssl.cipher.suites", suites, reason)
    return tuple(name for name in names if name is not None), limit


def _openssl_name(suite: str) -> str | None:
    match = _TLS12.fullmatch(suite)
    if match is None or match["cipher"] not in _CIPHERS:
        return None
    exchange = "" if match["kx"] == "RSA" else match["kx"].replace("_", "-") + "-"
    return exchange + _CIPHERS[match["cipher"]]


def _rules(settings: Settings) -> tuple[PrincipalRule, ...]:
    text = _text(settings, "ssl.principal.mapping.rules") or "DEFAULT"
    try:
        return parse_rules(text)
    except ValueError as fault:
        raise settings.error("ssl.principal.mapping.rules", text, str(fault)) from None


def parse_rules(text: str) -> tuple[PrincipalRule, ...]:
    """ssl.principal.mapping.rules: DEFAULT, or RULE:PATTERN/REPLACEMENT/ with L or U behind it, commas between. ValueError."""
    rules = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None or (match.end() < len(text) and text[match.end()] not in ",\n"):
            raise ValueError(f"{text[position:]!r} is not DEFAULT or RULE:PATTERN/REPLACEMENT/[LU]")
        rules.append(PrincipalRule() if match["default"] else _rule(match))
        position = match.end() + 1
    if not rules:
        raise ValueError("there is no rule in it")
    return tuple(rules)


def _rule(match: re.Match[str]) -> PrincipalRule:
    try:
        pattern = re.compile(match["pattern"], re.ASCII)
    except re.error as fault:
        raise ValueError(f"{match['pattern']!r} is no pattern: {fault}") from None
    # Java writes $1 where Python writes \g<1>.
    replacement = _GROUP.sub(lambda each: f"\\g<{each[2]}>" if each[2] else each[1].replace("\\", "\\\\"), match["to"])
    for number in re.findall(r"\\g<(\d)>", replacement):
        if int(number) > pattern.groups:
            raise ValueError(f"{match['pattern']!r} has no group {number}")
    return PrincipalRule(pattern, replacement, match["case"])
