"""Produce, check by check (facts: kafka-protocol 6)."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from compactd.storage.names import parse_uuid
from tests.workers.broker.batches import PRODUCE, batch, fetch, produce, produce_body, records_of
from tests.workers.broker.harness import NODE_ID, InProcessBroker


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_appends(broker: InProcessBroker, version: int) -> None:
    topic_id = parse_uuid(broker.create("t").topic_id)
    name: dict[str, Any] = {"topic_id": topic_id} if version >= 13 else {}
    with broker.connect() as client:
        first = produce(client, batch([b"a", b"b"]), version=version, **name)
        second = produce(client, batch([b"c"]), version=version, **name)
        assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)
        assert first.log_append_time is None
        assert getattr(first, "log_start_offset", 0) == 0
        assert [record.value for record in records_of(fetch(client).records)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("codec", range(5))
def test_batches_of_every_codec_are_stored_as_they_came(broker: InProcessBroker, codec: int) -> None:
    broker.create("t")
    data = batch([b"value %d" % number * 10 for number in range(100)], codec=codec)
    with broker.connect() as client:
        assert produce(client, data).error_code == 0
        stored = fetch(client).records
    # All but base offset and leader epoch, which the CRC does not cover.
    assert stored[16:] == data[16:]
    assert len(records_of(stored)) == 100


def test_several_topics_and_partitions_in_one_request(broker: InProcessBroker) -> None:
    broker.create("t", 2)
    broker.create("u", 1)
    one = batch([b"v"])
    body = {
        "acks": 1,
        "topic_data": [
            {
                "name": "t",
                "partition_data": [
                    {"index": 1, "records": one},
                    {"index": 0, "records": one},
                    {"index": 5, "records": one},
                ],
            },
            {"name": "nowhere", "partition_data": [{"index": 0, "records": one}]},
            {
                "name": "u",
                "partition_data": [{"index": 0, "records": batch([b"old"])}, {"index": 0, "records": batch([b"new"])}],
            },
        ],
    }
    with broker.connect() as client:
        answer = client.ask(PRODUCE, 9, body)
        found = [
            (topic.name, [(each.index, int(each.error_code)) for each in topic.partition_responses])
            for topic in answer.responses
        ]
        assert found == [("t", [(1, 0), (0, 0), (5, 3)]), ("nowhere", [(0, 3)]), ("u", [(0, 0)])]
        # Of a partition that is named twice the last entry counts.
        assert [record.value for record in records_of(fetch(client, topic="u").records)] == [b"new"]


def test_nothing_to_append_gets_an_empty_answer(broker: InProcessBroker) -> None:
    with broker.connect() as client:
        assert client.ask(PRODUCE, 9, {"acks": 1, "topic_data": []}).responses == ()


def test_an_unknown_topic_id(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        assert produce(client, batch([b"v"]), version=13, topic_id=uuid.uuid4()).error_code == 100
        assert produce(client, batch([b"v"]), version=13, topic_id=None).error_code == 100


def test_a_partition_of_another_worker_names_its_leader(log_dir: Path) -> None:
    with InProcessBroker([log_dir], nodes=2) as broker:
        broker.create("t", 2, others={1: 1}, leader_epoch=4)
        with broker.connect() as client:
            answer = client.ask(PRODUCE, 12, produce_body(batch([b"v"]), partition=1))
            partition = answer.responses[0].partition_responses[0]
            assert partition.error_code == 6
            assert partition.current_leader.leader_id == NODE_ID + 1_000_000
            assert partition.current_leader.leader_epoch == 4
            assert [(node.node_id, node.port) for node in answer.node_endpoints] == [
                (NODE_ID + 1_000_000, broker.port + 1)
            ]


# ---- what is refused


def _spoiled(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


_GOOD = batch([b"v", b"w"])


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (None, 87),
        (b"", 87),
        (_GOOD[:30], 87),
        (_GOOD[:-1], 87),
        (_GOOD + _GOOD, 87),
        (_spoiled(_GOOD, 16, b"\x01"), 87),
        (_spoiled(_GOOD, 16, b"\x03"), 87),
        (_spoiled(_GOOD, 17, b"\0\0\0\0"), 2),
        (_spoiled(_GOOD, 7, b"\x01"), 87),
        (_spoiled(_GOOD, 65, b"\xff\xff"), 2),
        (batch([b"v"], control=True, producer_id=5, producer_epoch=0, base_sequence=0), 87),
        (batch([b"v"], producer_id=5, producer_epoch=0, base_sequence=-1), 87),
        (batch([b"x" * 1_048_600]), 10),
        (batch([b"v"], timestamp=2**45), 32),
    ],
    ids=[
        "null", "empty", "part of a header", "part of a batch", "two batches", "magic 1", "magic 3", "crc",
        "base offset", "content", "control", "sequence", "too large", "future",
    ],
)  # fmt: skip
def test_refused(broker: InProcessBroker, records: bytes | None, error: int) -> None:
    broker.create("t")
    with broker.connect() as client:
        answer = produce(client, records)
        assert (answer.error_code, answer.base_offset) == (error, -1)
        assert fetch(client).records == b""


def test_bytes_after_the_batch_are_cut(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        assert produce(client, _GOOD + _GOOD[:40]).error_code == 0
        assert len(records_of(fetch(client).records)) == 2


def test_records_without_key_on_a_compacted_topic_are_named(broker: InProcessBroker) -> None:
    broker.create("t", cleanup_policy="compact")
    data = batch([b"a", b"b", b"c"], keys=[b"k", None, None])
    with broker.connect() as client:
        answer = produce(client, data)
        assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (87, -1, 0)
        assert [each.batch_index for each in answer.record_errors] == [1, 2]
        assert "without key" in answer.record_errors[0].batch_index_error_message
        assert answer.error_message
        assert produce(client, batch([None, b"b"])).error_code == 0


def test_acks_that_are_none(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        assert produce(client, batch([b"v"]), acks=2).error_code == 21
        assert produce(client, batch([b"v"]), acks=-2).error_code == 21
        assert fetch(client).high_watermark == 0


def test_zstd_from_version_7_on_only(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        assert produce(client, batch([b"v"], codec=4), version=6).error_code == 76
        assert produce(client, batch([b"v"], codec=4), version=7).error_code == 0


def test_internal_topics_are_for_the_admin_client_only(broker: InProcessBroker) -> None:
    broker.create("__consumer_offsets", cleanup_policy="compact")
    with broker.connect() as client:
        assert produce(client, batch([b"v"]), topic="__consumer_offsets").error_code == 17
        sent = client.send(PRODUCE, 9, produce_body(batch([b"v"]), "__consumer_offsets"), client_id="__admin_client")
        assert sent
        assert client.receive(PRODUCE, 9).responses[0].partition_responses[0].error_code == 0


def test_log_append_time(broker: InProcessBroker) -> None:
    broker.create("t", message_timestamp_type="LogAppendTime")
    with broker.connect() as client:
        answer = produce(client, batch([b"v"], timestamp=5))
        assert answer.log_append_time.timestamp() * 1000 > 1.7e12
        record = records_of(fetch(client).records)[0]
        assert record.timestamp == round(answer.log_append_time.timestamp() * 1000)


# ---- idempotent and transactional producers


def _idempotent(sequence: int, epoch: int = 0, count: int = 1, **more: Any) -> bytes:
    values = [b"v%d" % number for number in range(count)]
    return batch(values, producer_id=7, producer_epoch=epoch, base_sequence=sequence, **more)


def test_a_duplicate_gets_its_first_offset_and_is_not_written(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        assert produce(client, _idempotent(0)).base_offset == 0
        assert produce(client, _idempotent(1)).base_offset == 1
        again = produce(client, _idempotent(0))
        assert (again.error_code, again.base_offset) == (0, 0)
        assert again.log_append_time is not None
        assert fetch(client).high_watermark == 2


def test_sequences_and_epochs(broker: InProcessBroker) -> None:
    broker.create("t")
    with broker.connect() as client:
        assert produce(client, _idempotent(5)).error_code == 0  # an unknown producer may begin anywhere
        assert produce(client, _idempotent(7)).error_code == 45
        assert produce(client, _idempotent(3, epoch=1)).error_code == 45
        assert produce(client, _idempotent(0, epoch=1)).error_code == 0
        assert produce(client, _idempotent(6)).error_code == 47


def test_transactional_batches_need_a_transactional_id_and_a_coordinator(broker: InProcessBroker) -> None:
    broker.create("t")
    data = _idempotent(0, transactional=True)
    with broker.connect() as client:
        assert produce(client, data).error_code == 53
        assert produce(client, data, transactional_id="tx").error_code == 19  # nobody coordinates it
        assert fetch(client).high_watermark == 0


def test_the_transaction_coordinator_decides_who_may_write(broker: InProcessBroker) -> None:
    from compactd.workers.broker.errors import ErrorCode  # noqa: PLC0415
    from compactd.workers.broker.produce import Transactions  # noqa: PLC0415

    broker.create("t", 2)
    asked: list[Any] = []

    async def gate(header: Any, name: str, producer_id: int, epoch: int, partitions: Any, sequences: Any) -> Any:
        asked.append((name, producer_id, epoch, partitions, sequences))
        return {("t", 1): ErrorCode.INVALID_TXN_STATE}

    broker.in_loop(lambda context: setattr(context.part(Transactions), "gate", gate))
    broker.in_loop(lambda context: context.partitions.verify_transactions(False))
    both = {
        "transactional_id": "tx",
        "acks": -1,
        "topic_data": [
            {
                "name": "t",
                "partition_data": [{"index": n, "records": _idempotent(0, transactional=True)} for n in (0, 1)],
            }
        ],
    }
    with broker.connect() as client:
        answer = client.ask(PRODUCE, 9, both).responses[0]
        assert [int(each.error_code) for each in answer.partition_responses] == [0, 48]
        assert asked == [("tx", 7, 0, [("t", 0), ("t", 1)], [0, 0])]
        mixed = {
            "transactional_id": "tx",
            "acks": -1,
            "topic_data": [
                {
                    "name": "t",
                    "partition_data": [
                        {"index": 0, "records": _idempotent(1, transactional=True)},
                        {"index": 1, "records": _idempotent(0, epoch=3, transactional=True)},
                    ],
                }
            ],
        }
        answer = client.ask(PRODUCE, 9, mixed).responses[0]
        assert [int(each.error_code) for each in answer.partition_responses] == [49, 49]


# ---- durability and large batches


@pytest.mark.parametrize("flush_messages", [1, 3])
def test_flush_messages_is_met_before_the_answer(broker: InProcessBroker, flush_messages: int) -> None:
    broker.create("t", flush_messages=flush_messages)
    with broker.connect() as client:
        for number in range(1, 7):
            assert produce(client, batch([b"v"])).error_code == 0
            partition = broker.partition("t")
            unflushed = partition.log.log_end_offset - partition.log.recovery_point
            assert unflushed < flush_messages
            assert fetch(client).high_watermark == number


def test_large_batches_and_small_ones_keep_their_order(broker: InProcessBroker) -> None:
    broker.create("t", max_message_bytes=10_000_000, segment_bytes=1_048_576)
    with broker.connect() as client:
        sent = []
        for number in range(12):
            size = 700_000 if number % 3 == 0 else 10
            sent.append(b"%d" % number + b"x" * size)
            client.send(PRODUCE, 9, produce_body(batch([sent[-1]])))
        for _ in range(12):
            assert client.receive(PRODUCE, 9).responses[0].partition_responses[0].error_code == 0
        found: list[bytes | None] = []
        offset = 0
        while offset < 12:
            records = records_of(fetch(client, offset).records)
            found += [record.value for record in records if record.offset >= offset]
            offset = records[-1].offset + 1
        assert found == sent
