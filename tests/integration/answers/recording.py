"""Requests to one broker and its answers, decoded and made comparable with another broker's."""

from __future__ import annotations

import dataclasses
import enum
import re
import uuid
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from tests.integration.differences import LEFT_OUT, LEFT_OUT_FEATURES
from tests.integration.servers import Server, until
from tests.workers.broker.harness import RawClient

_MEMBER = re.compile(r"(?:raw|i[0-9])-[0-9a-f-]{36}|raw-[A-Za-z0-9_-]{22}")
#: Times within texts: they and what is reckoned from them have this many digits.
_TIME = re.compile(r"-?\b[0-9]{13,19}\b")
#: Fields whose values are each broker's own: when, how long, where it listens, how much room its disk has.
_OWN = frozenset(
    ("port", "throttle_time", "finalized_features_epoch", "log_append_time",
     "total_bytes", "usable_bytes", "last_caught_up_timestamp", "last_fetch_timestamp", "transaction_start_time", "last_timestamp")
)  # fmt: skip
#: Lists in which the order means something; Kafka answers in the order of its hash maps elsewhere.
_ORDERED = frozenset(("synonyms", "replica_nodes", "isr_nodes", "aborted_transactions", "record_errors", "replicas"))

Make = Callable[[int], Mapping[str, Any]]


class Recording:
    """`ask` one version, `each` every version that Kafka 4.4.0 has; both write down what was answered."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client: RawClient = server.connect()
        self.log: Log = []
        self.asked: dict[int, set[int]] = {}
        #: Topics that were made here.
        self.ids: dict[str, uuid.UUID] = {}
        #: More fields whose values are each broker's own.
        self.own: set[str] = set(_OWN)
        self._names: dict[Any, str] = {}
        answer = self.client.ask(18, 4, {"client_software_name": "raw", "client_software_version": "1"})
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}

    def close(self) -> None:
        self.client.close()

    # ---- asking

    def ask(self, label: str, api: int, version: int, body: Mapping[str, Any]) -> Any:
        """The answer; a connection that the broker closes is written down as that."""
        self.asked.setdefault(api, set()).add(version)
        where = f"API {api} v{version}, {label}"
        try:
            answer = self.client.ask(api, version, body)
        except ConnectionError:
            self.client.close()
            self.client = self.server.connect()
            self.log.append((where, "closed"))
            return None
        self.log.append((where, self.plain(answer)))
        return answer

    def each(self, label: str, api: int, make: Make | Mapping[str, Any], lowest: int = 0, highest: int = 99) -> None:
        """In every version of the API between those."""
        for version in span(api):
            if lowest <= version <= highest:
                self.ask(label, api, version, make(version) if callable(make) else make)

    def quietly(self, api: int, version: int, body: Mapping[str, Any]) -> Any:
        """Asks without writing it down."""
        return self.client.ask(api, version, body)

    def until(self, api: int, version: int, body: Mapping[str, Any], right: Callable[[Any], bool], what: str) -> None:
        """Asks until the answer is right."""
        until(lambda: right(self.quietly(api, version, body)), what)

    def create(self, topic: str, partitions: int = 1, **config: object) -> None:
        """A topic, ready to be written to; a label for its id."""
        self.server.create(topic, partitions, **{"retention_ms": -1, **config})
        found = self.quietly(3, 12, {"topics": [{"topic_id": None, "name": topic}]}).topics[0]
        self.ids[topic] = found.topic_id
        self._names[found.topic_id] = f"id of {topic}"

    def named(self, value: Any, name: str) -> None:
        """Calls a value that is each broker's own by a name."""
        self._names[value] = name

    # ---- making comparable

    def plain(self, value: Any, field: str = "") -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {
                each.name: self.plain(getattr(value, each.name), each.name)
                for each in dataclasses.fields(value)
                if each.name not in self.own
            }
        if isinstance(value, (tuple, list)):
            rows = [self.plain(each) for each in value if not _left_out(each, field)]
            return rows if field in _ORDERED else sorted(rows, key=repr)
        if isinstance(value, enum.Enum):
            return int(value.value)
        if isinstance(value, uuid.UUID):
            return self._names.get(value, "an id")
        if field in ("producer_id", "current_transaction_start_offset") and value in self._names:
            return self._names[value]
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, (bytes, bytearray)):
            return f"{len(value)} bytes {zlib.crc32(value):08x}" if len(value) > 40 else f"bytes {value.hex()}"
        if isinstance(value, bool) or value is None or isinstance(value, float):
            return value
        return int(value) if isinstance(value, int) else str(value)

    def _text(self, text: str) -> str:
        for number, log_dir in enumerate(self.server.log_dirs):
            text = text.replace(str(log_dir), f"<dir {number}>")
        text = text.replace(self.server.bootstrap, "<broker>").replace(f":{self.server.port}", ":<port>")
        for value, name in self._names.items():
            if isinstance(value, str):
                text = text.replace(value, name)
        text = _TIME.sub("<time>", text)
        return _MEMBER.sub(lambda found: self._names.setdefault(found[0], f"member {len(self._names)}"), text)


def _left_out(row: Any, field: str) -> bool:
    """APIs and features that compactd leaves out."""
    if field == "api_keys":
        return any(row.api_key in apis for apis in LEFT_OUT)
    return field in ("supported_features", "finalized_features") and row.name in LEFT_OUT_FEATURES


def span(api: int) -> range:
    """Versions of an API in Kafka 4.4.0 that its brokers answer (Produce 0 to 2 are announced, and closed upon)."""
    least, most = KAFKA_VERSIONS[api]
    return range(3 if api == 0 else least, most + 1)


#: As Kafka 4.4.0 announces them, but for what compactd leaves out (differences.py).
KAFKA_VERSIONS = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 5), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 6), 29: (1, 3), 30: (1, 3),
    31: (1, 3), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 42: (0, 3), 43: (0, 2),
    44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2),
    57: (0, 2), 60: (0, 2), 61: (0, 0), 65: (0, 0), 66: (0, 2), 68: (0, 1), 69: (0, 1), 74: (0, 1), 75: (0, 0),
    88: (0, 1), 89: (0, 1), 93: (0, 0),
}  # fmt: skip


Log = list[tuple[str, Any]]
#: When the records were made that are written. Long ago, so that it is past everywhere; topics keep them.
THEN_MS = 1_700_000_000_000


def differences(kafka: Log, ours: Log) -> list[str]:
    """Where answers differ, a line each."""
    found = []
    for (label, expected), (also, answered) in zip(kafka, ours, strict=True):
        assert label == also
        found += [f"{label}: {line}" for line in _differences(expected, answered, "")]
    return found


def _differences(expected: Any, found: Any, where: str) -> list[str]:
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        return [line for key in expected for line in _differences(expected[key], found[key], f"{where}.{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for index, (one, other) in pairs for line in _differences(one, other, f"{where}[{index}]")]
    return [] if expected == found else [f"{where.removeprefix('.')} is {expected!r} in Kafka, {found!r} here"]
