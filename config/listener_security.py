"""How the clients of each listener prove who they are: SASL mechanisms and their users, TLS (SaslConfigs, SslConfigs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from compactd.config.errors import SettingError
from compactd.config.jaas import parse_jaas
from compactd.config.listener_settings import (
    ALONE,
    MECHANISMS,
    OF_MECHANISM,
    PLAIN,
    listener_setting,
    shown,
)
from compactd.config.listeners import Listener
from compactd.config.setting import HIDDEN, Value
from compactd.config.tls import TlsConfig, tls_config

if TYPE_CHECKING:
    from compactd.config.settings import DaemonConfig

_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
#: Options of PlainLoginModule that name users; `username` and `password` are for a broker's own connections to others.
_USER = "user_"

_DEFAULT_PRINCIPALS = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """One listener's."""

    listener: Listener
    #: Mechanisms that are enabled, as written; empty where clients are not asked.
    mechanisms: tuple[str, ...] = ()
    #: PLAIN's users and their passwords.
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: How long a login counts, by mechanism, ms; 0: for ever.
    reauth_ms: Mapping[str, int] = field(default_factory=dict)
    #: Largest request before a client has logged in, bytes.
    max_receive: int = 524_288
    max_connections: int = 2**31 - 1
    #: New connections per second.
    max_connection_rate: int = 2**31 - 1
    tls: TlsConfig | None = None


def securities(config: DaemonConfig, source: str = "settings") -> dict[str, ListenerSecurity]:
    """By listener name. SettingError for settings that cannot be done as they are meant."""
    opened = config.open_listeners
    _check_prefixes(config, opened, source)
    return {listener.name: _Reading(config, listener, source).security() for listener in opened}


def _check_prefixes(config: DaemonConfig, opened: tuple[Listener, ...], source: str) -> None:
    """A setting of a listener that is not there would be thought to protect one that is."""
    hidden = [Listener(name.strip().upper(), "", 0) for name in config.controller_listener_names]
    for name, value in config.listener_settings.items():
        if not any(_is_of(name, listener) for listener in (*opened, *hidden)):
            known = ", ".join(listener.name.lower() for listener in opened)
            raise SettingError(
                source=source, name=name, value=shown(name, value), reason=f"no such listener; there are {known}"
            )


def _is_of(name: str, listener: Listener) -> bool:
    rest = name.removeprefix(listener.prefix)
    return rest != name and (rest in ALONE or rest.partition(".")[2] in OF_MECHANISM)


class _Reading:
    """Settings as they count for one listener."""

    def __init__(self, config: DaemonConfig, listener: Listener, source: str) -> None:
        self._config = config
        self._listener = listener
        self._source = source

    def security(self) -> ListenerSecurity:
        listener = self._listener
        builder = self.value("principal.builder.class")
        if builder not in (None, "", _DEFAULT_PRINCIPALS):
            raise self.error("principal.builder.class", builder, "classes of your own cannot be loaded")
        mechanisms = self._mechanisms() if listener.protocol.asks_who else ()
        most = self.value("max.connections", own=True)
        return ListenerSecurity(
            listener,
            mechanisms,
            self._users() if PLAIN in mechanisms else {},
            {each: max(0, _whole(self.value("connections.max.reauth.ms", each))) for each in mechanisms},
            _whole(self.value("sasl.server.max.receive.size")),
            2**31 - 1 if most is None else _whole(most),
            _whole(self.value("max.connection.creation.rate")),
            tls_config(self) if listener.protocol.encrypted else None,
        )

    # ---- what config.tls asks for, too

    @property
    def logs_in(self) -> bool:
        return self._listener.protocol.asks_who

    def value(self, name: str, mechanism: str | None = None, *, own: bool = False) -> Value:
        """A setting: the mechanism's, else the listener's, else everybody's (not with `own`)."""
        prefixes = [] if mechanism is None else [f"{self._listener.prefix}{mechanism.lower()}."]
        for prefix in (*prefixes, self._listener.prefix):
            text = self._config.listener_settings.get(prefix + name)
            setting = None if text is None else listener_setting(prefix + name)
            if text is not None and setting is not None:
                return setting.parse(prefix + name, text, self._source, units=False)
        if own:
            return None
        value: Value = getattr(self._config, name.replace(".", "_"), None)
        return value

    def error(self, name: str, value: Value, reason: str) -> SettingError:
        """For a value of this listener's that `value` gave."""
        own = next(
            (key for key in self._config.listener_settings if key == f"{self._listener.prefix}{name}"),
            name,
        )
        text = ",".join(value) if isinstance(value, tuple) else "" if value is None else str(value)
        reason = f"{reason} (listener {self._listener.name})"
        return SettingError(source=self._source, name=own, value=shown(own, text), reason=reason)

    # ---- inside

    def _mechanisms(self) -> tuple[str, ...]:
        enabled = self.value("sasl.enabled.mechanisms")
        assert isinstance(enabled, tuple)
        unknown = [each for each in enabled if each not in MECHANISMS]
        if unknown or not enabled:
            what = f"{', '.join(unknown)} cannot be had" if unknown else "a SASL listener needs one"
            raise self.error("sasl.enabled.mechanisms", enabled, f"{what}: there are {', '.join(MECHANISMS)}")
        for each in enabled:
            handler = self.value("sasl.server.callback.handler.class", each)
            if handler:
                raise self.error("sasl.server.callback.handler.class", handler, "classes of your own cannot be loaded")
            self._module(each)
        return enabled

    def _module(self, mechanism: str) -> Mapping[str, str] | None:
        """Options of a mechanism's login module; None: there is none."""
        name = f"{self._listener.prefix}{mechanism.lower()}.sasl.jaas.config"
        text = self._config.listener_settings.get(name)
        if text is None:
            return None
        expected = _PLAIN_MODULE if mechanism == PLAIN else _SCRAM_MODULE
        try:
            module = parse_jaas(text)
            if module.class_name != expected:
                raise ValueError(f"classes of your own cannot be loaded; write {expected}")
        except ValueError as fault:
            raise SettingError(source=self._source, name=name, value=HIDDEN, reason=str(fault)) from None
        return module.options

    def _users(self) -> dict[str, str]:
        options = self._module(PLAIN)
        if options is None:
            name = f"{self._listener.prefix}plain.sasl.jaas.config"
            reason = (
                f"PLAIN is enabled, so it has to name the users: {_PLAIN_MODULE} required user_NAME=...; (a file that "
            )
            reason += "a JVM was given is not read)"
            raise SettingError(source=self._source, name=name, value="", reason=reason)
        return {name.removeprefix(_USER): value for name, value in options.items() if name.startswith(_USER)}


def _whole(value: Value) -> int:
    assert isinstance(value, int)
    return value
