"""What is read and written is what kio reads and writes, for every message of every version."""

from __future__ import annotations

import contextlib
import struct
import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader

from compactd.storage.kernel.interface import AbortedTransaction
from compactd.workers.broker import produce_codec
from compactd.workers.broker.decoding import (
    MalformedRequestError,
    decode,
    milliseconds,
    read_uvarint,
    skip_tags,
)
from compactd.workers.broker.encoding import encode, write_uvarint
from compactd.workers.broker.fetch_codec import (
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    decode_fetch,
    encode_fetch,
)
from compactd.workers.broker.layout import FieldLayout, layout_of
from compactd.workers.broker.produce_codec import (
    ProducedTopic,
    ProduceRequest,
    ProduceResult,
    TopicResults,
    decode_produce,
    encode_produce,
)
from compactd.workers.broker.schemas import request_class, response_class

_MESSAGES = [
    (api_key, version, is_request)
    for api_key, name in api_key_map.items()
    for version in schema_name_map[name]
    for is_request in (True, False)
]
_RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "timedelta_i32": 31, "timedelta_i64": 45}


def _class(api_key: int, version: int, is_request: bool) -> Any:
    return request_class(api_key, version) if is_request else response_class(api_key, version)


def _value(field: FieldLayout, draw: st.DrawFn) -> Any:
    if field.nullable and draw(st.integers(0, 4)) == 0:
        return None
    if field.is_array:
        return [_single(field, draw) for _ in range(draw(st.integers(0, 2)))]
    return _single(field, draw)


def _single(field: FieldLayout, draw: st.DrawFn) -> Any:
    if field.struct is not None:
        return {each.name: _value(each, draw) for each in layout_of(field.struct).fields}
    match field.primitive:
        case "string":
            return draw(st.text(st.characters(codec="utf-8"), max_size=5))
        case "bytes" | "records":
            return draw(st.binary(max_size=5))
        case "bool":
            return draw(st.booleans())
        case "uuid":
            return draw(st.one_of(st.none(), st.uuids()))
        case "error_code":
            return draw(st.integers(-1, 133))
        case "float64":
            return draw(st.floats(allow_nan=False))
        case "datetime_i64":
            return draw(st.integers(0, 2**42))
        case "uint16":
            return draw(st.integers(0, 2**16 - 1))
        case name:
            assert name is not None
            bits = _RANGES[name]
            return draw(st.integers(-(2**bits), 2**bits - 1))


@st.composite
def _filled(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    cls = _class(*draw(st.sampled_from(_MESSAGES)))
    return cls, {field.name: _value(field, draw) for field in layout_of(cls).fields}


@given(_filled())
def test_what_is_written_kio_and_we_read_alike(message: tuple[Any, dict[str, Any]]) -> None:
    cls, values = message
    data = bytes(encode(cls, values))
    read, size = entity_reader(cls)(data, 0)
    assert size == len(data)
    assert decode(cls, data) == read
    # An instance is written as the dict that it came from.
    assert bytes(encode(cls, read)) == data


@pytest.mark.parametrize("api_key", sorted(api_key_map))
def test_an_empty_dict_is_every_message_with_defaults(api_key: int) -> None:
    for version in schema_name_map[api_key_map[api_key]]:
        for is_request in (True, False):
            cls = _class(api_key, version, is_request)
            data = bytes(encode(cls, {}))
            read, size = entity_reader(cls)(data, 0)
            assert size == len(data)
            assert decode(cls, data) == read


def test_a_name_that_no_version_has_is_a_bug_that_shows() -> None:
    with pytest.raises(TypeError, match="topicz"):
        encode(response_class(3, 9), {"topicz": []})
    # One of another version is passed over.
    encode(response_class(3, 0), {"cluster_id": "x", "throttle_time": 5})


def test_unknown_tags_are_passed_over() -> None:
    cls = request_class(3, 12)
    with_tags = bytes(encode(cls, {"topics": None}))[:-1] + b"\x02\x05\x03abc\xb0\x01\x00"
    assert decode(cls, with_tags) == decode(cls, bytes(encode(cls, {"topics": None})))
    assert skip_tags(memoryview(b"\x02\x05\x03abc\xb0\x01\x00zz"), 0) == 9


def test_times_beyond_what_kio_holds_are_kept_in_range() -> None:
    cls = request_class(8, 3)
    body = struct.pack(">h", 1) + b"g" + struct.pack(">ihqi", -1, 0, 2**63 - 1, 0)
    assert decode(cls, body).retention_time == timedelta(milliseconds=timedelta.max // timedelta(milliseconds=1))
    assert milliseconds(timedelta(milliseconds=-7)) == -7
    assert milliseconds(None) == -1


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3))
def test_varints(value: int, rest: bytes) -> None:
    out = bytearray()
    write_uvarint(out, value)
    assert read_uvarint(memoryview(bytes(out) + rest), 0) == (value, len(out))


@given(_filled(), st.data())
def test_damaged_messages_are_refused_or_read_but_nothing_else(
    message: tuple[Any, dict[str, Any]], data: st.DataObject
) -> None:
    cls, values = message
    whole = bytearray(encode(cls, values))
    for _ in range(data.draw(st.integers(0, 3))):
        if whole:
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with contextlib.suppress(MalformedRequestError):
        decode(cls, cut)


# ---- produce


@given(st.data())
def test_produce_requests_are_read_as_kio_reads_them(data: st.DataObject) -> None:
    version = data.draw(st.integers(3, 13))
    cls = request_class(0, version)
    values = {field.name: _value(field, data.draw) for field in layout_of(cls).fields}
    body = bytes(encode(cls, values))
    theirs = entity_reader(cls)(body, 0)[0]
    ours = decode_produce(version, memoryview(body))
    assert ours.transactional_id == theirs.transactional_id
    assert (ours.acks, ours.timeout_ms) == (theirs.acks, milliseconds(theirs.timeout))
    assert [
        (
            topic.topic_id if version >= 13 else topic.name,
            [(n, None if r is None else bytes(r)) for n, r in topic.partitions],
        )
        for topic in ours.topics
    ] == [
        (topic.topic_id if version >= 13 else topic.name, [(p.index, p.records) for p in topic.partition_data])
        for topic in theirs.topic_data
    ]


@given(st.data())
def test_damaged_produce_requests_are_refused_or_read(data: st.DataObject) -> None:
    version = data.draw(st.integers(3, 13))
    cls = request_class(0, version)
    whole = bytearray(encode(cls, {field.name: _value(field, data.draw) for field in layout_of(cls).fields}))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = memoryview(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    with contextlib.suppress(MalformedRequestError):
        assert isinstance(decode_produce(version, cut), ProduceRequest)


@given(
    st.integers(9, 12),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=60),
    st.integers(-(2**31), 2**31 - 1),
    st.binary(max_size=300),
    st.integers(-1, 2),
    st.binary(max_size=3),
    st.data(),
)
def test_the_usual_produce_request_is_read_alike_by_the_short_way_and_the_long(
    version: int, name: str, index: int, records: bytes, acks: int, rest: bytes, data: st.DataObject
) -> None:
    content = {"name": name, "partition_data": [{"index": index, "records": records}]}
    body = bytearray(encode(request_class(0, version), {"acks": acks, "timeout": 77, "topic_data": [content]})) + rest
    if data.draw(st.booleans()):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]))
        del body[data.draw(st.integers(0, len(body))) :]

    def read(short: bool) -> object:
        with pytest.MonkeyPatch.context() as patch:
            if not short:
                patch.setattr(produce_codec, "_decode_usual", lambda _: None)
            try:
                found = decode_produce(version, memoryview(body))
            except MalformedRequestError:
                return "refused"
        topics = [
            (t.name, t.topic_id, [(n, r if r is None else bytes(r)) for n, r in t.partitions]) for t in found.topics
        ]
        return found.transactional_id, found.acks, found.timeout_ms, topics

    assert read(short=True) == read(short=False)


@given(st.integers(9, 12), st.text(st.characters(codec="utf-8"), max_size=130), st.integers(0, 2**31 - 1), st.data())
def test_the_usual_produce_answer_is_written_alike_by_the_short_way_and_the_long(
    version: int, name: str, throttle_ms: int, data: st.DataObject
) -> None:
    numbers = st.integers(-1, 2**62)
    result = ProduceResult(
        data.draw(st.integers(0, 2**31 - 1)),
        data.draw(st.integers(-1, 129)),
        data.draw(numbers),
        data.draw(numbers),
        data.draw(numbers),
    )
    written = [encode_produce(version, [TopicResults(name, None, [result])], (), throttle_ms)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(produce_codec, "_encode_usual", lambda *_: None)
        written.append(encode_produce(version, [TopicResults(name, None, [result])], (), throttle_ms))
    assert written[0] == written[1]


def test_produced_records_are_not_copied() -> None:
    body = bytearray(
        encode(
            request_class(0, 9),
            {"acks": 1, "topic_data": [{"name": "t", "partition_data": [{"index": 3, "records": b"abcdef"}]}]},
        )
    )
    topic: ProducedTopic = decode_produce(9, memoryview(body)).topics[0]
    records = topic.partitions[0].records
    assert records is not None
    records[0] = ord("x")
    assert b"xbcdef" in body


_RESULTS = st.builds(
    ProduceResult,
    st.integers(0, 2**31 - 1),
    error=st.integers(-1, 129),
    base_offset=st.integers(-1, 2**62),
    log_append_time=st.integers(-1, 2**42),
    log_start_offset=st.integers(-1, 2**62),
    record_errors=st.lists(
        st.tuples(st.integers(0, 1000), st.text(st.characters(codec="utf-8"), max_size=4)), max_size=2
    ),
    message=st.none() | st.text(st.characters(codec="utf-8"), max_size=200),
    leader=st.none() | st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
)


@given(
    st.integers(3, 13),
    st.lists(st.tuples(st.text("abc", max_size=3), st.uuids(), st.lists(_RESULTS, max_size=3)), max_size=2),
    st.lists(
        st.tuples(
            st.integers(0, 1000),
            st.text("abc", max_size=3),
            st.integers(0, 65535),
            st.none() | st.text("abc", max_size=3),
        ),
        max_size=2,
    ),
)
def test_produce_answers_are_written_as_kio_reads_them(
    version: int,
    topics: list[tuple[str, uuid.UUID, list[ProduceResult]]],
    endpoints: list[tuple[int, str, int, str | None]],
) -> None:
    data = bytes(encode_produce(version, [TopicResults(*topic) for topic in topics], endpoints))
    answer, size = entity_reader(response_class(0, version))(data, 0)
    assert size == len(data)
    values = {
        "responses": [
            {
                "name": name,
                "topic_id": topic_id,
                "partition_responses": [
                    {
                        "index": each.index,
                        "error_code": each.error,
                        "base_offset": each.base_offset,
                        "log_append_time": each.log_append_time,
                        "log_start_offset": each.log_start_offset,
                        "record_errors": [
                            {"batch_index": index, "batch_index_error_message": text}
                            for index, text in each.record_errors
                        ],
                        "error_message": each.message,
                        **(
                            {"current_leader": {"leader_id": each.leader[0], "leader_epoch": each.leader[1]}}
                            if each.leader is not None
                            else {}
                        ),
                    }
                    for each in results
                ],
            }
            for name, topic_id, results in topics
        ],
        "node_endpoints": [
            {"node_id": node, "host": host, "port": port, "rack": rack} for node, host, port, rack in endpoints
        ],
    }
    assert data == bytes(encode(response_class(0, version), values))
    assert len(answer.responses) == len(topics)


# ---- fetch


@given(st.data())
def test_fetch_requests_are_read_as_kio_reads_them(data: st.DataObject) -> None:
    version = data.draw(st.integers(4, 18))
    cls = request_class(1, version)
    body = bytes(encode(cls, {field.name: _value(field, data.draw) for field in layout_of(cls).fields}))
    theirs = entity_reader(cls)(body, 0)[0]
    ours = decode_fetch(version, memoryview(body))
    assert ours.replica_id == (theirs.replica_id if version < 15 else theirs.replica_state.replica_id)
    assert ours.max_wait_ms == milliseconds(theirs.max_wait)
    assert (ours.min_bytes, ours.max_bytes) == (theirs.min_bytes, theirs.max_bytes)
    assert ours.isolation_level == theirs.isolation_level
    assert (ours.session_id, ours.session_epoch) == (
        getattr(theirs, "session_id", 0),
        getattr(theirs, "session_epoch", -1),
    )
    key = "topic_id" if version >= 13 else "topic"
    assert ours.topics == [
        (
            getattr(topic, key),
            [
                (
                    each.partition,
                    getattr(each, "current_leader_epoch", -1),
                    each.fetch_offset,
                    getattr(each, "last_fetched_epoch", -1),
                    each.partition_max_bytes,
                )
                for each in topic.partitions
            ],
        )
        for topic in theirs.topics
    ]
    assert ours.forgotten == [
        (getattr(topic, key), list(topic.partitions)) for topic in getattr(theirs, "forgotten_topics_data", ())
    ]


@given(st.data())
def test_damaged_fetch_requests_are_refused_or_read(data: st.DataObject) -> None:
    version = data.draw(st.integers(4, 18))
    cls = request_class(1, version)
    whole = bytearray(encode(cls, {field.name: _value(field, data.draw) for field in layout_of(cls).fields}))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = memoryview(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    with contextlib.suppress(MalformedRequestError):
        assert isinstance(decode_fetch(version, cut), FetchRequest)


class _Records:
    """A range whose bytes are in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.length = len(data)
        self.is_closed = False

    def read(self) -> bytes:
        return self.data

    def close(self) -> None:
        self.is_closed = True


@st.composite
def _fetched(draw: st.DrawFn) -> FetchedPartition:
    found = FetchedPartition(draw(st.integers(0, 1000)), draw(st.integers(-1, 129)))
    found.high_watermark = draw(st.integers(-1, 2**62))
    found.last_stable = draw(st.integers(-1, 2**62))
    found.log_start = draw(st.integers(-1, 2**62))
    found.aborted = draw(
        st.none()
        | st.lists(
            st.builds(AbortedTransaction, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
            max_size=2,
        )
    )
    data = draw(st.none() | st.binary(max_size=10) | st.just(b"x" * 40000))
    found.records = None if data is None else _Records(data)  # type: ignore[assignment]
    found.leader = draw(st.none() | st.tuples(st.integers(0, 1000), st.integers(0, 1000)))
    found.diverging = draw(st.none() | st.tuples(st.integers(0, 1000), st.integers(0, 2**60)))
    return found


@given(
    st.integers(4, 18),
    st.lists(st.tuples(st.text("abc", max_size=3), st.uuids(), st.lists(_fetched(), max_size=3)), max_size=2),
    st.integers(0, 2**31 - 1),
    st.lists(
        st.tuples(
            st.integers(0, 1000),
            st.text("abc", max_size=3),
            st.integers(0, 65535),
            st.none() | st.text("abc", max_size=3),
        ),
        max_size=2,
    ),
)
def test_fetch_answers_are_written_as_kio_reads_them(
    version: int,
    topics: list[tuple[str, uuid.UUID, list[FetchedPartition]]],
    session_id: int,
    endpoints: list[tuple[int, str, int, str | None]],
) -> None:
    ranges: list[Any] = [each.records for _, _, partitions in topics for each in partitions if each.records is not None]
    encoded = encode_fetch(
        version, [FetchedTopic(*topic) for topic in topics], session_id=session_id, endpoints=endpoints
    )
    parts: list[Any] = encoded.parts
    data = b"".join(part.read() if isinstance(part, _Records) else bytes(part) for part in parts)
    assert entity_reader(response_class(1, version))(data, 0)[1] == len(data)
    values = {
        "session_id": session_id,
        "responses": [
            {
                "topic": name,
                "topic_id": topic_id,
                "partitions": [_as_values(each, version) for each in partitions],
            }
            for name, topic_id, partitions in topics
        ],
        "node_endpoints": [
            {"node_id": node, "host": host, "port": port, "rack": rack} for node, host, port, rack in endpoints
        ],
    }
    if version < 16:
        del values["node_endpoints"]
    assert data == bytes(encode(response_class(1, version), values))
    encoded.close()
    assert all(each.is_closed for each in ranges)


def _as_values(each: FetchedPartition, version: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "partition_index": each.number,
        "error_code": each.error,
        "high_watermark": each.high_watermark,
        "last_stable_offset": each.last_stable,
        "log_start_offset": each.log_start,
        "aborted_transactions": None
        if each.aborted is None
        else [{"producer_id": found.producer_id, "first_offset": found.first_offset} for found in each.aborted],
        "records": b"" if each.records is None else each.records.read(),
    }
    if each.leader is not None and version >= 16:
        values["current_leader"] = {"leader_id": each.leader[0], "leader_epoch": each.leader[1]}
    if each.diverging is not None:
        values["diverging_epoch"] = {"epoch": each.diverging[0], "end_offset": each.diverging[1]}
    return values
