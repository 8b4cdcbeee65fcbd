"""What a log takes from producers and how it numbers it: LogValidatorTest and BrokerCompressionTest by name (facts 10.1-10.3).

Every case runs twice: with the native check and short cut, and with their twins in Python.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.config.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    LogError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
)
from compactd.storage import log_appending, validator
from compactd.storage.kernel.reference.validate import validate_batch as reference_validate
from compactd.storage.kernel.validating import make_admission
from compactd.storage.log import Appended, Origin, PartitionLog
from compactd.storage.records.batch import Batch
from compactd.storage.records.builder import build_batch, control_batch
from compactd.storage.records.codecs import Codec
from compactd.storage.records.crc import crc32c
from compactd.storage.records.legacy import build_message_set
from compactd.storage.records.record import Record
from tests.storage.log.logs import NOW, batch, contents, lead, new_log, records

CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
NATIVE = make_admission(
    keys_required=False, append_time=False, before_ms=0, after_ms=0, largest_body=1, largest_batch=1, codec=None
)


@pytest.fixture(autouse=True, params=["native", "reference"])
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "reference":
        monkeypatch.setattr(validator, "validate_batch", reference_validate)
        monkeypatch.setattr(log_appending, "admission_of", lambda config: None)
    elif NATIVE is None:
        pytest.skip("the native kernel is not built")
    yield


def only(log: PartitionLog) -> Batch:
    [found] = contents(log)
    found.check()
    return found


def refused(log: PartitionLog, data: bytes, kind: type[LogError], name: str, **options: Any) -> LogError:
    before = log.log_end_offset
    with pytest.raises(kind) as caught:
        log.append_as_leader(data, leader_epoch=0, now_ms=NOW, **options)
    assert caught.value.kafka_name == name
    assert log.log_end_offset == before
    assert str(log.directory) in str(caught.value)
    return caught.value


def resealed(data: bytearray) -> bytes:
    """The batch with the CRC of its bytes."""
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return bytes(data)


# ---- offsets, epochs, codecs


@pytest.mark.parametrize("codec", CODECS)
def test_absolute_offset_assignment(tmp_path: Path, codec: int) -> None:
    log = new_log(tmp_path)
    lead(log, batch(5))
    sent = batch(3, codec=codec)
    done = lead(log, sent, leader_epoch=9)
    assert done == Appended(5, 7, NOW, -1, 0)
    found = contents(log)[1]
    found.check()
    assert found.header.leader_epoch == 9
    assert [record.offset for record in found.records()] == [5, 6, 7]
    # Nothing but the base offset and the epoch, which the CRC does not cover, is another.
    assert found.data[16:] == sent[16:]


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_broker_side_compression(tmp_path: Path, source: Codec, target: str) -> None:
    log = new_log(tmp_path, compression_type=target)
    made = [Record(n, NOW + n, b"key%d" % n, b"value" * 10, (("h", b"x"),)) for n in range(4)]
    sent = build_batch(made, base_offset=0, codec=source)
    lead(log, sent)
    found = only(log)
    wanted = source.label if target == "producer" else {"uncompressed": "none"}.get(target, target)
    assert Codec(found.header.codec).label == wanted
    if wanted == source.label:
        assert found.data[16:] == sent[16:]
    assert [record._replace(headers=()) for record in found.records()] == [r._replace(headers=()) for r in made]
    assert found.records()[0].headers == ((b"h", b"x"),)


def test_different_level_does_not_cause_recompression(tmp_path: Path) -> None:
    log = new_log(tmp_path, compression_type="gzip", compression_gzip_level=9)
    sent = batch(10, value=b"value" * 30, codec=Codec.GZIP, level=1)
    lead(log, sent)
    assert only(log).data[16:] == sent[16:]


@pytest.mark.parametrize(("codec", "levels"), [("gzip", (1, 9)), ("lz4", (9, 17)), ("zstd", (-5, 19))])
def test_different_codec_causes_recompression(tmp_path: Path, codec: str, levels: tuple[int, int]) -> None:
    words = [b"%d," % (n * n * 7919 % 10007) for n in range(500)]
    made = [Record(n, NOW, b"k", b"".join(words[n * step % 500] for step in range(20))) for n in range(200)]
    sizes = []
    for level in levels:
        (tmp_path / str(level)).mkdir()
        log = new_log(tmp_path / str(level), compression_type=codec, **{f"compression_{codec}_level": level})
        lead(log, build_batch(made, base_offset=0))
        found = only(log)
        assert len(found.records()) == 200
        sizes.append(len(found.data))
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("codec", CODECS)
def test_inner_offsets_are_numbered_anew(tmp_path: Path, codec: int) -> None:
    """Kafka stores them as they are where the batch is not compressed: then a log may hold an offset twice."""
    log = new_log(tmp_path)
    data = bytearray(build_batch([Record(0, NOW, b"a", b"1"), Record(2, NOW, b"b", b"2")], base_offset=0, codec=codec))
    data[23:27] = (1).to_bytes(4, "big")
    lead(log, batch(1))
    lead(log, resealed(data))
    found = contents(log)[1]
    assert [(record.offset, record.key) for record in found.records()] == [(1, b"a"), (2, b"b")]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_up_conversion(tmp_path: Path, magic: int, codec: int) -> None:
    log = new_log(tmp_path)
    lead(log, batch(2))
    made = [Record(n, NOW + n if magic else -1, b"k%d" % n, b"value" if n else None) for n in range(3)]
    done = lead(log, build_message_set(made, magic, codec))
    assert (done.first_offset, done.last_offset) == (2, 4)
    found = contents(log)[1]
    found.check()
    assert (found.header.magic, found.header.codec, found.header.leader_epoch) == (2, codec, 0)
    assert found.records() == [record._replace(offset=record.offset + 2) for record in made]


def test_input_memory_is_changed_only_where_it_may_be(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    sent = batch(1)
    lead(log, sent)
    assert sent == batch(1)
    mine = bytearray(batch(1))
    log.append_as_leader(mine, leader_epoch=3, now_ms=NOW)
    assert bytes(mine[:8]) == (1).to_bytes(8, "big")
    part = memoryview(bytearray(b"xx" + batch(1) + b"yy"))[2:-2]
    log.append_as_leader(part, leader_epoch=3, now_ms=NOW)
    assert [each.base_offset for each in contents(log)] == [0, 1, 2]


# ---- timestamps


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time(tmp_path: Path, codec: int) -> None:
    log = new_log(tmp_path, message_timestamp_type="LogAppendTime")
    sent = batch(3, ts=5, codec=codec)
    done = lead(log, sent, now_ms=NOW + 7)
    assert done == Appended(0, 2, NOW + 7, NOW + 7, 0)
    found = only(log)
    assert found.header.timestamp_type == "LogAppendTime"
    assert (found.header.max_timestamp, found.header.base_timestamp) == (NOW + 7, 5)
    assert {record.timestamp for record in found.records()} == {NOW + 7}
    assert found.data[61:] == sent[61:]  # the records are untouched


@pytest.mark.parametrize("codec", CODECS)
def test_create_time(tmp_path: Path, codec: int) -> None:
    log = new_log(tmp_path)
    made = [Record(0, NOW - 10, b"k", b"v"), Record(1, NOW + 10, b"k", b"v"), Record(2, -1, b"k", b"v")]
    done = lead(log, build_batch(made, base_offset=0, codec=codec))
    assert done.max_timestamp == NOW + 10
    assert [record.timestamp for record in only(log).records()] == [NOW - 10, NOW + 10, -1]


def test_wrong_largest_timestamp_is_put_right(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    lead(log, batch(2, max_timestamp=NOW + 10**9))
    found = only(log)
    assert found.header.max_timestamp == NOW
    assert log.active_segment.max_timestamp == NOW


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_past_and_future_timestamps(tmp_path: Path, codec: int) -> None:
    log = new_log(tmp_path, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    lead(log, batch(ts=NOW - 1000, codec=codec))
    lead(log, batch(ts=NOW + 500, codec=codec))
    lead(log, batch(ts=-1, codec=codec))
    for time in (NOW - 1001, NOW + 501, 0):
        error = refused(log, batch(2, ts=time, codec=codec), InvalidTimestampError, "INVALID_TIMESTAMP")
        limits = f"The timestamp should be within [{NOW - 1000}, {NOW + 500}]"
        assert error.record_errors == tuple(
            (index, f"Timestamp {time} of message with offset {index} is out of range. {limits}") for index in (0, 1)
        )
    log.update_config(log.config.__class__.from_strings({"message.timestamp.type": "LogAppendTime"}))
    lead(log, batch(ts=0, codec=codec))


def test_producers_may_not_set_log_append_time(tmp_path: Path) -> None:
    log = new_log(tmp_path, message_timestamp_type="LogAppendTime")
    error = refused(log, batch(2, log_append_time_ms=NOW), InvalidTimestampError, "INVALID_TIMESTAMP")
    assert len(error.record_errors) == 2
    (tmp_path / "create").mkdir()
    create = new_log(tmp_path / "create")
    lead(create, batch(2, log_append_time_ms=NOW))  # as in Kafka: its time is in range
    assert only(create).header.timestamp_type == "CreateTime"
    refused(create, batch(1, log_append_time_ms=-1), InvalidTimestampError, "INVALID_TIMESTAMP")


# ---- what is refused


@pytest.mark.parametrize("codec", CODECS)
def test_compacted_topic_constraints(tmp_path: Path, codec: int) -> None:
    """Report A16: the whole batch is refused and the records are named; a key of no bytes is a key."""
    log = new_log(tmp_path, cleanup_policy="compact")
    made = [Record(n, NOW, None if n in (1, 3, 4, 5) else b"", b"v") for n in range(6)]
    error = refused(log, build_batch(made, base_offset=0, codec=codec), InvalidRecordError, "INVALID_RECORD")
    text = "Compacted topic cannot accept message without key in topic partition t-0"
    assert error.record_errors == tuple((index, text) for index in (1, 3, 4, 5))
    assert f"record 1: {text}; record 3: {text}; record 4: {text} and 1 more" in str(error)
    lead(log, build_batch(made[:1], base_offset=0, codec=codec))
    refused(log, build_message_set(made[1:2], 1), InvalidRecordError, "INVALID_RECORD")
    log.update_config(log.config.__class__.from_strings({"cleanup.policy": "delete"}))
    lead(log, build_batch(made, base_offset=0, codec=codec))


def test_invalid_checksum(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    data = bytearray(batch(3))
    data[-4] ^= 0x20
    error = refused(log, bytes(data), CorruptMessageError, "CORRUPT_MESSAGE")
    assert "CRC" in str(error)
    legacy = bytearray(build_message_set(records(1), 1))
    legacy[-1] ^= 1
    refused(log, bytes(legacy), CorruptMessageError, "CORRUPT_MESSAGE")


@pytest.mark.parametrize("count", [0, 2, 4, -1])
def test_count_mismatch(tmp_path: Path, count: int) -> None:
    log = new_log(tmp_path)
    data = bytearray(batch(3))
    data[57:61] = struct.pack(">i", count)
    refused(log, resealed(data), InvalidRecordError, "INVALID_RECORD")


@pytest.mark.parametrize("delta", [0, 1, 5, -1, -(2**31)])
def test_offset_range_mismatch(tmp_path: Path, delta: int) -> None:
    log = new_log(tmp_path)
    data = bytearray(batch(3))
    data[23:27] = struct.pack(">i", delta)
    refused(log, resealed(data), InvalidRecordError, "INVALID_RECORD")


def test_base_offset_must_be_zero(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    data = build_batch([Record(4, NOW, b"k", b"v")], base_offset=4)
    refused(log, data, InvalidRecordError, "INVALID_RECORD")


def test_only_one_batch(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    refused(log, batch() + batch(), InvalidRecordError, "INVALID_RECORD")


def test_control_records_are_not_for_clients(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    marker = control_batch("commit", 0, NOW, 1, 0)
    refused(log, marker, InvalidRecordError, "INVALID_RECORD")
    log.append_as_leader(marker, leader_epoch=0, now_ms=NOW, origin=Origin.COORDINATOR)
    assert log.log_end_offset == 1


def test_control_batches_are_not_compressed(tmp_path: Path) -> None:
    log = new_log(tmp_path, compression_type="gzip", message_timestamp_type="LogAppendTime")
    log.append_marker("abort", 1, 0, coordinator_epoch=0, leader_epoch=0, now_ms=NOW)
    found = only(log)
    assert found.header.is_control and found.header.codec == 0
    assert found.header.timestamp_type == "LogAppendTime"


def test_producer_without_sequence(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    refused(log, batch(producer_id=1, producer_epoch=0), InvalidRecordError, "INVALID_RECORD")


def test_recompressed_batch_is_measured_again(tmp_path: Path) -> None:
    log = new_log(tmp_path, compression_type="uncompressed", max_message_bytes=200)
    refused(log, batch(5, value=b"x" * 100, codec=Codec.GZIP), MessageTooLargeError, "MESSAGE_TOO_LARGE")


def test_max_decompressed_message_bytes(tmp_path: Path) -> None:
    log = new_log(tmp_path, max_decompressed_message_bytes=1000)
    big = records(1, value=b"x" * 1000)
    error = refused(log, build_batch(big, base_offset=0, codec=Codec.ZSTD), InvalidRecordError, "INVALID_RECORD")
    assert "more than 1000" in str(error)
    lead(log, build_batch(big, base_offset=0))  # only compressed batches are looked at
    lead(log, build_batch(records(20, value=b"x" * 900), base_offset=0, codec=Codec.ZSTD))


def test_unknown_codec(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    data = bytearray(batch())
    data[22] |= 7
    refused(log, resealed(data), UnsupportedCompressionTypeError, "UNSUPPORTED_COMPRESSION_TYPE")


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_records_are_named_faults(tmp_path: Path, codec: int) -> None:
    """Every byte of the record area changed in turn, with a right CRC: refused, or readable as it says."""
    log = new_log(tmp_path)
    sent = batch(3, codec=codec)
    taken = 0
    for position in range(61, len(sent)):
        data = bytearray(sent)
        data[position] ^= 0xFF
        try:
            lead(log, resealed(data))
            taken += 1
        except (InvalidRecordError, InvalidTimestampError, CorruptMessageError):
            continue
    assert log.log_end_offset == taken * 3
    for each in contents(log):
        assert [record.offset for record in each.records()] == list(
            range(each.header.base_offset, each.header.base_offset + 3)
        )


def test_torn_input(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    sent = batch(2)
    for length in range(len(sent)):
        assert lead(log, sent[:length]) == Appended(-1, -1, -1, -1, 0)
    for wrong in (b"\0" * 100, b"\xff" * 100):
        refused(log, wrong, CorruptMessageError, "CORRUPT_MESSAGE")
    lead(log, sent + sent[:30])
    assert log.log_end_offset == 2


def test_decompression_bomb(tmp_path: Path) -> None:
    """A small batch that claims to grow without bounds is refused, in bounded memory."""
    log = new_log(tmp_path, max_decompressed_message_bytes=1 << 20)
    bomb = build_batch(records(1, value=b"\0" * (64 << 20)), base_offset=0, codec=Codec.ZSTD)
    assert len(bomb) < 1 << 20
    refused(log, bomb, InvalidRecordError, "INVALID_RECORD")
