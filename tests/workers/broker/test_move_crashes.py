"""The whole daemon dies at every file operation of a move: with the next start one copy is the partition, with every record."""

from __future__ import annotations

import contextlib
import gc
import time
from pathlib import Path

import pytest

from compactd.storage import files, names
from compactd.storage.log_exchange import MOVED_FROM
from tests.file_faults import Call, FaultyLayer
from tests.workers.broker.batches import batch, fetch, produce, records_of
from tests.workers.broker.catalogue_harness import CatalogueBroker

_ALTER, _CREATE = 34, 19
_SECONDS = 90.0
_RECORDS = 12
#: By the directory of a run: the log dir that the partition lay in at first.
SOURCES: dict[Path, Path] = {}


def _make_dirs(root: Path) -> list[Path]:
    made = [root / "d1", root / "d2"]
    for each in made:
        each.mkdir(parents=True)
    return made


def run(root: Path, call: int | None, loss: str) -> tuple[list[Call], list[bytes]]:
    """A move that ends after a call, or (None) in good order. Its calls, and the values that were acknowledged."""
    dirs, layer = _make_dirs(root), FaultyLayer()
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
            SOURCES[root] = source
            begun, first = layer.count, len(layer.calls)
            if call is not None:
                layer.stop_at(begun + call, after=True)
            body = {"dirs": [{"path": str(target), "topics": [{"name": "t", "partitions": [0]}]}]}
            client.ask(_ALTER, 2, body)
            while not layer.dead and (broker.partition("t").moving_to or not (target / "t-0").exists()):
                assert time.monotonic() < end
                time.sleep(0.002)
            done = [each for each in layer.calls[first:] if each.name not in ("free_bytes", "access")]
            while call is not None and not layer.dead and time.monotonic() < end:
                # What comes after the move: the coordinator is told, and writes.
                produce(client, batch([b"more"]), "t")
        made = done if call is None else []
        with contextlib.suppress(BaseException):
            broker.catalogue.close()
        layer.close_all()
        if loss == "power" and call is not None:
            layer.lose_unsynced()
    return made, written


def look(root: Path, written: list[bytes], where: str) -> None:
    dirs = [root / "d1", root / "d2"]
    for log_dir in dirs:
        (log_dir / ".lock").unlink(missing_ok=True)
    with CatalogueBroker(dirs, {"cleaner.free.space.margin": 0}, clean=False) as broker, broker.connect() as client:
        end = time.monotonic() + _SECONDS
        # The note of where a copy came from is the last thing to go.
        while (
            broker.partition("t").moving_to
            or any(path.name.endswith(names.FUTURE_DIR) for path in root.glob("*/*"))
            or any(root.glob(f"*/t-0/{MOVED_FROM}"))
        ):
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
    calls, written = run(tmp_path / "count", None, loss)
    assert len(calls) > 30
    look(tmp_path / "count", written, "in good order")
    for call in range(0, len(calls), 1 if loss == "process" else 3):
        root = tmp_path / str(call)
        _, written = run(root, call, loss)
        look(root, written, f"stopped at call {call}")
    # Tasks that a stop ended complain when they are collected, which must not happen in the midst of another test.
    gc.collect()
