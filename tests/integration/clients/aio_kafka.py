"""aiokafka."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import aiokafka
from aiokafka.errors import BrokerResponseError, KafkaError, kafka_errors

from tests.integration.clients.interface import MOST_BYTES, SECONDS
from tests.integration.records import Message, Outcome, Record, Refused
from tests.integration.servers import Server

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
_T = TypeVar("_T")


class InvalidRecordError(BrokerResponseError):
    """The library has no name for it, and would tell all such errors as one."""

    errno = 87
    message = "INVALID_RECORD"


kafka_errors[InvalidRecordError.errno] = InvalidRecordError


class AioKafka:
    """See interface.Client."""

    name = "aiokafka"
    group_protocols = ("classic",)

    def sendable(self, message: Message) -> Message:
        return replace(message, value=b"") if message.key is None and message.value is None else message

    def produce(
        self,
        server: Server,
        topic: str,
        messages: Sequence[Message],
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[Outcome]:
        async def run() -> list[Outcome]:
            settings = {
                "compression_type": None if codec == "none" else codec,
                "acks": "all" if acks == -1 else acks,
                "enable_idempotence": idempotent,
            }
            async with _producer(server, **settings) as producer:
                return await _send(producer, topic, messages)

        return _run(run())

    def transact(
        self, server: Server, topic: str, messages: Sequence[Message], transactional_id: str, commit: bool
    ) -> list[Outcome]:
        async def run() -> list[Outcome]:
            async with _producer(server, transactional_id=transactional_id) as producer:
                await producer.begin_transaction()
                outcomes = await _send(producer, topic, messages)
                await (producer.commit_transaction() if commit else producer.abort_transaction())
                return outcomes

        return _run(run())

    def consume(self, server: Server, topic: str, isolation: str = "read_uncommitted") -> list[Record]:
        async def run() -> list[Record]:
            async with _consumer(server, group_id=None, isolation_level=isolation) as consumer:
                numbers = await consumer._client._wait_on_metadata(topic)
                partitions = [aiokafka.TopicPartition(topic, number) for number in numbers]
                consumer.assign(partitions)
                await consumer.seek_to_beginning(*partitions)
                ends = await consumer.end_offsets(partitions)
                found: list[Record] = []
                for each in partitions:
                    while await consumer.position(each) < ends[each]:
                        found += await _poll(consumer)
                return found

        return _run(run())

    def read_as_member(
        self, server: Server, topic: str, group: str, count: int, protocol: str = "classic"
    ) -> list[Record]:
        assert protocol == "classic"

        async def run() -> list[Record]:
            async with _consumer(server, group_id=group, auto_offset_reset="earliest") as consumer:
                consumer.subscribe([topic])
                found: list[Record] = []
                while len(found) < count:
                    found += await _poll(consumer)
                await consumer.commit()
                return found

        return _run(run())

    def transform(self, server: Server, source: str, target: str, group: str, count: int, commit: bool = True) -> int:
        async def run() -> int:
            settings = {"group_id": group, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
            async with (
                _consumer(server, **settings) as consumer,
                _producer(server, transactional_id=f"{group}-transform") as producer,
            ):
                consumer.subscribe([source])
                found: list[Record] = []
                while len(found) < count:
                    found += await _poll(consumer)
                await producer.begin_transaction()
                await _send(
                    producer, target, [Message(each.value, each.key, partition=each.partition) for each in found]
                )
                offsets = {each: await consumer.position(each) for each in consumer.assignment()}
                await producer.send_offsets_to_transaction(offsets, group)
                await (producer.commit_transaction() if commit else producer.abort_transaction())
                return len(found)

        return _run(run())


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    async def limited() -> _T:
        async with asyncio.timeout(SECONDS):
            return await work

    return asyncio.run(limited())


@asynccontextmanager
async def _producer(server: Server, **settings: Any) -> AsyncIterator[Any]:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=server.bootstrap, max_request_size=MOST_BYTES, linger_ms=5, **settings
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def _consumer(server: Server, **settings: Any) -> AsyncIterator[Any]:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=server.bootstrap,
        enable_auto_commit=False,
        fetch_max_wait_ms=100,
        **{"auto_offset_reset": "none", **settings},
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def _send(producer: Any, topic: str, messages: Sequence[Message]) -> list[Outcome]:
    sent = [
        await producer.send(topic, each.value, each.key, each.partition, each.timestamp, list(each.headers))
        for each in messages
    ]
    outcomes: list[Outcome] = []
    for told in await asyncio.gather(*sent, return_exceptions=True):
        if isinstance(told, KafkaError):
            outcomes.append(Refused(told.errno))
        elif isinstance(told, BaseException):
            raise told
        else:
            outcomes.append(-1 if told is None else told.offset)
    return outcomes


async def _poll(consumer: Any) -> list[Record]:
    return [
        Record(each.partition, each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
        for batch in (await consumer.getmany(timeout_ms=200)).values()
        for each in batch
    ]
