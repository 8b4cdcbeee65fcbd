"""A transactional producer by hand, as older clients do it (partitions are added first) and as newer ones (KIP-890)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from compactd.storage.records.batch import Batch, iter_batches
from tests.workers.broker.batches import batch
from tests.workers.broker.harness import RawClient

PRODUCE, FETCH, FETCH_OFFSETS, FIND, INIT, ADD, ADD_OFFSETS, END = 0, 1, 9, 10, 22, 24, 25, 26
WRITE_MARKERS, COMMIT_OFFSETS, DESCRIBE_PRODUCERS, DESCRIBE, LIST = 27, 28, 61, 65, 66

STATE_TOPIC = "__transaction_state"
#: Few partitions: they are quickly made.
FEW = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 1}

CONCURRENT, LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 51, 14, 15, 16
#: And 6, of a partition that is about to be loaded.
_AGAIN = (CONCURRENT, LOADING, NOT_AVAILABLE, NOT_COORDINATOR, 6)
_SECONDS = 60.0


def described(client: RawClient, name: str) -> Any:
    """What DescribeTransactions says of one id."""
    return client.ask(DESCRIBE, 0, {"transactional_ids": [name]}).transaction_states[0]


def settled(client: RawClient, name: str) -> Any:
    """The same, once its coordinator is there and no marker is missing."""
    end = time.monotonic() + _SECONDS
    while True:
        found = described(client, name)
        if found.error_code not in _AGAIN and not found.transaction_state.startswith("Prepare"):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.005)


def fetched(client: RawClient, topic: str, partition: int = 0, isolation: int = 1) -> Any:
    """A partition's answer to a fetch from its beginning."""
    row = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 24}
    body = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 24,
        "isolation_level": isolation,
        "session_id": 0,
        "session_epoch": -1,
        "forgotten_topics_data": (),
        "rack_id": "",
        "topics": [{"topic": topic, "partitions": [row]}],
    }
    return client.ask(FETCH, 12, body).responses[0].partitions[0]


def batches_of(client: RawClient, topic: str, partition: int = 0, isolation: int = 1) -> Iterator[Batch]:
    """All batches of a partition, markers too."""
    yield from iter_batches(bytes(fetched(client, topic, partition, isolation).records or b""))


def committed(client: RawClient, topic: str, partition: int = 0) -> list[bytes | None]:
    """The values that a consumer of committed records sees, which it works out as Kafka's do."""
    answer = fetched(client, topic, partition)
    aborted = sorted((each.first_offset, each.producer_id) for each in answer.aborted_transactions or ())
    hidden: set[int] = set()
    values: list[bytes | None] = []
    for each in iter_batches(bytes(answer.records or b"")):
        header = each.header
        while aborted and aborted[0][0] <= header.last_offset:
            hidden.add(aborted.pop(0)[1])
        if header.is_control:
            if each.records()[0].key[2:4] == b"\0\0":  # type: ignore[index]
                hidden.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in hidden):
            values += [record.value for record in each.records()]
    return values


@dataclass
class RawProducer:
    """`newer`: of a client that leaves it to the broker to add partitions, and takes new epochs."""

    client: RawClient
    name: str
    newer: bool
    producer_id: int = -1
    epoch: int = -1
    timeout_ms: int = 60_000
    #: (topic, partition) to the next sequence.
    sequences: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))

    def init(self) -> int:
        """InitProducerId until it is no longer to be asked again; the error code."""
        return self.until_told(self.init_once)

    def init_once(self) -> int:
        answer = self.client.ask(INIT, 5, {"transactional_id": self.name, "transaction_timeout": self.timeout_ms})
        if not answer.error_code:
            self._goes_on_as(answer.producer_id, answer.producer_epoch)
        return int(answer.error_code)

    def add(self, topic: str, partition: int = 0) -> int:
        """AddPartitionsToTxn v3."""
        body = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.producer_id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": [partition]}],
        }
        rows = self.client.ask(ADD, 3, body).results_by_topic_v3_and_below
        return int(rows[0].results_by_partition[0].partition_error_code)

    def write(self, topic: str, value: bytes, partition: int = 0, sequence: int | None = None) -> int:
        """Produce v12 or v11; the error code."""
        key = (topic, partition)
        records = batch(
            [value],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences[key] if sequence is None else sequence,
            transactional=True,
        )
        body = {
            "transactional_id": self.name,
            "acks": -1,
            "timeout": 9000,
            "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
        }
        answer = self.client.ask(PRODUCE, 12 if self.newer else 11, body).responses[0].partition_responses[0]
        if not answer.error_code and sequence is None:
            self.sequences[key] += 1
        return int(answer.error_code)

    def send(self, topic: str, value: bytes, partition: int = 0) -> int:
        """The whole way of a record; the first error."""
        if not self.newer:
            error = self.until_told(lambda: self.add(topic, partition))
            if error:
                return error
        return self.until_told(lambda: self.write(topic, value, partition))

    def commit_offset(self, group: str, topic: str, offset: int) -> int:
        """TxnOffsetCommit v5, or AddOffsetsToTxn and v3."""
        producer = {"transactional_id": self.name, "producer_id": self.producer_id, "producer_epoch": self.epoch}
        if not self.newer:
            add = {**producer, "group_id": group}
            error = self.until_told(lambda: int(self.client.ask(ADD_OFFSETS, 3, add).error_code))
            if error:
                return error
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        body = {**producer, "group_id": group, "topics": [{"name": topic, "partitions": [row]}]}

        def commit() -> int:
            answer = self.client.ask(COMMIT_OFFSETS, 5 if self.newer else 3, body)
            return int(answer.topics[0].partitions[0].error_code)

        return self.until_told(commit)

    def end(self, commit: bool) -> int:
        """EndTxn until it is no longer to be asked again."""
        return self.until_told(lambda: self.end_once(commit))

    def end_once(self, commit: bool) -> int:
        body = {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "committed": commit,
        }
        answer = self.client.ask(END, 5 if self.newer else 3, body)
        if self.newer and not answer.error_code:
            self._goes_on_as(answer.producer_id, answer.producer_epoch)
        return int(answer.error_code)

    def _goes_on_as(self, producer_id: int, epoch: int) -> None:
        """A new epoch begins its sequences anew."""
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def until_told(self, ask: Any) -> int:
        """Asks until the answer is one that counts."""
        end = time.monotonic() + _SECONDS
        while (code := int(ask())) in _AGAIN:
            assert time.monotonic() < end, code
            time.sleep(0.005)
        return code


def group_offset(client: RawClient, group: str, topic: str) -> int:
    """What a group has committed for partition 0, stable or not at all."""
    end = time.monotonic() + _SECONDS
    asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    while True:
        found = client.ask(FETCH_OFFSETS, 9, {"groups": [asked], "require_stable": True}).groups[0]
        row = found.topics[0].partitions[0] if found.topics else None
        if not found.error_code and row is not None and row.error_code != 88:
            assert not row.error_code
            return int(row.committed_offset)
        assert time.monotonic() < end, found
        time.sleep(0.005)


def ready(client: RawClient, topics: Mapping[str, int]) -> None:
    """Makes topics, and both coordinators' own."""
    rows = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in topics.items()]
    made = client.ask(19, 7, {"topics": rows, "timeout": 10_000}).topics
    assert all(each.error_code in (0, 36) for each in made)
    for kind in (0, 1):
        end = time.monotonic() + _SECONDS
        while client.ask(FIND, 6, {"key_type": kind, "coordinator_keys": ["a"]}).coordinators[0].error_code:
            assert time.monotonic() < end
            time.sleep(0.005)
