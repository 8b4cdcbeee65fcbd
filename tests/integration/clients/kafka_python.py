"""kafka-python."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import kafka
from kafka.errors import KafkaError

from tests.integration.clients.interface import MOST_BYTES, SECONDS
from tests.integration.records import Message, Outcome, Record, Refused
from tests.integration.servers import Server

logging.getLogger("kafka").setLevel(logging.CRITICAL)


class KafkaPython:
    """See interface.Client."""

    name = "kafka-python"
    group_protocols = ("classic",)

    def sendable(self, message: Message) -> Message:
        headers = tuple((name, value or b"") for name, value in message.headers)
        value = b"" if message.key is None and message.value is None else message.value
        return replace(message, headers=headers, value=value)

    def produce(
        self,
        server: Server,
        topic: str,
        messages: Sequence[Message],
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[Outcome]:
        producer = _producer(
            server,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == -1 else acks,
            enable_idempotence=idempotent,
        )
        try:
            outcomes = _send(producer, topic, messages)
            # Without acks it makes offsets up.
            return [-1] * len(outcomes) if acks == 0 else outcomes
        finally:
            producer.close()

    def transact(
        self, server: Server, topic: str, messages: Sequence[Message], transactional_id: str, commit: bool
    ) -> list[Outcome]:
        producer = _producer(server, transactional_id=transactional_id)
        try:
            producer.init_transactions()
            producer.begin_transaction()
            outcomes = _send(producer, topic, messages)
            producer.commit_transaction() if commit else producer.abort_transaction()
            return outcomes
        finally:
            producer.close()

    def consume(self, server: Server, topic: str, isolation: str = "read_uncommitted") -> list[Record]:
        consumer = _consumer(server, group_id=None, auto_offset_reset="none", isolation_level=isolation)
        try:
            partitions = [kafka.TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            ends = consumer.end_offsets(partitions)
            found: list[Record] = []
            deadline = time.monotonic() + SECONDS
            while any(consumer.position(each) < ends[each] for each in partitions):
                assert time.monotonic() < deadline, f"the ends {ends} were not reached"
                found += _poll(consumer)
            return found
        finally:
            consumer.close()

    def read_as_member(
        self, server: Server, topic: str, group: str, count: int, protocol: str = "classic"
    ) -> list[Record]:
        assert protocol == "classic"
        consumer = _consumer(server, group_id=group, auto_offset_reset="earliest")
        try:
            consumer.subscribe([topic])
            found = _until(consumer, count)
            consumer.commit()
            return found
        finally:
            consumer.close()

    def transform(self, server: Server, source: str, target: str, group: str, count: int, commit: bool = True) -> int:
        consumer = _consumer(server, group_id=group, auto_offset_reset="earliest", isolation_level="read_committed")
        producer = _producer(server, transactional_id=f"{group}-transform")
        try:
            producer.init_transactions()
            consumer.subscribe([source])
            found = _until(consumer, count)
            producer.begin_transaction()
            _send(producer, target, [Message(each.value, each.key, partition=each.partition) for each in found])
            offsets = {
                each: kafka.structs.OffsetAndMetadata(consumer.position(each), "", -1) for each in consumer.assignment()
            }
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            producer.commit_transaction() if commit else producer.abort_transaction()
            return len(found)
        finally:
            producer.close()
            consumer.close()


def _producer(server: Server, **settings: Any) -> Any:
    return kafka.KafkaProducer(
        bootstrap_servers=server.bootstrap,
        max_request_size=MOST_BYTES,
        max_block_ms=int(SECONDS * 1000),
        linger_ms=5,
        **settings,
    )


def _consumer(server: Server, **settings: Any) -> Any:
    return kafka.KafkaConsumer(
        bootstrap_servers=server.bootstrap, enable_auto_commit=False, fetch_max_wait_ms=100, **settings
    )


def _send(producer: Any, topic: str, messages: Sequence[Message]) -> list[Outcome]:
    sent = [
        producer.send(topic, each.value, each.key, list(each.headers), each.partition, each.timestamp)
        for each in messages
    ]
    producer.flush(SECONDS)
    outcomes: list[Outcome] = []
    for future in sent:
        try:
            outcomes.append(future.get(SECONDS).offset)
        except KafkaError as error:
            outcomes.append(Refused(getattr(error, "errno", -1)))
    return outcomes


def _poll(consumer: Any) -> list[Record]:
    return [
        Record(each.partition, each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
        for batch in consumer.poll(200).values()
        for each in batch
    ]


def _until(consumer: Any, count: int) -> list[Record]:
    found: list[Record] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} records of {count} came"
        found += _poll(consumer)
    return found
