"""Batches as clients send them, and requests around them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from compactd.storage.records.batch import iter_batches
from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from tests.workers.broker.harness import RawClient

PRODUCE, FETCH, LIST_OFFSETS = 0, 1, 2


def batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamp: int | None = None,
    **more: Any,
) -> bytes:
    """One batch of these values, base offset 0, keys k0, k1… unless given."""
    now = int(time.time() * 1000) if timestamp is None else timestamp
    named = [f"k{number}".encode() for number in range(len(values))] if keys is None else keys
    records = [
        Record(number, now, key, value, ()) for number, (key, value) in enumerate(zip(named, values, strict=True))
    ]
    return build_batch(records, base_offset=0, **more)


def produce_body(
    records: bytes | None, topic: str = "t", partition: int = 0, acks: int = -1, **more: Any
) -> dict[str, Any]:
    """ProduceRequest for one partition; names from v3 to v12."""
    name = {"topic_id": more.pop("topic_id")} if "topic_id" in more else {"name": topic}
    return {
        "acks": acks,
        "timeout": 1000,
        "topic_data": [{**name, "partition_data": [{"index": partition, "records": records}]}],
        **more,
    }


def produce(
    client: RawClient, records: bytes | None, topic: str = "t", partition: int = 0, version: int = 9, **more: Any
) -> Any:
    """Sends one record set; the partition's answer."""
    answer = client.ask(PRODUCE, version, produce_body(records, topic, partition, **more))
    return answer.responses[0].partition_responses[0]


def fetch_body(
    offset: int = 0,
    topic: str = "t",
    partition: int = 0,
    *,
    max_wait: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    committed: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """FetchRequest for one partition; by name up to v12, by `topic_id` from v13 on."""
    name = {"topic_id": more.pop("topic_id")} if "topic_id" in more else {"topic": topic}
    epochs = {key: more.pop(key) for key in ("current_leader_epoch", "last_fetched_epoch") if key in more}
    return {
        "replica_id": -1,
        "max_wait": max_wait,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": int(committed),
        "topics": [
            {
                **name,
                "partitions": [
                    {
                        "partition": partition,
                        "fetch_offset": offset,
                        "partition_max_bytes": partition_max_bytes,
                        **epochs,
                    }
                ],
            }
        ],
        **more,
    }


def fetch(client: RawClient, offset: int = 0, topic: str = "t", version: int = 12, **more: Any) -> Any:
    """Fetches one partition; its answer."""
    return client.ask(FETCH, version, fetch_body(offset, topic, **more)).responses[0].partitions[0]


def records_of(data: bytes | None) -> list[Record]:
    """Records of all whole batches; a part at the end is passed over, as clients do."""
    assert data is not None
    found: list[Record] = []
    position = 0
    while position + 12 <= len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        if position + size > len(data):
            break
        for each in iter_batches(data[position : position + size]):
            found += each.records()
        position += size
    return found
