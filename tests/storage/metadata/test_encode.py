"""The encoder gives back the bytes that were decoded, Kafka's own included, and refuses what would not read back."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.storage.metadata.coordinator import decode_coordinator_record, encode_coordinator_record
from compactd.storage.metadata.encode import encode, write_uvarint
from compactd.storage.metadata.kraft_schemas import METADATA_RECORDS
from compactd.storage.metadata.offsets import OFFSETS_RECORDS
from compactd.storage.metadata.records import (
    decode_control_record,
    encode_control_record,
    encode_metadata_record,
    read_body,
    read_frame,
)
from compactd.storage.metadata.schema import Field, Schema, array, decode, fields, read_uvarint, tag
from tests.storage.metadata.golden import golden
from tests.storage.metadata.test_kafka_messages import _MESSAGES, _find

VALUES = [
    ("begin name", 2), ("featurelevel", 1), ("topic gamma", 1), ("config topic", 2), ("config broker", 2),
    ("config group", 2), ("partition v2", 1), ("partitionchange stop", 4), ("removetopic", 1),
    ("brokerregistrationchange", 4), ("producerids", 1), ("clearelr", 2), ("acl topic", 1), ("removeacl", 1),
    ("scram 256", 1), ("remove scram", 1), ("quota user", 2), ("quota client id", 1), ("delegationtoken", 1),
    ("removedelegationtoken", 4),
]  # fmt: skip


@pytest.mark.parametrize("name,index", [(name, index) for name, count in VALUES for index in range(count)])
def test_captured_records_are_written_as_kafka_wrote_them(name: str, index: int) -> None:
    value = golden(name, index)
    frame = read_frame(value)
    assert encode_metadata_record(frame.api_key, frame.version, read_body(frame, value)) == value


@pytest.mark.parametrize("index,number", list(enumerate((3, 4, 5, 6))))
def test_control_records(index: int, number: int) -> None:
    value = golden("control values", index)
    key = b"\0\0" + number.to_bytes(2, "big")
    decoded = decode_control_record(key, value)
    assert encode_control_record(number, decoded["version"], decoded["data"]) == (key, value)


@pytest.mark.parametrize("case", _MESSAGES, ids=lambda case: f"{case['message']}-{case['version']}")
def test_every_message_that_kafka_s_classes_made(case: dict[str, Any]) -> None:
    schema, skipped = _find(case["message"])
    body = bytes.fromhex(case["hex"])[skipped:]
    values, end = decode(schema, case["version"], body, 0)
    assert end == len(body)
    assert encode(schema, case["version"], values) == body


def test_tagged_fields_at_their_default_take_no_bytes() -> None:
    topic = "R0h2GY22SfSFe562CeoJag"
    plain = encode_metadata_record(5, 2, {"partitionId": 3, "topicId": topic})
    spelled = {"partitionId": 3, "topicId": topic, "isr": None, "leader": -2, "directories": None}
    assert encode_metadata_record(5, 2, spelled) == plain
    assert encode_metadata_record(5, 0, spelled) == plain[:2] + b"\0" + plain[3:]
    emptied = encode_metadata_record(5, 2, {"partitionId": 3, "topicId": topic, "isr": ()})
    assert emptied == plain[:-1] + b"\1\0\1\1"


def test_coordinator_records() -> None:
    key, value = golden("offsetcommit key"), golden("value v4 offset 8")
    decoded = decode_coordinator_record(OFFSETS_RECORDS, key, value)
    again = encode_coordinator_record(OFFSETS_RECORDS, 1, decoded["key"], decoded["version"], decoded["value"])
    assert again == (key, value)
    assert encode_coordinator_record(OFFSETS_RECORDS, 1, decoded["key"]) == (key, None)
    with pytest.raises(ValueError, match="unknown record type 99"):
        encode_coordinator_record(OFFSETS_RECORDS, 99, {})


def test_bytes_are_taken_plain_or_as_base64() -> None:
    schema = Schema("X", (Field("raw", "bytes"),))
    assert encode(schema, 0, {"raw": b"\xff\0"}) == encode(schema, 0, {"raw": base64.b64encode(b"\xff\0").decode()})


BOTH = Schema(
    "X",
    (
        *fields("name:str id:uuid"),
        Field("count", "i16", since=1),
        array("items", (Field("n", "u16"),), nullable=True),
        Field("inner", fields("a:bool"), nullable=True, since=1),
        tag(0, "note", "str", "none", since=1),
        tag(1, "more", fields("a:i8"), None, nullable=True, since=1),
    ),
    high=1,
    flexible_since=1,
)
GOOD: dict[str, Any] = {"name": "a", "id": "R0h2GY22SfSFe562CeoJag", "count": 1, "items": [{"n": 1}], "inner": None}


@pytest.mark.parametrize(
    "change,reason",
    [
        ({"count": 1 << 15}, "count = 32768 is no i16"),
        ({"count": "1"}, "count = '1' is no i16"),
        ({"items": [{"n": -1}]}, "n = -1 is no u16"),
        ({"items": ["n"]}, "items needs a struct"),
        ({"items": "n"}, "items needs a sequence"),
        ({"items": [{"n": 1, "m": 2}]}, "has no field m"),
        ({"name": None}, "name may not be null"),
        ({"name": b"a"}, "name needs text"),
        ({"id": "short"}, "id: 'short'"),
        ({"id": None}, "id:"),
        ({"other": 1}, "has no field other"),
    ],
)
def test_what_would_not_read_back_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        encode(BOTH, 1, GOOD | change)


def test_a_missing_field_an_unknown_version_and_a_field_of_another_version_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a value for name"):
        encode(BOTH, 1, {name: value for name, value in GOOD.items() if name != "name"})
    with pytest.raises(ValueError, match="no version 2"):
        encode(BOTH, 2, GOOD)
    with pytest.raises(ValueError, match="version 0 has no count"):
        encode(BOTH, 0, GOOD)
    with pytest.raises(ValueError, match="unknown metadata record type 99"):
        encode_metadata_record(99, 0, {})
    with pytest.raises(ValueError, match="unknown control record type 99"):
        encode_control_record(99, 0, {})
    assert encode(BOTH, 0, GOOD | {"count": 0}) == b"\0\1a" + encode(BOTH, 1, GOOD)[2:18] + b"\0\0\0\1\0\1"


@given(
    name=st.text(max_size=200),
    count=st.integers(-(1 << 15), (1 << 15) - 1),
    items=st.none() | st.lists(st.fixed_dictionaries({"n": st.integers(0, 65535)}), max_size=5),
    inner=st.none() | st.fixed_dictionaries({"a": st.booleans()}),
    note=st.text(max_size=5),
    more=st.none() | st.fixed_dictionaries({"a": st.integers(-128, 127)}),
)
def test_reading_gives_what_was_written(**values: Any) -> None:
    given_values = GOOD | values
    data = encode(BOTH, 1, given_values)
    read, end = decode(BOTH, 1, data, 0)
    assert (read, end) == (given_values, len(data))
    assert encode(BOTH, 1, read) == data


@given(st.integers(0, 0xFFFFFFFF))
def test_unsigned_varints(value: int) -> None:
    data = write_uvarint(value)
    assert read_uvarint(data, 0) == (value, len(data))


def test_an_unsigned_varint_has_32_bits() -> None:
    for value in (-1, 1 << 32):
        with pytest.raises(ValueError, match="does not fit"):
            write_uvarint(value)


def test_every_metadata_record_is_in_the_tables() -> None:
    assert set(range(30)) - set(METADATA_RECORDS) == {6, 13, 16}
