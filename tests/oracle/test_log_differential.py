"""A live log beside Kafka's: the same operations, and after each the same state, the same answers, the same files.

Every batch is made once and given to both as bytes. Reopening is orderly or as after a crash of the process.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from compactd.storage.kernel.interface import Kernel
from compactd.storage.records.builder import build_batch, control_batch
from compactd.storage.records.legacy import build_message_set
from compactd.storage.records.record import Record
from tests.oracle.driver import Oracle
from tests.oracle.live import Twins
from tests.oracle.ours import kernels
from tests.strategies import examples

pytestmark = pytest.mark.kafka

EPOCH_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LARGEST_SEQUENCE = 2**31 - 1

configs = st.fixed_dictionaries(
    {
        "internal.segment.bytes": st.sampled_from([1000, 400, 5000, 100_000]),
        "index.interval.bytes": st.sampled_from([100, 0, 1, 4096]),
        "segment.index.bytes": st.sampled_from([4096, 60]),
        "cleanup.policy": st.sampled_from(["compact", "compact", "compact,delete", "delete"]),
        "segment.ms": st.sampled_from([DAY_MS * 365, HOUR_MS]),
        "max.message.bytes": st.sampled_from([1_000_000, 300]),
        "message.timestamp.type": st.sampled_from(["CreateTime", "CreateTime", "LogAppendTime"]),
        "compression.type": st.sampled_from(["producer", "producer", "gzip", "zstd", "lz4", "uncompressed"]),
        "flush.messages": st.sampled_from([2**62, 1, 5]),
        "retention.bytes": st.sampled_from([-1, 1000, 0]),
        "retention.ms": st.sampled_from([DAY_MS, -1, 0]),
        "message.timestamp.after.max.ms": st.sampled_from([HOUR_MS, 2**62]),
        "preallocate": st.sampled_from([False, False, True]),
        "delete.retention.ms": st.sampled_from([DAY_MS, 0, HOUR_MS]),
        "min.compaction.lag.ms": st.sampled_from([0, 0, 0, HOUR_MS]),
    }
)
keys = st.sampled_from([b"a", b"b", b"c", b"", b"k" * 40])
payloads = st.sampled_from([b"v" * 20, b"", None, b"w" * 150, bytes(range(90))])
#: Relative to the clock; None: no timestamp at all.
times = st.sampled_from([0, 0, 1, -1, -HOUR_MS, 2 * HOUR_MS, -DAY_MS * 2, None])
records = st.lists(st.tuples(keys, payloads, times), min_size=1, max_size=4)
codecs = st.sampled_from([0, 0, 1, 3, 4])


class LiveLogs(RuleBasedStateMachine):
    """Rules draw what to do; `Twins` does it on both sides and compares."""

    def __init__(self, oracle: Oracle, root: Path) -> None:
        super().__init__()
        self._oracle, self._root = oracle, root
        self.leader_epoch = 0
        self.producers: dict[int, dict[str, Any]] = {}

    @initialize(config=configs)
    def start(self, config: dict[str, object]) -> None:
        self._oracle.reset()
        self.twins = Twins(self._oracle, self._root, config, EPOCH_MS)

    def teardown(self) -> None:
        if hasattr(self, "twins"):
            self.twins.finish()

    def _records(self, drawn: list[Any], base: int = 0) -> list[Record]:
        now = self.twins.now_ms
        return [
            Record(base + at, -1 if time is None else now + time, key, value)
            for at, (key, value, time) in enumerate(drawn)
        ]

    # ---- appends

    @rule(drawn=records, codec=codecs, keyless=st.sampled_from([False, False, False, True]))
    def produce(self, drawn: list[Any], codec: int, keyless: bool) -> None:
        made = self._records(drawn)
        if keyless:
            made[-1] = made[-1]._replace(key=None)
        self.twins.lead(build_batch(made, base_offset=0, codec=codec), leader_epoch=self.leader_epoch)

    @rule(
        drawn=records, damage=st.sampled_from(["crc", "count", "offset", "control", "sequence", "append time", "body"])
    )
    def produce_damaged(self, drawn: list[Any], damage: str) -> None:
        made = self._records(drawn)
        options: dict[str, Any] = {}
        if damage == "control":
            options = {"control": True, "transactional": True, "producer_id": 1, "producer_epoch": 0}
        if damage == "sequence":
            options = {"producer_id": 1, "producer_epoch": 0}
        if damage == "append time":
            options = {"log_append_time_ms": self.twins.now_ms}
        if damage == "count":
            options = {"last_offset": len(made) + 3}
        batch = bytearray(build_batch(made, base_offset=5 if damage == "offset" else 0, **_at(made, damage), **options))
        if damage == "crc":
            batch[20] ^= 1
        if damage == "body":
            batch[-1] ^= 0x40
        self.twins.lead(bytes(batch), leader_epoch=self.leader_epoch)

    @rule(
        producer=st.sampled_from([7, 8, 9]),
        drawn=records,
        codec=codecs,
        transactional=st.booleans(),
        slip=st.sampled_from(["no", "no", "no", "no", "again", "gap", "old epoch", "new epoch", "new epoch gap"]),
    )
    def produce_idempotent(self, producer: int, drawn: list[Any], codec: int, transactional: bool, slip: str) -> None:
        state = self.producers.setdefault(producer, {"epoch": 0, "next": LARGEST_SEQUENCE - 3, "last": None})
        epoch, sequence = state["epoch"], state["next"]
        if slip == "again" and state["last"] is not None:
            self.twins.lead(state["last"], leader_epoch=self.leader_epoch)
            return
        if slip == "gap":
            sequence = (sequence + 2) % (LARGEST_SEQUENCE + 1)
        if slip == "old epoch":
            epoch = max(epoch - 1, 0)
        if slip.startswith("new epoch"):
            epoch, sequence = epoch + 1, 0 if slip == "new epoch" else 3
        batch = build_batch(
            self._records(drawn),
            base_offset=0,
            codec=codec,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        if self.twins.lead(batch, leader_epoch=self.leader_epoch) is not None:
            following = (sequence + len(drawn)) % (LARGEST_SEQUENCE + 1)
            self.producers[producer] = {"epoch": epoch, "next": following, "last": batch}

    @rule(
        producer=st.sampled_from([7, 8, 9]),
        commit=st.booleans(),
        bump=st.sampled_from([0, 0, 1, -1]),
        tv=st.sampled_from([0, 1, 2]),
        coordinator_epoch=st.sampled_from([3, 3, 4, 2]),
    )
    def end_transaction(self, producer: int, commit: bool, bump: int, tv: int, coordinator_epoch: int) -> None:
        state = self.producers.setdefault(producer, {"epoch": 0, "next": 0, "last": None})
        epoch = max(state["epoch"] + bump, 0)
        marker = control_batch(
            "commit" if commit else "abort",
            0,
            self.twins.now_ms,
            producer,
            epoch,
            coordinator_epoch=coordinator_epoch,
        )
        done = self.twins.lead(marker, leader_epoch=self.leader_epoch, origin="coordinator", tv=tv)
        if done is not None:
            state["epoch"] = max(epoch, state["epoch"])
            if bump > 0:
                state["next"], state["last"] = 0, None

    @rule(drawn=records, magic=st.sampled_from([0, 1]), codec=st.sampled_from([0, 0, 1, 3]))
    def produce_legacy(self, drawn: list[Any], magic: int, codec: int) -> None:
        self.twins.lead(build_message_set(self._records(drawn), magic, codec), leader_epoch=self.leader_epoch)

    @rule(
        batches=st.lists(st.tuples(records, st.sampled_from([0, 0, 1, 50, 2**31 - 5])), min_size=1, max_size=3),
        codec=codecs,
        new_leader=st.booleans(),
        back=st.sampled_from([0, 0, 0, 0, 1]),
    )
    def replicate(self, batches: list[Any], codec: int, new_leader: bool, back: int) -> None:
        if new_leader:
            self.leader_epoch += 1
        # Kafka's index throws where a third entry of one append finds it full, with the data written and not counted.
        if self.twins.config["segment.index.bytes"] == 60:
            batches = batches[:1]
        offset = max(self.twins.ours.log_end_offset - back, 0)
        data = b""
        for drawn, gap in batches:
            # An append that spans more than a segment can hold leaves Kafka's log unable to go on.
            offset += gap if not data else min(gap, 50)
            made = self._records(drawn, offset)
            data += build_batch(made, base_offset=offset, codec=codec, leader_epoch=self.leader_epoch)
            offset += len(made)
        self.twins.follow(data)

    # ---- the log as a whole

    @rule()
    def roll(self) -> None:
        self.twins.simple("roll", lambda: self.twins.ours.roll(now_ms=self.twins.now_ms))

    @rule()
    def flush(self) -> None:
        self.twins.simple("flush", lambda: self.twins.ours.flush(self.twins.now_ms))

    @rule(back=st.sampled_from([None, 0, 1, 2, 5]))
    def high_watermark(self, back: int | None) -> None:
        at = self.twins.boundaries()
        self.twins.high_watermark(None if back is None else at[max(len(at) - 1 - back, 0)])

    @rule(percent=st.sampled_from([30, 60, 100, 120]))
    def delete_records(self, percent: int) -> None:
        log = self.twins.ours
        offset = log.log_start_offset + (log.log_end_offset - log.log_start_offset) * percent // 100 + (percent > 100)
        self.twins.simple("startOffset", lambda: log.maybe_increment_log_start_offset(offset), offset=offset)

    @rule()
    def retain(self) -> None:
        # What has no timestamp goes by the file's own time, which the two sides do not share.
        if all(segment.max_timestamp >= 0 or not segment.size for segment in self.twins.ours.segments):
            self.twins.simple("retain", lambda: self.twins.ours.delete_old_segments(self.twins.now_ms))

    @rule(
        slots=st.sampled_from([8, 30, 5000]),
        kernel=st.sampled_from(kernels()),
        roll=st.sampled_from([True, True, False]),
    )
    def clean(self, slots: int, kernel: Kernel, roll: bool) -> None:
        if roll and self.twins.ours.active_segment.size:
            self.roll()
        self.twins.clean(slots, kernel)

    @rule(
        name=st.sampled_from(["retention.bytes", "index.interval.bytes", "cleanup.policy", "compression.type"]),
        drawn=st.data(),
    )
    def reconfigure(self, name: str, drawn: st.DataObject) -> None:
        values = {
            "retention.bytes": [-1, 0, 700],
            "index.interval.bytes": [0, 100],
            "cleanup.policy": ["delete", "compact", "compact"],
            "compression.type": ["producer", "lz4", "gzip"],
        }
        self.twins.reconfigure(**{name: drawn.draw(st.sampled_from(values[name]))})

    @rule()
    def expire_producers(self) -> None:
        self.twins.simple("expireProducers", lambda: self.twins.ours.remove_expired_producers(self.twins.now_ms))

    @rule(back=st.sampled_from([0, 1, 2, 5, 50]))
    def truncate(self, back: int) -> None:
        log = self.twins.ours
        offset = max(log.log_end_offset - back, log.log_start_offset)
        self.twins.simple("truncate", lambda: log.truncate_to(offset, self.twins.now_ms), offset=offset)
        # Kafka writes the checkpoint after a truncation.
        self.twins.recovery_point = min(self.twins.recovery_point, log.recovery_point)
        self.twins.truncated(offset)
        self._forget_sequences()

    @rule(ahead=st.sampled_from([0, 5]))
    def truncate_fully(self, ahead: int) -> None:
        log = self.twins.ours
        offset = log.log_end_offset + ahead
        self.twins.simple(
            "truncateFully", lambda: log.truncate_fully_and_start_at(offset, self.twins.now_ms), offset=offset
        )
        self.twins.log_start_offset = offset
        self._forget_sequences()

    def _forget_sequences(self) -> None:
        """What a producer knows may lie beyond the log now: it starts anew."""
        for state in self.producers.values():
            state.update(epoch=state["epoch"] + 1, next=0, last=None)

    @rule(ms=st.sampled_from([1, 1000, HOUR_MS + 1, DAY_MS]))
    def tick(self, ms: int) -> None:
        self.twins.now_ms += ms

    # ---- reads

    @rule(
        percent=st.integers(0, 101),
        most=st.sampled_from([1, 100, 1000, 1 << 20]),
        isolation=st.sampled_from(["log_end", "high_watermark", "committed"]),
        at_least_one=st.booleans(),
    )
    def read(self, percent: int, most: int, isolation: str, at_least_one: bool) -> None:
        log = self.twins.ours
        offset = log.log_start_offset + (log.log_end_offset - log.log_start_offset) * percent // 100 + (percent > 100)
        self.twins.read(offset, most, isolation, at_least_one)

    @rule(time=st.sampled_from([-3, -2, -1, 0]), delta=st.sampled_from([0, 1, -1, -HOUR_MS, -DAY_MS, HOUR_MS]))
    def offset_for_timestamp(self, time: int, delta: int) -> None:
        self.twins.offset_for(time if time < 0 else self.twins.now_ms + delta)

    # ---- ends

    @rule()
    def stop_and_start(self) -> None:
        self.twins.reopen(clean=True)

    @rule(checkpointed=st.booleans())
    def crash_and_start(self, checkpointed: bool) -> None:
        self.twins.reopen(clean=False, checkpointed=checkpointed)


def _at(made: list[Record], damage: str) -> dict[str, Any]:
    if damage != "offset":
        return {}
    made[:] = [record._replace(offset=record.offset + 5) for record in made]
    return {}


def test_live_logs_agree(oracle: Oracle, fast_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    run_state_machine_as_test(
        lambda: LiveLogs(oracle, fast_dir),
        settings=settings(
            max_examples=examples(60),
            stateful_step_count=40,
            report_multiple_bugs=False,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


LEVELS = [
    *(("lz4", level) for level in (1, 3, 9, 12, 17)),
    *(("gzip", level) for level in (-1, 1, 9)),
    *(("zstd", level) for level in (-7, 1, 3, 19)),
    ("snappy", None),
]


@pytest.mark.parametrize(("codec", "level"), LEVELS)
def test_recompression_gives_kafkas_bytes(oracle: Oracle, fast_dir: Path, codec: str, level: int | None) -> None:
    """compression.type with every kind of level: the stored batch is the same, byte for byte."""
    drawn = random.Random(3)
    words = [bytes(drawn.choices(b"abcdefghij", k=drawn.randrange(2, 9))) for _ in range(300)]
    config: dict[str, object] = {"compression.type": codec}
    if level is not None:
        config[f"compression.{codec}.level"] = level
    twins = Twins(oracle, fast_dir, config, EPOCH_MS)
    made = [Record(n, EPOCH_MS + n % 7, b"k%d" % n, b" ".join(drawn.choices(words, k=40))) for n in range(400)]
    twins.lead(build_batch(made, base_offset=0))
    twins.finish()
