"""Partitions moved between log dirs by a whole daemon: compacted ones under load, and workers killed on the way."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as TopicOffset

from compactd.storage.checkpoints import CLEANER_OFFSETS, RECOVERY_POINTS, OffsetCheckpoint
from compactd.storage.names import FUTURE_DIR, TopicPartition
from compactd.workers.broker.errors import ErrorCode
from tests.daemon.daemons import PATIENCE_SECONDS, Daemon, until
from tests.daemon.load import Load
from tests.daemon.test_kills import look_after, serving
from tests.workers.broker.batches import batch, produce
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_moves import alter

METADATA = 3
_PARTITIONS = 2


def create_topics(daemon: Daemon) -> None:
    """What is moved or replaced goes soon."""
    common = {"segment_ms": 300, "file_delete_delay_ms": 500, "flush_messages": 1}
    daemon.create_topic("users", _PARTITIONS, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, **common)
    daemon.create_topic("events", _PARTITIONS, retention_ms=-1, **common)


def place_of(daemon: Daemon, name: str) -> Path | None:
    """The log dir that holds a partition, if it is one and nothing is on its way."""
    found = [log_dir for log_dir in daemon.dirs if (log_dir / name).is_dir()]
    copies = [path for log_dir in daemon.dirs for path in log_dir.glob(f"{name}.*{FUTURE_DIR}")]
    return found[0] if len(found) == 1 and not copies else None


def move(daemon: Daemon, name: str, log_dir: Path) -> int:
    """The error code; -1 where the broker is not there just now."""
    topic, _, number = name.rpartition("-")
    try:
        with RawClient(int(daemon.bootstrap.rsplit(":", 1)[1])) as client:
            return alter(client, str(log_dir), topic, int(number))
    except OSError:
        return -1


def other(daemon: Daemon, log_dir: Path) -> Path:
    return next(each for each in daemon.dirs if each != log_dir)


def names() -> list[str]:
    return [f"{topic}-{number}" for topic in ("users", "events") for number in range(_PARTITIONS)]


def entries(log_dir: Path, name: str) -> dict[TopicPartition, int]:
    return OffsetCheckpoint(log_dir / name).read()


def test_compacted_partitions_move_under_load(tmp_path: Path) -> None:
    """Cleaned before, not meanwhile, and after; nothing lost; checkpoints go along."""
    with serving(tmp_path) as daemon:
        create_topics(daemon)
        with Load(daemon, "users", "events") as load:
            until(lambda: load.acknowledged_so_far() > 200, "the load")
            for _ in range(3):
                for name in names():
                    source = until(lambda name=name: place_of(daemon, name), "its place")  # type: ignore[misc]
                    target = other(daemon, source)
                    assert move(daemon, name, target) == 0
                    until(lambda name=name, target=target: place_of(daemon, name) == target, f"{name} in {target}")  # type: ignore[misc]
                load.goes_on(50)
        daemon.clean_now("users")
        places = {name: place_of(daemon, name) for name in names()}
        until(lambda: not daemon.strays(), "the removal of what was moved")
        look_after(daemon, load)
    for name, place in places.items():
        assert place is not None
        topic, _, number = name.rpartition("-")
        partition = TopicPartition(topic, int(number))
        for log_dir in daemon.dirs:
            assert (partition in entries(log_dir, RECOVERY_POINTS)) == (log_dir == place)
            if topic == "users":
                assert (partition in entries(log_dir, CLEANER_OFFSETS)) == (log_dir == place)
    # What lies where is what the next start finds.
    with daemon:
        load.verify(_PARTITIONS)
        assert {name: place_of(daemon, name) for name in names()} == places
        daemon.stop()


@pytest.mark.parametrize("seed", range(3))
def test_the_broker_is_killed_on_the_way(tmp_path: Path, seed: int) -> None:
    """At moments from the first byte of the copy to the removal of what was moved; one place in the end, all there."""
    moments = random.Random(seed)
    with serving(tmp_path) as daemon:
        create_topics(daemon)
        with Load(daemon, "users", "events") as load:
            until(lambda: load.acknowledged_so_far() > 100, "the load")
            for _ in range(4):
                wanted = {}
                for name in names():
                    source = until(lambda name=name: place_of(daemon, name), "its place")  # type: ignore[misc]
                    wanted[name] = other(daemon, source)
                for name, target in wanted.items():
                    move(daemon, name, target)
                pid = daemon.pids()["broker-0"]
                time.sleep(moments.uniform(0, 0.12))
                os.kill(pid, signal.SIGKILL)
                until(lambda pid=pid: daemon.pids().get("broker-0", pid) != pid, "another broker")  # type: ignore[misc]
                for name in names():
                    until(lambda name=name: place_of(daemon, name), f"one place of {name}")  # type: ignore[misc]
                load.goes_on()
        until(lambda: not daemon.strays(), "the removal of what was moved")
        look_after(daemon, load)


def test_the_daemon_is_killed_on_the_way(tmp_path: Path) -> None:
    moments = random.Random(1)
    with serving(tmp_path) as daemon:
        create_topics(daemon)
        with Load(daemon, "users", "events") as load:
            until(lambda: load.acknowledged_so_far() > 100, "the load")
            for _ in range(3):
                for name in names():
                    source = until(lambda name=name: place_of(daemon, name), "its place")  # type: ignore[misc]
                    move(daemon, name, other(daemon, source))
                time.sleep(moments.uniform(0, 0.15))
                daemon.signal(signal.SIGKILL)
                daemon.ended()
                until(lambda: not daemon.survivors(), "the end of its workers")
                daemon.start()
                for name in names():
                    until(lambda name=name: place_of(daemon, name), f"one place of {name}")  # type: ignore[misc]
                load.goes_on()
        until(lambda: not daemon.strays(), "the removal of what was moved")
        look_after(daemon, load)


def test_transactions_and_groups_do_not_notice(tmp_path: Path) -> None:
    """Data, offsets and the state of transactions move under an open transaction; so does a producer's sequence."""
    with serving(tmp_path) as daemon:
        daemon.create_topic("ledger", 1, segment_ms=300, file_delete_delay_ms=500)
        common = {"bootstrap.servers": daemon.bootstrap}
        producer = Producer({**common, "transactional.id": "mover", "transaction.timeout.ms": 30_000})
        producer.init_transactions(PATIENCE_SECONDS)
        consumer = Consumer(
            {**common, "group.id": "readers", "auto.offset.reset": "earliest", "isolation.level": "read_committed",
             "enable.auto.commit": False}
        )  # fmt: skip
        consumer.subscribe(["ledger"])
        # An aborted transaction's data stays invisible wherever it lies.
        producer.begin_transaction()
        producer.produce("ledger", b"never")
        producer.flush(PATIENCE_SECONDS)
        producer.abort_transaction(PATIENCE_SECONDS)
        seen: list[bytes] = []
        for turn in range(3):
            producer.begin_transaction()
            for number in range(5):
                producer.produce("ledger", b"%d-%d" % (turn, number))
            producer.flush(PATIENCE_SECONDS)
            moved = [path.name for log_dir in daemon.dirs for path in log_dir.iterdir() if _moves(path.name)]
            assert any(name.startswith("__transaction_state") for name in moved)
            for name in moved:
                source = until(lambda name=name: place_of(daemon, name), "its place")  # type: ignore[misc]
                assert move(daemon, name, other(daemon, source)) == 0
                until(lambda name=name, source=source: place_of(daemon, name) == other(daemon, source), f"{name} there")  # type: ignore[misc]
            producer.produce("ledger", b"%d-after" % turn)
            producer.send_offsets_to_transaction(
                [TopicOffset("ledger", 0, turn)], consumer.consumer_group_metadata(), PATIENCE_SECONDS
            )
            producer.commit_transaction(PATIENCE_SECONDS)

            def read(turn: int = turn) -> bool:
                message = consumer.poll(0.2)
                if message is not None and not message.error():
                    seen.append(message.value())
                return len(seen) >= 6 * (turn + 1)

            until(read, f"the records of transaction {turn}")
        consumer.close()
        assert seen == [
            value for turn in range(3) for value in [*(b"%d-%d" % (turn, n) for n in range(5)), b"%d-after" % turn]
        ]
        (committed,) = Consumer({**common, "group.id": "readers"}).committed(
            [TopicOffset("ledger", 0)], PATIENCE_SECONDS
        )
        assert committed.offset == 2
        daemon.stop()


def _moves(name: str) -> bool:
    return name.startswith(("ledger-", "__consumer_offsets-", "__transaction_state-")) and "." not in name


def test_each_worker_moves_its_own(tmp_path: Path) -> None:
    """To clients each is a broker; of a partition of another one none knows anything but that it exists."""
    with Daemon(tmp_path, broker_workers=2) as daemon:
        daemon.create_topic("users", 6)
        with RawClient(int(daemon.bootstrap.split(",")[0].rsplit(":", 1)[1])) as client:
            told = client.ask(METADATA, 9, {"topics": [{"name": "users"}]})
        brokers = {each.node_id: each.port for each in told.brokers}
        leaders = {each.partition_index: each.leader_id for each in told.topics[0].partitions}
        assert sorted(brokers) == [1, 1_000_001] and set(leaders.values()) == set(brokers)
        for number, leader in leaders.items():
            name = f"users-{number}"
            source = until(lambda name=name: place_of(daemon, name), "its place")  # type: ignore[misc]
            target = other(daemon, source)
            for node, port in brokers.items():
                with RawClient(port) as client:
                    expected = 0 if node == leader else ErrorCode.REPLICA_NOT_AVAILABLE
                    assert alter(client, str(target), "users", number) == expected
            until(lambda name=name, target=target: place_of(daemon, name) == target, f"{name} in {target}")  # type: ignore[misc]
        daemon.stop()


def test_a_disk_that_is_too_small_keeps_the_move_waiting(tmp_path: Path, small_disk: Path) -> None:
    """What lies on that disk is served on, and so is what was to go there, until somebody takes the wish back."""
    with Daemon(tmp_path, cleaner_free_space_margin=1 << 20) as daemon:
        daemon.create_topic("large", 2)
        with RawClient(int(daemon.bootstrap.rsplit(":", 1)[1])) as client:
            number = next(n for n in range(2) if (daemon.dirs[0] / f"large-{n}").is_dir())
            for _ in range(10):
                assert produce(client, batch([os.urandom(800_000)]), "large", number).error_code == 0
            assert alter(client, str(small_disk), "large", number) == 0
            until(lambda: daemon.status().moves == {f"large-{number}": str(small_disk)}, "the move")
            until(lambda: "waits for space" in daemon.log(), "the warning")
            for each in range(2):
                assert produce(client, batch([b"still served"]), "large", each).error_code == 0
            assert alter(client, str(daemon.dirs[0]), "large", number) == 0
            until(lambda: not daemon.status().moves, "the end of the move")
        assert not daemon.status().offline
        assert place_of(daemon, f"large-{number}") == daemon.dirs[0]
        daemon.stop()


def test_the_broker_is_killed_at_each_step(tmp_path: Path) -> None:
    """As soon as the directories show that a step is done; the coordinator and its catalogue live on."""
    steps = (
        "{target}/large-0.*-future",
        "{target}/large-0.*-future/.moved-from",
        "{source}/large-0.*-delete",
        "{target}/large-0",
    )
    with serving(tmp_path) as daemon:
        daemon.create_topic("large", 1, file_delete_delay_ms=500)
        port = int(daemon.bootstrap.rsplit(":", 1)[1])
        written = [os.urandom(200_000) for _ in range(10)]
        with RawClient(port) as client:
            for value in written:
                assert produce(client, batch([value]), "large").error_code == 0
        for step in steps:
            source = until(lambda: place_of(daemon, "large-0"), "its place")
            target = other(daemon, source)
            until(lambda: not daemon.strays(), "the removal of what was moved before")
            pattern = step.format(source=source.name, target=target.name)
            pid = daemon.pids()["broker-0"]
            assert move(daemon, "large-0", target) == 0
            # A step that is over before it is seen is as good as the next one.
            end = time.monotonic() + PATIENCE_SECONDS
            while not list(tmp_path.glob(pattern)) and place_of(daemon, "large-0") != target:
                assert time.monotonic() < end, pattern
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: daemon.pids().get("broker-0", pid) != pid, "another broker")  # type: ignore[misc]
            # What was begun is gone on with.
            until(lambda target=target: place_of(daemon, "large-0") == target, f"the end of the move, killed at {step}")  # type: ignore[misc]
            until(lambda: not daemon.status().offline, "its partition")
            assert [record.value for record in daemon.records("large")] == written, step
            with RawClient(port) as client:
                written.append(b"after " + step.encode())
                assert produce(client, batch([written[-1]]), "large").error_code == 0
        daemon.stop()
