"""Produce, Fetch, ListOffsets, DeleteRecords, OffsetForLeaderEpoch."""

from __future__ import annotations

import time
import uuid
from typing import Any

from tests.integration.answers.recording import THEN_MS, Recording
from tests.workers.broker.batches import batch, fetch_body, produce_body

PRODUCE, FETCH, LIST_OFFSETS, DELETE_RECORDS, OFFSET_FOR_LEADER_EPOCH = 0, 1, 2, 21, 23
APIS = (PRODUCE, FETCH, LIST_OFFSETS, DELETE_RECORDS, OFFSET_FOR_LEADER_EPOCH)
THEN_MSHERE = uuid.UUID(int=5)


def records(script: Recording) -> None:
    for topic, config in (("plain", {}), ("keyed", {"cleanup_policy": "compact"})):
        script.create(topic, 2, **config)
    script.create("stamped", message_timestamp_type="LogAppendTime")

    def by_name_or_id(version: int, topic: str, first_with_id: int) -> dict[str, Any]:
        return {"topic_id": script.ids[topic]} if version >= first_with_id else {"topic": topic}

    def produce(data: bytes | None, topic: str = "plain", **more: Any) -> Any:
        def make(version: int) -> dict[str, Any]:
            if version >= 13:
                return produce_body(data, topic_id=script.ids.get(topic, THEN_MSHERE), **more)
            return produce_body(data, topic, **more)

        return make

    good = batch([b"v", b"w"], timestamp=THEN_MS)
    script.each("two records", PRODUCE, produce(good))
    script.each("acks 1", PRODUCE, produce(good, acks=1))
    script.each("a keyed one", PRODUCE, produce(batch([b"v"], timestamp=THEN_MS), "keyed"))
    script.each("stamped by the broker", PRODUCE, produce(batch([b"v"], timestamp=THEN_MS), "stamped"))
    script.each("no topic", PRODUCE, produce(good, "nowhere"))
    script.each("no partition", PRODUCE, produce(good, partition=9))
    script.each("no batch", PRODUCE, produce(b""))
    script.each("two batches", PRODUCE, produce(good + good))
    script.each("too large", PRODUCE, produce(batch([b"x" * 1_048_600], timestamp=THEN_MS)))
    script.each("no key", PRODUCE, produce(batch([b"v", b"w"], keys=[b"k", None], timestamp=THEN_MS), "keyed"))
    script.each("from the future", PRODUCE, produce(batch([b"v"], timestamp=int(time.time() * 1000) + 7_200_000)))
    script.each("a bad sum", PRODUCE, produce(good[:17] + b"\0\0\0\0" + good[21:]))
    script.each("acks 5", PRODUCE, produce(good, acks=5))
    script.each("nothing", PRODUCE, {"acks": 1, "topic_data": []})
    idempotent = {"producer_id": 9_000_000, "producer_epoch": 0}
    for name, sequence in (("first", 0), ("again", 0), ("a gap", 7)):
        data = batch([b"v"], timestamp=THEN_MS, base_sequence=sequence, **idempotent)
        script.each(f"idempotent, {name}", PRODUCE, produce(data, partition=1))
    data = batch([b"v"], timestamp=THEN_MS, base_sequence=0, transactional=True, **idempotent)
    script.each("transactional without an id", PRODUCE, produce(data))
    script.each("transactional of nobody", PRODUCE, lambda v: {**produce(data)(v), "transactional_id": "nobody"})

    def fetch(topic: str = "plain", **more: Any) -> Any:
        def make(version: int) -> dict[str, Any]:
            name = {"topic_id": script.ids.get(topic, THEN_MSHERE)} if version >= 13 else {"topic": topic}
            body = fetch_body(**{**name, **{key: value for key, value in more.items() if key != "replica"}})
            body["replica_id"] = more.get("replica", -1)
            if version >= 15:
                body["replica_state"] = {"replica_id": body.pop("replica_id"), "replica_epoch": -1}
            return body

        return make

    for more in (
        {}, {"offset": 3}, {"offset": 99_999}, {"offset": -1}, {"partition": 9}, {"topic": "nowhere"}, {"committed": True},
        {"max_bytes": 0}, {"partition_max_bytes": 1}, {"current_leader_epoch": 0}, {"current_leader_epoch": 5},
        {"topic": "keyed"}, {"session_id": 5, "session_epoch": 3}, {"partition": 1, "committed": True},
        {"replica": 7}, {"replica": -2},
    ):  # fmt: skip
        script.each(str(more), FETCH, fetch(**more))

    def offsets(topic: str, *rows: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"replica_id": -1, "topics": [{"name": topic, "partitions": list(rows)}], **more}

    for stamp in (-1, -2, -3, -4, -5, -6, -7, 0, THEN_MS, THEN_MS + 9_999_999):
        rows = [{"partition_index": number, "timestamp": stamp} for number in (0, 1, 9)]
        script.each(f"timestamp {stamp - THEN_MS if stamp > 0 else stamp}", LIST_OFFSETS, offsets("plain", *rows))
    row = {"partition_index": 0, "timestamp": -1}
    script.each("no topic", LIST_OFFSETS, offsets("nowhere", row))
    script.each("twice", LIST_OFFSETS, offsets("plain", row, row))
    script.each("committed", LIST_OFFSETS, offsets("plain", row, isolation_level=1), lowest=2)
    for epoch in (0, 9):
        script.each(f"epoch {epoch}", LIST_OFFSETS, offsets("plain", {**row, "current_leader_epoch": epoch}), lowest=4)

    for epoch in (-1, 0, 1):
        for current in (-1, 0, 5):
            rows = [
                {"partition": number, "leader_epoch": epoch, "current_leader_epoch": current} for number in (0, 1, 9)
            ]
            body = {"replica_id": -1, "topics": [{"topic": name, "partitions": rows} for name in ("plain", "nowhere")]}
            script.each(f"epoch {epoch}, current {current}", OFFSET_FOR_LEADER_EPOCH, body)

    def delete(version: int) -> dict[str, Any]:
        rows = [{"partition_index": number, "offset": offset} for number, offset in ((0, version), (1, 99_999), (9, 0))]
        topics = [{"name": "plain", "partitions": rows}, {"name": "keyed", "partitions": rows[:1]}]
        return {"topics": [*topics, {"name": "nowhere", "partitions": rows[:1]}], "timeout": 30_000}

    script.each("some", DELETE_RECORDS, delete)
    script.each("what is left", LIST_OFFSETS, offsets("plain", {"partition_index": 0, "timestamp": -2}))
