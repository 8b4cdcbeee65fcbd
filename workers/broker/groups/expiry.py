"""Committed offsets that nobody needs any more, and groups that are left with nothing and nobody (facts B3)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from compactd.workers.broker.coordinating import Phase
from compactd.workers.broker.groups.ending import end_records
from compactd.workers.broker.groups.group import ClassicGroup
from compactd.workers.broker.groups.member import GroupError, Moment, State
from compactd.workers.broker.groups.records import KeyValue, offset_record
from compactd.workers.broker.groups.shard import Shard
from compactd.workers.broker.groups.state import TopicPartitionKey

_LOGGER = logging.getLogger(__name__)


async def forget_topics(shard: Shard, is_gone: Callable[[str, str], bool]) -> None:
    """Deletes what was committed, or is about to be, for topics (name, id) that are gone."""

    def choose(group_id: str) -> list[TopicPartitionKey]:
        committed = [shard.state.offsets.get(group_id, {})]
        committed += [offsets.get(group_id, {}) for offsets in shard.state.pending.values()]
        return list(
            dict.fromkeys(
                where for offsets in committed for where, each in offsets.items() if is_gone(where[0], each.topic_id)
            )
        )

    await _tombstones(shard, choose, drop_groups=False)


async def expire_offsets(shard: Shard, retention_ms: int) -> None:
    """Deletes what was committed too long ago."""
    now_ms = shard.moment().wall_ms
    await _tombstones(shard, lambda group_id: _expired(shard, group_id, now_ms, retention_ms), drop_groups=True)


def _expired(shard: Shard, group_id: str, now_ms: int, retention_ms: int) -> list[TopicPartitionKey]:
    state = shard.state
    if group_id in state.others:  # nobody here knows what their members read
        return []
    group = state.groups.get(group_id)
    made_here = state.consumers.get(group_id) or state.streams.get(group_id)
    base_of_group: int | None = None
    if group is not None and group.protocol_type is not None:
        if group.state is State.EMPTY:
            base_of_group = group.state_ms if group.state_ms >= 0 else None
        elif group.state is not State.STABLE or group.subscribed is None:
            return []
    expired = []
    for where, committed in state.offsets.get(group_id, {}).items():
        if group is not None and group.is_subscribed(where[0]) and group.members:
            continue
        if made_here is not None and made_here.is_subscribed(where[0]):
            continue
        if state.is_pending(group_id, where):
            continue
        if committed.expire_ms >= 0:
            is_due = now_ms >= committed.expire_ms
        else:
            base = committed.commit_ms if base_of_group is None else base_of_group
            is_due = now_ms - base >= retention_ms
        if is_due:
            expired.append(where)
    return expired


async def _tombstones(
    shard: Shard, choose: Callable[[str], list[TopicPartitionKey]], *, drop_groups: bool
) -> None:  # fmt: skip
    for group_id in shard.state.ids():

        def work(now: Moment, group_id: str = group_id) -> tuple[list[KeyValue], Callable[[int], None], None]:
            chosen = choose(group_id)
            records = [offset_record(group_id, *where, None) for where in chosen]
            left = set(shard.state.offsets.get(group_id, {})) - set(chosen)
            end = [] if left or not drop_groups else end_of_idle(shard, group_id)
            records += end

            def apply(_: int) -> None:
                for where in chosen:
                    shard.state.forget(group_id, where)
                if end:
                    shard.drop(group_id)

            return records, apply, None

        try:
            await shard.commit(work)
        except GroupError as error:
            _LOGGER.info("group %s: its old offsets are left for later: %s", group_id, error)
            if shard.phase is not Phase.READY:
                return


def end_of_idle(shard: Shard, group_id: str) -> list[KeyValue]:
    """The records that end a group which nobody is in, about to be, or committing to; none where somebody is."""
    if any(shard.state.pending_of(group_id)):
        return []
    group = shard.state.groups.get(group_id)
    made_here = shard.state.consumers.get(group_id) or shard.state.streams.get(group_id)
    is_idle = _is_idle(group) if group is not None else made_here is not None and not made_here.members
    return end_records(shard, group_id) if is_idle else []


def _is_idle(group: ClassicGroup) -> bool:
    return group.state is State.EMPTY and not group.pending
