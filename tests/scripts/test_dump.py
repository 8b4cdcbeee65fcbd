"""`compactd dump`: every kind of file, for people and as JSON lines; damage; nothing changed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from compactd.storage import names
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.producers import ProducerEntry, encode_snapshot
from compactd.storage.records.builder import build_batch, control_batch
from compactd.storage.records.legacy import build_message_set
from compactd.storage.records.record import Record
from compactd.storage.transaction_index import encode_transaction
from tests.scripts.helpers import NOW, Broker, batch, json_lines, picture

Run = Callable[..., Result]
Real = Callable[..., "subprocess.CompletedProcess[str]"]

BATCH_FIELDS = {
    "type", "file", "position", "size", "magic", "crc", "baseOffset", "lastOffset", "count", "codec", "timestampType",
    "baseTimestamp", "maxTimestamp", "deleteHorizonMs", "leaderEpoch", "producerId", "producerEpoch", "baseSequence",
    "lastSequence", "isTransactional", "isControl",
}  # fmt: skip
FAULT_FIELDS = {
    "type", "file", "position", "baseOffset", "lastOffset", "reason", "expectedCrc", "foundCrc", "resumedAt",
}  # fmt: skip


def entries(run: Run, *arguments: object, code: int = 0) -> list[dict[str, Any]]:
    result = run("dump", "--json", *arguments)
    assert result.exit_code == code, result.stderr
    return json_lines(result.stdout)


def write(path: Path, *batches: bytes) -> Path:
    path.write_bytes(b"".join(batches))
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three batches: two keys; one tombstone, lz4; a committed transaction's marker."""
    return write(
        tmp_path / names.log_name(0),
        batch(0, ("a", "1"), ("b", "2")),
        batch(2, ("a", None), codec=3, delete_horizon_ms=NOW),
        control_batch("commit", 3, NOW, 7, 1, coordinator_epoch=5),
    )


def test_batches_as_json(run: Run, log: Path) -> None:
    first, second, third = entries(run, log)
    assert set(first) == BATCH_FIELDS
    assert first["type"] == "batch" and first["file"] == str(log)
    assert (first["position"], first["baseOffset"], first["lastOffset"], first["count"]) == (0, 0, 1, 2)
    assert (first["codec"], first["magic"], first["leaderEpoch"], first["deleteHorizonMs"]) == ("none", 2, 0, None)
    assert first["maxTimestamp"] == NOW - 3_599_000
    assert (second["position"], second["codec"], second["deleteHorizonMs"]) == (first["size"], "lz4", NOW)
    assert (third["isControl"], third["isTransactional"], third["producerId"], third["producerEpoch"]) == (
        True,
        True,
        7,
        1,
    )


def test_batches_for_people(run: Run, log: Path) -> None:
    result = run("dump", log)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"{log}  ({log.stat().st_size} bytes)"
    assert lines[1].split() == [
        "position",
        "offsets",
        "records",
        "bytes",
        "codec",
        "max",
        "timestamp",
        "producer,",
        "flags",
    ]
    assert lines[2].split()[:5] == ["0", "0..1", "2", "80", "none"]
    assert "delete horizon 2023-11-14T22:13:20.000Z" in lines[3]
    assert "pid 7 epoch 1, transactional, control" in lines[4]
    assert lines[5] == "  3 batches"


def test_records_as_json(run: Run, log: Path) -> None:
    records = [e for e in entries(run, "--records", log) if e["type"] == "record"]
    assert [(r["offset"], r["key"], r["value"]) for r in records[:3]] == [(0, "a", "1"), (1, "b", "2"), (2, "a", None)]
    assert records[0]["timestamp"] == NOW - 3_600_000
    assert records[0]["headers"] == []
    assert records[3]["control"] == {"type": "COMMIT", "coordinatorEpoch": 5}


def test_records_for_people(run: Run, log: Path) -> None:
    out = run("dump", "--records", log).stdout
    assert '      offset 0  2023-11-14T21:13:20.000Z  key "a"  value "1"\n' in out
    assert '      offset 2  2023-11-14T21:13:22.000Z  key "a"  value null\n' in out
    assert 'marker {"type":"COMMIT","coordinatorEpoch":5}' in out
    assert "  3 batches, 4 records\n" in out


@pytest.mark.parametrize(
    ("form", "data", "fields"),
    [
        ("text", "wörd", {"value": "wörd"}),
        ("text", None, {"value": None}),
        ("text", b"\xff\x00", {"valueHex": "ff00"}),
        ("hex", "ab", {"valueHex": "6162"}),
        ("hex", None, {"value": None}),
        ("json", ' {"a" :\n 1.50, "a": "x"} ', {"value": '{"a":1.50,"a":"x"}'}),
        ("json", "12345678901234567890123", {"value": "12345678901234567890123"}),
        ("json", "{broken", {"valueText": "{broken"}),
        ("json", "NaN", {"valueText": "NaN"}),
        ("json", b"\xff", {"valueHex": "ff"}),
    ],
)
def test_values_in_each_form_lose_nothing(
    run: Run, tmp_path: Path, form: str, data: str | bytes | None, fields: dict[str, str]
) -> None:
    raw = data.encode() if isinstance(data, str) else data
    log = write(tmp_path / names.log_name(0), build_batch([Record(0, NOW, b"k", raw)], base_offset=0))
    result = run("dump", "--json", "--records", "--value", form, log)
    line = result.stdout.splitlines()[1]
    found = {name: value for name, value in json.loads(line).items() if name.startswith("value")}
    if form == "json" and "value" in fields:
        assert f'"value":{fields["value"]},' in line  # digits and repeated names as they were written
    else:
        assert found == fields


@pytest.mark.parametrize("form", ["text", "hex", "json"])
def test_keys_in_each_form(run: Run, tmp_path: Path, form: str) -> None:
    log = write(tmp_path / names.log_name(0), batch(0, ('{"id":1}', "v"), (None, "w"), ("", "x")))
    keys = [e for e in entries(run, "--records", "--key", form, log) if e["type"] == "record"]
    shown = {"text": ['{"id":1}', None, ""], "hex": ["7b226964223a317d", None, ""], "json": [{"id": 1}, None, ""]}[form]
    name = {"text": "key", "hex": "keyHex", "json": "key"}[form]
    assert keys[0][name] == shown[0]
    assert keys[1]["key"] is None
    assert next(v for k, v in keys[2].items() if k.startswith("key")) == shown[2]


def test_text_cannot_move_the_cursor(run: Run, tmp_path: Path) -> None:
    evil = "\x1b[2J\x1b]0;title\x07\u202e\r\n"
    record = Record(0, NOW, evil.encode(), evil.encode(), ((evil, evil.encode()),))
    log = write(tmp_path / names.log_name(0), build_batch([record], base_offset=0))
    out = run("dump", "--records", log).stdout
    assert all(c.isprintable() or c == "\n" for c in out)
    assert "\\u001b[2J" in out
    (_, shown) = entries(run, "--records", log)
    assert shown["key"] == evil and shown["headers"] == [{"key": evil, "value": evil}]


def test_old_formats(run: Run, tmp_path: Path) -> None:
    log = write(
        tmp_path / names.log_name(0),
        build_message_set([Record(0, -1, b"a", b"1")], 0),
        build_message_set([Record(1, NOW, b"b", b"2"), Record(2, NOW, b"c", b"3")], 1, codec=1),
    )
    plain, record, wrapper, *inner = entries(run, "--records", log)
    assert (plain["magic"], plain["count"], plain["timestampType"]) == (0, 1, "NoTimestampType")
    assert record["timestamp"] == -1
    assert (wrapper["magic"], wrapper["codec"], wrapper["count"]) == (1, "gzip", None)
    assert [r["offset"] for r in inner] == [1, 2]
    assert "magic 1" in run("dump", log).stdout


def test_offset_and_limit(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path / names.log_name(0), *(batch(2 * n, ("a", "x"), ("b", "y")) for n in range(5)))
    assert [e["baseOffset"] for e in entries(run, "--offset", 3, log)] == [2, 4, 6, 8]
    assert [e["baseOffset"] for e in entries(run, "--offset", 3, "--limit", 2, log)] == [2, 4]
    shown = [e["offset"] for e in entries(run, "--records", "--offset", 3, "--limit", 2, log) if e["type"] == "record"]
    assert shown == [3, 4]
    assert run("dump", "--offset", -1, log).exit_code == 2
    assert run("dump", "--limit", 0, log).exit_code == 2


def test_offset_passes_by_the_segments_below(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"))], [batch(1, ("a", "2"))], [batch(2, ("a", "3"))]])
    logs = {e["file"] for e in entries(run, "--only", "log", "--offset", 1, broker.stop())}
    assert {Path(name).name for name in logs} == {names.log_name(1), names.log_name(2)}


def test_a_partition_directory_shows_every_file(run: Run, broker: Broker) -> None:
    directory = broker.partition(
        "t-0", [[batch(n, ("a", "x" * 5000)) for n in range(3)]], active=[batch(3, ("a", "y"))]
    )
    kinds: dict[str, int] = {}
    for entry in entries(run, directory):
        kinds[entry["type"]] = kinds.get(entry["type"], 0) + 1
    assert kinds == {"batch": 4, "offsetIndexEntry": 2, "timeIndexEntry": 3, "leaderEpoch": 1, "partitionMetadata": 1}
    out = run("dump", directory).stdout
    assert f"{directory / names.log_name(3)}" in out


def test_a_log_dir_shows_checkpoints_and_identity(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"))]])
    path = broker.stop()
    found = {e["type"]: e for e in entries(run, path)}
    assert found["metaProperties"] | {"file": ""} == {
        "type": "metaProperties",
        "file": "",
        "version": 1,
        "clusterId": "test-cluster-00000000a",
        "nodeId": 1,
        "directoryId": None,
    }
    assert found["cleanShutdown"]["brokerEpoch"] == -1
    points = entries(run, path / "recovery-point-offset-checkpoint")
    assert [(e["topic"], e["partition"], e["offset"]) for e in points] == [("t", 0, 1)]
    assert "t-0" in run("dump", path / "replication-offset-checkpoint").stdout


def test_only_chooses_kinds(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"))]])
    path = broker.stop()
    assert {e["type"] for e in entries(run, "--only", "checkpoint", path)} == {"checkpointEntry", "leaderEpoch"}
    assert {e["type"] for e in entries(run, "--only", "log", "--only", "timeindex", path)} == {
        "batch",
        "timeIndexEntry",
    }
    result = run("dump", "--only", "txnindex", path)
    assert result.exit_code == 2
    assert "no log-dir file of kind txnindex" in result.stderr


def test_transaction_index(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / names.transaction_index_name(0), encode_transaction(AbortedTransaction(5, 0, 2, 3)))
    (entry,) = entries(run, path)
    assert entry | {"file": ""} == {
        "type": "abortedTransaction",
        "file": "",
        "producerId": 5,
        "firstOffset": 0,
        "lastOffset": 2,
        "lastStableOffset": 3,
    }
    assert run("dump", path).stdout.splitlines()[2].split() == ["5", "0", "2", "3"]


def test_snapshot(run: Run, tmp_path: Path) -> None:
    entry = ProducerEntry(9, 0, -1, 600, current_txn_first_offset=4)
    path = write(tmp_path / names.snapshot_name(8), encode_snapshot([entry]))
    (found,) = entries(run, path)
    assert (found["producerId"], found["timestamp"], found["currentTransactionFirstOffset"]) == (9, 600, 4)
    assert run("dump", path).stdout.splitlines()[2].split()[-1] == "4"


def test_preallocated_indexes_are_no_fault(run: Run, broker: Broker) -> None:
    directory = broker.partition("t-0", [[batch(n, ("a", "x" * 5000)) for n in range(3)]])
    for name in (names.offset_index_name(0), names.time_index_name(0)):
        with (directory / name).open("ab") as file:
            file.truncate(1200 * 8 if name.endswith(".index") else 800 * 12)
    assert {e["type"] for e in entries(run, directory)} >= {"offsetIndexEntry", "timeIndexEntry"}


def test_files_under_other_suffixes(run: Run, tmp_path: Path) -> None:
    for suffix in (".deleted", ".cleaned", ".swap"):
        path = write(tmp_path / (names.log_name(0) + suffix), batch(0, ("a", "1")))
        assert [e["type"] for e in entries(run, path)] == ["batch"]
    path = tmp_path / "cleaner-offset-checkpoint.tmp"
    path.write_text("0\n1\nt 0 5\n")
    assert entries(run, path)[0]["offset"] == 5


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]


def test_a_wrong_crc_is_reported_and_reading_goes_on(run: Run, tmp_path: Path) -> None:
    good = [batch(n, ("a", "some value")) for n in range(3)]
    log = write(tmp_path / names.log_name(0), good[0], flipped(good[1], 70), good[2])
    first, fault, last = entries(run, log, code=1)
    assert set(fault) == FAULT_FIELDS
    assert (first["baseOffset"], last["baseOffset"]) == (0, 2)
    assert (fault["position"], fault["baseOffset"], fault["lastOffset"]) == (len(good[0]), 1, 1)
    assert fault["resumedAt"] == len(good[0]) + len(good[1])
    assert isinstance(fault["expectedCrc"], int) and fault["expectedCrc"] != fault["foundCrc"]
    result = run("dump", log)
    assert result.exit_code == 1
    assert f"  FAULT at byte {len(good[0])}, offsets 1 to 1: its CRC is 0x" in result.stdout
    assert result.stderr == "compactd: 1 faults found.\n"


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("length", [b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x40"])
def test_a_wrong_length_is_reported_and_the_next_batch_is_found(
    run: Run, tmp_path: Path, magic: int, length: bytes
) -> None:
    def one(offset: int) -> bytes:
        records = [Record(offset, NOW, b"k", b"some value of some length")]
        return build_batch(records, base_offset=offset) if magic == 2 else build_message_set(records, magic)

    damaged = one(1)[:8] + length + one(1)[12:]
    log = write(tmp_path / names.log_name(0), one(0), damaged, one(2), one(3))
    found = entries(run, log, code=1)
    assert [e["baseOffset"] for e in found if e["type"] == "batch"] == [0, 2, 3]
    (fault,) = [e for e in found if e["type"] == "fault"]
    assert (fault["position"], fault["resumedAt"]) == (len(one(0)), len(one(0)) + len(damaged))


def test_a_torn_tail_is_reported_with_its_position(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path / names.log_name(0), batch(0, ("a", "1")), batch(1, ("a", "2"))[:-3])
    _, fault = entries(run, log, code=1)
    assert "truncated" in fault["reason"] and fault["resumedAt"] is None


def test_a_tail_of_zeros_says_what_it_is(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path / names.log_name(0), batch(0, ("a", "1")), bytes(5000))
    _, fault = entries(run, log, code=1)
    assert fault["reason"].startswith("zeros to the end of the file")


def test_records_that_cannot_be_read_behind_a_valid_crc(run: Run, tmp_path: Path) -> None:
    """As in a public capture: a batch that says "no compression" over bytes that are no records."""
    from compactd.storage.records.crc import crc32c  # noqa: PLC0415

    bad = bytearray(batch(0, ("a", "some value")))
    bad[61] = 0x7E
    bad[17:21] = crc32c(bytes(bad[21:])).to_bytes(4, "big")
    log = write(tmp_path / names.log_name(0), bytes(bad), batch(1, ("a", "2")))
    assert [e["type"] for e in entries(run, log)] == ["batch", "batch"]
    found = entries(run, "--records", log, code=1)
    assert [e["type"] for e in found] == ["batch", "fault", "batch", "record"]
    assert found[1]["position"] == 0


def test_offsets_that_go_back_are_a_fault(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path / names.log_name(0), batch(5, ("a", "1")), batch(0, ("a", "2")))
    assert [e["type"] for e in entries(run, log, code=1)] == ["batch", "fault", "batch"]


def test_random_bytes_never_crash(run: Run, tmp_path: Path) -> None:
    import random  # noqa: PLC0415

    source = random.Random(4)
    log = tmp_path / names.log_name(0)
    whole = b"".join(batch(n, ("key", "value " * 5), codec=n % 5) for n in range(5))
    for _ in range(60):
        bad = bytearray(whole)
        for _ in range(source.randrange(1, 6)):
            bad[source.randrange(len(bad))] = source.randrange(256)
        log.write_bytes(bad[: source.randrange(len(bad))])
        result = run("dump", "--records", "--json", log)
        assert result.exit_code in (0, 1), result.stderr
        json_lines(result.stdout)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("cleaner-offset-checkpoint", "0\n2\nt 0 5\n", "promises 2 entries"),
        ("leader-epoch-checkpoint", "0\n1\nx y\n", "malformed line 3"),
        ("partition.metadata", "version: 0\ntopic_id: short", "not an id"),
        ("meta.properties", "version=7\n", "version=7"),
        ("quorum-state", "not json", "not a JSON object"),
        (names.snapshot_name(0), "\x00\x01garbage", ""),
        (names.transaction_index_name(0), "short", "bytes are left"),
    ],
)
def test_damaged_files_are_faults(run: Run, tmp_path: Path, name: str, content: str, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))
    (fault,) = entries(run, path, code=1)
    assert set(fault) == FAULT_FIELDS
    assert words in fault["reason"]


def test_damaged_indexes_are_faults(run: Run, broker: Broker) -> None:
    directory = broker.partition("t-0", [[batch(n, ("a", "x" * 5000)) for n in range(4)]])
    index = directory / names.offset_index_name(0)
    index.write_bytes(index.read_bytes()[8:16] + index.read_bytes()[:8] + b"abc")
    faults = [e for e in entries(run, index, code=1) if e["type"] == "fault"]
    assert len(faults) == 2


def test_what_is_no_log_dir_file_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    result = run("dump", path)
    assert result.exit_code == 2
    assert "its name is not that of a file in a log dir" in result.stderr
    assert run("dump", tmp_path).exit_code == 2
    assert run("dump", tmp_path / "absent").exit_code == 2


def test_kafkas_own_topics_are_decoded_by_the_directorys_name(run: Run, broker: Broker) -> None:
    key = bytes.fromhex("00010009636c61737369632d670005616c70686100000000")
    value = bytes.fromhex("000400000000000000080000000001000001a22a858572010010e948ffaeb6924719976d37c33fb9177c")
    one = build_batch([Record(0, NOW, key, value)], base_offset=0)
    directory = broker.partition("__consumer_offsets-12", [[one]])
    log = directory / names.log_name(0)
    record = entries(run, "--records", log)[1]
    assert "classic-g" in json.dumps(record["decoded"]) and "alpha" in json.dumps(record["decoded"])
    assert "decoded" not in entries(run, "--records", "--decoder", "none", log)[1]
    assert "classic-g" in run("dump", "--records", log).stdout
    other = broker.partition("copy-0", [[one]]) / names.log_name(0)
    assert "decoded" not in entries(run, "--records", other)[1]
    assert entries(run, "--decoder", "offsets", other)[1]["decoded"] == record["decoded"]


def test_transaction_state_is_decoded(run: Run, broker: Broker) -> None:
    key = bytes.fromhex("0000000474782d31")
    value = bytes.fromhex("0001000000000000000100000000ea600000000001a22a857701ffffffffffffffff0100080000000000000001")
    directory = broker.partition("__transaction_state-0", [[build_batch([Record(0, NOW, key, value)], base_offset=0)]])
    record = entries(run, "--records", directory / names.log_name(0))[1]
    assert "tx-1" in json.dumps(record["decoded"])


def test_nothing_is_changed_and_no_lock_is_taken(compactd: Real, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"))]], active=[batch(1, ("a", "2"))])
    path = broker.stop()
    before = picture(path)
    for arguments in (["dump", path], ["dump", "--json", "--records", path]):
        assert compactd(*arguments).returncode == 0
    assert picture(path) == before


def test_names_that_are_no_utf8_and_links_in_circles(compactd: Real, tmp_path: Path) -> None:
    directory = tmp_path / os.fsdecode(b"caf\xe9-0")
    directory.mkdir()
    write(directory / names.log_name(0), batch(0, ("a", "1")))
    (directory / "again").symlink_to(tmp_path)
    os.mkfifo(directory / names.log_name(7))
    (entry, *_) = json_lines(compactd("dump", "--json", tmp_path).stdout)
    assert "caf\\udce9-0" in entry["file"]
    assert compactd("dump", tmp_path, env={"PYTHONIOENCODING": "ascii:strict"}).returncode == 0


def test_files_that_vanish_are_passed_by(run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running broker removes segments while we read."""
    directory = broker.partition("t-0", [[batch(0, ("a", "1"))], [batch(1, ("a", "2"))]])
    listed = sorted(directory.iterdir())
    (directory / names.log_name(0)).unlink()
    (directory / names.offset_index_name(0)).unlink()
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(listed))
    found = entries(run, directory)
    assert [e["baseOffset"] for e in found if e["type"] == "batch"] == [1]
