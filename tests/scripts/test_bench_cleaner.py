"""`compactd bench cleaner`: its cases, what it prints, that it tells a difference, and that it leaves nothing behind.

Nothing here looks at a time: a busy machine must not fail a test.
"""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from compactd.config.errors import FaultError, UsageError
from compactd.scripts.bench.agreement import SAME_BYTES, SAME_RECORDS, agreement
from compactd.scripts.bench.cleaner_cases import ALL_CASES, choose_cases, distinct_keys
from compactd.scripts.bench.kafka import Kafka, KafkaFailedError
from compactd.scripts.bench.machine import forget_peak_memory, peak_memory
from compactd.storage import names
from compactd.storage.records.builder import build_batch
from compactd.storage.records.crc import crc32c
from compactd.storage.records.record import Record
from tests.scripts.helpers import NOW, batch, json_lines

Run = Callable[..., Result]

TINY = ("--size", 0.02, "--segment-size", 0.012, "--batch", 10, "--repeat", 1)
CASE_FIELDS = {
    "type", "case", "valueSize", "codec", "duplicates", "records", "recordsAfter", "bytesBefore", "bytesAfter",
    "kafkaSeconds", "compactdSeconds", "kafkaCpuSeconds", "compactdCpuSeconds", "compactdIndexSeconds", "ratioMin",
    "ratioMedian", "ratioCpu", "compactdPeakMemory", "output", "agrees",
}  # fmt: skip
HEADER_FIELDS = {
    "type", "bench", "compactd", "kernel", "python", "kafka", "java", "javaOptions", "machine", "dataBytes",
    "segmentBytes", "batchRecords", "mapBytes", "repeat",
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "place"
    path.mkdir()
    return path


@pytest.mark.kafka
@pytest.mark.usefixtures("oracle_classpath")
def test_every_case_as_json_lines(run: Run, place: Path) -> None:
    result = run("bench", "cleaner", "--json", *TINY, "--directory", place)
    assert result.exit_code == 0, result.stderr
    header, *cases = json_lines(result.stdout)
    assert set(header) == HEADER_FIELDS
    assert header["type"] == "bench" and header["kafka"] == "4.4.0" and "-Xmx2048m" in header["javaOptions"]
    assert header["machine"]["memoryBytes"] > 0 and header["machine"]["cpusUsable"] >= 1
    assert [case["case"] for case in cases] == [str(case) for case in ALL_CASES]
    for case in cases:
        assert set(case) == CASE_FIELDS
        assert case["agrees"]
        # The JDK may bring another zlib; every other codec has to give Kafka's bytes.
        assert case["output"] == SAME_BYTES or (case["output"] == SAME_RECORDS and case["codec"] == "gzip")
        assert len(case["kafkaSeconds"]) == len(case["compactdSeconds"]) == len(case["compactdIndexSeconds"]) == 1
        assert len(case["kafkaCpuSeconds"]) == len(case["compactdCpuSeconds"]) == (case["ratioCpu"] is not None)
        assert case["duplicates"] > 0 or case["recordsAfter"] == case["records"]
        assert case["duplicates"] == 0 or case["recordsAfter"] < case["records"]
    assert list(place.iterdir()) == []


@pytest.mark.kafka
@pytest.mark.usefixtures("oracle_classpath")
def test_the_table_says_what_was_measured(run: Run, place: Path) -> None:
    result = run(
        "bench", "cleaner", *TINY, "--repeat", 2, "--directory", place, "--case", "lz4/90%", "--case", "80/none/0"
    )
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    text = result.stdout
    assert "Kafka 4.4.0" in text and "segments of 12.3 KiB" in text and "10 records a batch" in text
    assert "timed on neither side" in text and "2 are timed in turn" in text
    rows = [line for line in lines if line.endswith(SAME_BYTES)]
    assert [row.split(" %")[0] for row in rows] == ["80/none/0", "80/lz4/90", "1000/lz4/90"]
    assert "times as fast as Kafka" in lines[-1]
    assert list(place.iterdir()) == []


@pytest.mark.kafka
@pytest.mark.usefixtures("oracle_classpath")
def test_keep_leaves_the_logs_and_says_where(run: Run, place: Path) -> None:
    result = run("bench", "cleaner", *TINY, "--directory", place, "--case", "80/none/50", "--keep")
    assert result.exit_code == 0, result.stderr
    (root,) = place.iterdir()
    assert str(root) in result.stdout
    case = root / "80-none-50"
    assert sorted(path.name for path in case.iterdir()) == ["compactd", "kafka", "source"]
    # What was replaced is still there: neither side unlinked anything.
    for side in ("compactd", "kafka"):
        assert list((case / side / "bench-0").glob("*.log.deleted"))
    assert agreement(case / "compactd" / "bench-0", case / "kafka" / "bench-0") == SAME_BYTES


@pytest.mark.kafka
@pytest.mark.usefixtures("oracle_classpath")
def test_a_difference_is_shown_and_ends_with_1(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unequal(ours: Path, _theirs: Path) -> str:
        raise FaultError(path=ours, reason="the batch at offset 7 differs from Kafka's")

    monkeypatch.setattr("compactd.scripts.bench.cleaner_rounds.agreement", unequal)
    result = run("bench", "cleaner", *TINY, "--directory", place, "--case", "80/none/50")
    assert result.exit_code == 1
    assert "DIFFERENT" in result.stdout and "the batch at offset 7 differs from Kafka's" in result.stdout
    assert list(place.iterdir()) == []


@pytest.mark.kafka
@pytest.mark.usefixtures("oracle_classpath")
def test_kafkas_own_error_reaches_the_user(place: Path) -> None:
    with Kafka(256 << 20) as kafka, pytest.raises(KafkaFailedError) as failure:
        kafka.request("clean", id="nobody opened this")
    assert "IllegalStateException: no open log nobody opened this" in str(failure.value)


def test_without_java(run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place))
    result = run("bench", "cleaner", *TINY, "--directory", place)
    assert result.exit_code == 3
    assert "java is not on the PATH" in result.stderr and "Install a JDK 17" in result.stderr
    assert list(place.iterdir()) == []


def _program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with stand-ins for a JDK and Maven."""
    directory = tmp_path / "tools"
    directory.mkdir()
    for name in ("java", "javac", "mvn"):
        _program(directory / name, """echo 'openjdk version "21.0.1" 2023-10-17' >&2""")
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    return directory


def test_a_jvm_that_dies(tools: Path, tmp_path: Path) -> None:
    script = _program(
        tmp_path / "oracle", '[ "$1" = --classpath ] && exit 0\nread line\necho OutOfMemoryError >&2\nexit 3'
    )
    with Kafka(1 << 30, script) as kafka:
        assert kafka.java_version.startswith("openjdk") and kafka.version == "?"
        with pytest.raises(KafkaFailedError, match="at open: its JVM ended with code 3: OutOfMemoryError"):
            kafka.request("open")


def test_an_old_java(tools: Path, run: Run, place: Path) -> None:
    _program(tools / "java", """echo 'java version "11.0.2" 2019-01-15' >&2""")
    result = run("bench", "cleaner", *TINY, "--directory", place)
    assert result.exit_code == 3
    assert "Java 17 is needed" in result.stderr


def test_kafka_that_cannot_be_built(tools: Path, tmp_path: Path) -> None:
    script = _program(tmp_path / "oracle", "echo 'Could not resolve org.apache.kafka' >&2; exit 1")
    with pytest.raises(Exception, match="could not be fetched or built: Could not resolve"):
        Kafka(1 << 30, script)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--case", "brotli"), "there is no case 'brotli'"),
        (("--case", "80/1000"), "there is no case '80/1000'"),
        (("--segment-size", 0.001), "do not fit segments of 1049"),
        (("--size", 10_000), "do not fit Kafka's map"),
        (("--repeat", 0), "--repeat"),
        (("--size", "nan"), "nan MiB is not within 1 byte and 1.0 TiB"),
        (("--size", "inf"), "inf MiB is not within"),
        (("--size", "0"), "0 MiB is not within"),
        (("--size", "much"), "'much' is not a valid float"),
        (("--segment-size", 2048), "2048 MiB is not within 1 byte and 2.0 GiB"),
    ],
)
def test_wrong_usage(run: Run, place: Path, arguments: tuple[object, ...], says: str) -> None:
    result = run("bench", "cleaner", "--directory", place, *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert list(place.iterdir()) == []


def test_no_space(run: Run, tools: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactd.storage.file_layer.FileLayer.free_bytes", lambda *_: 1000)
    monkeypatch.setattr("compactd.scripts.bench.kafka.SCRIPT", _program(place.parent / "oracle", "cat >/dev/null"))
    result = run("bench", "cleaner", *TINY, "--directory", place)
    assert result.exit_code == 3
    assert "1000 are free" in result.stderr
    assert list(place.iterdir()) == []


def test_cases_by_their_parts() -> None:
    assert choose_cases([]) == list(ALL_CASES)
    assert len(ALL_CASES) == 30
    assert [str(case) for case in choose_cases(["80/zstd/90"])] == ["80/zstd/90"]
    assert {case.codec for case in choose_cases(["gzip", "lz4"])} == {"gzip", "lz4"}
    assert len(choose_cases(["0%"])) == 10
    assert [str(case) for case in choose_cases(["none/50", "1000/none"])] == [
        "80/none/50", "1000/none/0", "1000/none/50", "1000/none/90",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"80\|1000 / none\|lz4\|zstd\|snappy\|gzip / 0\|50\|90"):
        choose_cases(["lz5"])


@pytest.mark.parametrize("duplicates", [0.0, 0.5, 0.9])
def test_drawing_keys_gives_the_wanted_share(duplicates: float) -> None:
    records = 50_000
    keys = distinct_keys(records, duplicates)
    if duplicates == 0:
        assert keys == records
        return
    drawn = random.Random(1)
    live = len({drawn.randrange(keys) for _ in range(records)})
    assert 1 - live / records == pytest.approx(duplicates, abs=0.01)


def test_the_peak_of_memory_is_that_since_it_was_forgotten() -> None:
    if not forget_peak_memory():
        pytest.skip("this system doesn't tell the peak of a process's memory")
    before = peak_memory()
    large = bytearray(b"x" * (64 << 20))
    assert peak_memory() >= before + (64 << 20)
    del large
    assert forget_peak_memory()
    assert peak_memory() < before + (32 << 20)


class Logs:
    """Two cleaned logs of one closed and one active segment."""

    def __init__(self, root: Path) -> None:
        self.ours, self.theirs = root / "ours", root / "theirs"
        for side in (self.ours, self.theirs):
            side.mkdir()
            self.write(side, batch(0, ("a", "1"), ("b", "2" * 300), codec=1))
            (side / names.log_name(2)).write_bytes(b"")

    @staticmethod
    def write(side: Path, data: bytes, index: bytes = b"12345678") -> None:
        (side / names.log_name(0)).write_bytes(data)
        (side / names.offset_index_name(0)).write_bytes(index)
        (side / names.time_index_name(0)).write_bytes(b"123456789abc")


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def _compressed_otherwise(data: bytes) -> bytes:
    """The same gzip batch with records compressed less."""
    records = gzip.compress(gzip.decompress(data[61:]), 1, mtime=0)
    head = bytearray(data[:61])
    struct.pack_into(">i", head, 8, 49 + len(records))
    struct.pack_into(">I", head, 17, crc32c(bytes(head[21:]) + records))
    return bytes(head) + records


def test_agreement_of_equal_logs(logs: Logs) -> None:
    assert agreement(logs.ours, logs.theirs) == SAME_BYTES
    # An active segment's index is preallocated on one side.
    (logs.theirs / names.offset_index_name(2)).write_bytes(bytes(100))
    assert agreement(logs.ours, logs.theirs) == SAME_BYTES


def test_agreement_of_another_compressed_form(logs: Logs) -> None:
    data = batch(0, ("a", "1"), ("b", "2" * 300), codec=1)
    other = _compressed_otherwise(data)
    assert other != data
    logs.write(logs.theirs, other)
    assert agreement(logs.ours, logs.theirs) == SAME_RECORDS


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(batch(0, ("a", "1"), ("b", "2" * 299 + "3"), codec=1), id="a value"),
        pytest.param(batch(0, ("a", "1"), ("b", "2" * 300)), id="the codec"),
        pytest.param(
            build_batch([Record(0, NOW, b"a", b"1"), Record(1, NOW, b"b", b"2" * 300)], base_offset=0, codec=1),
            id="timestamps",
        ),
        pytest.param(batch(0, ("a", "1"), codec=1), id="a record missing"),
        pytest.param(b"", id="a batch missing"),
    ],
)
def test_disagreement(logs: Logs, other: bytes) -> None:
    logs.write(logs.theirs, other)
    with pytest.raises(FaultError, match=r"Kafka"):
        agreement(logs.ours, logs.theirs)


def test_disagreement_of_indexes_and_segments(logs: Logs) -> None:
    Logs.write(logs.theirs, (logs.ours / names.log_name(0)).read_bytes(), b"87654321")
    with pytest.raises(FaultError, match=r"\.index: it differs from Kafka's while the logs are the same"):
        agreement(logs.ours, logs.theirs)
    (logs.theirs / names.log_name(5)).write_bytes(b"")
    with pytest.raises(FaultError, match=r"its segments begin at \[0, 2\], those of Kafka at \[0, 2, 5\]"):
        agreement(logs.ours, logs.theirs)
