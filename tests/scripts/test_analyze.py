"""`compactd analyze`: sizes, what would be freed, and the first rule in the way with its numbers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from compactd.scripts import measure as measure_module
from compactd.storage import names
from compactd.storage.checkpoints import CLEANER_OFFSETS, OffsetCheckpoint
from compactd.storage.log_dir import LogDir
from compactd.storage.names import TopicPartition
from compactd.storage.records.builder import build_batch, control_batch
from compactd.storage.records.record import Record
from tests.scripts.helpers import NOW, Broker, batch, json_lines, picture

Run = Callable[..., Result]
Real = Callable[..., "subprocess.CompletedProcess[str]"]

COMPACT = ("--set", "cleanup.policy=compact", "--now", NOW)
T0 = TopicPartition("t", 0)

FIELDS = {
    "topic", "partition", "directory", "policy", "policySource", "segments", "bytes", "cleanBytes", "dirtyBytes",
    "activeBytes", "ratio", "logStartOffset", "firstRecordOffset", "logEndOffset", "highWatermark", "lastStableOffset",
    "checkpoint", "firstDirtyOffset", "firstUncleanableOffset", "bytesFreedNext", "bytesFreedForced", "keys", "records",
    "superseded", "tombstones", "tombstonesExpired", "keyless", "aborted", "markers", "reason", "notes",
}  # fmt: skip


def rows(run: Run, *arguments: object, code: int = 0) -> list[dict[str, Any]]:
    result = run("analyze", "--json", *arguments)
    assert result.exit_code == code, result.stderr
    return json_lines(result.stdout)


def row(run: Run, *arguments: object, code: int = 0) -> dict[str, Any]:
    (found,) = rows(run, *arguments, code=code)
    assert found.keys() == FIELDS
    return found


def transactional(base: int, pid: int, *pairs: tuple[str, str]) -> bytes:
    return batch(base, *pairs, producer_id=pid, producer_epoch=0, base_sequence=0, transactional=True)


def test_what_the_next_clean_frees_is_what_it_frees(run: Run, broker: Broker) -> None:
    directory = broker.partition(
        "t-0", [[batch(0, ("a", "1"), ("b", "1"))], [batch(2, ("a", "2"))]], active=[batch(3, ("b", "2"))]
    )
    path = broker.stop()
    found = row(run, *COMPACT, path)
    assert found["reason"] is None
    assert (found["segments"], found["keys"], found["records"], found["superseded"]) == (3, 2, 4, 2)
    assert found["bytes"] == sum(p.stat().st_size for p in directory.glob("*.log"))
    assert found["cleanBytes"] == 0 and found["ratio"] == 1.0
    assert found["dirtyBytes"] + found["activeBytes"] == found["bytes"]
    assert (found["firstDirtyOffset"], found["firstUncleanableOffset"], found["logEndOffset"]) == (0, 3, 4)
    run("clean", *COMPACT, "--delete-delay", 0, path)
    after = sum(p.stat().st_size for p in directory.glob("*.log"))
    assert found["bytes"] - after == found["bytesFreedNext"]
    run("clean", *COMPACT, "--force", "--roll", "--delete-delay", 0, path)
    assert found["bytesFreedForced"] > found["bytesFreedNext"]


def test_active_only(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [], active=[batch(0, ("a", "1")), batch(1, ("a", "2"))])
    path = broker.stop()
    found = row(run, *COMPACT, path)
    assert found["reason"]["code"] == "ACTIVE_ONLY"
    assert found["reason"]["activeBytes"] == found["bytes"]
    assert found["reason"]["clearsAtMs"] == NOW - 3_600_000 + 7 * 86_400_000
    assert found["bytesFreedNext"] == 0
    assert found["bytesFreedForced"] == found["bytes"] // 2
    assert "clean --roll" in run("analyze", *COMPACT, path).stdout
    soon = row(run, *COMPACT, "--set", "segment.ms=1000", path)
    assert "old enough to close at the next append" in soon["reason"]["text"]


def test_ratio(run: Run, broker: Broker) -> None:
    segments = [[batch(n, ("a", "x" * 100))] for n in range(2)]
    broker.partition("t-0", segments)
    path = broker.stop()
    OffsetCheckpoint(path / CLEANER_OFFSETS).write({T0: 1})
    found = row(run, *COMPACT, path)
    assert found["reason"]["code"] == "RATIO"
    assert (found["reason"]["ratio"], found["reason"]["minCleanableDirtyRatio"]) == (0.5, 0.5)
    assert found["reason"]["missingBytes"] == 1  # strictly above
    assert found["reason"]["clearsAtMs"] is None
    assert found["bytesFreedNext"] == 0 and found["bytesFreedForced"] > 0
    lag = row(run, *COMPACT, "--set", "max.compaction.lag.ms=2h", path)
    assert lag["reason"]["clearsAtMs"] == NOW - 3_600_000 + 1000 + 7_200_000 + 1
    forced = row(run, *COMPACT, "--set", "max.compaction.lag.ms=10min", path)
    assert forced["reason"] is None


def test_min_lag(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"))], [batch(1, ("a", "2"))]])
    found = row(run, *COMPACT, "--set", "min.compaction.lag.ms=2h", broker.stop())
    assert found["reason"]["code"] == "MIN_LAG"
    assert found["reason"]["segment"] == 0
    assert found["reason"]["clearsAtMs"] == NOW - 3_600_000 + 7_200_000
    assert found["reason"]["blockedBytes"] == found["bytes"]


def test_open_transaction_names_the_producer_and_the_way_out(run: Run, broker: Broker) -> None:
    """A12: everything from offset 1 on waits for producer 7."""
    broker.partition(
        "t-0", [[batch(0, ("a", "1"))], [transactional(1, 7, ("a", "2"))], [batch(2, ("a", "3"), ("a", "4"))]]
    )
    path = broker.stop()
    OffsetCheckpoint(path / CLEANER_OFFSETS).write({T0: 1})
    for snapshot in (path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    (path / ".kafka_cleanshutdown").unlink()
    found = row(run, *COMPACT, path)
    reason = found["reason"]
    assert reason["code"] == "OPEN_TRANSACTION"
    assert (reason["producerId"], reason["producerEpoch"], reason["firstOffset"]) == (7, 0, 1)
    assert reason["ageMs"] == 3_600_000 - 1000
    assert reason["blockedBytes"] == sum((path / "t-0" / names.log_name(n)).stat().st_size for n in (1, 2))
    assert "kafka-transactions.sh abort --topic t --partition 0 --start-offset 1" in reason["text"]
    assert found["lastStableOffset"] == 1


def test_an_open_transaction_in_the_active_segment_is_named_since_rolling_would_not_help(
    run: Run, broker: Broker
) -> None:
    broker.partition("t-0", [], active=[batch(0, ("a", "1")), transactional(1, 7, ("a", "2"))])
    path = broker.stop()
    for snapshot in (path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    (path / ".kafka_cleanshutdown").unlink()
    found = row(run, *COMPACT, path)
    assert found["reason"]["code"] == "OPEN_TRANSACTION"
    assert found["bytesFreedForced"] == 0


def test_high_watermark(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"))], [batch(1, ("a", "2"))]])
    path = broker.stop()
    LogDir(path).high_watermarks.write({T0: 0})
    found = row(run, *COMPACT, path)
    assert found["reason"]["code"] == "HIGH_WATERMARK"
    assert (found["reason"]["highWatermark"], found["reason"]["logEndOffset"]) == (0, 2)


def test_policy(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"))]])
    path = broker.stop()
    found = row(run, "--set", "cleanup.policy=delete", path)
    assert found["reason"]["code"] == "POLICY"
    assert found["reason"]["source"] == "--set"
    assert found["bytesFreedNext"] is None
    assert found["bytes"] > 0


def test_empty_and_clean(run: Run, broker: Broker) -> None:
    broker.partition("empty-0", [])
    broker.partition("t-0", [[batch(0, ("a", "1"))]])
    path = broker.stop()
    OffsetCheckpoint(path / CLEANER_OFFSETS).write({T0: 1})
    codes = {r["topic"]: r["reason"]["code"] for r in rows(run, *COMPACT, path)}
    assert codes == {"empty": "EMPTY", "t": "CLEAN"}


@pytest.mark.parametrize(("state", "code"), [("delete", "DELETING"), ("future", "MOVING"), ("stray", "STRAY")])
def test_other_states_are_listed_with_their_bytes(run: Run, broker: Broker, state: str, code: str) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"))]])
    path = broker.stop()
    other = path / f"t-0.{'0' * 32}-{state}"
    (path / "t-0").rename(other)
    for named in (path, other):
        found = row(run, *COMPACT, named)
        assert found["reason"]["code"] == code
        assert found["bytes"] == (other / names.log_name(0)).stat().st_size
    assert other.name in run("analyze", path).stdout


def test_the_metadata_log_is_listed(run: Run, broker: Broker) -> None:
    broker.partition("__cluster_metadata-0", [[batch(0, ("a", "1"))]])
    assert row(run, *COMPACT, broker.stop())["reason"]["code"] == "METADATA"


def test_tombstones_wait_for_dirty_data(run: Run, broker: Broker) -> None:
    """A5: Kafka never looks at an idle log again, so its expired tombstones stay."""
    broker.partition("t-0", [[batch(0, ("a", "1"), ("a", None), ("b", "1"))]])
    path = broker.stop()
    run("clean", *COMPACT, "--delete-delay", 0, path)
    found = row(run, *COMPACT, path)
    assert (found["tombstones"], found["tombstonesExpired"]) == (1, 0)
    late = row(run, "--set", "cleanup.policy=compact", "--now", NOW + 86_400_000, path)
    assert (late["tombstones"], late["tombstonesExpired"], late["reason"]["code"]) == (1, 1, "CLEAN")
    assert late["notes"] == ["1 expired tombstones wait for dirty data; clean --force drops them now"]


def test_keyless_records_are_counted_before_they_are_lost(run: Run, broker: Broker) -> None:
    """A16: an empty key is a key, no key is none."""
    broker.partition("t-0", [[batch(0, (None, "x"), ("", "y"), (None, "z"), ("", "w"))]])
    found = row(run, *COMPACT, broker.stop())
    assert (found["keyless"], found["superseded"], found["keys"]) == (2, 1, 1)
    assert any("2 records without a key would be dropped" in note for note in found["notes"])


def test_aborted_records_and_markers(run: Run, broker: Broker) -> None:
    from compactd.storage.kernel.interface import AbortedTransaction  # noqa: PLC0415
    from compactd.storage.transaction_index import encode_transaction  # noqa: PLC0415

    directory = broker.partition(
        "t-0",
        [[transactional(0, 5, ("a", "1"), ("b", "1")), control_batch("abort", 2, NOW, 5, 0), batch(3, ("a", "2"))]],
    )
    (directory / names.transaction_index_name(0)).write_bytes(encode_transaction(AbortedTransaction(5, 0, 2, 3)))
    found = row(run, *COMPACT, broker.stop())
    assert (found["aborted"], found["markers"], found["superseded"]) == (2, 1, 0)


def test_the_first_record_is_not_the_segments_name(run: Run, broker: Broker) -> None:
    """A39: a cleaned log keeps the name of its first segment when that one's records went."""
    broker.partition("t-0", [[batch(0, ("a", "1"))], [batch(1, ("a", "2"))], [batch(2, ("b", "1"))]])
    path = broker.stop()
    run("clean", *COMPACT, "--delete-delay", 0, path)
    found = row(run, *COMPACT, path)
    assert (found["logStartOffset"], found["firstRecordOffset"], found["logEndOffset"]) == (0, 1, 3)


def test_damage_is_a_reason_and_exit_code_1(run: Run, broker: Broker) -> None:
    bad = bytearray(batch(0, ("a", "1")))
    bad[-2] ^= 1
    broker.partition("bad-0", [[bytes(bad)]])
    broker.partition("good-0", [[batch(0, ("a", "1"))]])
    found = {r["topic"]: r for r in rows(run, *COMPACT, broker.stop(), code=1)}
    assert found["bad"]["reason"]["code"] == "FAULT"
    assert "CRC" in found["bad"]["reason"]["text"]
    assert found["bad"]["reason"]["file"].endswith(names.log_name(0))
    assert found["good"]["reason"] is None


def test_quick_reads_no_records(run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"), ("a", "2"))]])
    path = broker.stop()

    def fail(*_: object) -> None:
        raise AssertionError("--quick measured")

    monkeypatch.setattr(measure_module, "CleaningRound", fail)
    found = row(run, *COMPACT, "--quick", path)
    assert found["bytesFreedNext"] is None and found["dirtyBytes"] > 0
    assert "frees" not in run("analyze", *COMPACT, "--quick", path).stdout.splitlines()[0]


def test_for_people(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"), ("a", "2"))]])
    broker.partition("u-0", [], active=[batch(0, ("a", "1"))])
    lines = run("analyze", *COMPACT, broker.stop()).stdout.splitlines()
    assert lines[0].split()[:5] == ["partition", "policy", "segments", "bytes", "clean"]
    assert lines[1].split()[:3] == ["t-0", "compact", "2"] and lines[1].endswith("nothing")
    assert lines[2].split()[0] == "u-0" and lines[2].endswith("ACTIVE_ONLY")
    assert lines[-1].startswith("2 partitions, ") and "the next clean frees" in lines[-1]


def test_settings_and_their_sources(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"))]])
    path = broker.stop()
    found = [r for r in rows(run, *COMPACT, "--settings", path) if r.get("type") == "setting"]
    by_name = {r["name"]: r for r in found}
    assert by_name["cleanup.policy"] | {"topic": ""} == {
        "type": "setting",
        "topic": "",
        "name": "cleanup.policy",
        "value": "compact",
        "source": "--set",
    }
    assert by_name["retention.ms"]["source"] == "default"
    assert "min.cleanable.dirty.ratio" in run("analyze", *COMPACT, "--settings", path).stdout


def test_top_keys(run: Run, broker: Broker) -> None:
    broker.partition("t-0", [[batch(n, ("big" if n % 2 else f"k{n}", "x" * 50)) for n in range(10)]])
    path = broker.stop()
    found = [r for r in rows(run, *COMPACT, "--top-keys", 1, path) if r.get("type") == "topKey"]
    assert found == [
        {
            "type": "topKey",
            "topic": "t",
            "partition": 0,
            "key": "big",
            "records": 5,
            "bytes": 265,
            "liveKeys": 1,
            "liveBytes": 53,
            "supersededBytes": 212,
            "tombstones": 0,
        }
    ]
    assert '"big"' in run("analyze", *COMPACT, "--top-keys", 3, path).stdout


def test_top_groups_of_the_offsets_topic(run: Run, broker: Broker) -> None:
    """A4: one group commits after each record, the others hardly ever."""

    def commit(offset: int, group: str, value: bytes | None) -> bytes:
        key = b"\x00\x01" + len(group).to_bytes(2, "big") + group.encode() + b"\x00\x01t" + bytes(4)
        return build_batch([Record(offset, NOW, key, value)], base_offset=offset)

    value = bytes.fromhex("000400000000000000080000000001000001a22a858572010010e948ffaeb6924719976d37c33fb9177c")
    commits = [commit(n, "busy" if n else "idle", value) for n in range(50)]
    broker.partition("__consumer_offsets-3", [commits])
    groups = [r for r in rows(run, *COMPACT, "--top-keys", 5, broker.stop()) if r.get("type") == "topKey"]
    assert [(g["owner"], g["records"], g["liveKeys"]) for g in groups] == [("busy", 49, 1), ("idle", 1, 1)]
    assert groups[0]["supersededBytes"] * 49 == groups[0]["bytes"] * 48


def test_nothing_is_changed_and_the_lock_of_a_running_broker_is_no_matter(compactd: Real, broker: Broker) -> None:
    broker.partition("t-0", [[batch(0, ("a", "1"), ("a", "2"))]], active=[batch(2, ("a", "3"))])
    path = broker.stop()
    with LogDir(path).lock():
        before = picture(path)
        for arguments in (("--top-keys", 3), ("--json",), ("--quick", "--settings")):
            result = compactd("analyze", *COMPACT, *arguments, path)
            assert result.returncode == 0, result.stderr
        assert picture(path) == before


def test_a_torn_tail_of_a_running_broker_is_no_fault(run: Run, broker: Broker) -> None:
    directory = broker.partition("t-0", [[batch(0, ("a", "1"), ("a", "2"))]], active=[batch(2, ("a", "3"))])
    path = broker.stop()
    (path / ".kafka_cleanshutdown").unlink()
    log = directory / names.log_name(2)
    whole = log.stat().st_size
    log.write_bytes(log.read_bytes() + batch(3, ("a", "4"))[:40])
    found = row(run, *COMPACT, path)
    assert found["reason"] is None and found["logEndOffset"] == 3
    assert found["activeBytes"] == whole


def test_segments_that_vanish_are_read_again(run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running broker's cleaner replaces segments while we read them."""
    broker.partition("t-0", [[batch(0, ("a", "1"), ("a", "2"))]])
    path = broker.stop()
    real, calls = measure_module.load_partition, []

    def flaky(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise FileNotFoundError(2, "No such file or directory", "00000000000000000000.log")
        return real(*arguments)

    monkeypatch.setattr(measure_module, "load_partition", flaky)
    assert row(run, *COMPACT, path)["reason"] is None
    assert len(calls) == 2


def test_a_partition_that_vanishes_is_only_a_warning(run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = broker.partition("t-0", [[batch(0, ("a", "1"))]])
    path = broker.stop()

    def gone(*_: Any) -> Any:
        directory.rename(path.parent / "elsewhere")
        raise FileNotFoundError(2, "No such file or directory", str(directory))

    monkeypatch.setattr(measure_module, "load_partition", gone)
    result = run("analyze", "--json", *COMPACT, path)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "vanished while it was read" in result.stderr


def test_what_a_clean_left_behind_is_named(run: Run, broker: Broker) -> None:
    directory = broker.partition("t-0", [[batch(0, ("a", "1"), ("a", "2"))]])
    path = broker.stop()
    run("clean", *COMPACT, path)
    (note,) = row(run, *COMPACT, path)["notes"]
    assert "wait as .deleted until the broker removes them" in note
    (directory / (names.log_name(0) + ".cleaned")).write_bytes(b"")
    notes = row(run, *COMPACT, path)["notes"]
    assert any("a clean is under way or was interrupted here" in note for note in notes)


def test_one_partition_directory(run: Run, broker: Broker) -> None:
    for name in ("t-0", "t-1"):
        broker.partition(name, [[batch(0, ("a", "1"))]])
    path: Path = broker.stop()
    assert row(run, *COMPACT, path / "t-1")["partition"] == 1
