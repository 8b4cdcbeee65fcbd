"""librdkafka, through confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import confluent_kafka as ck

from tests.integration.clients.interface import GROUP_PROTOCOLS, MOST_BYTES, SECONDS
from tests.integration.records import Message, Outcome, Record, Refused
from tests.integration.servers import Server

#: A member of a group asks for its partitions as it polls.
_POLL_SECONDS = 0.2


class Librdkafka:
    """See interface.Client."""

    name = "librdkafka"
    group_protocols = GROUP_PROTOCOLS

    def sendable(self, message: Message) -> Message:
        return message

    def produce(
        self,
        server: Server,
        topic: str,
        messages: Sequence[Message],
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[Outcome]:
        settings = {"compression.type": codec, "acks": acks, "enable.idempotence": idempotent}
        return self._send(_producer(server, settings), topic, messages)

    def transact(
        self, server: Server, topic: str, messages: Sequence[Message], transactional_id: str, commit: bool
    ) -> list[Outcome]:
        producer = _producer(server, {"transactional.id": transactional_id})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        outcomes = self._send(producer, topic, messages)
        producer.commit_transaction(SECONDS) if commit else producer.abort_transaction(SECONDS)
        return outcomes

    def _send(self, producer: ck.Producer, topic: str, messages: Sequence[Message]) -> list[Outcome]:
        outcomes: list[Outcome] = [Refused(-1)] * len(messages)

        def told(number: int) -> Any:
            def tell(error: Any, message: Any) -> None:
                if error is not None:
                    outcomes[number] = Refused(error.code())
                else:  # without acks there is no offset
                    outcomes[number] = -1 if message.offset() in (None, ck.OFFSET_INVALID) else message.offset()

            return tell

        for number, message in enumerate(messages):
            producer.produce(
                topic,
                message.value,
                message.key,
                message.partition,
                on_delivery=told(number),
                headers=list(message.headers),
                **({} if message.timestamp is None else {"timestamp": message.timestamp}),
            )
        assert producer.flush(SECONDS) == 0, "messages were not delivered in time"
        return outcomes

    def consume(self, server: Server, topic: str, isolation: str = "read_uncommitted") -> list[Record]:
        consumer = _consumer(server, "none", {"isolation.level": isolation, "enable.partition.eof": True})
        try:
            partitions = consumer.list_topics(topic, SECONDS).topics[topic].partitions
            open_ = set(partitions)
            consumer.assign([ck.TopicPartition(topic, number, ck.OFFSET_BEGINNING) for number in partitions])
            found: list[Record] = []
            deadline = time.monotonic() + SECONDS
            while open_:
                assert time.monotonic() < deadline, f"the ends of {open_} were not reached"
                for message in consumer.consume(500, _POLL_SECONDS):
                    if message.error() is None:
                        found.append(_record(message))
                    elif message.error().code() == ck.KafkaError._PARTITION_EOF:
                        open_.discard(message.partition())
                    else:
                        raise AssertionError(message.error())
            return found
        finally:
            consumer.close()

    def read_as_member(
        self, server: Server, topic: str, group: str, count: int, protocol: str = "classic"
    ) -> list[Record]:
        consumer = _consumer(server, group, {"group.protocol": protocol, "auto.offset.reset": "earliest"})
        try:
            consumer.subscribe([topic])
            found = self._poll(consumer, count)
            consumer.commit(asynchronous=False)
            return found
        finally:
            consumer.close()

    def _poll(self, consumer: ck.Consumer, count: int) -> list[Record]:
        found: list[Record] = []
        deadline = time.monotonic() + SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} records of {count} came"
            for message in consumer.consume(500, _POLL_SECONDS):
                assert message.error() is None, message.error()
                found.append(_record(message))
        return found

    def transform(self, server: Server, source: str, target: str, group: str, count: int, commit: bool = True) -> int:
        settings = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        consumer = _consumer(server, group, settings)
        try:
            consumer.subscribe([source])
            producer = _producer(server, {"transactional.id": f"{group}-transform"})
            producer.init_transactions(SECONDS)
            found = self._poll(consumer, count)
            producer.begin_transaction()
            for record in found:
                producer.produce(target, record.value, record.key, record.partition)
            positions = consumer.position(consumer.assignment())
            assert producer.flush(SECONDS) == 0  # an abort drops what has not been sent
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), SECONDS)
            producer.commit_transaction(SECONDS) if commit else producer.abort_transaction(SECONDS)
            return len(found)
        finally:
            consumer.close()


def _producer(server: Server, settings: dict[str, Any]) -> ck.Producer:
    return ck.Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "message.max.bytes": MOST_BYTES,
            "linger.ms": 5,
            "topic.metadata.propagation.max.ms": 2000,
            **settings,
        }
    )


def _consumer(server: Server, group: str, settings: dict[str, Any]) -> ck.Consumer:
    return ck.Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "auto.offset.reset": "error",
            **settings,
        }
    )


def _record(message: Any) -> Record:
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Record(
        message.partition(), message.offset(), message.timestamp()[1], message.key(), message.value(), headers
    )
