"""Batches that decompress to very much: checked as the others are, in bounded memory (a client sends a few kilobytes)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from compactd.storage.kernel.reference.validate import MOST_ERRORS, NO_KEY
from compactd.storage.kernel.reference.validate import validate_batch as reference
from compactd.storage.kernel.timestamps import record_at_time, search
from compactd.storage.kernel.validating import compress_area
from compactd.storage.kernel.validating import validate_batch as chosen
from compactd.storage.records.batch import Batch, read_header
from compactd.storage.records.builder import assemble_batch
from compactd.storage.records.codecs import Codec
from compactd.storage.records.crc import crc32c
from compactd.storage.records.varint import write_varint

pytestmark = pytest.mark.skipif(chosen is reference, reason="the native kernel is not built")

NOW = 1_700_000_000_000
ALWAYS = (-(2**63), 2**63 - 1)
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


def record(number: int, size: int, key: bytes | None = b"key", header: bytes = b"") -> bytes:
    """Of a value of `size` zeros."""
    front = b"\0" + write_varint(number) + write_varint(number)
    front += write_varint(-1) if key is None else write_varint(len(key)) + key
    body = front + write_varint(size) + bytes(size) + (header or b"\0")
    return write_varint(len(body)) + body


HEADERS = write_varint(2) + write_varint(1) + b"h" + write_varint(-1) + write_varint(0) + write_varint(2) + b"xy"
SOUND = b"".join(
    [*(record(n, 1000) for n in range(500)), record(500, 33 << 20), record(501, 0, None), record(502, 9, b"", HEADERS)]
)
#: Its change, and the records that the header promises.
CASES: dict[str, tuple[bytes, int]] = {
    "sound": (SOUND, 503),
    "fewer are promised": (SOUND, 502),
    "more are promised": (SOUND, 504),
    "a length over the end": (SOUND[:-20], 503),
    "a cut in the large one": (SOUND[: 30 << 20], 503),
    "a negative length": (SOUND + write_varint(-2), 504),
    "fields that do not fill the length": (SOUND + b"\x10" + bytes(8), 504),
    "a negative number of headers": (SOUND + record(503, 0, b"k", write_varint(-1)), 504),
    "a header without a key": (SOUND + record(503, 0, b"k", write_varint(1) + write_varint(-1) + b"\1"), 504),
    "another offset": (SOUND + record(9, 0), 504),
}


def compressed(codec: int, area: bytes) -> bytes:
    body = compress_area(codec, area)
    assert body is not None
    return body


def check(area: bytes, codec: int, count: int, keys: bool = False, largest: int = 2**31 - 1) -> list[object]:
    """What both say: a result each, or "refused"."""
    batch = bytes(61) + compressed(codec, area)
    answers: list[object] = []
    for validate in (reference, chosen):
        try:
            answers.append(validate(batch, crc32c(batch[21:]), codec, count, NOW, None, keys, *ALWAYS, largest))
        except ValueError:
            answers.append("refused")
    return answers


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("case", CASES)
def test_both_answer_the_same(case: str, codec: int) -> None:
    area, count = CASES[case]
    expected, found = check(area, codec, count)
    assert found == expected
    assert (found == "refused") == (case not in ("sound", "another offset"))


@pytest.mark.parametrize("codec", CODECS)
def test_rules_of_the_topic(codec: int) -> None:
    expected, found = check(SOUND, codec, 503, keys=True)
    assert found == expected == (True, NOW + 502, True, [(501, NO_KEY, NOW + 501)])
    assert check(SOUND, codec, 503, largest=33 << 20) == ["refused", "refused"]


@pytest.mark.parametrize("size", [0, 500])
def test_no_more_faulty_records_are_named_than_anyone_reads(size: int) -> None:
    """In the walk over memory and in that over a stream."""
    area = b"".join(record(number, size, None) for number in range(MOST_ERRORS + 5))
    expected, found = check(area, Codec.ZSTD, MOST_ERRORS + 5, keys=True)
    assert found == expected
    assert isinstance(found, tuple) and len(found[3]) == MOST_ERRORS


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("timestamp", "first_offset"), [(NOW, 0), (NOW + 499, 0), (NOW, 502), (NOW + 502, 0), (NOW + 503, 0)]
)
def test_a_lookup_by_time_finds_the_same_record(codec: int, timestamp: int, first_offset: int) -> None:
    """In front of the large record, behind it, and nowhere."""
    body = compressed(codec, SOUND)
    data = assemble_batch(
        body,
        base_offset=0,
        leader_epoch=0,
        attributes=codec,
        last_offset_delta=502,
        base_timestamp=NOW,
        max_timestamp=NOW + 502,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=503,
    )
    batch = Batch(read_header(data, 0), data)
    wanted = max(first_offset, timestamp - NOW)
    expected = (wanted, NOW + wanted) if wanted < 503 else None
    assert search(batch, timestamp, first_offset) == record_at_time(batch, timestamp, first_offset) == expected


_BOMB = """
import resource, sys
from compactd.storage.kernel.validating import validate_batch
from compactd.storage.records.crc import crc32c
batch = bytes(61) + sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = validate_batch(batch, crc32c(batch[21:]), int(sys.argv[1]), 1, 0, None, True, -1, 1, 2**31 - 1)
print(found, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize("codec", CODECS)
def test_a_decompression_bomb_takes_little_memory(codec: int) -> None:
    """300 MB, of which less than a third may be held; Kafka reads it as a stream."""
    body = compressed(codec, record(0, 300_000_000))
    done = subprocess.run([sys.executable, "-c", _BOMB, str(int(codec))], input=body, capture_output=True, check=True)
    result, _, grown = done.stdout.decode().strip().rpartition(" ")
    assert result == "(True, 0, True, [])"
    assert int(grown) < 100, f"{grown} MiB"
