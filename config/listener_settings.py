"""Settings of one listener: `listener.name.NAME.SETTING`, and of one mechanism of it, `listener.name.NAME.MECHANISM.SETTING`.

They stand before the setting without the prefix (Kafka: AbstractConfig.valuesWithPrefixOverride). Only what `ALONE` and
`OF_MECHANISM` name can be given so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from compactd.config.daemon_table import DAEMON_SETTINGS
from compactd.config.setting import HIDDEN, Kind, Scope, Setting

PREFIX = "listener.name."

PLAIN = "PLAIN"
#: Mechanisms that clients may log in with, by Kafka's names.
MECHANISMS = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")

_TABLE = {setting.name: setting for setting in DAEMON_SETTINGS}

#: Who may log in with PLAIN. Kafka's own definition is of a setting without prefix, which its servers ignore.
JAAS = Setting(
    "sasl_jaas_config",
    Scope.DAEMON,
    Kind.PASSWORD,
    None,
    'login module of a mechanism, for PLAIN with the users: `...PlainLoginModule required user_alice="password";`',
)

#: Settings that a listener may have alone.
ALONE: Mapping[str, Setting] = {
    name: _TABLE[name]
    for name in (
        "sasl.enabled.mechanisms",
        "connections.max.reauth.ms",
        "sasl.server.max.receive.size",
        "principal.builder.class",
        *(name for name in _TABLE if name.startswith("ssl.")),
        "max.connections",
        "max.connection.creation.rate",
    )
}
#: Settings that one mechanism of a listener may have alone.
OF_MECHANISM: Mapping[str, Setting] = {
    "sasl.jaas.config": JAAS,
    **{name: _TABLE[name] for name in ("connections.max.reauth.ms", "sasl.server.callback.handler.class")},
}

#: Names whose values are nobody's business: Kafka's type PASSWORD, wherever it stands, and slips of such names.
_SECRET_NAME = re.compile(
    r"password|passphrase|secret|credential|jaas|keystore\.(key|certificate\.chain)$|truststore\.certificates$"
)


def is_secret(name: str) -> bool:
    """Whether the value of a setting, known or misspelt, must not be shown."""
    return _SECRET_NAME.search(name.replace("_", ".")) is not None


def shown(name: str, value: str) -> str:
    """`value` as it may stand in a log."""
    return HIDDEN if value and is_secret(name) else value


def listener_names_like(name: str) -> tuple[str, ...]:
    """Names that a name with a listener's prefix may be a slip of."""
    listener = name[len(PREFIX) :].partition(".")[0] if name.startswith(PREFIX) else ""
    if not listener:
        return ()
    prefix = f"{PREFIX}{listener.lower()}."
    mechanisms = (f"{mechanism.lower()}.{each}" for mechanism in MECHANISMS for each in OF_MECHANISM)
    return tuple(prefix + each for each in (*ALONE, *mechanisms))


def listener_setting(name: str) -> Setting | None:
    """What the value under a listener's prefix means; None where it means nothing here."""
    if not name.startswith(PREFIX):
        return None
    listener, _, rest = name[len(PREFIX) :].partition(".")
    if not listener or listener != listener.lower():
        return None
    # The name of a listener may hold dots.
    while rest:
        if rest in ALONE:
            return ALONE[rest]
        mechanism, _, of_mechanism = rest.partition(".")
        if mechanism.upper() in MECHANISMS and mechanism == mechanism.lower() and of_mechanism in OF_MECHANISM:
            return OF_MECHANISM[of_mechanism]
        rest = of_mechanism
    return None
