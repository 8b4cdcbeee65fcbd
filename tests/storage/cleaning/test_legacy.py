"""Message sets of magic 0 and 1 under cleaning: Kafka's LogCleanerTest and LogCleanerIntegrationTest (facts 12.1, 12.3)."""

from __future__ import annotations

import pytest

from compactd.config.errors import FaultError
from compactd.storage import names
from compactd.storage.kernel.interface import Kernel
from compactd.storage.records.batch import iter_batches
from compactd.storage.records.codecs import Codec
from compactd.storage.records.legacy import build_message_set
from compactd.storage.records.record import Record
from tests.logs import NOW_MS
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.contents import batches_of, latest_values, offsets_in, pairs_in, records_of
from tests.storage.cleaning.rounds import clean, load
from tests.storage.cleaning.short_log import ShortLog

LEGACY_CODECS = ["none", "gzip", "snappy", "lz4"]


def wrongly_cleaned(offset: int, keys: list[int], codec: int = Codec.GZIP) -> bytes:
    """What a cleaner with KAFKA-4298 wrote: a wrapper of magic 1 around messages of magic 0. Each value is its offset."""
    records = [Record(offset + n, -1, b"%d" % key, b"%d" % (offset + n)) for n, key in enumerate(keys)]
    return build_message_set(records, 1, codec, inner_magic=0)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_clean_corrupt_message_set(make_log: LogMaker, kernel: Kernel, codec: int) -> None:
    log = make_log(segment_bytes=1 << 20)
    log.append_raw(wrongly_cleaned(25, [0, 1, 0, 1], codec))
    log.append_raw(wrongly_cleaned(50, [3, 4], codec))
    log.roll()
    clean(log, kernel)
    assert offsets_in(log.directory) == [27, 28, 50, 51]
    for batch in batches_of(log.directory):
        assert batch.header.magic == 2
        for record in batch.records():
            assert record.value == b"%d" % record.offset


def test_client_handling_of_corrupt_message_set() -> None:
    (batch,) = iter_batches(wrongly_cleaned(50, list(range(1, 10))))
    assert batch.base_offset == 50
    assert [(r.offset, r.value) for r in batch.records()] == [(n, b"%d" % n) for n in range(50, 59)]


def append(log: ShortLog, magic: int, codec: str, batch_size: int, copies: int = 3, keys: int = 20) -> None:
    """`copies` times the same keys with new values, in batches of `batch_size` records."""
    for _ in range(copies):
        for start in range(0, keys, batch_size):
            first = log.end_offset
            items = [(start + n, f"value-{first + n}", -1 if magic == 0 else log.now_ms) for n in range(batch_size)]
            append_time = log.now_ms if magic > 0 else None
            log.append(*items, codec=codec, magic=magic, log_append_time_ms=append_time)


@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_cleaner_with_message_format_v0_v1_v2(make_log: LogMaker, kernel: Kernel, codec: str) -> None:
    """V0, then V1 and V2 duplicates, LogAppendTime: all that is left is V2; what was V0 has CreateTime and no time."""
    log = make_log(segment_bytes=2048)
    append(log, 0, codec, batch_size=1, copies=3, keys=100)
    log.roll()
    log.close()
    before = latest_values(log.directory)
    dirty = clean(log, kernel).next_dirty
    assert latest_values(log.directory) == before
    check_converted(log, times={"CreateTime": {-1}})
    assert [len(batch.records()) for batch in batches_of(log.directory)] == [1] * 100

    append(log, 0, codec, batch_size=1, copies=2, keys=40)
    append(log, 1, codec, batch_size=1, copies=2, keys=40)
    append(log, 2, codec, batch_size=1, copies=2, keys=40)
    log.roll()
    log.close()
    before = latest_values(log.directory)
    clean(log, kernel, first=dirty)
    assert latest_values(log.directory) == before
    # Keys 0 to 39 have V2 records now, of LogAppendTime; 40 to 99 are those that were V0.
    check_converted(log, times={"CreateTime": {-1}, "LogAppendTime": {log.now_ms}})
    assert len(list(batches_of(log.directory))) == 100


def check_converted(log: ShortLog, times: dict[str, set[int]]) -> None:
    found: dict[str, set[int]] = {}
    for batch in batches_of(log.directory):
        assert batch.header.magic == 2
        found.setdefault(batch.header.timestamp_type, set()).update(r.timestamp for r in batch.records())
        assert batch.header.max_timestamp == max(record.timestamp for record in batch.records())
    assert found == times


@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_cleaning_nested_messages_with_v0_v1(make_log: LogMaker, kernel: Kernel, codec: str) -> None:
    """The same for sets of several records: a compressed wrapper becomes one batch, a plain message one each."""
    log = make_log(segment_bytes=256, max_message_bytes=192)
    append(log, 0, codec, batch_size=4, copies=2)
    append(log, 0, codec, batch_size=4, copies=2, keys=12)
    append(log, 1, codec, batch_size=5, copies=2, keys=10)
    log.roll()
    log.close()
    before, offsets = latest_values(log.directory), latest_offsets(log)
    clean(log, kernel)
    assert latest_values(log.directory) == before
    assert offsets_in(log.directory) == sorted(offsets.values())
    sizes = [len(batch.records()) for batch in batches_of(log.directory)]
    assert set(sizes) == ({1} if codec == "none" else {2, 4, 5})
    check_converted(log, times={"CreateTime": {-1}, "LogAppendTime": {log.now_ms}})


def latest_offsets(log: ShortLog) -> dict[bytes | None, int]:
    return {record.key: record.offset for record in records_of(log.directory)}


@pytest.mark.parametrize("codec", LEGACY_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_legacy_records_that_change_nothing_become_v2_too(
    make_log: LogMaker, kernel: Kernel, magic: int, codec: str
) -> None:
    log = make_log()
    append(log, magic, codec, batch_size=5, copies=1)
    log.roll()
    log.close()
    before = pairs_in(log.directory)
    clean(log, kernel)
    assert pairs_in(log.directory) == before
    assert {batch.header.magic for batch in batches_of(log.directory)} == {2}


@pytest.mark.parametrize(("age_ms", "kept"), [(-1, True), (0, False), (1, False)])
def test_legacy_tombstones_go_by_the_time_of_the_last_clean_segment(
    make_log: LogMaker, kernel: Kernel, age_ms: int, kept: bool
) -> None:
    """A legacy tombstone goes when its source was modified no later than the clean section's end less delete.retention.ms."""
    import os  # noqa: PLC0415

    log = make_log(delete_retention_ms=1000)
    log.append(("a", None), magic=1)
    log.roll()
    log.append(("b", "1"))
    log.roll()
    log.append(("c", "1"))
    log.roll()
    log.close()
    partition = load(log, now_ms=NOW_MS)
    # The last segment below the first dirty offset is the one at 1.
    for base, modified in ((0, NOW_MS - 1000 - age_ms), (1, NOW_MS)):
        os.utime(log.directory / names.log_name(base), ns=(modified * 10**6, modified * 10**6))
    partition = load(log, now_ms=NOW_MS)
    clean(log, kernel, first=2, now_ms=NOW_MS, partition=partition)
    assert [key for key, _, _ in pairs_in(log.directory)] == (["a"] if kept else []) + ["b", "c"]


def test_a_legacy_batch_that_has_to_stay_empty_is_refused_as_in_kafka(make_log: LogMaker, kernel: Kernel) -> None:
    """It ends at the high watermark and loses its only record: magic 1 has no empty batches. More data mends that."""
    log = make_log()
    log.append((None, "keyless"), magic=1)
    log.roll()
    with pytest.raises(FaultError, match="no empty batches"):
        clean(log, kernel)
    assert not list(log.directory.glob("*.cleaned"))
    log.append(("a", "1"))
    log.roll()
    clean(log, kernel)
    assert pairs_in(log.directory) == [("a", "1", 1)]
