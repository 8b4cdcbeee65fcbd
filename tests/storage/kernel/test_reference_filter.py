"""What becomes of each batch in pass two (facts 5.6, 5.7, 6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactd.config.errors import CorruptBatchError, FaultError
from compactd.storage.kernel.interface import AbortedTransaction, ActiveProducer
from compactd.storage.records.batch import Record
from compactd.storage.records.builder import build_batch, control_batch, empty_batch
from compactd.storage.records.codecs import Codec
from compactd.storage.records.legacy import build_message, build_message_set
from tests.storage.kernel.reference_support import NOW, batches, begin, clean, contents, offsets, plain, segment

GOLDEN_HORIZON = (
    "00000000000000040000003e0000000002062cd18a0040000000000000018bcfe56be80000000000000190"
    "ffffffffffffffffffffffffffff000000011800afa9abfef9620002620100"
)
GOLDEN_EMPTY = (
    "000000000000000700000031000000010294928148000000000000ffffffffffffffff0000000000000258"
    "000000000000000900000000000000000000"
)


class TestRecords:
    def test_the_latest_of_each_key_stays(self, tmp_path: Path) -> None:
        source = segment(tmp_path, plain(0, (b"a", b"1"), (b"b", b"2")), plain(2, (b"a", b"3"), (b"c", b"4")))
        result, data = clean([source])
        assert contents(data) == [(1, b"b", b"2"), (2, b"a", b"3"), (3, b"c", b"4")]
        stats = result.stats
        assert (stats.messages_read, stats.messages_written, stats.superseded) == (4, 3, 1)
        assert (stats.batches_read, stats.batches_copied, stats.batches_rewritten) == (2, 1, 1)
        assert stats.bytes_read == source.size

    def test_a_batch_without_latest_records_goes(self, tmp_path: Path) -> None:
        result, data = clean([segment(tmp_path, plain(0, (b"a", b"1")), plain(1, (b"a", b"2")))])
        assert offsets(data) == [1]
        assert result.stats.messages_read == 2

    def test_empty_keys_are_keys_and_null_keys_are_invalid(self, tmp_path: Path) -> None:
        source = segment(tmp_path, plain(0, (b"", b"1"), (None, b"2"), (b"", b"3"), (None, None)))
        result, data = clean([source])
        assert contents(data) == [(2, b"", b"3")]
        assert result.stats.invalid_messages_read == 2
        assert result.stats.tombstones_read == 0

    def test_records_beyond_the_map_stay_whatever_they_are(self, tmp_path: Path) -> None:
        source = segment(tmp_path, plain(0, (b"a", b""), (b"b", b""), (b"c", b""), (None, b""), (b"a", b"")))
        _, data = clean([source], map_memory_bytes=72, map_load_factor=0.9, kafka_map=True)
        assert offsets(data) == [0, 1, 2, 3, 4]

    def test_records_below_the_dirty_section_go_when_their_key_is_in_the_map(self, tmp_path: Path) -> None:
        source = segment(tmp_path, plain(0, (b"a", b"1"), (b"b", b"2")), plain(2, (b"a", b"3")))
        _, data = clean([source], first_dirty_offset=2)
        assert offsets(data) == [1, 2]


class TestRewrite:
    def test_everything_but_records_and_times_is_kept(self, tmp_path: Path) -> None:
        made = [
            Record(10, 500, b"a", b"1"),
            Record(12, 300, b"b", b"2", ((b"h", b"x"), (b"h", None))),
            Record(13, 400, b"c", b"3"),
        ]
        batch = build_batch(
            made,
            base_offset=9,
            last_offset=20,
            codec=Codec.ZSTD,
            leader_epoch=6,
            producer_id=77,
            producer_epoch=3,
            base_sequence=2147483640,
            max_timestamp=9999,
        )
        source = segment(tmp_path, batch, plain(21, (b"a", b"4")))
        _, data = clean([source])
        expected = build_batch(
            made[1:],
            base_offset=9,
            last_offset=20,
            codec=Codec.ZSTD,
            leader_epoch=6,
            producer_id=77,
            producer_epoch=3,
            base_sequence=2147483640,
        )
        assert data == expected + plain(21, (b"a", b"4"))
        header = batches(data)[0].header
        assert (header.base_timestamp, header.max_timestamp) == (300, 400)
        assert header.last_sequence == 2147483640 + 11 - 2147483648

    def test_append_time_and_its_type_are_kept(self, tmp_path: Path) -> None:
        batch = plain(0, (b"a", b"1"), (b"b", b"2"), log_append_time_ms=777)
        _, data = clean([segment(tmp_path, batch, plain(2, (b"a", b"3")))])
        first = batches(data)[0]
        assert first.header.timestamp_type == "LogAppendTime"
        assert (first.header.base_timestamp, first.header.max_timestamp) == (777, 777)
        assert [r.timestamp for r in first.records()] == [777]

    def test_a_batch_kept_whole_is_copied_with_its_own_bytes(self, tmp_path: Path) -> None:
        """Another encoder's bytes, unused attribute bits and record attributes survive; a rewrite would lose them."""
        import zlib  # noqa: PLC0415  stored blocks: no encoder of records writes these

        plain_batch = plain(1, (b"k", b"v"))
        deflate = zlib.compressobj(0, zlib.DEFLATED, 31)
        body = deflate.compress(plain_batch[61:]) + deflate.flush()
        foreign = _reframe(plain_batch, 0x4101 & ~0x4000 | Codec.GZIP, body)
        _, data = clean([segment(tmp_path, plain(0, (b"x", b"1")), foreign, plain(2, (b"x", b"2")))])
        assert foreign in data
        assert offsets(data) == [1, 2]

    def test_header_keys_that_are_not_utf8_become_what_kafka_makes_of_them(self, tmp_path: Path) -> None:
        made = [Record(0, 0, b"a", b"1"), Record(1, 0, b"b", b"2", ((b"\xffkey\xe2\x82", b"\xff"),))]
        _, data = clean([segment(tmp_path, build_batch(made, base_offset=0), plain(2, (b"a", b"3")))])
        assert batches(data)[0].records()[0].headers == (("\ufffdkey\ufffd".encode(), b"\xff"),)

    def test_timestamps_that_kafka_cannot_write_are_a_fault(self, tmp_path: Path) -> None:
        made = bytearray(plain(0, (b"a", b"1"), (b"b", b"2"), ts=0))
        made[27:35] = (-50).to_bytes(8, "big", signed=True)
        batch = _reframe(bytes(made), 0, bytes(made[61:]))
        whole, _ = clean([segment(tmp_path, batch)])
        assert whole.unchanged
        with pytest.raises(
            CorruptBatchError, match="cannot be rewritten: the record at offset 1 has the timestamp -49"
        ):
            clean([segment(tmp_path, batch, plain(2, (b"a", b"3")))])


def _reframe(batch: bytes, attributes: int, body: bytes) -> bytes:
    """The batch with other attributes and another record area, and the CRC that fits."""
    from compactd.storage.records.crc import crc32c  # noqa: PLC0415

    checked = attributes.to_bytes(2, "big") + batch[23:61] + body
    head = batch[:8] + (61 + len(body) - 12).to_bytes(4, "big") + batch[12:17]
    return head + crc32c(checked).to_bytes(4, "big") + checked


class TestTombstones:
    def test_golden_rewrite(self, tmp_path: Path) -> None:
        tombstone = build_batch([Record(4, 400, b"b", None)], base_offset=4, leader_epoch=0)
        result, data = clean([segment(tmp_path, tombstone)])
        assert data.hex() == GOLDEN_HORIZON
        assert (result.stats.tombstones_read, result.stats.tombstones_expired) == (1, 0)

    @pytest.mark.parametrize(("now", "kept"), [(NOW + 999, True), (NOW + 1000, False), (NOW + 1001, False)])
    def test_at_the_horizon_it_goes(self, tmp_path: Path, now: int, kept: bool) -> None:
        source = segment(tmp_path, bytes.fromhex(GOLDEN_HORIZON), base=4)
        result, data = clean([source], now_ms=now)
        assert data == (bytes.fromhex(GOLDEN_HORIZON) if kept else b"")
        assert result.unchanged is kept
        assert result.stats.tombstones_expired == (not kept)

    def test_an_old_horizon_is_neither_moved_nor_lost(self, tmp_path: Path) -> None:
        batch = plain(0, (b"a", b"1"), (b"b", None), (b"c", b"3"), delete_horizon_ms=NOW + 5)
        source = segment(tmp_path, batch, plain(3, (b"a", b"4")))
        _, data = clean([source], delete_retention_ms=99999)
        first = batches(data)[0]
        assert first.header.delete_horizon_ms == NOW + 5
        assert [(r.offset, r.timestamp) for r in first.records()] == [(1, 101), (2, 102)]
        _, later = clean([segment(tmp_path, data, base=0)], now_ms=NOW + 5)
        assert contents(later) == [(2, b"c", b"3"), (3, b"a", b"4")]
        assert batches(later)[0].header.delete_horizon_ms == NOW + 5, "though no tombstone is left in the batch"

    def test_a_horizon_alone_forces_a_rewrite(self, tmp_path: Path) -> None:
        result, data = clean([segment(tmp_path, plain(0, (b"a", b"1"), (b"b", None)))])
        assert (result.stats.batches_rewritten, result.unchanged) == (1, False)
        assert batches(data)[0].header.delete_horizon_ms == NOW + 1000

    def test_retention_without_end_gives_no_horizon(self, tmp_path: Path) -> None:
        """now + delete.retention.ms passes Java's long: Kafka rewrites the batch, without the flag."""
        _, data = clean([segment(tmp_path, plain(0, (b"a", None)))], delete_retention_ms=(1 << 63) - 1)
        assert batches(data)[0].header.delete_horizon_ms is None
        assert contents(data) == [(0, b"a", None)]

    def test_superseded_tombstones_do_not_count_as_expired(self, tmp_path: Path) -> None:
        batch = plain(0, (b"a", None), delete_horizon_ms=1)
        result, data = clean([segment(tmp_path, batch, plain(1, (b"a", b"2")))])
        assert offsets(data) == [1]
        assert (result.stats.superseded, result.stats.tombstones_expired) == (1, 0)


class TestEmptyBatches:
    def test_golden_at_the_high_watermark(self, tmp_path: Path) -> None:
        batch = build_batch(
            [Record(7, 600, b"a", b"v")],
            base_offset=7,
            leader_epoch=1,
            producer_id=9,
            producer_epoch=0,
            base_sequence=0,
        )
        source = segment(tmp_path, batch, base=7)
        done = begin(high_watermark=8)
        newer = segment(tmp_path, plain(8, (b"a", b"2")))
        done.build_map([source, newer], [])
        from tests.storage.kernel.reference_support import Sink  # noqa: PLC0415

        sink = Sink()
        result = done.clean_group([source], {}, sink)
        assert sink.data.hex() == GOLDEN_EMPTY
        assert (result.stats.batches_emptied, result.stats.messages_written, result.stats.bytes_written) == (1, 0, 61)

    @pytest.mark.parametrize(("high_watermark", "kept"), [(1, [0]), (2, []), (3, [])])
    def test_only_the_batch_that_ends_at_the_high_watermark(
        self, tmp_path: Path, high_watermark: int, kept: list[int]
    ) -> None:
        source = segment(tmp_path, plain(0, (b"a", b"1")), plain(1, (b"a", b"2")))
        _, data = clean([source], high_watermark=high_watermark)
        assert [b.header.last_offset for b in batches(data)] == [*kept, 1]

    def test_one_that_is_empty_already_is_kept_or_dropped(self, tmp_path: Path) -> None:
        (batch,) = batches(plain(0, (b"a", b"1"), producer_id=5, producer_epoch=0, base_sequence=3))
        empty = empty_batch(batch.header)
        result, data = clean([segment(tmp_path, empty)], active={5: ActiveProducer(0, 0)})
        assert data == empty
        assert result.unchanged
        assert (result.stats.batches_copied, result.stats.batches_emptied) == (1, 0)
        assert clean([segment(tmp_path, empty)])[1] == b""

    @pytest.mark.parametrize(
        ("active", "kept"),
        [
            ({5: ActiveProducer(1, 0)}, True),
            ({5: ActiveProducer(1, 9)}, True),
            ({5: ActiveProducer(4, 0)}, False),
            ({6: ActiveProducer(1, 0)}, False),
            ({5: ActiveProducer(None, 0)}, False),
            ({}, False),
        ],
    )
    def test_the_last_data_batch_of_an_active_producer(
        self, tmp_path: Path, active: dict[int, ActiveProducer], kept: bool
    ) -> None:
        batch = plain(0, (b"a", b"1"), (b"b", b"1"), producer_id=5, producer_epoch=0, base_sequence=0)
        source = segment(tmp_path, batch, plain(2, (b"a", b"2"), (b"b", b"2")))
        _, data = clean([source], active=active)
        assert [(b.header.last_offset, b.header.record_count) for b in batches(data)] == [(1, 0)] * kept + [(3, 2)]

    def test_batches_without_a_producer_do_not_match_one(self, tmp_path: Path) -> None:
        source = segment(tmp_path, plain(0, (b"a", b"1")), plain(1, (b"a", b"2")))
        _, data = clean([source], active={-1: ActiveProducer(0, -1)})
        assert offsets(data) == [1]

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
    def test_message_sets_have_none(self, tmp_path: Path, codec: Codec) -> None:
        source = segment(tmp_path, build_message_set([Record(3, 0, None, b"no key")], 1, codec), base=3)
        assert clean([source])[1] == b""
        with pytest.raises(FaultError, match="magic 1 has no empty batches"):
            clean([source], high_watermark=4)


class TestTransactions:
    ABORTED = AbortedTransaction(5, 0, 2, 3)

    def data(self, *keys: bytes, at: int = 0) -> bytes:
        return plain(
            at, *[(key, b"v") for key in keys], producer_id=5, producer_epoch=0, base_sequence=at, transactional=True
        )

    def test_abort_in_three_rounds(self, tmp_path: Path) -> None:
        """testAbortMarkerRemoval: the data goes, then the marker gets its horizon, then it goes."""
        marker = control_batch("abort", 2, 50, 5, 0)
        source = segment(tmp_path, self.data(b"a", b"b"), marker, plain(3, (b"c", b"1")), aborted=(self.ABORTED,))
        result, first = clean([source], aborted=[self.ABORTED])
        assert offsets(first) == [2, 3]
        assert (
            result.transaction_index.hex()
            == "00000000000000000005" + "0" * 16 + "0000000000000002" + "0000000000000003"
        )
        assert (result.stats.aborted, result.stats.messages_read) == (2, 2)

        result, second = clean([segment(tmp_path, first, base=0, aborted=(self.ABORTED,))])
        assert result.transaction_index == b""
        header = batches(second)[0].header
        assert (header.size, header.delete_horizon_ms) == (83, NOW + 1000)
        unchanged, same = clean([segment(tmp_path, second, base=0)], now_ms=NOW + 999)
        assert same == second
        assert unchanged.unchanged
        result, third = clean([segment(tmp_path, second, base=0)], now_ms=NOW + 1000)
        assert offsets(third) == [3]
        assert result.stats.markers_removed == 1

    def test_a_commit_marker_stays_while_a_batch_is_seen_be_it_empty(self, tmp_path: Path) -> None:
        source = segment(tmp_path, self.data(b"a"), control_batch("commit", 1, 50, 5, 0), plain(2, (b"a", b"2")))
        _, first = clean([source], active={5: ActiveProducer(0, 0)})
        assert [(b.header.last_offset, b.header.record_count) for b in batches(first)] == [(0, 0), (1, 1), (2, 1)]
        result, second = clean([segment(tmp_path, first, base=0)], active={5: ActiveProducer(0, 0)})
        assert second == first
        assert result.unchanged
        _, third = clean([segment(tmp_path, first, base=0)], now_ms=NOW)
        assert [b.header.last_offset for b in batches(third)] == [1, 2]
        assert batches(third)[0].header.delete_horizon_ms is None

    def test_a_removed_marker_that_is_all_the_log_knows_of_a_producer_becomes_empty(self, tmp_path: Path) -> None:
        marker = control_batch("commit", 0, 50, 5, 2)
        _, first = clean([segment(tmp_path, marker)], active={5: ActiveProducer(None, 2)})
        result, second = clean([segment(tmp_path, first)], active={5: ActiveProducer(None, 2)}, now_ms=NOW + 1000)
        (batch,) = batches(second)
        assert batch.header.is_control
        assert (batch.header.record_count, batch.header.max_timestamp, batch.header.attributes) == (0, 50, 0x30)
        assert (result.stats.messages_read, result.stats.markers_removed) == (1, 1)
        again, same = clean([segment(tmp_path, second)], active={5: ActiveProducer(None, 2)}, now_ms=NOW + 9999)
        assert same == second
        assert again.unchanged
        _, gone = clean([segment(tmp_path, first)], active={5: ActiveProducer(None, 1)}, now_ms=NOW + 1000)
        assert gone == b"", "another epoch"

    def test_the_last_batch_of_an_aborted_transaction_may_stay_empty(self, tmp_path: Path) -> None:
        source = segment(tmp_path, self.data(b"a", b"b"), control_batch("abort", 2, 50, 5, 0), aborted=(self.ABORTED,))
        result, data = clean([source], aborted=[self.ABORTED], active={5: ActiveProducer(1, 0)})
        assert [(b.header.last_offset, b.header.record_count) for b in batches(data)] == [(1, 0), (2, 1)]
        assert (result.stats.messages_read, result.stats.aborted) == (3, 2)
        again, same = clean([segment(tmp_path, data, aborted=(self.ABORTED,))], active={5: ActiveProducer(1, 0)})
        assert same == data
        assert len(again.transaction_index) == 34

    def test_keys_that_look_like_a_marker_are_keys(self, tmp_path: Path) -> None:
        """testCleaningWithKeysConflictingWithTxnMarkerKeys"""
        key = b"\0\0\0\1"
        source = segment(
            tmp_path, plain(0, (key, b"1")), self.data(b"x", at=1), control_batch("commit", 2, 0, 5, 0), base=0
        )
        assert offsets(clean([source])[1]) == [0, 1, 2]

    def test_a_transaction_goes_on_in_the_next_group(self, tmp_path: Path) -> None:
        first = segment(tmp_path, self.data(b"a"), next_offset=1)
        second = segment(tmp_path, control_batch("commit", 1, 50, 5, 0), plain(2, (b"a", b"2")))
        done = begin()
        done.build_map([first, second], [])
        done.clean_group([first], {}, None)
        assert done.clean_group([second], {}, None).unchanged, "the marker's batch was seen in the group before"


class TestMessageSets:
    @pytest.mark.parametrize("magic", [0, 1])
    def test_plain_records_become_a_batch_each(self, tmp_path: Path, magic: int) -> None:
        made = [Record(5, 40, b"a", b"1"), Record(6, 30, b"b", b"2")]
        result, data = clean([segment(tmp_path, build_message_set(made, magic), base=5)])
        stamped = made if magic else [r._replace(timestamp=-1) for r in made]
        assert data == b"".join(build_batch([r], base_offset=r.offset) for r in stamped)
        assert (result.stats.batches_rewritten, result.unchanged) == (2, False)

    @pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
    @pytest.mark.parametrize("magic", [0, 1])
    def test_a_wrapper_becomes_one_batch_of_what_is_retained(self, tmp_path: Path, magic: int, codec: Codec) -> None:
        made = [Record(5 + n, 40 + n, key, b"v") for n, key in enumerate([b"a", b"b", b"a", b"c", None])]
        _, data = clean([segment(tmp_path, build_message_set(made, magic, codec), base=5)])
        retained = [r if magic else r._replace(timestamp=-1) for r in made[1:4]]
        assert data == build_batch(retained, base_offset=6, codec=codec)

    def test_append_time(self, tmp_path: Path) -> None:
        made = [Record(5, 40, b"a", b"1"), Record(6, 30, b"b", b"2")]
        _, data = clean([segment(tmp_path, build_message_set(made, 1, Codec.GZIP, log_append_time_ms=99), base=5)])
        (batch,) = batches(data)
        assert batch.header.timestamp_type == "LogAppendTime"
        assert (batch.header.max_timestamp, [r.timestamp for r in batch.records()]) == (99, [99, 99])

    @pytest.mark.parametrize("retain", [True, False])
    def test_tombstones_go_by_the_age_of_their_file(self, tmp_path: Path, retain: bool) -> None:
        made = [Record(0, 40, b"a", None), Record(1, 30, b"b", b"2")]
        source = segment(tmp_path, build_message_set(made, 1, Codec.GZIP), base=0, retain_legacy_tombstones=retain)
        _, data = clean([source])
        assert offsets(data) == ([0, 1] if retain else [1])
        assert batches(data)[0].header.delete_horizon_ms == (NOW + 1000 if retain else None)

    def test_a_wrapper_of_old_cleaners_with_foreign_records(self, tmp_path: Path) -> None:
        """testCleanCorruptMessageSet (KAFKA-4298)"""
        made = [Record(7, 40, b"a", b"1"), Record(8, 30, b"b", b"2")]
        _, data = clean([segment(tmp_path, build_message_set(made, 1, Codec.GZIP, inner_magic=0), base=7)])
        assert data == build_batch([r._replace(timestamp=-1) for r in made], base_offset=7, codec=Codec.GZIP)

    def test_inner_offsets_that_do_not_increase_are_damage(self, tmp_path: Path) -> None:
        from compactd.storage.records.codecs import compress  # noqa: PLC0415

        inner = b"".join(build_message(Record(n, 1, b"%d" % n, b"v"), 0) for n in (6, 5))
        wrapper = build_message(Record(6, 1, None, compress(Codec.GZIP, inner)), 0, Codec.GZIP)
        with pytest.raises(CorruptBatchError, match="an inner record of offset 5 after 6"):
            clean([segment(tmp_path, wrapper, base=5)])
