"""The same live log twice: Kafka's through the oracle and compactd's, driven with the same operations and bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compactd.config.errors import CompactdError
from compactd.config.settings import TopicConfig
from compactd.storage import names
from compactd.storage.cleaning.cleanable import log_to_clean, offsets_to_clean
from compactd.storage.cleaning.round import CleaningRound, RoundOptions, add_stats
from compactd.storage.kernel.interface import CopyStats, Kernel
from compactd.storage.loader import load_log
from compactd.storage.log import PartitionLog
from compactd.storage.producer_append import Origin
from compactd.storage.producers import ProducerState
from compactd.storage.segment import LogSegment
from compactd.workers.cleaner import LeasedPartition
from tests.oracle.driver import Answer, Oracle, OracleError, decode, encode, topic_settings
from tests.oracle.ours import hides_commits
from tests.oracle.replay import KAFKA_SLOT_BYTES

PARTITION = "t-0"

#: Kafka's exceptions and the errors that stand for them here.
ERRORS = {
    "RecordTooLargeException": {"MessageTooLargeError"},
    "RecordBatchTooLargeException": {"RecordListTooLargeError"},
    "CorruptRecordException": {"CorruptMessageError"},
    "InvalidRecordException": {"InvalidRecordError"},
    "RecordValidationException": {"InvalidRecordError", "InvalidTimestampError"},
    "InvalidTimestampException": {"InvalidTimestampError"},
    "OutOfOrderSequenceException": {"OutOfOrderSequenceError"},
    "InvalidProducerEpochException": {"InvalidProducerEpochError"},
    "InvalidTxnStateException": {"InvalidTransactionStateError"},
    "TransactionCoordinatorFencedException": {"TransactionCoordinatorFencedError"},
    "UnexpectedAppendOffsetException": {"UnexpectedOffsetError"},
    "OffsetsOutOfOrderException": {"UnexpectedOffsetError"},
    "OffsetOutOfRangeException": {"OffsetOutOfRangeError"},
}

#: Operations with which Kafka finds out anew which transaction is the first that is open.
_LOOKS_AGAIN = frozenset({"lead", "appendRaw", "highWatermark", "startOffset", "truncateFully"})


@dataclass
class Twins:
    """Both logs. Every operation goes to both, and both have to answer the same, or refuse for the same reason."""

    oracle: Oracle
    root: Path
    config: dict[str, object]
    now_ms: int
    log: PartitionLog | None = None
    #: What the checkpoints of a log dir would say.
    recovery_point: int = 0
    log_start_offset: int = 0
    #: The cleaner's.
    cleaned_to: int | None = None
    #: Whether the high watermark goes along with the log's end, as on a single broker.
    follows: bool = True
    #: An operation is under way, or ended with the two logs apart.
    apart: bool = False
    #: After a truncation: Kafka may take transactions for stable that are not.
    forgetful: bool = False
    #: After a truncation: Kafka may tell the last stable offset of before.
    stale: bool = False
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for side in (self.kafka_dir, self.our_dir):
            shutil.rmtree(side.parent, ignore_errors=True)
            side.parent.mkdir(parents=True)
        self.oracle.open(self.kafka_dir, self.config, now=self.now_ms)
        self.log = PartitionLog.create(self.our_dir, self._our_config(), now_ms=self.now_ms)
        self.compare_state()

    @property
    def kafka_dir(self) -> Path:
        return self.root / "kafka" / PARTITION

    @property
    def our_dir(self) -> Path:
        return self.root / "ours" / PARTITION

    @property
    def ours(self) -> PartitionLog:
        assert self.log is not None
        return self.log

    def _our_config(self) -> TopicConfig:
        return TopicConfig.from_strings(topic_settings(self.config), "test")

    # ---- operations

    def lead(
        self, batch: bytes, *, leader_epoch: int = 0, origin: str = "client", tv: int | None = None
    ) -> Answer | None:
        """A produce; None when both refused it."""
        fields: dict[str, Any] = {"bytes": encode(batch), "leaderEpoch": leader_epoch, "origin": origin}
        if tv is not None:
            fields["tv"] = tv

        def mine() -> Answer:
            done = self.ours.append_as_leader(
                batch,
                leader_epoch=leader_epoch,
                now_ms=self.now_ms,
                origin=Origin(origin),
                transaction_version=(0 if origin == "client" else 1) if tv is None else tv,
            )
            self._appended()
            return {
                "firstOffset": done.first_offset,
                "lastOffset": done.last_offset,
                "logStartOffset": done.log_start_offset,
                "logAppendTime": done.log_append_time,
                **({} if done.duplicate else {"maxTimestamp": done.max_timestamp}),
            }

        return self._both("lead", fields, mine)

    def follow(self, batches: bytes) -> None:
        """A replica's append, offsets as they are."""

        def mine() -> Answer:
            self.ours.append_as_follower(batches, now_ms=self.now_ms)
            self._appended()
            return {}

        self._both("appendRaw", {"bytes": encode(batches)}, mine)

    def _appended(self) -> None:
        if self.follows:
            self.ours.update_high_watermark(self.ours.log_end_offset)

    def boundaries(self) -> list[int]:
        """Base offsets of all batches, and the log's end: where a high watermark may be.

        Of one inside a batch Kafka makes the batch's base offset at the next fetch.
        """
        log = self.ours
        found = [header.base_offset for segment in log.segments for header in segment.headers()]
        return [offset for offset in found if offset >= log.log_start_offset] + [log.log_end_offset]

    def high_watermark(self, offset: int | None) -> None:
        """Sets it, and keeps appends from moving it; None: it is at the log's end, and follows it."""
        self.follows = offset is None
        target = self.ours.log_end_offset if offset is None else offset
        self.simple("highWatermark", lambda: self.ours.update_high_watermark(target), offset=offset)

    def simple(self, op: str, run: Callable[[], object], **fields: Any) -> Answer | None:
        """An operation whose answer does not matter beyond the state after it."""

        def mine() -> Answer:
            run()
            self.forgetful |= op == "truncate"
            self.ours.save()  # Kafka's background writes happen at once here
            return {}

        if op == "truncate":
            self.stale = True
        return self._both(op, fields, mine)

    def _both(self, op: str, fields: dict[str, Any], mine: Callable[[], Answer]) -> Answer | None:
        self.apart = True
        answer = self._answer(op, fields, mine)
        self.compare_state()
        self.apart = False
        return answer

    def _answer(self, op: str, fields: dict[str, Any], mine: Callable[[], Answer]) -> Answer | None:
        self.history.append(f"{op} { ({k: v for k, v in fields.items() if k != 'bytes'}) } at {self.now_ms}")
        theirs: Answer | None = None
        refused: str | None = None
        reason = ""
        try:
            theirs = self.oracle.request(op, now=self.now_ms, **fields)
        except OracleError as error:
            refused, reason = error.kind, error.message
        try:
            answer = mine()
        except CompactdError as error:
            assert refused is not None, f"only compactd refused: {error!r} after\n{self.story()}"
            allowed = ERRORS.get(refused, set())
            assert type(error).__name__ in allowed, f"Kafka: {refused} {reason}; compactd: {error!r}"
            return None
        assert refused is None, f"only Kafka refused: {refused} {reason} after\n{self.story()}"
        assert theirs is not None
        self.stale &= op not in _LOOKS_AGAIN
        for key, value in answer.items():
            expected = theirs.get(key, [] if key == "aborted" else None)
            assert expected == value, f"{op} {key}: Kafka {expected}, compactd {value} after\n{self.story()}"
        return theirs

    def reconfigure(self, **changes: object) -> None:
        self.config = {**self.config, **changes}
        self.simple("config", lambda: self.ours.update_config(self._our_config()), config=topic_settings(self.config))

    def read(self, offset: int, most: int, isolation: str, at_least_one: bool) -> None:
        """A fetch has to give the same bytes and the same aborted transactions."""

        def mine() -> Answer:
            with self.ours.read(offset, most, isolation, at_least_one) as fetched:  # type: ignore[arg-type]
                answer: Answer = {"bytes": encode(fetched.read())}
                if fetched.aborted is not None:
                    answer["aborted"] = [[each.producer_id, each.first_offset] for each in fetched.aborted]
            return answer

        self._both("read", {"offset": offset, "maxBytes": most, "isolation": isolation, "minOne": at_least_one}, mine)

    def offset_for(self, timestamp: int) -> None:
        def mine() -> Answer:
            found = self.ours.offset_for_timestamp(timestamp)
            if found is None:
                return {}
            return {"timestamp": found.timestamp, "offset": found.offset, "leaderEpoch": found.leader_epoch}

        theirs = self.oracle.request("offsetForTimestamp", timestamp=timestamp, now=self.now_ms)
        found = mine()
        assert found == theirs, f"timestamp {timestamp}: Kafka {theirs}, compactd {found} after\n{self.story()}"

    # ---- cleaning

    def clean(self, slots: int, kernel: Kernel) -> bool:
        """One round over what may be cleaned, its groups swapped in under the open log; whether there was something.

        `slots`: of the map, as Kafka counts them.
        """
        log, now = self.ours, self.now_ms
        # A broker forgets expired producers every ten minutes; the cleaner asks for those that it knows.
        self.simple("expireProducers", lambda: log.remove_expired_producers(now))
        if not log.config.compact:
            return False
        first, bound, cleanable_bytes = self._cleanable()
        partition = self._leased()
        if not cleanable_bytes or hides_commits(partition, first, bound):
            return False

        def mine() -> Answer:
            options = RoundOptions(now, slots * KAFKA_SLOT_BYTES, 0.9, kafka_map=True)
            stats = CopyStats()
            with CleaningRound(partition, first, bound, options, kernel) as cleaning:
                mapped = cleaning.build_map()
                cleaning.verify_clean_section()
                for group in cleaning.clean_groups():
                    stats = add_stats(stats, group.result.stats)
                    if not group.unchanged:
                        log.replace_segments([group.base_offset], group.source_bases, now)
                self.cleaned_to = cleaning.next_dirty_offset
            return {
                "nextDirtyOffset": self.cleaned_to,
                "bytesAfter": log.size,
                "mapEntries": mapped.entries,
                "messagesRead": stats.messages_read,
                "bytesRead": stats.bytes_read,
                "messagesWritten": stats.messages_written,
                "bytesWritten": stats.bytes_written,
                "invalidMessagesRead": stats.invalid_messages_read,
            }

        fields = {"first": first, "uncleanable": bound, "dedupe": slots * KAFKA_SLOT_BYTES, "loadFactor": 0.9}
        self._both("clean", fields, mine)
        self.compare_dumps()
        return True

    def _cleanable(self) -> tuple[int, int, int]:
        """(first dirty offset, end of what may be cleaned, its bytes), the same for both."""
        log, now = self.ours, self.now_ms
        offsets = offsets_to_clean(log, self.cleaned_to, now)
        found = log_to_clean(log, offsets.first_dirty_offset, offsets.first_uncleanable_offset, now)
        theirs = self.oracle.cleanable(self.cleaned_to, now=now)
        mine = (found.first_dirty_offset, found.first_uncleanable_offset, found.cleanable_bytes)
        expected = (theirs["firstDirtyOffset"], theirs["firstUncleanableOffset"], theirs["cleanableBytes"])
        if theirs["lastStableOffset"] == log.last_stable_offset:
            assert mine == expected, f"to clean: Kafka {expected}, compactd {mine} after\n{self.story()}"
        # Where the two see the last stable offset in different places (`compare_state`), the lower one holds for both.
        return min(mine, expected, key=lambda each: each[1])

    def _leased(self) -> LeasedPartition:
        """What the log's owner tells a cleaner of it."""
        log, interval = self.ours, self.ours.config.index_interval_bytes
        segments = [
            LogSegment(log.directory, each.base_offset, each.size, each.last_modified_ms, interval)
            for each in log.segments[:-1]
        ]
        segments.append(LogSegment(log.directory, log.active_segment.base_offset, 0, 0, interval))
        return LeasedPartition(
            topic_partition=log.topic_partition,
            directory=log.directory,
            config=log.config,
            segments=segments,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            high_watermark=log.high_watermark,
            producers=ProducerState(),
            active=log.active_producers(self.now_ms),
        )

    def truncated(self, offset: int) -> None:
        """The cleaner's checkpoint follows a truncation (LogCleaner.maybeTruncateCheckpoint)."""
        if self.cleaned_to is not None:
            self.cleaned_to = min(self.cleaned_to, offset)

    # ---- ends and beginnings

    def reopen(self, *, clean: bool, checkpointed: bool = True) -> None:
        """Closes both, orderly or as a crash does, and loads them again as a broker would."""
        self.apart = True
        self.history.append(f"reopen clean={clean} checkpointed={checkpointed}")
        if checkpointed or clean:
            self.recovery_point, self.log_start_offset = self.ours.recovery_point, self.ours.log_start_offset
        if clean:
            self.oracle.close(now=self.now_ms)
            self.ours.close()
            self.compare_files()
        else:
            self.oracle.abandon(now=self.now_ms)
            self.ours.close(orderly=False)
        start = self.log_start_offset
        self.oracle.open(
            self.kafka_dir,
            self.config,
            now=self.now_ms,
            cleanShutdown=clean,
            recoveryPoint=self.recovery_point,
            logStartOffset=start,
        )
        loaded = load_log(
            self.our_dir,
            self._our_config(),
            clean_shutdown=clean,
            recovery_point=self.recovery_point,
            log_start_offset=start,
            now_ms=self.now_ms,
        )
        self.log = PartitionLog(loaded, now_ms=self.now_ms)
        self.follows, self.stale = True, False
        self.ours.update_high_watermark(self.ours.log_end_offset)
        self.compare_state()
        self.apart = False

    def finish(self) -> None:
        """Orderly ends for both, files compared; only our files are closed where the two are apart already."""
        if self.apart:
            self.ours.close(orderly=False)
            return
        self.oracle.close(now=self.now_ms)
        self.ours.close()
        self.compare_files()

    # ---- comparison

    def compare_state(self) -> None:
        theirs = self.oracle.request("live", now=self.now_ms)
        log = self.ours
        mine: Answer = {
            "logStartOffset": log.log_start_offset,
            "logEndOffset": log.log_end_offset,
            "highWatermark": log.high_watermark,
            "lastStableOffset": log.last_stable_offset,
            "recoveryPoint": log.recovery_point,
            "size": log.size,
            "activeSegment": log.active_segment.base_offset,
            "segments": [(s.base_offset, s.size, s.max_timestamp) for s in log.segments],
            "epochs": [list(entry) for entry in log.epochs.entries],
            "producers": sorted(
                [
                    e.producer_id,
                    e.producer_epoch,
                    e.last_sequence,
                    e.last_data_offset,
                    e.coordinator_epoch,
                    e.last_timestamp,
                    -1 if e.current_txn_first_offset is None else e.current_txn_first_offset,
                ]
                for e in log.producers.entries()
            ),
        }
        segments = [(s["baseOffset"], s["size"], s["largestTimestamp"]) for s in theirs["segments"]]
        # Without a timestamp Kafka tells the file's own time.
        mine["segments"] = [
            (base, size, stamp if stamp >= 0 or at >= len(segments) else segments[at][2])
            for at, (base, size, stamp) in enumerate(mine["segments"])
        ]
        theirs["segments"] = segments
        # Where the log starts inside an open transaction Kafka 4.4.0 gives the base offset of the batch that holds the
        # start or follows it: below the start for the one, in a gap's far end for the other.
        # After a truncation it looks at open transactions anew only with the next append, so that those which are gone still
        # hold it back, and forgets completed ones whose marker the high watermark has not passed.
        self.forgetful &= bool(log.producers.unreplicated_txns or log.producers.ongoing_txns)
        cautious = self.forgetful and mine["lastStableOffset"] <= theirs["lastStableOffset"]
        stale = self.stale and mine["lastStableOffset"] >= theirs["lastStableOffset"]
        if log.first_unstable_offset == log.log_start_offset or cautious or stale:
            mine["lastStableOffset"] = theirs["lastStableOffset"]
        theirs["producers"] = sorted(theirs["producers"])
        assert mine == theirs, f"Kafka {theirs}\ncompactd {mine}\nafter\n{self.story()}"

    def compare_files(self) -> None:
        """Every file of both directories, byte for byte; files on their way out are not compared."""
        theirs, mine = _contents(self.kafka_dir), _contents(self.our_dir)
        assert sorted(mine) == sorted(theirs), f"Kafka {sorted(theirs)}\ncompactd {sorted(mine)}\nafter\n{self.story()}"
        for name, content in theirs.items():
            assert mine[name] == content, (
                f"{name}: Kafka {len(content)} {content[:400].hex()}\ncompactd {len(mine[name])} {mine[name][:400].hex()}"
                f"\nafter\n{self.story()}"
            )

    def compare_dumps(self) -> None:
        """Every .log as it is, closed or open, byte for byte."""
        for segment in self.ours.segments:
            name = names.log_name(segment.base_offset)
            mine = segment.read(0, segment.size)
            theirs = (self.kafka_dir / name).read_bytes()[: segment.size]
            assert mine == theirs, f"{name}: Kafka {theirs.hex()}\ncompactd {mine.hex()}\nafter\n{self.story()}"

    def story(self) -> str:
        return "\n".join(self.history[-60:])


def _contents(directory: Path) -> dict[str, bytes]:
    found = {p.name: p.read_bytes() for p in directory.iterdir() if not p.name.endswith(names.DELETED)}
    # No entries: Kafka makes the file empty and may later write it with none.
    if found.get(names.LEADER_EPOCH_CHECKPOINT) == b"":
        found[names.LEADER_EPOCH_CHECKPOINT] = b"0\n0\n"
    return found


__all__ = ["ERRORS", "PARTITION", "Twins", "decode"]
