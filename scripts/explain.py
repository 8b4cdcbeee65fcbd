"""Why a partition is not cleaned: the first rule in the way, with its numbers and the time when it clears."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from compactd.config.load import ResolvedConfig
from compactd.scripts.output import human_bytes, human_ms, human_second
from compactd.storage.cleaning.cleanable import Blocker, LogToClean, OffsetsToClean
from compactd.storage.partition import Partition

#: Reasons that come from a directory's name, by its state.
DIR_STATES = {
    "delete": ("DELETING", "the partition is being deleted; the broker removes it"),
    "future": ("MOVING", "the replica is still being moved here from another log dir"),
    "stray": ("STRAY", "the broker set the partition aside as not its own; move it away or remove it"),
}


@dataclass(frozen=True, slots=True)
class Reason:
    """What is in the way. `code` is stable, `text` is for people, `fields` are its numbers for programs."""

    code: str
    text: str
    #: When it clears by itself, ms since the epoch; None where only new data or a person clears it.
    clears_at_ms: int | None = None
    fields: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "text": self.text, "clearsAtMs": self.clears_at_ms, **(self.fields or {})}


def policy_reason(settings: ResolvedConfig) -> Reason | None:
    """POLICY where the topic is not compacted."""
    if settings.config.compact:
        return None
    policy, source = ",".join(sorted(settings.config.cleanup_policy)) or "(none)", settings.sources["cleanup.policy"]
    return Reason(
        "POLICY",
        f"cleanup.policy is {policy} (from {source}), so it is not compacted; --set cleanup.policy=compact would",
        fields={"policy": policy, "source": source},
    )


def first_reason(
    partition: Partition, offsets: OffsetsToClean, log: LogToClean[Partition], now_ms: int
) -> Reason | None:
    """The first rule that keeps Kafka's cleaner from this compacted log; None where it would be cleaned next."""
    if partition.size == 0:
        return Reason("EMPTY", "the log has no records")
    if log.cleanable_bytes == 0:
        return limit_reason(partition, offsets, log, now_ms)
    if log.wants_cleaning:
        return None
    return _ratio(partition, log)


def first_reason_when_rolled(
    partition: Partition, offsets: OffsetsToClean, log: LogToClean[Partition], now_ms: int
) -> Reason | None:
    """For a log whose dirty bytes are all in the active segment: what would still be in the way if it were closed."""
    if log.cleanable_bytes:
        return None
    reason = limit_reason(partition, offsets, log, now_ms)
    return reason if reason.code in ("OPEN_TRANSACTION", "HIGH_WATERMARK", "MIN_LAG") else None


def limit_reason(partition: Partition, offsets: OffsetsToClean, log: LogToClean[Partition], now_ms: int) -> Reason:
    """What keeps the log from being cleaned further than `log.first_uncleanable_offset`."""
    blocked = _blocked_bytes(partition, log)
    if offsets.blocker is Blocker.OPEN_TRANSACTION:
        return _open_transaction(partition, blocked, now_ms)
    if offsets.blocker is Blocker.HIGH_WATERMARK:
        mark, end = partition.high_watermark, partition.log_end_offset
        return Reason(
            "HIGH_WATERMARK",
            f"the high watermark is {mark} of log end {end}, so {human_bytes(blocked)} above it are not "
            "replicated yet; --high-watermark overrides it",
            fields={"highWatermark": mark, "logEndOffset": end, "blockedBytes": blocked},
        )
    if offsets.blocker is Blocker.MIN_COMPACTION_LAG and offsets.lagging_segment is not None:
        lag, newest = partition.config.min_compaction_lag_ms, offsets.lagging_segment.largest_timestamp
        return Reason(
            "MIN_LAG",
            f"min.compaction.lag.ms is {human_ms(lag)}, and segment {offsets.lagging_segment.base_offset} has a record of "
            f"{human_second(newest)}; {human_bytes(blocked)} in closed segments wait until {human_second(newest + lag)}",
            newest + lag,
            {"minCompactionLagMs": lag, "segment": offsets.lagging_segment.base_offset, "blockedBytes": blocked},
        )
    return _active(partition, now_ms)


def _blocked_bytes(partition: Partition, log: LogToClean[Partition]) -> int:
    bound = log.first_uncleanable_offset
    return sum(s.size for s in partition.segments[:-1] if s.base_offset >= bound)


def _open_transaction(partition: Partition, blocked: int, now_ms: int) -> Reason:
    first = partition.last_stable_offset
    producer_id = partition.producers.ongoing_txns.get(first)
    entry = None if producer_id is None else partition.producers.get(producer_id)
    if entry is None:
        return Reason(
            "OPEN_TRANSACTION",
            f"a transaction from offset {first} on ended above the high watermark; {human_bytes(blocked)} wait",
            fields={"firstOffset": first, "blockedBytes": blocked},
        )
    age = max(0, now_ms - entry.last_timestamp)
    topic_partition = partition.topic_partition
    return Reason(
        "OPEN_TRANSACTION",
        f"producer {producer_id} (epoch {entry.producer_epoch}) has a transaction open since offset {first}, last written "
        f"{human_ms(age)} ago; {human_bytes(blocked)} wait. If it hangs: kafka-transactions.sh abort "
        f"--topic {topic_partition.topic} --partition {topic_partition.partition} --start-offset {first}",
        fields={
            "producerId": producer_id,
            "producerEpoch": entry.producer_epoch,
            "firstOffset": first,
            "ageMs": age,
            "blockedBytes": blocked,
        },
    )


def _active(partition: Partition, now_ms: int) -> Reason:
    active, config = partition.active_segment, partition.config
    if active.size == 0:
        return Reason("CLEAN", "nothing was written since the last clean")
    first = active.first_batch_timestamp
    rolls_after = min(config.segment_ms, config.max_compaction_lag_ms)
    due = first + rolls_after if first >= 0 and rolls_after < 2**62 else None
    size = human_bytes(config.segment_bytes)
    if due is None:
        when = f"closes at {size}"
    elif due <= now_ms:
        when = "is old enough to close at the next append"
    else:
        when = f"closes at {size}, or at the first append after {human_second(due)}"
    return Reason(
        "ACTIVE_ONLY",
        f"all that is dirty, {human_bytes(active.size)}, is in the active segment, which {when} (clean --roll closes a "
        "stopped broker's)",
        due,
        {"activeBytes": active.size, "segmentBytes": config.segment_bytes},
    )


def _ratio(partition: Partition, log: LogToClean[Partition]) -> Reason:
    least = partition.config.min_cleanable_dirty_ratio
    fields: dict[str, Any] = {"ratio": log.cleanable_ratio, "minCleanableDirtyRatio": least}
    text = (
        f"dirty ratio {log.cleanable_ratio:.4f} is not above min.cleanable.dirty.ratio {least:g} "
        f"({human_bytes(log.cleanable_bytes)} dirty, {human_bytes(log.clean_bytes)} clean)"
    )
    if least < 1:
        # dirty / (clean + dirty) must be strictly above the limit.
        more = math.floor(least * log.clean_bytes / (1 - least)) + 1 - log.cleanable_bytes
        fields["missingBytes"] = max(more, 1)
        text += f"; {human_bytes(max(more, 1))} more in closed segments would do"
    clears = _max_lag_due(partition, log)
    if clears is not None:
        text += f"; max.compaction.lag.ms has it cleaned after {human_second(clears)}"
    return Reason("RATIO", text, clears, fields)


def _max_lag_due(partition: Partition, log: LogToClean[Partition]) -> int | None:
    lag = partition.config.max_compaction_lag_ms
    if not 0 < lag < 2**62:
        return None
    bound = log.first_uncleanable_offset
    dirty = (s for s in partition.segments[:-1] if log.first_dirty_offset <= s.base_offset < bound)
    oldest = min((s.first_batch_timestamp for s in dirty if s.first_batch_timestamp > 0), default=None)
    return None if oldest is None else oldest + lag + 1
