"""What one setting is: its names, type, unit, default and range, and how text becomes its value.

Types and parsing follow Kafka's ConfigDef: numbers and booleans are trimmed, lists split at commas, strings compared
exactly. Kafka's refusals are kept; NaN and infinities, which Kafka lets through, are refused as well.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from compactd.config.errors import SettingError
from compactd.config.units import format_duration, format_size, parse_duration, parse_size

Value = bool | int | float | str | tuple[str, ...] | None

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
MAX_RATE = 1.7976931348623157e308

#: Characters of a refused value that its error shows.
MAX_SHOWN = 200

#: What stands in place of a secret, as in Kafka.
HIDDEN = "[hidden]"


class Kind(enum.Enum):
    """Kafka's ConfigDef types."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"
    CLASS = "class"
    #: Not shown anywhere: neither in logs and errors nor to clients.
    PASSWORD = "password"


class Unit(enum.Enum):
    """What a number counts; MS and BYTES may be written with units in YAML and --set."""

    NONE = ""
    MS = "ms"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes/s"
    MESSAGES = "messages"
    RATIO = "ratio"
    THREADS = "threads"


class Scope(enum.Enum):
    """Which of the typed configurations of `config.settings` holds the value."""

    TOPIC = "topic"
    CLEANER = "cleaner"
    STORAGE = "storage"
    DAEMON = "daemon"


class Dynamic(enum.Enum):
    """Whether Kafka applies a change of the broker-level value without a restart; topic-level ones always may."""

    NO = "no"
    YES = "yes"
    PER_BROKER = "per broker"


@dataclass(frozen=True, slots=True)
class BrokerName:
    """One broker-level name of a setting. Where a setting has several, the leftmost one that is set wins."""

    name: str
    dynamic: Dynamic = Dynamic.NO
    #: Type where it differs from the setting's own.
    kind: Kind | None = None
    #: Multiplies the number written: 3600000 for a name in hours of a setting in milliseconds.
    scale: int = 1
    #: Smallest number where it differs from the setting's own (before scaling).
    low: int | None = None
    #: Any negative number means -1, "off" (log.retention.*).
    negative_is_off: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: a row of `config.table.SETTINGS`."""

    #: Attribute of TopicConfig, CleanerConfig, StorageConfig or DaemonConfig.
    field: str
    scope: Scope
    kind: Kind
    default: Value
    meaning: str
    topic: str | None = None
    broker: tuple[BrokerName, ...] = ()
    unit: Unit = Unit.NONE
    low: int | float | None = None
    high: int | float | None = None
    #: Numbers must be above this one.
    above: int | None = None
    #: Numbers outside low..high that are allowed as well.
    also: tuple[int, ...] = ()
    choices: tuple[str, ...] = ()
    #: A list may have no items.
    may_be_empty: bool = True
    hidden: bool = False
    #: Not one of Kafka's.
    own: bool = False
    #: One of Kafka's, which a class that Kafka loads reads by itself: its own definitions don't have it.
    plug_in: bool = False
    #: Why nothing here acts on it, where nothing does.
    no_effect: str = ""

    @property
    def name(self) -> str:
        """The name people know it by: the topic-level one, or the first broker-level one."""
        return self.topic if self.topic is not None else self.broker[0].name

    @property
    def description(self) -> str:
        """Its meaning, and why it has none here where that is so."""
        return self.meaning + (f"; no effect here: {self.no_effect}" if self.no_effect else "")

    def broker_name(self, name: str) -> BrokerName | None:
        """The entry of `broker` called `name`."""
        return next((entry for entry in self.broker if entry.name == name), None)

    def parse(self, name: str, text: str, source: str, units: bool) -> Value:
        """`text`, written under `name` (topic or broker level), as this setting's value.

        `units` allows durations and sizes with units. Raises SettingError that names source, value and range.
        """
        broker = None if name == self.topic else self.broker_name(name)
        try:
            return self._check(self._convert(text, broker, units), broker)
        except ValueError as fault:
            shown = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
            if self.kind is Kind.PASSWORD:
                shown = HIDDEN
            raise SettingError(source=source, name=name, value=shown, reason=str(fault)) from None

    def range_text(self, broker: BrokerName | None = None) -> str:
        """The range in words: `0..1`, `1048576 or more`, `one of a, b`; empty where Kafka sets none."""
        if self.choices:
            text = "any of " if self.kind is Kind.LIST else "one of "
            text += ", ".join(self.choices)
            return text + (" (may be empty)" if self.kind is Kind.LIST and self.may_be_empty else "")
        low = self.low if broker is None or broker.low is None else broker.low
        text = ""
        if self.above is not None:
            text = f"above {self.above}" + (f", at most {self.high}" if self.high is not None else "")
        elif low is not None and self.high is not None:
            text = f"{low}..{self.high}"
        elif low is not None:
            text = f"{low} or more"
        elif self.high is not None:
            text = f"at most {self.high}"
        if broker is not None and broker.negative_is_off:
            text += ", or negative for off"
        return text + "".join(f" or {value}" for value in self.also)

    def format(self, value: Value) -> str:
        """`value` as Kafka would print it, with the human unit beside it where that helps."""
        if value is None:
            return "unset"
        if self.kind is Kind.PASSWORD:
            return HIDDEN
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (tuple, frozenset)):
            return ",".join(value)
        if isinstance(value, int) and value not in (LONG_MAX, INT_MAX) and value > 0:
            human = {Unit.MS: format_duration, Unit.BYTES: format_size}.get(self.unit, str)(value)
            return str(value) if human.rstrip("msB") == str(value) else f"{value} ({human})"
        return str(value)

    def _convert(self, text: str, broker: BrokerName | None, units: bool) -> Value:
        kind = (broker.kind if broker is not None else None) or self.kind
        trimmed = text.strip()
        if kind is Kind.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise ValueError("must be true or false")
            return trimmed.lower() == "true"
        if kind is Kind.DOUBLE:
            return self._double(trimmed, units)
        if kind in (Kind.STRING, Kind.CLASS, Kind.PASSWORD):
            return trimmed
        if kind is Kind.LIST:
            return tuple(dict.fromkeys(re.split(r"\s*,\s*", trimmed))) if trimmed else ()
        number = _integer(trimmed, self.unit, 1 if broker is None else broker.scale, units)
        low, high = (INT_MIN, INT_MAX) if kind is Kind.INT else (LONG_MIN, LONG_MAX)
        if not low <= number <= high:
            raise ValueError(f"must be a number of type {kind.value}, {low} to {high}")
        return number

    def _double(self, text: str, units: bool) -> float:
        if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?[dDfF]?", text):
            number = float(text.rstrip("dDfF"))
            if number in (float("inf"), float("-inf")):
                raise ValueError(f"must be at most {MAX_RATE}")
            return number
        if units and self.unit is Unit.BYTES_PER_SECOND:
            return float(parse_size(text.removesuffix("/s")))
        raise ValueError("must be a number")

    def _check(self, value: Value, broker: BrokerName | None) -> Value:
        if self.kind is Kind.LIST:
            assert isinstance(value, tuple)
            if "" in value:
                raise ValueError("its entries must not be empty")
            if not value and not self.may_be_empty:
                raise ValueError("must not be empty")
            for entry in value:
                self._check_choice(entry)
            return value
        if isinstance(value, str):
            self._check_choice(value)
            return value
        if isinstance(value, bool) or value is None:
            return value
        assert isinstance(value, (int, float))
        scale = 1 if broker is None else broker.scale
        if broker is not None and broker.negative_is_off and value < 0:
            return -1
        low = self.low if broker is None or broker.low is None else broker.low
        fits = (low is None or value >= low) and (self.high is None or value <= self.high)
        if not (value in self.also or (fits and (self.above is None or value > self.above))):
            raise ValueError(f"must be {self.range_text(broker)}")
        scaled = value * scale
        return min(scaled, LONG_MAX) if isinstance(scaled, int) else scaled

    def _check_choice(self, text: str) -> None:
        if self.choices and text not in self.choices:
            hint = next((f"; write {choice}" for choice in self.choices if choice.lower() == text.lower()), "")
            raise ValueError(f"must be {self.range_text()}{hint}")


def _integer(text: str, unit: Unit, scale: int, units: bool) -> int:
    """A whole number as Java's parseLong reads it, or with units where those are allowed."""
    if re.fullmatch(r"[+-]?[0-9]{1,40}", text):
        return int(text)
    if units and unit in (Unit.MS, Unit.BYTES):
        try:
            number = parse_duration(text) if unit is Unit.MS else parse_size(text)
        except ValueError:
            if scale == 1:
                raise
            # A plain number counts what the name says: log.retention.hours=168.
            raise ValueError(
                f"not a whole number of {format_duration(scale)}, nor a duration such as 12h, 7d, 2w"
            ) from None
        if number % scale:
            raise ValueError(f"must be a whole number of {format_duration(scale)}")
        return number // scale
    raise ValueError(
        "must be a whole number" + (f" of {unit.value}, without a unit" if unit.value and not units else "")
    )
