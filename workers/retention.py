"""The retention worker: decides which partitions have segments to let go of. It reads nothing and changes nothing.

It works on what owners told of their segments, by the rules of storage.retention; the owner applies the same rules again,
under its own lock and with its offsets of that moment, before a file is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactd.config.settings import TopicConfig
from compactd.storage.names import TopicPartition
from compactd.storage.retention import RetentionState, plan_retention
from compactd.workers.channel import Channel
from compactd.workers.cleaning_messages import CheckRetention, RetentionDecided
from compactd.workers.clock import Clock
from compactd.workers.messages import Stop, Stopped
from compactd.workers.partition_messages import PartitionState


def run(channel: Channel, clock: Clock) -> Stopped | None:
    """The body: answers CheckRetention until Stop."""
    while channel.stopping is None:
        message = channel.receive(1.0)
        if isinstance(message, Stop):
            break
        if isinstance(message, CheckRetention):
            channel.set_phase(f"deciding for {len(message.states)} partitions")
            due = decide(message.states, message.configs, message.now_ms)
            channel.send(RetentionDecided(request_id=message.request_id, due=due))
            channel.set_phase("idle")
    return None


@dataclass(frozen=True, slots=True)
class _Segment:
    """A segment as told; fills storage.retention.RetainedSegment."""

    base_offset: int
    size: int
    largest_timestamp: int

    @property
    def max_timestamp(self) -> int:
        return self.largest_timestamp


def decide(states: tuple[PartitionState, ...], configs: Mapping[str, TopicConfig], now_ms: int) -> dict[str, str]:
    """Partitions that have something to let go of, each with the rule that takes its oldest segment."""
    due = {}
    for state in states:
        segments = [_Segment(s.base_offset, s.size, s.largest_timestamp) for s in state.closed]
        segments.append(_Segment(state.active_base_offset, state.active_size, state.active_largest_timestamp))
        plan = plan_retention(
            segments,
            configs[state.topic],
            RetentionState(state.log_start_offset, state.log_end_offset, state.high_watermark, now_ms),
        )
        if plan.deletions:
            due[str(TopicPartition(state.topic, state.partition))] = plan.deletions[0].rule
    return due
