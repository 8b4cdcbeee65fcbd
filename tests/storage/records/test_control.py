from __future__ import annotations

import pytest

from compactd.storage.records.control import (
    ControlRecordType,
    EndTransactionMarker,
    format_control_key,
    format_end_transaction,
    parse_control_key,
    parse_end_transaction,
)
from compactd.storage.records.varint import MalformedError


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("00000000", ControlRecordType.ABORT),
        ("00000001", ControlRecordType.COMMIT),
        ("00000002", ControlRecordType.LEADER_CHANGE),
        ("00000006", ControlRecordType.KRAFT_VOTERS),
        ("00000007", ControlRecordType.UNKNOWN),
        ("0000ffff", ControlRecordType.UNKNOWN),
        ("00050001", ControlRecordType.COMMIT),
        ("00000001ff", ControlRecordType.COMMIT),
    ],
)
def test_keys(key: str, kind: ControlRecordType) -> None:
    assert parse_control_key(bytes.fromhex(key)) is kind


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\1"])
def test_bad_keys(key: bytes | None) -> None:
    with pytest.raises(MalformedError, match="control record has a key"):
        parse_control_key(key)


@pytest.mark.parametrize("kind", [ControlRecordType.ABORT, ControlRecordType.COMMIT])
def test_marker_round_trip(kind: ControlRecordType) -> None:
    marker = EndTransactionMarker(kind, 70000)
    key, value = format_end_transaction(marker)
    assert (key, value) == (format_control_key(kind), b"\0\0\0\1\x11\x70")
    assert parse_end_transaction(key, value) == marker


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("00000002", "000000000000", "not a transaction marker"),
        ("00000001", "0000000000", "5 bytes"),
        ("00000001", None, "0 bytes"),
        ("00000001", "ffff00000000", "version -1"),
    ],
)
def test_bad_markers(key: str, value: str | None, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        parse_end_transaction(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
