from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import Result

from compactd.config.errors import ServerError, StorageIOError, UsageError
from compactd.scripts.bootstrap import reachable
from compactd.scripts.client import EARLIEST, Fetched, KafkaClient, TopicLayout
from compactd.scripts.consume import _Consumer
from compactd.scripts.lines import LineFormat, read_lines
from compactd.scripts.partitioning import Partitioner, murmur2
from compactd.storage.records.batch import iter_batches
from compactd.storage.records.builder import build_batch, control_batch
from compactd.storage.records.record import Record
from tests.coordinator.serving import until
from tests.scripts.daemons import RunningDaemon

Run = Callable[..., Result]
COMPACTD = (sys.executable, "-m", "compactd.scripts")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with RunningDaemon(tmp_path_factory.mktemp("clients"), broker_workers=2) as running:
        yield running


@pytest.fixture
def produce(daemon: RunningDaemon, run: Run, tmp_path: Path) -> Callable[..., Result]:
    def call(topic: str, lines: bytes | None, *arguments: str) -> Result:
        if lines is not None:
            (tmp_path / "lines").write_bytes(lines)
            arguments += ("--file", str(tmp_path / "lines"))
        return run("produce", topic, *arguments, "--run-dir", daemon.run_dir)

    return call


@pytest.fixture
def consume(daemon: RunningDaemon, run: Run) -> Callable[..., Result]:
    def call(topic: str, *arguments: str) -> Result:
        return run("consume", topic, *arguments, "--run-dir", daemon.run_dir)

    return call


@pytest.fixture
def create(daemon: RunningDaemon, run: Run) -> Callable[..., None]:
    def call(topic: str, *arguments: str) -> None:
        assert run("topics", "create", topic, *arguments, "--run-dir", daemon.run_dir).exit_code == 0

    return call


def records(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- records there and back


def test_keys_values_and_tombstones_come_back(
    create: Callable[..., None], produce: Callable[..., Result], consume: Callable[..., Result]
) -> None:
    create("users", "--set", "cleanup.policy=compact")
    written = produce("users", b'u1:{"age": 26}\nu2:x:y\r\nu3:-\nu4:\n', "--key-separator", ":", "--null-marker", "-")
    assert (written.exit_code, written.stderr) == (0, "4 records written to users\n")
    assert produce("users", None, "--delete", "u1", "--delete", "u2").stderr == "2 records written to users\n"
    found = records(consume("users", "--from-beginning", "--until-end", "--json"))
    assert [(each["offset"], each["key"], each["value"]) for each in found] == [
        (0, "u1", '{"age": 26}'),
        (1, "u2", "x:y"),
        (2, "u3", None),
        (3, "u4", ""),
        (4, "u1", None),
        (5, "u2", None),
    ]
    assert set(found[0]) == {"topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers"}
    assert found[0]["timestampType"] == "CreateTime"
    assert abs(found[0]["timestamp"] / 1000 - time.time()) < 600
    lines = consume(
        "users", "--from-beginning", "--until-end", "--keys", "--key-separator", "=", "--null-marker", "(none)"
    )
    assert lines.stdout == 'u1={"age": 26}\nu2=x:y\nu3=(none)\nu4=\nu1=(none)\nu2=(none)\n'
    assert lines.stderr == "6 records of users\n"
    values = consume("users", "--from-beginning", "--until-end", "--json", "--format", "json")
    assert records(values)[0]["value"] == {"age": 26}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_and_more_than_a_batch(
    create: Callable[..., None], produce: Callable[..., Result], consume: Callable[..., Result], codec: str
) -> None:
    create(f"of-{codec}")
    lines = [f"{number} {'x' * 90}" for number in range(6000)]
    written = produce(f"of-{codec}", "\n".join(lines).encode(), "--codec", codec, "--json")
    batches = records(written)
    assert len(batches) > 1
    assert [batch["baseOffset"] for batch in batches] == [
        sum(batch["records"] for batch in batches[:index]) for index in range(len(batches))
    ]
    assert consume(f"of-{codec}", "--from-beginning", "--until-end").stdout.splitlines() == lines


def test_a_key_goes_where_kafkas_clients_put_it_on_every_worker(
    create: Callable[..., None], produce: Callable[..., Result], consume: Callable[..., Result]
) -> None:
    create("spread", "--partitions", "8")
    produce("spread", b"".join(b"k%d:v\n" % number for number in range(200)), "--key-separator", ":")
    found = records(consume("spread", "--from-beginning", "--until-end", "--json"))
    assert len(found) == 200
    assert {each["partition"] for each in found} == set(range(8))
    for each in found:
        assert each["partition"] == (murmur2(each["key"].encode()) & 0x7FFFFFFF) % 8
    assert records(produce("spread", b"here\n", "--partition", "5", "--json"))[0]["partition"] == 5


def test_reading_begins_and_ends_where_it_is_told(
    create: Callable[..., None], produce: Callable[..., Result], consume: Callable[..., Result]
) -> None:
    create("places", "--partitions", "2")
    produce("places", b"a\nb\nc\nd\n", "--partition", "1")
    assert consume("places", "--from-beginning", "--max", "2").stdout == "a\nb\n"
    assert consume("places", "--partition", "1", "--offset", "2", "--until-end").stdout == "c\nd\n"
    assert consume("places", "--partition", "1", "--offset", "4", "--until-end").stdout == ""
    # Without a place it begins at the end, where nothing is yet.
    assert consume("places", "--until-end").stdout == ""
    numbered = consume("places", "--partition", "1", "--offset", "3", "--until-end", "--offsets").stdout
    partition, offset, moment, value = numbered.rstrip("\n").split("\t")
    assert (partition, offset, value) == ("1", "3", "d")
    assert moment.endswith("Z")


def test_bytes_that_are_no_text_are_kept(
    create: Callable[..., None], produce: Callable[..., Result], consume: Callable[..., Result]
) -> None:
    create("bytes")
    produce("bytes", b"\xff\xfe\x00tail\n")
    assert consume("bytes", "--from-beginning", "--until-end").stdout_bytes == b"\xff\xfe\x00tail\n"
    assert records(consume("bytes", "--from-beginning", "--until-end", "--json"))[0]["valueHex"] == "fffe007461696c"


def test_lines_go_out_while_a_pipe_stays_open_and_come_in_as_they_arrive(
    daemon: RunningDaemon, create: Callable[..., None]
) -> None:
    create("live")
    where = ("--run-dir", str(daemon.run_dir))
    reading = subprocess.Popen([*COMPACTD, "consume", "live", "--from-beginning", *where], stdout=subprocess.PIPE)
    writing = subprocess.Popen([*COMPACTD, "produce", "live", *where], stdin=subprocess.PIPE)
    assert reading.stdout is not None
    assert writing.stdin is not None
    try:
        for line in (b"first\n", b"second\n"):
            writing.stdin.write(line)
            writing.stdin.flush()
            assert reading.stdout.readline() == line
        writing.stdin.close()
        assert writing.wait(60) == 0
        reading.send_signal(signal.SIGINT)
        assert reading.wait(60) == 0
    finally:
        for process in (reading, writing):
            process.kill()
            process.wait()
        reading.stdout.close()
        writing.stdin.close()


def test_reading_goes_on_when_a_broker_died_and_is_back(
    daemon: RunningDaemon, create: Callable[..., None], run: Run
) -> None:
    create("outlived", "--partitions", "4")
    where = ("--run-dir", str(daemon.run_dir))

    def write(value: str) -> bool:
        keys = [argument for number in range(20) for argument in ("--delete", f"{value}{number}")]
        return run("produce", "outlived", *keys, *where).exit_code == 0

    reading = subprocess.Popen(
        [*COMPACTD, "consume", "outlived", "--from-beginning", "--keys", *where], stdout=subprocess.PIPE, text=True
    )
    assert reading.stdout is not None
    try:
        assert write("before")
        seen = {reading.stdout.readline() for _ in range(20)}
        (victim,) = [worker.pid for worker in daemon.status().workers if worker.name == "broker-1"]
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        until(lambda: write("after"), "the broker")
        while len({line for line in seen if line.startswith("after")}) < 20:
            line = reading.stdout.readline()
            assert line
            # What was printed is not printed again; writes that only half of the brokers took are repeated.
            assert not line.startswith("before")
            seen.add(line)
        reading.send_signal(signal.SIGINT)
        assert reading.wait(60) == 0
    finally:
        reading.kill()
        reading.wait()
        reading.stdout.close()


# ---- transactions


class _Told:
    """A client whose log is given."""

    def __init__(self, data: bytes, aborted: list[tuple[int, int]], stable: int, end: int) -> None:
        self.fetched = Fetched(0, 0, end, stable, 0, list(iter_batches(data)), aborted)
        self.asked: list[dict[int, int]] = []

    def fetch(self, layout: TopicLayout, offsets: dict[int, int], wait_ms: int, committed: bool) -> list[Fetched]:
        self.asked.append(offsets)
        if len(self.asked) == 1:
            return [self.fetched]
        return [Fetched(0, 0, self.fetched.high_watermark, self.fetched.last_stable_offset, 0, [], [])]

    def offset_at(self, layout: TopicLayout, partition: int, timestamp: int) -> int:
        return 0 if timestamp == EARLIEST else self.fetched.high_watermark


def _data(offset: int, producer: int, transactional: bool = True) -> bytes:
    return build_batch(
        [Record(offset, 1, None, str(offset).encode())],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
    )


def _marker(kind: Literal["commit", "abort"], offset: int, producer: int) -> bytes:
    return control_batch(kind, offset, 1, producer, 0)


@pytest.mark.parametrize(("committed", "values"), [(True, [0, 3, 5, 9]), (False, [0, 1, 2, 3, 5, 8, 9])])
def test_aborted_records_are_left_out_of_committed_ones(committed: bool, values: list[int]) -> None:
    # Producer 7 aborts 1 and 8, and commits 5; producer 8 aborts 2; 0, 3 and 9 are plain.
    data = b"".join(
        (
            _data(0, -1, False),
            _data(1, 7),
            _data(2, 8),
            _data(3, 9, False),
            _marker("abort", 4, 7),
            _data(5, 7),
            _marker("commit", 6, 7),
            _marker("abort", 7, 8),
            _data(8, 7),
            _data(9, 9, False),
            _marker("abort", 10, 7),
        )
    )
    aborted = [(8, 2), (7, 1), (7, 8)] if committed else []
    client = _Told(data, aborted, stable=11, end=11)
    consumer = _Consumer(client, TopicLayout("t", {0: 1}), None, committed)  # type: ignore[arg-type]
    consumer.begin(None, True)
    seen: list[int] = []

    def note(partition: int, record: Record, timestamp_type: str) -> None:
        assert record.value is not None
        seen.append(int(record.value))

    consumer.run(note, True, None)  # type: ignore[arg-type]
    assert seen == values
    assert client.asked == [{0: 0}]


def test_committed_records_end_where_an_open_transaction_begins() -> None:
    client = _Told(_data(0, -1, False), [], stable=1, end=3)
    consumer = _Consumer(client, TopicLayout("t", {0: 1}), None, committed=True)  # type: ignore[arg-type]
    consumer.begin(None, True)
    seen: list[int] = []
    consumer.run(lambda _, record, __: seen.append(record.offset), True, None)  # type: ignore[arg-type]
    assert seen == [0]
    assert client.asked == [{0: 0}, {0: 1}]


# ---- what goes wrong


def test_a_compacted_topic_asks_for_keys(create: Callable[..., None], produce: Callable[..., Result]) -> None:
    create("keyed", "--set", "cleanup.policy=compact")
    result = produce("keyed", b"no key\n")
    assert result.exit_code == 3
    said = result.stderr.splitlines()
    assert said[0] == "0 records written to keyed, 1 not"
    assert "INVALID_RECORD" in said[1]
    assert "lines get keys with --key-separator" in said[1]


def test_a_line_without_a_key_is_named_and_what_was_written_is_said(
    create: Callable[..., None], produce: Callable[..., Result], consume: Callable[..., Result]
) -> None:
    create("lines")
    result = produce("lines", b"a:1\nb:2\nbad\nc:3\n", "--key-separator", ":")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == "0 records written to lines, 2 not"
    assert "line 3 has no ':' between key and value" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["produce", "nix", "--delete", "k"], 3, "there is no such topic. `compactd topics create nix` makes it"),
        (["produce", "few", "--delete", "k", "--partition", "9"], 2, "few has no partition 9, it has 1"),
        (["produce", "few", "--file", "/nonexistent"], 2, "/nonexistent: cannot be read: No such file or directory"),
        (["produce", "few", "--delete", "k", "--key-separator", ":"], 2, "--delete reads no lines"),
        (["produce", "few", "--key-separator", ""], 2, "at least one character"),
        (["consume", "nix"], 3, "there is no such topic"),
        (["consume", "few", "--offset", "3"], 2, "--offset needs a --partition"),
        (
            ["consume", "few", "--partition", "0", "--offset", "77"],
            3,
            "offset 77 is outside the log, which holds 0 to 0",
        ),
        (["consume", "few", "--partition", "4"], 2, "few has no partition 4, it has 1"),
        (["consume", "few", "--bootstrap-server", "nowhere"], 2, "is not of the form HOST:PORT"),
    ],
)
def test_what_is_wrong_is_said(daemon: RunningDaemon, run: Run, arguments: Sequence[str], code: int, said: str) -> None:
    run("topics", "create", "few", "--if-not-exists", "--run-dir", daemon.run_dir)
    result = run(*arguments, "--run-dir", daemon.run_dir)
    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""


def test_a_listener_can_be_named_and_nobody_may_be_there(daemon: RunningDaemon, run: Run) -> None:
    run("topics", "create", "named", "--run-dir", daemon.run_dir)
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    assert run("produce", "named", "--delete", "k", "--bootstrap-server", f"{nobody},{daemon.address}").exit_code == 0
    result = run("consume", "named", "--bootstrap-server", nobody)
    assert result.exit_code == 4
    assert f"{nobody}: connecting failed: Connection refused" in result.stderr


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (struct.pack(">i", -5), ServerError, "it sent -5 bytes, and no Kafka broker would"),
        (struct.pack(">i", 0x48545450), ServerError, "no Kafka broker would"),
        (struct.pack(">iib", 7, 1, 0) + b"\xff", StorageIOError, "it closed the connection"),
        (struct.pack(">iib", 6, 1, 0) + b"\xff", ServerError, "its answer cannot be read"),
        (b"", StorageIOError, "it closed the connection"),
    ],
)
def test_a_server_that_is_no_broker_is_no_danger(answer: bytes, error: type[Exception], said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with KafkaClient(f"127.0.0.1:{server.getsockname()[1]}") as client, pytest.raises(error, match=said):
            client.layout("users")
        thread.join()


# ---- parts


@pytest.mark.parametrize(
    ("listens", "reached"),
    [
        ("127.0.0.1:9092", "127.0.0.1:9092"),
        ("node.example:9092", "node.example:9092"),
        (":9092", "127.0.0.1:9092"),
        ("0.0.0.0:9092", "127.0.0.1:9092"),
        (":::9092", "[::1]:9092"),
        ("[fe80::1]:9092", "[fe80::1]:9092"),
        ("fe80::1:9092", "[fe80::1]:9092"),
    ],
)
def test_a_listener_on_every_address_is_reached_at_the_local_one(listens: str, reached: str) -> None:
    assert reachable(listens) == reached


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        # Of Kafka's own UtilsTest.
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(text: str, hashed: int) -> None:
    assert murmur2(text.encode()) == hashed & 0xFFFFFFFF


def test_records_without_a_key_take_turns_by_batch() -> None:
    partitioner = Partitioner([2, 0, 1])
    seen = []
    for _ in range(4):
        seen += [partitioner.of(None), partitioner.of(None)]
        partitioner.batch_sent()
    assert seen == [0, 0, 1, 1, 2, 2, 0, 0]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\n\r\nb\r", [b"a", b"", b"b\r"]),
        (b"x" * 200_000 + b"\ny\n", [b"x" * 200_000, b"y"]),
    ],
)
def test_lines_end_as_people_end_them(data: bytes, lines: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        assert [line for line in read_lines(descriptor, 0) if line is not None] == lines
    finally:
        os.close(descriptor)


def test_a_pause_between_lines_is_told_once() -> None:
    reading, writing = os.pipe()
    try:
        lines = read_lines(reading, 0)
        os.write(writing, b"a\nb")
        assert next(lines) == b"a"
        assert next(lines) is None
        os.write(writing, b"c\n")
        assert next(lines) == b"bc"
        os.close(writing)
        assert list(lines) == []
    finally:
        os.close(reading)


def test_lines_become_keys_and_values() -> None:
    form = LineFormat(b"=>", b"NULL")
    assert form.parse(b"k=>v=>w", 1) == (b"k", b"v=>w")
    assert form.parse(b"k=>NULL", 1) == (b"k", None)
    assert form.parse(b"NULL=>", 1) == (None, b"")
    assert LineFormat().parse(b"k=>v", 1) == (None, b"k=>v")
    with pytest.raises(UsageError, match="line 7 has no '=>' between key and value"):
        form.parse(b"k=v", 7)
