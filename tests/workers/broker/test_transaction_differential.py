"""The same transactions at Kafka 4.4.0 and here: every answer, and every byte of the logs but ids and times, has to be the same."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactd.storage.metadata.transactions import decode_transaction_record
from compactd.storage.records.batch import iter_batches
from compactd.workers.broker.transactions.coordinator import TransactionCoordinator
from tests.oracle.broker import Broker
from tests.workers.broker.batches import batch
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.hearing import heard
from tests.workers.broker.test_admin_differential import Script, _difference, ready

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

PRODUCE, FETCH, FIND, INIT, ADD, OFFSETS, END, MARKERS, COMMIT = 0, 1, 10, 22, 24, 25, 26, 27, 28
PRODUCERS, DESCRIBE, LIST = 61, 65, 66
_STATE_TOPIC = "__transaction_state"
SETTINGS = {"transaction.state.log.num.partitions": "3", "transaction.state.log.min.isr": "1"}


class Transactions(Script):
    """With producer ids by the order in which they came."""

    def _plain(self, value: Any) -> Any:
        plain = super()._plain(value)
        if isinstance(plain, dict):
            for name in ("producer_id",):
                if isinstance(plain.get(name), int) and plain[name] >= 0:
                    plain[name] = self._name(f"producer {plain[name]}")
            if plain.get("transaction_start_time"):
                plain["transaction_start_time"] = "set"
            if "active_producers" in plain:
                for row in plain["active_producers"]:
                    row["last_timestamp"] = row["last_timestamp"] > 0
        return plain

    def settled(self, name: str) -> None:
        """Until the transaction's markers are written: Kafka answers before."""
        end = time.monotonic() + 60
        while True:
            found = self.client.ask(DESCRIBE, 0, {"transactional_ids": [name]}).transaction_states[0]
            if not found.transaction_state.startswith("Prepare"):
                return
            assert time.monotonic() < end, found
            time.sleep(0.01)

    def init(self, name: str, version: int = 5, timeout: int = 60_000, **more: Any) -> tuple[int, int]:
        body = {"transactional_id": name, "transaction_timeout": timeout, **more}
        answer = self.ask(f"init {name} {timeout} {list(more)}", INIT, version, body)
        return answer.producer_id, answer.producer_epoch

    def ids(self, name: str) -> tuple[int, int]:
        """Of its producer now."""
        found = self.client.ask(DESCRIBE, 0, {"transactional_ids": [name]}).transaction_states[0]
        return found.producer_id, found.producer_epoch

    def add(self, name: str, producer: tuple[int, int], *partitions: tuple[str, int], version: int = 3) -> None:
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        body = {
            "v3_and_below_transactional_id": name,
            "v3_and_below_producer_id": producer[0],
            "v3_and_below_producer_epoch": producer[1],
            "v3_and_below_topics": [{"name": topic, "partitions": numbers} for topic, numbers in topics.items()],
        }
        self.ask(f"add {partitions} to {name}", ADD, version, body)

    def add_for(self, version: int, *transactions: dict[str, Any]) -> None:
        self.ask(
            f"add for {[each['transactional_id'] for each in transactions]}",
            ADD,
            version,
            {"transactions": transactions},
        )

    def end(self, name: str, producer: tuple[int, int], commit: bool, version: int = 3) -> tuple[int, int]:
        body = {
            "transactional_id": name,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "committed": commit,
        }
        answer = self.ask(f"end {name} {producer[1]} {'commit' if commit else 'abort'}", END, version, body)
        self.settled(name)
        return getattr(answer, "producer_id", producer[0]), getattr(answer, "producer_epoch", producer[1])

    def write(
        self,
        name: str | None,
        producer: tuple[int, int],
        sequence: int = 0,
        *,
        topic: str = "t",
        partition: int = 0,
        version: int = 9,
        transactional: bool = True,
    ) -> None:
        records = batch(
            [b"v"],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=transactional,
        )
        body = {
            "transactional_id": name,
            "acks": -1,
            "timeout": 9000,
            "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
        }
        # Without the offsets: where a batch lies is compared with the logs.
        answer = self.client.ask(PRODUCE, version, body)
        for found in answer.responses[0].partition_responses:
            what = f"write {name} {producer[1]} {sequence} to {topic}-{partition} v{version}"
            self.log.append((what, (int(found.error_code), found.base_offset)))

    def describe(self, *names: str) -> None:
        self.ask(f"describe {names}", DESCRIBE, 0, {"transactional_ids": names})

    def list(self, version: int = 2, **filters: Any) -> None:
        body = {"state_filters": (), "producer_id_filters": (), **filters}
        self.ask(f"list {filters}", LIST, version, body)

    def producers(self, topic: str, *partitions: int) -> None:
        self.ask(f"producers of {topic}", PRODUCERS, 0, {"topics": [{"name": topic, "partition_indexes": partitions}]})

    def logs(self, *partitions: tuple[str, int]) -> None:
        """What the partitions hold."""
        for topic, number in partitions:
            for header, key, value in self._records(topic, number):
                self.log.append((f"in {topic}-{number}", (*header, key, value)))

    def _records(self, topic: str, number: int) -> Iterator[tuple[Any, Any, Any]]:
        body = {
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 24,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "forgotten_topics_data": (),
            "rack_id": "",
            "topics": [
                {
                    "topic": topic,
                    "partitions": [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 1 << 24}],
                }
            ],
        }
        data = bytes(self.client.ask(FETCH, 12, body).responses[0].partitions[0].records or b"")
        for each in iter_batches(data):
            head = each.header
            producer = self._name(f"producer {head.producer_id}") if head.producer_id >= 0 else None
            header = (
                head.base_offset,
                head.attributes,
                head.last_offset,
                producer,
                head.producer_epoch,
                head.base_sequence,
            )
            for record in each.records():
                yield header, record.key, self._value(topic, record.key, record.value)

    def _value(self, topic: str, key: bytes, value: bytes | None) -> Any:
        if topic != _STATE_TOPIC or value is None:
            return value
        found = decode_transaction_record(key, value)["value"]
        for name in ("producerId", "previousProducerId", "nextProducerId"):
            if found.get(name, -1) >= 0:
                found[name] = self._name(f"producer {found[name]}")
        for name in ("transactionStartTimestampMs", "transactionLastUpdateTimestampMs"):
            found[name] = found[name] >= 0
        return value[:2], found


def beginnings(script: Transactions) -> None:
    """FindCoordinator and InitProducerId."""
    for kind, version in ((1, 6), (1, 3), (1, 1)):
        keys = {"coordinator_keys": ["a", "b"]} if version >= 4 else {"key": "a"}
        script.ask("find", FIND, version, {"key_type": kind, **keys})
    for timeout in (0, -1, 900_001, 900_000):
        script.init("a", timeout=timeout)
    script.init("")
    for version in range(6):
        script.init("a", version)
    had = script.init("a")
    for more in (
        {"producer_id": had[0]}, {"producer_epoch": 1}, {"producer_id": had[0] + 1, "producer_epoch": had[1]},
        {"producer_id": had[0], "producer_epoch": had[1] + 1}, {"producer_id": had[0], "producer_epoch": had[1] - 1},
    ):  # fmt: skip
        script.init("a", **more)
        script.init("a", 3, **more)
    script.init("a", producer_id=had[0], producer_epoch=had[1])
    script.init("a", producer_id=had[0], producer_epoch=had[1])
    script.init("a", producer_id=had[0], producer_epoch=had[1] + 1)
    script.init("unheard of", producer_id=5, producer_epoch=7)
    script.describe("a", "none", "")
    script.list(0)
    script.list(1, duration_filter=-1)
    for filters in (
        {"state_filters": ["Empty"]}, {"state_filters": ["Ongoing", "nonsense"]}, {"producer_id_filters": [had[0]]},
        {"producer_id_filters": [1 << 40]}, {"duration_filter": 0}, {"duration_filter": 1 << 50}, {"transactional_id_pattern": "a"},
        {"transactional_id_pattern": "un.*"}, {"transactional_id_pattern": ""}, {"transactional_id_pattern": "("},
    ):  # fmt: skip
        script.list(**filters)


def older_clients(script: Transactions) -> None:
    """AddPartitionsToTxn, Produce up to v11, EndTxn up to v4."""
    one = script.init("one")
    t0, t1 = ("t", 0), ("t", 1)
    for version in range(4):
        script.add("one", (one[0] + 1, one[1]), t0, version=version)
        script.add("one", (one[0], one[1] + 1), t0, version=version)
        script.add("none", one, t0, version=version)
        script.add("", one, t0, version=version)
        script.add("one", one, t0, ("t", 7), ("no", 0), ("__consumer_offsets", 0), version=version)
        script.end("one", (one[0], one[1] + 1), True, version)
        script.end("one", (one[0] + 1, one[1]), True, version)
        script.end("none", one, True, version)
        script.end("one", one, True, version)
        script.end("one", one, False, version)
    for version in (9, 10, 11):
        script.write("one", one, version=version)
        script.write("none", one, version=version)
        script.write(None, one, version=version)
    script.add("one", one, t0)
    script.describe("one")
    for version in (9, 11):
        script.write("one", one, partition=1, version=version)
        script.write("one", (one[0], one[1] + 1), version=version)
        script.write("one", (one[0] + 1, one[1]), version=version)
    script.write("one", one, 0)
    script.write("one", one, 0)
    script.write("one", one, 1, version=11)
    script.write("one", one, 3)
    script.write("one", one, 2, transactional=False)
    script.producers("t", 0, 1, 9)
    script.add("one", one, t0, t1)
    script.add("one", one, t1, t0)
    script.describe("one")
    script.list(state_filters=["Ongoing"])
    script.list(state_filters=["Ongoing"], duration_filter=1 << 40)
    script.write("one", one, 0, partition=1)
    script.end("one", one, True)
    for commit in (True, False):
        script.end("one", one, commit)
    script.write("one", one, 2)
    script.describe("one")
    script.producers("t", 0, 1)
    script.add("one", one, t1)
    script.write("one", one, 1, partition=1)
    script.end("one", one, False, 1)
    script.end("one", one, False, 0)
    script.end("one", one, True, 0)
    script.describe("one")
    # An init in the midst of a transaction aborts it, and answers the second time.
    script.add("one", one, t0)
    script.write("one", one, 2)
    script.init("one")
    script.settled("one")
    script.write("one", one, 3)
    script.add("one", one, t0)
    again = script.init("one")
    script.end("one", one, True)
    script.add("one", again, t0)
    script.write("one", again, 1)
    script.write("one", again, 0)
    script.end("one", again, True)
    script.logs(t0, t1, *((_STATE_TOPIC, number) for number in range(3)))


def newer_clients(script: Transactions) -> None:
    """Produce v12, EndTxn v5: partitions join by themselves, every transaction has an epoch of its own."""
    two = script.init("two")
    script.end("two", two, True, 5)
    two = script.end("two", two, False, 5)
    script.end("two", (two[0], two[1] - 1), False, 5)
    script.end("two", (two[0], two[1] - 1), True, 5)
    script.write("two", (two[0], two[1] - 1), topic="n", version=12)
    script.write("two", (two[0] + 1, two[1]), topic="n", version=12)
    script.write("none", two, topic="n", version=12)
    script.write("", two, topic="n", version=12)
    script.write("two", two, 3, topic="n", version=12)
    script.write("two", two, 0, topic="n", version=12)
    script.write("two", two, 1, topic="n", version=12)
    script.describe("two")
    before, two = two, script.end("two", two, True, 5)
    for epoch in (before, (two[0], two[1] + 1), (two[0] + 1, two[1])):
        for commit in (True, False):
            script.end("two", epoch, commit, 5)
    script.end("two", two, True, 5)
    script.write("two", before, 2, topic="n", version=12)
    script.write("two", two, 2, topic="n", version=12)
    script.write("two", two, 0, topic="n", version=12)
    script.write("two", two, 0, topic="n", partition=1, version=12)
    script.producers("n", 0, 1)
    two = script.end("two", two, False, 5)
    script.describe("two")
    two = script.end("two", two, False, 5)
    script.write("two", two, 0, topic="n", version=12)
    script.init("two")
    script.settled("two")
    script.write("two", two, 1, topic="n", version=12)
    new = script.init("two", producer_id=two[0], producer_epoch=two[1] + 1)
    script.write("two", new, 0, topic="n", version=12)
    script.end("two", new, True, 5)
    transaction = {"producer_id": new[0], "producer_epoch": new[1] + 1, "verify_only": True}
    three = script.init("three")
    other = {"transactional_id": "three", "producer_id": three[0], "producer_epoch": three[1], "verify_only": False}
    for version in (4, 5):
        for topics in (
            [{"name": "n", "partitions": [0, 1]}],
            [{"name": "no", "partitions": [0]}, {"name": "n", "partitions": [1]}],
        ):
            script.add_for(
                version, {"transactional_id": "two", **transaction, "topics": topics}, {**other, "topics": topics}
            )
            script.add_for(version, {**other, "verify_only": True, "topics": topics})
    script.end("three", three, True, 5)
    script.logs(("n", 0), ("n", 1), *((_STATE_TOPIC, number) for number in range(3)))


def mixed_clients(script: Transactions) -> None:
    """A client of either kind takes over from one of the other."""
    one = script.init("mixed")
    script.add("mixed", one, ("m", 0))
    script.write("mixed", one, 0, topic="m")
    one = script.end("mixed", one, True, 5)
    script.add("mixed", one, ("m", 0))
    script.write("mixed", one, 0, topic="m")
    script.end("mixed", one, False, 4)
    script.write("mixed", one, 1, topic="m", version=12)
    one = script.end("mixed", one, True, 5)
    script.write("mixed", one, 0, topic="m", version=12)
    script.end("mixed", one, True, 4)
    script.write("mixed", one, 5, topic="m", version=12)
    script.write("mixed", one, 1, topic="m", version=12)
    script.describe("mixed")
    script.logs(("m", 0), *((_STATE_TOPIC, number) for number in range(3)))


def offsets(script: Transactions) -> None:
    """AddOffsetsToTxn and TxnOffsetCommit, and what others see of them."""
    had = script.init("o")

    def commit(version: int, offset: int, producer: tuple[int, int] | None = None, **more: Any) -> None:
        id_, epoch = producer or had
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": None}
        topic = {"topic_id": None} if version >= 6 else {"name": "t"}
        body = {
            "transactional_id": "o", "group_id": "og", "producer_id": id_, "producer_epoch": epoch,
            "topics": [{**topic, "partitions": [row]}], **more,
        }  # fmt: skip
        script.ask(f"commit {offset}", COMMIT, version, body)

    def seen() -> None:
        for stable in (True, False):
            topics = [{"name": "t", "partition_indexes": [0]}]
            body = {"groups": [{"group_id": "og", "topics": topics}], "require_stable": stable}
            script.ask(f"seen {stable}", 9, 9, body)

    def add(version: int, group: str = "og", producer: tuple[int, int] | None = None) -> None:
        id_, epoch = producer or had
        body = {"transactional_id": "o", "producer_id": id_, "producer_epoch": epoch, "group_id": group}
        script.ask("offsets", OFFSETS, version, body)

    for version in (0, 1, 2, 3, 4):
        commit(version, 5)
    for version in (0, 1, 2, 4):
        add(version, producer=(had[0], had[1] + 1))
        add(version, producer=(had[0] + 1, had[1]))
    add(3)
    script.describe("o")
    for version in (0, 3, 4):
        commit(version, 5 + version)
    commit(3, 99, producer=(had[0], had[1] + 1))
    seen()
    script.end("o", had, True)
    seen()
    commit(3, 50)
    commit(4, 50)
    commit(5, 60)
    commit(6, 60)
    seen()
    had = script.end("o", had, False, 5)
    seen()
    commit(5, 70)
    had = script.end("o", had, True, 5)
    seen()
    script.describe("o")


def markers(script: Transactions) -> None:
    """What an operator does about a transaction that hangs."""
    had = script.init("hanging")
    script.add("hanging", had, ("w", 0), ("w", 1))
    script.write("hanging", had, 0, topic="w")
    script.write("hanging", had, 0, topic="w", partition=1)

    def mark(version: int, epoch: int, commit: bool, coordinator: int = 0, **more: Any) -> None:
        marker = {
            "producer_id": had[0], "producer_epoch": epoch, "transaction_result": commit,
            "topics": [{"name": "w", "partition_indexes": [0, 9]}, {"name": "no", "partition_indexes": [0]}],
            "coordinator_epoch": coordinator, **more,
        }  # fmt: skip
        script.ask(f"mark {epoch} {commit} {coordinator} {more}", MARKERS, version, {"markers": [marker]})

    script.ask("mark nothing", MARKERS, 1, {"markers": []})
    mark(1, had[1] - 1, False)
    mark(2, had[1], False, transaction_version=2)
    mark(1, had[1], False)
    script.producers("w", 0, 1)
    script.write("hanging", had, 1, topic="w")
    mark(1, had[1], False, coordinator=5)
    mark(1, had[1], False, coordinator=4)
    mark(2, had[1], True, coordinator=5, transaction_version=2)
    mark(2, had[1] + 1, True, coordinator=5, transaction_version=2)
    script.producers("w", 0, 1)
    script.logs(("w", 0))


SCRIPTS: tuple[Callable[[Transactions], None], ...] = (
    beginnings, older_clients, newer_clients, mixed_clients, offsets, markers,
)  # fmt: skip


def is_ready(client: RawClient) -> None:
    """Until the topics, and both coordinators, are there."""
    ready(client)
    rows = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in "nmw"]
    end = time.monotonic() + 60
    while True:
        made = client.ask(19, 7, {"topics": rows, "timeout": 10_000}).topics
        found = client.ask(FIND, 6, {"key_type": 1, "coordinator_keys": ["a"]}).coordinators[0]
        names = ("a", "one", "two", "three", "mixed", "o", "hanging")
        states = client.ask(DESCRIBE, 0, {"transactional_ids": names}).transaction_states
        codes = [each.error_code for each in made] + [each.error_code for each in states]
        if not found.error_code and all(code in (0, 36, 105) for code in codes):
            return
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="module")
def kafka(oracle_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    home = tmp_path_factory.mktemp("kafka")
    (home / "d").mkdir()
    broker = Broker(oracle_classpath, home / "home", [home / "d"], SETTINGS)
    broker.format()
    with broker:
        yield broker


def worn_out(script: Transactions) -> None:
    """Ids at their last epochs, of either kind of client."""
    for name in ("old", "older", "new", "newer", "idle", "open"):
        script.describe(name)
    had = {name: script.ids(name) for name in ("old", "older", "new", "newer", "idle", "open")}
    # 32764: one more for the client, and the last two for the coordinator.
    for _ in range(4):
        had["old"] = script.init("old")
    script.init("older", producer_id=had["older"][0], producer_epoch=had["older"][1])
    for _ in range(3):
        had["older"] = script.init("older", producer_id=script.ids("older")[0], producer_epoch=script.ids("older")[1])
    for turn in range(4):
        script.write("new", had["new"], topic="t", version=12)
        before, had["new"] = had["new"], script.end("new", had["new"], turn % 2 == 0, 5)
        script.end("new", before, turn % 2 == 0, 5)
        script.end("new", before, turn % 2 == 1, 5)
    for _ in range(4):
        before, had["newer"] = had["newer"], script.end("newer", had["newer"], False, 5)
        script.end("newer", before, False, 5)
    had["idle"] = script.init("idle")
    script.write("idle", had["idle"], topic="t", partition=1, version=12)
    script.init("idle")
    script.settled("idle")
    had["idle"] = script.init("idle")
    script.write("idle", had["idle"], topic="t", partition=1, version=12)
    for version in (3, 5):
        script.end("open", had["open"], True, version)
    script.logs(("t", 0), ("t", 1), *((_STATE_TOPIC, number) for number in range(3)))


def test_we_do_transactions_as_kafka_does(kafka: Broker, log_dir: Path) -> None:
    with RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        is_ready(client)
        theirs = Transactions(client)
        for run in SCRIPTS:
            run(theirs)
    with CatalogueBroker([log_dir], SETTINGS) as broker, broker.connect() as client:
        is_ready(client)
        ours = Transactions(client)
        for run in SCRIPTS:
            run(ours)
    compare(theirs, ours)


@pytest.mark.parametrize("level", [0, 1])
def test_we_do_them_so_in_clusters_of_an_older_transaction_version(
    oracle_classpath: str, log_dir: Path, tmp_path: Path, level: int
) -> None:
    """Whose records are of the first version (0), or whose coordinator raises no epochs by itself (both)."""

    def lower(client: RawClient) -> None:
        update = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": 2}
        body = {"timeout": 10_000, "feature_updates": [update], "validate_only": False}
        assert client.ask(57, 2, body).error_code == 0
        heard(client)
        time.sleep(0.3)

    # Where records are of the first version newer clients are older ones: Kafka can't write down what others bring about.
    scripts = (older_clients, newer_clients, mixed_clients, offsets) if level else (older_clients,)
    kept = tmp_path / "kafka"
    kept.mkdir()
    kafka = Broker(oracle_classpath, tmp_path / "home", [kept], SETTINGS)
    kafka.format()
    with kafka, RawClient(int(kafka.bootstrap.split(":")[1])) as client:
        is_ready(client)
        lower(client)
        theirs = Transactions(client)
        for run in scripts:
            run(theirs)
    with CatalogueBroker([log_dir], SETTINGS) as broker, broker.connect() as client:
        is_ready(client)
        lower(client)
        ours = Transactions(client)
        for run in scripts:
            run(ours)
    compare(theirs, ours)


def compare(theirs: Transactions, ours: Transactions) -> None:
    """Answer by answer."""
    assert len(theirs.log) == len(ours.log)
    differences = [
        f"{label}{_difference(expected, found)}"
        for (label, expected), (_, found) in zip(theirs.log, ours.log, strict=True)
        if expected != found
    ]
    assert not differences, "\n".join(differences)


def test_we_wear_out_epochs_as_kafka_does(oracle_classpath: str, log_dir: Path, tmp_path: Path) -> None:
    """Both go on with the same log dir, in which ids are at their last epochs."""
    with CatalogueBroker([log_dir], SETTINGS) as broker, broker.connect() as client:
        is_ready(client)
        script = Transactions(client)

        def wear(context: Any) -> None:
            for shard in context.part(TransactionCoordinator):
                for each in shard.by_id.values():
                    each.epoch = 32_763

        names = ("old", "older", "new", "newer", "idle", "open")
        for name in names:
            script.init(name)
        broker.in_loop(wear)
        for name in names:
            assert script.init(name)[1] == 32_764
        opened = script.ids("open")
        script.add("open", opened, ("t", 0))
        script.write("open", opened)
    copy = tmp_path / "copy"
    shutil.copytree(log_dir, copy)
    with (
        Broker(oracle_classpath, tmp_path / "home", [copy], SETTINGS) as kafka,
        RawClient(int(kafka.bootstrap.split(":")[1])) as client,
    ):
        is_ready(client)
        theirs = Transactions(client)
        worn_out(theirs)
    with CatalogueBroker([log_dir], SETTINGS, clean=False) as broker, broker.connect() as client:
        is_ready(client)
        ours = Transactions(client)
        worn_out(ours)
    compare(theirs, ours)
