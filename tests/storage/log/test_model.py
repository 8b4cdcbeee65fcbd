"""A live log against the simplest model of one: offset to value, and the ends of the batches."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from compactd.config.errors import OffsetOutOfRangeError
from compactd.storage.loader import load_log
from compactd.storage.log import PartitionLog, Resources
from compactd.storage.open_files import OpenFiles
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from tests.storage.log.cleaned import write_cleaned
from tests.storage.log.logs import NOW, config, contents
from tests.strategies import examples

codecs = st.sampled_from([0, 0, 1, 2, 3, 4])


class ModelledLog(RuleBasedStateMachine):
    """The log may never lose, change, repeat or invent a record."""

    @initialize(
        segment=st.sampled_from([150, 400, 5000]),
        interval=st.sampled_from([0, 100, 4096]),
        files=st.sampled_from([0, 50]),
    )
    def start(self, segment: int, interval: int, files: int) -> None:
        self.root = tempfile.TemporaryDirectory()
        self.config = config(
            internal_segment_bytes=segment, index_interval_bytes=interval, file_delete_delay_ms=0, retention_bytes=600
        )
        self.resources = Resources(files=OpenFiles(limit=files))
        self.log = PartitionLog.create(Path(self.root.name) / "t-0", self.config, now_ms=NOW, resources=self.resources)
        #: Offset to value; batches as (base, last) offsets in order.
        self.values: dict[int, bytes] = {}
        self.batches: list[tuple[int, int]] = []
        self.end = 0
        self.first = 0
        self.written = 0

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(orderly=False)
            self.root.cleanup()

    def _took(self, base: int, last: int, values: dict[int, bytes]) -> None:
        self.values.update(values)
        self.batches.append((base, last))
        self.end = last + 1
        self.log.update_high_watermark(self.end)

    @rule(count=st.integers(1, 4), codec=codecs, size=st.sampled_from([0, 5, 60]))
    def append(self, count: int, codec: int, size: int) -> None:
        values = {self.end + n: b"%d" % (self.written + n) + b"." * size for n in range(count)}
        self.written += count
        made = [Record(n, NOW + n, b"%d" % (n % 3), value) for n, value in enumerate(values.values())]
        batch = build_batch(made, base_offset=0, codec=codec)
        if len(batch) > self.config.segment_bytes:
            return
        done = self.log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
        assert (done.first_offset, done.last_offset) == (self.end, self.end + count - 1)
        self._took(self.end, self.end + count - 1, values)

    @rule(gap=st.sampled_from([1, 7, 2**31 - 2]), tail=st.integers(0, 3), codec=codecs)
    def append_with_gap(self, gap: int, tail: int, codec: int) -> None:
        base = self.end + gap
        value = b"%d" % self.written
        self.written += 1
        batch = build_batch(
            [Record(base, NOW, b"g", value)], base_offset=base, last_offset=base + tail, codec=codec, leader_epoch=0
        )
        if len(batch) > self.config.segment_bytes:
            return
        self.log.append_as_follower(batch, now_ms=NOW)
        self._took(base, base + tail, {base: value})

    @rule()
    def roll(self) -> None:
        self.log.roll(now_ms=NOW)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.first, self.end + 1))
        if self.log.truncate_to(offset, NOW):
            self.batches = [each for each in self.batches if each[1] < offset]
            kept = self.batches[-1][1] if self.batches else -1
            self.values = {at: value for at, value in self.values.items() if at <= kept}
            self.end = offset

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.first, self.end))
        self.log.maybe_increment_log_start_offset(offset)
        self.first = max(self.first, offset)

    @rule()
    def retain(self) -> None:
        self.log.delete_old_segments(NOW)
        self.log.remove_due(NOW)
        assert self.log.log_start_offset >= self.first
        self.first = self.log.log_start_offset
        bottom = self.log.segments[0].base_offset
        self.batches = [each for each in self.batches if each[0] >= bottom]
        self.values = {at: value for at, value in self.values.items() if at >= bottom}

    @rule(data=st.data(), modulus=st.sampled_from([2, 3]))
    def swap(self, data: st.DataObject, modulus: int) -> None:
        closed = [segment.base_offset for segment in self.log.segments[:-1]]
        if not closed:
            return
        at = data.draw(st.integers(0, len(closed) - 1))
        group = closed[at : at + 2]
        upper = self.log.segments[at + len(group)].base_offset
        if upper - group[0] > 2**31 - 1:
            return
        base = write_cleaned(self.log, group, lambda record: record.offset % modulus == 0)
        self.log.replace_segments([base], group, NOW)
        self.log.remove_due(NOW)
        inside = range(group[0], upper)
        self.values = {o: v for o, v in self.values.items() if o not in inside or o % modulus == 0}
        self.batches = [
            (b, e) for b, e in self.batches if b not in inside or any(o in self.values for o in range(b, e + 1))
        ]

    @rule(clean=st.booleans(), flushed=st.booleans())
    def reopen(self, clean: bool, flushed: bool) -> None:
        if flushed:
            self.log.flush()
        point = self.log.recovery_point
        self.log.close(orderly=clean)
        loaded = load_log(
            self.log.directory,
            self.config,
            clean_shutdown=clean,
            recovery_point=point,
            log_start_offset=self.first,
            now_ms=NOW,
        )
        self.log = PartitionLog(loaded, now_ms=NOW, resources=self.resources)
        if not clean or not self.batches:
            # Without a batch at its end a log ends where the last one did, or its last segment starts.
            assert self.log.log_end_offset <= self.end
            self.end = self.log.log_end_offset
        self.log.update_high_watermark(self.log.log_end_offset)
        self.end = self.log.log_end_offset
        self.first = self.log.log_start_offset

    @rule(data=st.data(), most=st.sampled_from([1, 100, 1 << 20]))
    def read(self, data: st.DataObject, most: int) -> None:
        offset = data.draw(st.integers(self.first, max(self.end, self.first)))
        expected = next((base for base, last in self.batches if last >= offset), None)
        with self.log.read(offset, most, "log_end") as fetched:
            assert (fetched.first_offset if fetched.length else None) == expected
        for outside in (self.first - 1, self.end + 1):
            try:
                self.log.read(outside, 10)
            except OffsetOutOfRangeError:
                continue
            raise AssertionError(f"offset {outside} was readable")

    @invariant()
    def holds_what_was_written(self) -> None:
        if not hasattr(self, "log"):
            return
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.first, self.end)
        found = contents(self.log)
        records = {record.offset: record.value for each in found for record in each.records()}
        # The batch that holds the log's start is given whole.
        bottom = next((base for base, last in self.batches if last >= self.first), self.end)
        assert records == {at: value for at, value in self.values.items() if at >= bottom}
        assert [(each.header.base_offset, each.header.last_offset) for each in found] == [
            each for each in self.batches if each[1] >= self.first
        ]
        assert self.log.size == sum(len(each.data) for each in contents(self.log, None)) or bottom > 0


TestModelledLog = ModelledLog.TestCase
TestModelledLog.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
