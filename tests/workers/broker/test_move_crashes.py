"""The whole daemon dies at every file operation of a move: with the next start one copy is the partition, with every record."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from compactd.storage import files, names
from compactd.storage.log_copy import MOVED_FROM
from tests.file_faults import FaultyLayer
from tests.workers.broker.batches import batch, fetch, produce, records_of
from tests.workers.broker.catalogue_harness import CatalogueBroker

_ALTER, _CREATE = 34, 19
_SECONDS = 30.0
_RECORDS = 12


def _dirs(root: Path) -> list[Path]:
    made = [root / "d1", root / "d2"]
    for each in made:
        each.mkdir(parents=True)
    return made


def _run(root: Path, call: int | None, loss: str) -> tuple[int, list[bytes]]:
    """A move that ends before or after a call, or (None) in good order. Calls that were made, values acknowledged."""
    dirs, layer = _dirs(root), FaultyLayer()
    written: list[bytes] = []
    with files.replaced(layer):
        broker = CatalogueBroker(dirs, {"cleaner.free.space.margin": 0})
        with contextlib.suppress(BaseException), broker, broker.connect() as client:
            topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
            # A record is on disk when it is acknowledged, or a power cut could take it from the log itself.
            topic["configs"] = [{"name": "flush.messages", "value": "1"}]
            client.ask(_CREATE, 7, {"topics": [topic], "timeout": 10_000})
            end = time.monotonic() + _SECONDS
            while len(written) < _RECORDS:
                value = b"%d" % len(written)
                if produce(client, batch([value * 50]), "t").error_code == 0:
                    written.append(value * 50)
                assert time.monotonic() < end
            source = Path(broker.partition("t").log_dir)
            target = next(each for each in dirs if each != source)
            begun = layer.count
            if call is not None:
                layer.stop_at(begun + call, after=call % 2 == 0)
            body = {"dirs": [{"path": str(target), "topics": [{"name": "t", "partitions": [0]}]}]}
            client.ask(_ALTER, 2, body)
            while not layer.dead and (broker.partition("t").moving_to or not (target / "t-0").exists()):
                assert time.monotonic() < end
                time.sleep(0.002)
            done = layer.count - begun
            while call is not None and not layer.dead and time.monotonic() < end:
                # What comes after the move: the coordinator is told, and writes.
                produce(client, batch([b"more"]), "t")
        count = done if call is None else 0
        with contextlib.suppress(BaseException):
            broker.catalogue.close()
        layer.close_all()
        if loss == "power" and call is not None:
            layer.lose_unsynced()
    return count, written


def _look(root: Path, written: list[bytes], where: str) -> None:
    dirs = [root / "d1", root / "d2"]
    for log_dir in dirs:
        (log_dir / ".lock").unlink(missing_ok=True)
    with CatalogueBroker(dirs, {"cleaner.free.space.margin": 0}, clean=False) as broker, broker.connect() as client:
        end = time.monotonic() + _SECONDS
        while broker.partition("t").moving_to or any(path.name.endswith(names.FUTURE_DIR) for path in root.glob("*/*")):
            assert time.monotonic() < end, where
            time.sleep(0.002)
        found: list[bytes | None] = [record.value for record in records_of(fetch(client, 0, "t").records)]
        assert found[: len(written)] == written, where
        assert set(found[len(written) :]) <= {b"more"}, where
        live = [path.parent for path in root.glob("*/t-0")]
        assert live == [Path(broker.partition("t").log_dir)], where
        recorded = broker.catalogue.full_update().topics[0].partitions[0].log_dir
        assert recorded == str(live[0]), where
        assert not (live[0] / "t-0" / MOVED_FROM).exists(), where
        assert produce(client, batch([b"and on"]), "t").error_code == 0


@pytest.mark.parametrize("loss", ["process", "power"])
def test_crash_matrix(tmp_path: Path, loss: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "compactd")
    caplog.set_level("CRITICAL", "asyncio")
    count, written = _run(tmp_path / "count", None, loss)
    assert count > 30
    _look(tmp_path / "count", written, "in good order")
    # A power cut is the same before and after most calls.
    for call in range(0, count, 1 if loss == "process" else 2):
        root = tmp_path / str(call)
        _, written = _run(root, call, loss)
        _look(root, written, f"stopped at call {call}")
