"""Every record type and version as Kafka 4.4.0's own classes serialise it, and as its own JSON converters print it.

tests/data/kafka-4.4.0-messages.jsonl: random content, made by running Kafka's generated message classes.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from compactd.storage.metadata.kraft_schemas import CONTROL_RECORDS, METADATA_RECORDS
from compactd.storage.metadata.offsets import OFFSETS_RECORDS
from compactd.storage.metadata.schema import Field, Schema, decode
from compactd.storage.metadata.share import SHARE_RECORDS
from compactd.storage.metadata.transactions import TRANSACTION_RECORDS
from tests.storage.metadata.golden import DATA

_MESSAGES = [json.loads(line) for line in (DATA / "kafka-4.4.0-messages.jsonl").read_text().splitlines()]
_CONTROL_NAMES = {
    "EndTxnMarker": 1,
    "LeaderChangeMessage": 2,
    "SnapshotHeaderRecord": 3,
    "SnapshotFooterRecord": 4,
    "KRaftVersionRecord": 5,
    "VotersRecord": 6,
}


def _schemas() -> dict[str, tuple[Schema, int]]:
    """Kafka's class name to our schema, and the bytes that stand before the body."""
    found: dict[str, tuple[Schema, int]] = {}
    for schema in METADATA_RECORDS.values():
        found[schema.name] = (schema, 0)
    for records in (OFFSETS_RECORDS, TRANSACTION_RECORDS, SHARE_RECORDS):
        for record in records.values():
            found[f"{record.value.name}_VALUE"] = (record.value, 0)
            found[f"{record.value.name}_KEY"] = (Schema(record.value.name, record.key, flexible_since=None), 0)
    return found


_BY_NAME = _schemas()


def _find(message: str) -> tuple[Schema, int]:
    if message in _CONTROL_NAMES:
        # The control records' first field repeats the version; the marker's class leaves it to its caller.
        return CONTROL_RECORDS[_CONTROL_NAMES[message]], 0 if message == "EndTxnMarker" else 2
    return _BY_NAME[re.sub(r"(?<!^)(?=[A-Z])", "_", message).upper()]


def _complete(printed: dict[str, Any], fields: tuple[Field, ...], version: int) -> dict[str, Any]:
    """Kafka's JSON with the tagged fields that it leaves out at their defaults; every other field must be there."""
    complete: dict[str, Any] = {}
    for field in fields:
        if field.since > version or (field.until is not None and field.until < version):
            continue
        if field.tag is not None and field.name not in printed:
            complete[field.name] = copy.deepcopy(field.default)
            continue
        value = printed.pop(field.name)
        if isinstance(field.kind, tuple) and value is not None:
            kind = field.kind
            value = (
                [_complete(item, kind, version) for item in value] if field.array else _complete(value, kind, version)
            )
        complete[field.name] = value
    assert not printed, f"fields that no schema has: {sorted(printed)}"
    return complete


def _parameters() -> list[Any]:
    return [
        pytest.param(sample, id=f"{sample['message']}-v{sample['version']}-{number}")
        for number, sample in enumerate(_MESSAGES)
    ]


@pytest.mark.parametrize("sample", _parameters())
def test_a_message_reads_as_kafka_prints_it(sample: dict[str, Any]) -> None:
    schema, start = _find(sample["message"])
    data = bytes.fromhex(sample["hex"])
    printed = dict(copy.deepcopy(sample["json"]))
    if sample["message"] in _CONTROL_NAMES and start:
        printed.pop("version")
    decoded, end = decode(schema, sample["version"], data, start)
    assert end == len(data)
    assert decoded == _complete(printed, schema.fields, sample["version"])


def test_every_type_and_version_is_among_the_samples() -> None:
    seen = {(_find(sample["message"])[0].name, sample["version"]) for sample in _MESSAGES}
    records = [*METADATA_RECORDS.values(), *(CONTROL_RECORDS[number] for number in range(1, 7))]
    for group in (OFFSETS_RECORDS, TRANSACTION_RECORDS, SHARE_RECORDS):
        records += [record.value for record in group.values()]
    assert {(schema.name, version) for schema in records for version in range(schema.high + 1)} <= seen
