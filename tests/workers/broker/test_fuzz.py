"""Requests of every API that is served, made up and damaged: an answer or a closed connection, never a bug, and nobody else
is held up."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from compactd.storage.names import parse_uuid
from compactd.workers.broker.decoding import decode
from compactd.workers.broker.encoding import encode
from compactd.workers.broker.layout import FieldLayout, layout_of
from compactd.workers.broker.requests import load_handlers
from compactd.workers.broker.schemas import is_flexible, request_class, response_class
from tests.strategies import TIMEOUT, examples
from tests.workers.broker.batches import batch
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient

pytestmark = pytest.mark.timeout(TIMEOUT)

API_VERSIONS, CREATE_TOPICS, CREATE_PARTITIONS = 18, 19, 37
#: Whose answers may come only when others do something.
_MAY_WAIT = frozenset({1, 11, 14})
#: What a request would change for good, or slow the test down with: these are only checked.
_ONLY_CHECKED = frozenset({CREATE_TOPICS, CREATE_PARTITIONS})

_TEXTS = ["t", "u", "absent", "", "g", "txn", "raw", "consumer", "range", "user", "client-id", "ip", "None", "1", "0",
          "cleanup.policy", "retention.ms", "producer_byte_rate", "a/b", "__consumer_offsets", "User:x", "x" * 300]  # fmt: skip
_NUMBERS = [-(2**63), -(2**31), -(2**15), -3, -2, -1, 0, 1, 2, 3, 4, 32, 100, 2**15 - 1, 2**31 - 1, 2**63 - 1]
_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint16": 16}


class _Topics:
    """What there is to be named."""

    ids: ClassVar[list[uuid.UUID]] = []


def _value(field: FieldLayout, draw: st.DrawFn) -> Any:
    if field.nullable and draw(st.integers(0, 4)) == 0:
        return None
    if field.is_array:
        return [_single(field, draw) for _ in range(draw(st.integers(0, 3)))]
    return _single(field, draw)


def _single(field: FieldLayout, draw: st.DrawFn) -> Any:
    if field.struct is not None:
        return {each.name: _value(each, draw) for each in layout_of(field.struct).fields}
    match field.primitive:
        case "string":
            return draw(st.one_of(st.sampled_from(_TEXTS), st.text(st.characters(codec="utf-8"), max_size=5)))
        case "bytes":
            return draw(st.binary(max_size=20))
        case "records":
            return draw(st.one_of(st.just(batch([b"v", None])), st.binary(max_size=100)))
        case "bool":
            return draw(st.booleans())
        case "uuid":
            return draw(st.sampled_from([None, uuid.uuid5(uuid.NAMESPACE_DNS, "absent"), *_Topics.ids]))
        case "error_code":
            return draw(st.integers(-1, 133))
        case "float64":
            return draw(st.floats())
        case "timedelta_i32" | "timedelta_i64":
            return draw(st.sampled_from([-1, 0, 1, 20, 6000, 45_000]))
        case "datetime_i64":
            return draw(st.integers(0, 2**42))
        case name:
            low, high = (0, 2**16 - 1) if name == "uint16" else (-(2 ** _BITS[name or ""]), 2 ** _BITS[name or ""] - 1)
            return draw(st.sampled_from([number for number in _NUMBERS if low <= number <= high]))


@st.composite
def frames(draw: st.DrawFn) -> tuple[int, int, bytes]:
    """(API, version, a request or what is left of it)"""
    apis = load_handlers().apis
    api = apis[draw(st.sampled_from(sorted(apis)))]
    version = draw(st.integers(api.min_version, api.max_version))
    cls = request_class(api.key, version)
    values = {field.name: _value(field, draw) for field in layout_of(cls).fields}
    if api.key in _ONLY_CHECKED:
        values["validate_only"] = True
    if "max_wait" in values:
        values["max_wait"] = draw(st.sampled_from([0, 1, 20]))
    if "timeout_ms" in values:
        values["timeout_ms"] = 20
    head = struct.pack(">hhih", api.key, version, 0, 3) + b"raw" + (b"\0" if is_flexible(api.key, version) else b"")
    body = bytearray(encode(cls, values))
    if api.key not in _ONLY_CHECKED:
        for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2, 5]))):
            if body:
                body[draw(st.integers(0, len(body) - 1))] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]))
    whole = head + bytes(body) + draw(st.sampled_from([b"", b"", b"\0\0\0"]))
    cut = draw(st.sampled_from([None, None, None, 1]))
    return api.key, version, whole if cut is None else whole[: draw(st.integers(1, len(whole)))]


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    quick = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 1}
    with CatalogueBroker([log_dir], quick) as running:
        with running.connect() as client:
            rows = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in ("t", "u")]
            client.ask(CREATE_TOPICS, 7, {"topics": rows, "timeout": 10_000})
        _Topics.ids = [parse_uuid(topic.topic_id) for topic in running.catalogue.full_update().topics]
        yield running


@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(asked=st.lists(frames(), min_size=1, max_size=4))
def test_whatever_comes_is_answered_or_ends_the_connection(
    broker: CatalogueBroker, caplog: pytest.LogCaptureFixture, asked: list[tuple[int, int, bytes]]
) -> None:
    caplog.clear()
    with broker.connect() as other, broker.connect() as client:
        for number, (_, _, frame) in enumerate(asked):
            with contextlib.suppress(ConnectionError):
                client.send_frame((frame[:4] + struct.pack(">i", number) + frame[8:])[: len(frame)])
        # Somebody else is served, whatever the first is up to.
        other.ask(API_VERSIONS, 3, {"client_software_name": "n", "client_software_version": "v"})
        with contextlib.suppress(OSError):  # closed by the broker
            client.socket.shutdown(socket.SHUT_WR)
        if not any(key in _MAY_WAIT for key, _, _ in asked):
            _read_answers(client, asked)
    bugs = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not bugs, [record.getMessage() + str(record.exc_info) for record in bugs]
    assert broker.failure is None


def _read_answers(client: RawClient, asked: list[tuple[int, int, bytes]]) -> None:
    """All that come, in order, until the connection is closed."""
    last = -1
    while True:
        try:
            answer = client.receive_frame()
        except ConnectionError:
            event("closed")
            return
        number = int.from_bytes(answer[:4], "big")
        assert number > last, "an answer of a later request came before"
        last = number
        key, version, _ = asked[number]
        event(f"answered {key}")
        is_tagged = is_flexible(key, version) and key != API_VERSIONS
        decode(response_class(key, version), memoryview(answer)[4 + is_tagged :])
