"""The records that end a group, of whatever protocol."""

from __future__ import annotations

from compactd.workers.broker.groups.consumer.changes import records_of as consumer_records
from compactd.workers.broker.groups.consumer.migration import end_of as end_of_consumers
from compactd.workers.broker.groups.records import KeyValue, group_tombstone
from compactd.workers.broker.groups.shard import Shard
from compactd.workers.broker.groups.streams.changes import records_of as streams_records
from compactd.workers.broker.groups.streams.group import end_of as end_of_streams


def end_records(shard: Shard, group_id: str) -> list[KeyValue]:
    """Tombstones of a group, not of its offsets."""
    consumers, streams = shard.consumers.get(group_id), shard.streams.get(group_id)
    if consumers is not None:
        return consumer_records(group_id, end_of_consumers(consumers))
    if streams is not None:
        return streams_records(group_id, end_of_streams(streams))
    return [group_tombstone(group_id)]
