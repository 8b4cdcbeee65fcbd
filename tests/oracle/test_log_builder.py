"""tests.logs.LogBuilder against Kafka: the same appends leave the same files."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactd.config.settings import TopicConfig
from tests.logs import Entry, LogBuilder
from tests.oracle.compare import SNAPPY, compare
from tests.oracle.driver import Oracle, topic_settings
from tests.oracle.scenario import Operation, Writer
from tests.strategies import KINDS, TIMEOUT, examples

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(TIMEOUT)]

_CONFIG = {
    "internal.segment.bytes": 1500,
    "index.interval.bytes": 100,
    "segment.index.bytes": 4096,
    "segment.ms": 8 * 86_400_000,
    "message.timestamp.after.max.ms": 2**62,
}

pieces = st.sampled_from(["plain", "transactional", "idempotent"]).flatmap(
    lambda kind: st.lists(KINDS[kind], max_size=12)
)


@settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))
@given(pieces=pieces)
def test_writes_what_kafka_writes(oracle: Oracle, fast_dir: Path, pieces: list[tuple[Operation, ...]]) -> None:
    shutil.rmtree(fast_dir, ignore_errors=True)
    operations = [operation for piece in pieces for operation in piece]
    requests = Writer(max_batch_bytes=1500).requests(operations)

    kafka = fast_dir / "kafka" / "t-0"
    oracle.open(kafka, _CONFIG)
    assert [answer for answer in oracle.many(requests) if "error" in answer] == []
    oracle.run_delayed()
    oracle.close()

    ours = fast_dir / "ours" / "t-0"
    with LogBuilder(ours, TopicConfig.from_strings(topic_settings(_CONFIG))) as log:
        for request in requests:
            _apply(log, request)
    assert compare(ours, kafka, ours, 0, frozenset({SNAPPY})).differences == []


def _apply(log: LogBuilder, request: dict[str, Any]) -> None:
    log.now_ms = request["now"]
    leader_epoch = request["leaderEpoch"]
    match request["op"]:
        case "append":
            log.append(
                [_entry(made) for made in request["records"]],
                pid=request.get("pid", -1),
                epoch=request.get("epoch"),
                sequence=request.get("seq"),
                transactional=request.get("txn", False),
                codec=request["codec"],
                leader_epoch=leader_epoch,
                log_append_time_ms=log.now_ms if request.get("logAppendTime") else None,
                gap=request.get("gap", 0),
            )
        case "control":
            log.control(request["type"], request["pid"], epoch=request["epoch"], leader_epoch=leader_epoch)
        case "empty":
            log.empty_batch(
                request["count"],
                pid=request.get("pid", -1),
                epoch=request.get("epoch", -1),
                sequence=request.get("seq", -1),
                transactional=request.get("txn", False),
                control=request.get("control", False),
                leader_epoch=leader_epoch,
            )
        case "roll":
            log.roll()


def _entry(made: dict[str, Any]) -> Entry:
    def data(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    headers = tuple((name, data(value)) for name, value in made.get("headers", ()))
    return Entry(data(made["key"]), data(made["value"]), made["ts"], headers, made.get("skip", 0))
