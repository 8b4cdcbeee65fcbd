"""A stay at a broker: something of everything is changed, and written down in the test's `World`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic, OffsetSpec

from compactd.storage.records.builder import build_batch
from compactd.storage.records.record import Record
from tests.oracle.world import (
    BROKER,
    PATIENCE_SECONDS,
    TOPIC,
    Looker,
    Place,
    RawProducer,
    Stored,
    Topic,
    World,
    insist,
    until,
)
from tests.workers.broker.harness import RawClient

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_STEP_MS = 3_600_000


class Visit(Looker):
    """`with Visit(world, bootstrap) as visit:` the clients of one stay at a broker."""

    def __init__(self, world: World, bootstrap: str) -> None:
        super().__init__(world, bootstrap)
        self._producers: dict[str, Producer] = {}

    def __exit__(self, *_: object) -> None:
        self._producers.clear()
        super().__exit__()

    # ---- changing

    def create(self, name: str, partitions: int = 1, **configs: object) -> None:
        """Makes a topic. `configs`: settings with underscores for dots."""
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        made = NewTopic(name, partitions, 1, config=settings)
        insist(lambda: self.admin.create_topics([made])[name].result(PATIENCE_SECONDS))
        described = insist(lambda: self.admin.describe_topics(TopicCollection([name]))[name].result(PATIENCE_SECONDS))
        self.world.topics[name] = Topic(str(described.topic_id), partitions, settings)

    def delete(self, name: str) -> None:
        insist(lambda: self.admin.delete_topics([name])[name].result(PATIENCE_SECONDS))
        topic = self.world.topics.pop(name)
        for number in range(topic.partitions):
            for known in (self.world.records, self.world.starts, self.world.hidden):
                known.pop((name, number), None)

    def grow(self, name: str, partitions: int) -> None:
        insist(lambda: self.admin.create_partitions([NewPartitions(name, partitions)])[name].result(PATIENCE_SECONDS))
        self.world.topics[name].partitions = partitions

    def alter(self, kind: int, name: str, **changes: str | None) -> None:
        """Sets settings (underscores for dots), or deletes those that are None; of a topic, of the node, or of all ("")."""
        given = {key.replace("_", "."): value for key, value in changes.items()}
        rows = [
            {"name": key, "value": value, "config_operation": 1 if value is None else 0} for key, value in given.items()
        ]
        resource = {"resource_type": kind, "resource_name": name, "configs": rows}
        with self.raw() as client:
            (answer,) = client.ask(44, 1, {"resources": [resource], "validate_only": False}).responses
        assert not answer.error_code, answer
        if kind == TOPIC:
            known = self.world.topics[name].configs
        elif kind == BROKER:
            known = self.world.broker_configs[name]
        else:
            known = self.world.others.setdefault((kind, name), {})
        for key, value in given.items():
            known.pop(key, None)
            if value is not None:
                known[key] = value

    def limit(self, user: str, key: str, value: float | None) -> None:
        """Sets a quota of a user, or removes it."""
        operation = {"key": key, "value": value or 0.0, "remove": value is None}
        entry = {"entity": [{"entity_type": "user", "entity_name": user}], "ops": [operation]}
        with self.raw() as client:
            (answer,) = client.ask(49, 1, {"entries": [entry], "validate_only": False}).entries
        assert not answer.error_code, answer
        self.world.quotas.pop((user, key), None)
        if value is not None:
            self.world.quotas[user, key] = value

    def enrol(self, user: str, mechanism: int, iterations: int) -> None:
        """Gives a user a SCRAM credential."""
        made = {"salt": b"salt" * 4, "salted_password": b"p" * (32 if mechanism == 1 else 64)}
        wanted = {"name": user, "mechanism": mechanism, "iterations": iterations, **made}
        with self.raw() as client:
            (answer,) = client.ask(51, 0, {"deletions": [], "upsertions": [wanted]}).results
        assert not answer.error_code, answer
        self.world.credentials[user] = (mechanism, iterations)

    def produce(
        self,
        topic: str,
        records: Mapping[int, Iterable[Stored]],
        codec: str = "none",
        transaction: str | None = None,
        commit: bool = True,
        apart: bool = False,
        leave_open: bool = False,
    ) -> None:
        """Partition to the records that it gets, by one idempotent producer; in one transaction where that has a name.

        `apart`: a batch for each. `leave_open`: the transaction is not ended; whoever takes its name next aborts it.
        """
        producer = self._producer(codec, transaction)
        # What it knows of the topic may be older than the partition.
        until(lambda: set(records) <= set(producer.list_topics(topic, 20).topics[topic].partitions), f"all of {topic}")
        written: list[tuple[Place, int, Stored]] = []
        if transaction is not None:
            producer.init_transactions(PATIENCE_SECONDS)
            producer.begin_transaction()
        for number, rows in records.items():
            for stored in rows:

                def told(
                    error: KafkaError | None, message: Message, number: int = number, stored: Stored = stored
                ) -> None:
                    assert error is None, error
                    offset = message.offset()
                    assert offset is not None
                    written.append(((topic, number), offset, stored))

                insist(
                    lambda number=number, stored=stored, told=told: producer.produce(  # type: ignore[misc]
                        topic,
                        value=stored.value,
                        key=stored.key,
                        partition=number,
                        on_delivery=told,
                        timestamp=stored.timestamp,
                        headers=list(stored.headers),
                    )
                )
                if apart:
                    assert producer.flush(PATIENCE_SECONDS) == 0
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert len(written) == sum(map(len, map(list, records.values())))
        if transaction is not None:
            if leave_open:
                pass
            elif commit:
                producer.commit_transaction(PATIENCE_SECONDS)
            else:
                producer.abort_transaction(PATIENCE_SECONDS)
        for place, offset, stored in written:
            self.world.records[place][offset] = stored
            if transaction is not None and (leave_open or not commit):
                self.world.hidden[place].add(offset)

    def _producer(self, codec: str, transaction: str | None) -> Producer:
        """One for each codec, which lasts as long as the visit; each for a transaction."""
        options: dict[str, Any] = {
            **self._options,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": 5,
        }
        if transaction is not None:
            return Producer({**options, "transactional.id": transaction})
        if codec not in self._producers:
            self._producers[codec] = Producer(options)
        return self._producers[codec]

    def produce_raw(self, topic: str) -> None:
        """One more batch of the producer that outlives brokers; its last one again is known as sent already."""
        with self.raw() as client:
            producer = self.world.producer
            if producer is None:
                ids = until(lambda: self._producer_id(client), "a producer id")
                producer = self.world.producer = RawProducer(ids.producer_id, ids.producer_epoch)
            elif producer.last:
                assert self._send_raw(client, topic, producer.last) == (0, producer.last_offset)
            now_ms = time.time_ns() // 1_000_000
            rows = [Record(number, now_ms, b"seq", b"%d" % (producer.sequence + number)) for number in range(3)]
            producer.last = build_batch(
                rows,
                base_offset=0,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=producer.sequence,
            )
            code, producer.last_offset = self._send_raw(client, topic, producer.last)
            assert code == 0, code
            for row in rows:
                self.world.records[topic, 0][producer.last_offset + row.offset] = Stored(
                    row.key, row.value, (), row.timestamp
                )
            producer.sequence += len(rows)

    @staticmethod
    def _producer_id(client: RawClient) -> Any:
        answer = client.ask(22, 5, {"transactional_id": None, "transaction_timeout": 1000})
        return answer if not answer.error_code else None

    def _send_raw(self, client: RawClient, topic: str, batch: bytes) -> tuple[int, int]:
        """(error, base offset), once the partition leads."""
        row = {"index": 0, "records": batch}
        body = {"acks": -1, "timeout": 20_000, "topic_data": [{"name": topic, "partition_data": [row]}]}
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            (answer,) = client.ask(0, 9, body).responses[0].partition_responses
            if int(answer.error_code) not in (3, 5, 6) or time.monotonic() > end:
                return int(answer.error_code), answer.base_offset
            time.sleep(0.05)

    def commit(self, group: str, offsets: Mapping[Place, tuple[int, str]]) -> None:
        """Commits offsets of a group without members."""
        consumer = Consumer({**self._options, "group.id": group, "enable.auto.commit": False})
        try:
            rows = [
                TopicPartition(topic, number, offset, metadata)
                for (topic, number), (offset, metadata) in offsets.items()
            ]
            for row in insist(lambda: consumer.commit(offsets=rows, asynchronous=False)) or ():
                assert row.error is None, row.error
        finally:
            consumer.close()
        self.world.offsets.setdefault(group, {}).update(offsets)

    def join(self, group: str, topic: str, protocol: str) -> None:
        """One member of a group reads all of a topic to its end, commits that, and leaves. `protocol`: classic, consumer."""
        options: dict[str, Any] = {
            **self._options, "group.id": group, "group.protocol": protocol, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "enable.partition.eof": True,
        }  # fmt: skip
        consumer = Consumer(options)
        partitions, ended = self.world.topics[topic].partitions, set()
        try:
            consumer.subscribe([topic])

            def read() -> bool:
                for message in consumer.consume(1000, timeout=0.2):
                    if message.error() is not None and message.error().code() == KafkaError._PARTITION_EOF:
                        ended.add(message.partition())
                return len(ended) == partitions

            until(read, f"the ends of {topic} for a member of {group}")
            rows = insist(lambda: consumer.commit(asynchronous=False)) or ()
        finally:
            consumer.close()
        known = self.world.offsets.setdefault(group, {})
        for row in rows:
            assert row.error is None, row.error
            known[row.topic, row.partition] = (row.offset, known.get((row.topic, row.partition), (0, ""))[1])

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        where = TopicPartition(topic, partition, before)
        (future,) = insist(lambda: self.admin.delete_records([where])).values()
        assert insist(lambda: future.result(PATIENCE_SECONDS)).low_watermark == before
        self.world.starts[topic, partition] = before

    def delete_group(self, group: str) -> None:
        insist(lambda: self.admin.delete_consumer_groups([group])[group].result(PATIENCE_SECONDS))
        del self.world.offsets[group]

    def last_offset(self, place: Place) -> int:
        """Log end offset of a partition."""
        return self._list_offsets([place], OffsetSpec.latest(), isolation_level=IsolationLevel.READ_UNCOMMITTED)[place]

    # ---- records with meaning

    def rows(self, codec: str, count: int = 4) -> list[Stored]:
        """Records of every shape."""
        stage, now_ms = self.world.stage, time.time_ns() // 1_000_000
        shapes: tuple[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]], ...] = (
            (None, b"no key", ()),
            (b"", b"", (("empty", b""),)),
            (b"no value", None, (("null", None), ("twice", b"1"), ("twice", b"2"))),
            (f"{codec}-{stage}".encode(), b"x" * 5000, (("stage", b"%d" % stage),)),
        )
        return [Stored(*shapes[number % 4], now_ms + number) for number in range(count)]

    def closing_rows(self, keys: int, count: int) -> list[Stored]:
        """Records an hour apart: each closes the segment before, where segment.ms is less."""
        made = []
        for number in range(count):
            self.world.old_ms += _STEP_MS
            key = f"key-{number % keys}".encode()
            made.append(Stored(key, f"{self.world.stage}-{number}".encode(), (), self.world.old_ms))
        return made
