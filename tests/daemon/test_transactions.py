"""Transactions over several broker processes, which are killed: all of each transaction is seen, or nothing, and once."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import PATIENCE_SECONDS, Daemon, until
from tests.daemon.threads import Threads

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
administration = pytest.importorskip("confluent_kafka.admin", reason="confluent-kafka is not installed")

_PARTITIONS = 4
_WORKERS = 3


def serving(directory: Path, workers: int = _WORKERS, **more: object) -> Daemon:
    return Daemon(
        directory,
        broker_workers=workers,
        **{
            "transaction.state.log.num.partitions": 6,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
            **more,
        },
    )


class Producers(Threads):
    """Each with a transactional id of its own, writing the same value to every partition of a topic."""

    def __init__(self, daemon: Daemon, count: int) -> None:
        super().__init__(count)
        self._daemon = daemon
        #: Value to whether it was committed; None: the producer was gone before it was told.
        self.outcomes: dict[bytes, bool | None] = {}
        self.committed = 0

    def _producer(self, number: int) -> Any:
        while True:
            producer = confluent_kafka.Producer(
                {
                    "bootstrap.servers": self._daemon.bootstrap,
                    "transactional.id": f"tx-{number}",
                    "transaction.timeout.ms": 60_000,
                    "reconnect.backoff.max.ms": 200,
                    "log_level": 0,
                }
            )
            try:
                producer.init_transactions(PATIENCE_SECONDS)
            except confluent_kafka.KafkaException as error:
                if error.args[0].fatal() or not error.args[0].retriable():
                    continue
            else:
                return producer

    def _run(self, number: int) -> None:
        chance = random.Random(number)
        producer = self._producer(number)
        turn = 0
        while not self._stopping.is_set():
            turn += 1
            value = b"%d/%d" % (number, turn)
            commit = chance.random() < 0.7
            self.outcomes[value] = None
            try:
                producer.begin_transaction()
                for partition in range(_PARTITIONS):
                    producer.produce("t", value, partition=partition)
                producer.flush(PATIENCE_SECONDS)
                self._end(producer, commit)
            except confluent_kafka.KafkaException as error:
                if error.args[0].txn_requires_abort():
                    try:
                        self._end(producer, False)
                        self.outcomes[value] = False
                        continue
                    except confluent_kafka.KafkaException:
                        pass
                producer = self._producer(number)
                continue
            self.outcomes[value] = commit
            self.committed += commit

    def _end(self, producer: Any, commit: bool) -> None:
        while True:
            try:
                (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_SECONDS)
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return

    def verify(self) -> None:
        """What consumers of committed records see, in every partition."""
        seen: dict[bytes, Counter[int]] = defaultdict(Counter)
        for partition in range(_PARTITIONS):
            for record in self._daemon.records("t", partition, "read_committed"):
                seen[record.value][partition] += 1
        everywhere = Counter(dict.fromkeys(range(_PARTITIONS), 1))
        for value, outcome in self.outcomes.items():
            found = seen.pop(value, Counter())
            assert found in (Counter(), everywhere), f"{value!r} is seen in part: {found}"
            if outcome is not None:
                assert bool(found) is outcome, f"{value!r} was {'committed' if outcome else 'aborted'}, seen: {found}"
        assert not seen


def nothing_is_open(daemon: Daemon) -> None:
    """Every transaction has ended, and every partition is stable up to its end."""
    admin = administration.AdminClient({"bootstrap.servers": daemon.bootstrap})

    def stable() -> bool:
        for partition in range(_PARTITIONS):
            where = {confluent_kafka.TopicPartition("t", partition): administration.OffsetSpec.latest()}
            ends = [
                next(iter(admin.list_offsets(where, isolation_level=level).values())).result().offset
                for level in (
                    confluent_kafka.IsolationLevel.READ_COMMITTED,
                    confluent_kafka.IsolationLevel.READ_UNCOMMITTED,
                )
            ]
            if ends[0] != ends[1]:
                return False
        return True

    until(stable, "the end of every transaction")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["broker", "daemon"])
def test_brokers_are_killed_in_the_midst_of_transactions(tmp_path: Path, victim: str) -> None:

    moments = random.Random(victim)
    with serving(tmp_path) as daemon:
        daemon.create_topic("t", _PARTITIONS)
        with Producers(daemon, 3) as producers:
            until(lambda: producers.committed > 5, "the first commits")
            for turn in range(3):
                time.sleep(moments.uniform(0.2, 0.6))
                if victim == "broker":
                    daemon.kill(f"broker-{turn % _WORKERS}")
                else:
                    daemon.signal(signal.SIGKILL)
                    daemon.ended()
                    until(lambda: not daemon.survivors(), "the end of its workers")
                    daemon.start()
                sofar = producers.committed
                until(lambda sofar=sofar: producers.committed > sofar + 3, "more commits")  # type: ignore[misc]
        nothing_is_open(daemon)
        producers.verify()
        assert sum(outcome is True for outcome in producers.outcomes.values()) > 10
        daemon.stop()


@pytest.mark.timeout(600)
def test_offsets_and_records_of_a_transaction_lie_with_several_brokers(tmp_path: Path) -> None:
    """A consumer's offsets and what it made of the records count together, whoever owns which partition."""
    with serving(tmp_path) as daemon:
        daemon.create_topic("t", _PARTITIONS)
        where = {"bootstrap.servers": daemon.bootstrap}
        leaders = {
            each.leader for each in administration.AdminClient(where).list_topics("t").topics["t"].partitions.values()
        }
        assert len(leaders) == _WORKERS
        for number, commit in enumerate((True, False, True)):
            consumer = confluent_kafka.Consumer({**where, "group.id": f"g{number}", "auto.offset.reset": "earliest"})
            producer = confluent_kafka.Producer({**where, "transactional.id": f"tx-{number}"})
            try:
                producer.init_transactions(PATIENCE_SECONDS)
                producer.begin_transaction()
                for partition in range(_PARTITIONS):
                    producer.produce("t", b"%d" % number, partition=partition)
                offsets = [
                    confluent_kafka.TopicPartition("t", partition, 7 + number) for partition in range(_PARTITIONS)
                ]
                producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_SECONDS)
                (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_SECONDS)
                asked = [confluent_kafka.TopicPartition("t", partition) for partition in range(_PARTITIONS)]
                found = {each.offset for each in consumer.committed(asked, PATIENCE_SECONDS)}
                assert found == ({7 + number} if commit else {confluent_kafka.OFFSET_INVALID})
            finally:
                consumer.close()
                del producer
        nothing_is_open(daemon)
        for partition in range(_PARTITIONS):
            assert [each.value for each in daemon.records("t", partition, "read_committed")] == [b"0", b"2"]
        daemon.stop()
