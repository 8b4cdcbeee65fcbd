"""Whole batches of every codec against Kafka 4.4.0's (SHA-256 of the record area it wrote for the same 700 records)."""

from __future__ import annotations

import hashlib
import zlib

import pytest
import zstandard

from compactd.storage.records.batch import HEADER_SIZE, Record, iter_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.codecs import Codec

KAFKA = {
    Codec.GZIP: (21183, "14bdc8905a005b3aebbec7e86ee80c27eb2e5371df53bfa9000cd13d8b34740b"),
    Codec.SNAPPY: (29145, "af88210979059ab6cbd3036ae467c7a2a4d891cc8809e2aa066ae3d33e27e7c1"),
    Codec.LZ4: (28243, "be32532095fc3b6d6c21a7ea9b91bd87c3f4ba397e6a5691d294575254ce2b02"),
    Codec.ZSTD: (21860, "d56a493d033d72e768d196c5daae9427047034bd247f90e44b7f3c41339f3208"),
}
OTHER_LIBRARY = {
    Codec.GZIP: "ng" in zlib.ZLIB_RUNTIME_VERSION,
    Codec.ZSTD: zstandard.ZSTD_VERSION != (1, 5, 7),
}


def documents() -> list[Record]:
    """700 records, 90 KB: JSON with repeats of every distance, and some noise."""
    state, records = 1, []
    for n in range(700):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        word = state.to_bytes(8, "big")
        name, flags = b"user-%d" % (n % 23), b"ab" * (word[0] % 40)
        value = b'{"id": %d, "name": "%s", "flags": "%s"}' % (state >> 40, name, flags) + word * (word[1] % 9)
        records.append(Record(n, 1700000000000 + n * (word[2] % 5), b"key-%d" % (word[3] % 50), value))
    return records


@pytest.mark.parametrize("codec", list(KAFKA))
def test_the_bytes_of_kafka(codec: Codec) -> None:
    if OTHER_LIBRARY.get(codec):
        pytest.skip("this Python carries another compression library than Kafka 4.4.0")
    batch = build_batch(documents(), base_offset=0, codec=codec)
    area = batch[HEADER_SIZE:]
    # The records' offsets and timestamps are relative, so their bytes are the same at any base offset.
    assert (len(area), hashlib.sha256(area).hexdigest()) == KAFKA[codec]
    (read,) = iter_batches(batch)
    read.check()
    assert read.records() == documents()
