"""DumpLogSegments on the files of both brokers: the same requests leave the same files, and Kafka finds no fault in ours."""

from __future__ import annotations

import itertools
import random
import re
import time
from pathlib import Path

import pytest

from tests.integration.clients.librdkafka import Librdkafka
from tests.integration.records import Message
from tests.integration.servers import Server, until
from tests.integration.tools import Tools
from tests.workers.broker.batches import PRODUCE, batch, produce_body

pytestmark = pytest.mark.kafka
_NOW = int(time.time() * 1000)
_FAULTS = ("mismatch", "Mismatch", "corrupt", "Corrupt", "non-consecutive", "out of order", "invalid")


def dump(tools: Tools, *arguments: str) -> list[str]:
    return tools.run(None, "DumpLogSegments", *arguments).splitlines()


def without_paths(lines: list[str], server: Server) -> list[str]:
    for log_dir in server.log_dirs:
        lines = [line.replace(str(log_dir), "<dir>") for line in lines]
    return lines


@pytest.fixture(scope="module")
def several_segments(pair: tuple[Server, Server]) -> str:
    """The same batches sent to both, an idempotent producer's among them: some three MiB in segments of one."""
    topic = "dumped"
    for server in pair:
        source = random.Random(1)
        server.create(topic, segment_bytes=1 << 20, index_interval_bytes=2048)
        with server.connect() as client:
            for number in range(160):
                producer = {"producer_id": 7000, "producer_epoch": 1, "base_sequence": number * 4} if number % 2 else {}
                if number % 2:
                    producer["base_sequence"] = number // 2 * 4
                data = batch(
                    [source.randbytes(5000) for _ in range(4)], keys=[b"%d" % number] * 4, timestamp=_NOW + number, **producer
                )  # fmt: skip
                answer = client.ask(PRODUCE, 9, produce_body(data, topic))
                assert answer.responses[0].partition_responses[0].error_code == 0, answer
    return topic


def test_the_same_requests_leave_the_same_files(
    several_segments: str, pair: tuple[Server, Server], tools: Tools
) -> None:
    shown, names = [], []
    for server in pair:
        where = server.partition_dir(several_segments)
        logs = sorted(where.glob("*.log"))
        assert len(logs) > 3
        closed = {path.stem for path in logs[:-1]}
        # Kafka preallocates the index files of the active segment; compactd writes them when it is rolled or closed.
        names.append(sorted(each.name for each in where.iterdir() if "index" not in each.name or each.stem in closed))
        files = [str(path) for path in sorted(where.iterdir()) if path.suffix == ".log" or path.stem in closed]
        lines = dump(tools, "--deep-iteration", "--print-data-log", "--files", ",".join(files))
        lines += dump(tools, "--index-sanity-check", "--files", ",".join(file for file in files if "index" in file))
        assert not [line for line in lines if any(fault in line for fault in _FAULTS)]
        shown.append(without_paths(lines, server))
        for path in logs:
            shown[-1].append(path.name)
    assert shown[1] == shown[0]
    assert names[1] == names[0]


def test_producers_snapshots(several_segments: str, pair: tuple[Server, Server], tools: Tools) -> None:
    shown = []
    for server in pair:
        files = sorted(server.partition_dir(several_segments).glob("*.snapshot"))
        lines = dump(tools, "--files", ",".join(map(str, files)))
        shown.append([re.sub(r"lastTimestamp: \d+", "", line) for line in without_paths(lines, server)])
    assert len(shown[0]) > 3
    assert shown[1] == shown[0]


def test_offsets_of_groups(server: Server, tools: Tools) -> None:
    """Kafka reads what the group coordinator wrote."""
    server.create("dump-group", 2)
    Librdkafka().produce(server, "dump-group", [Message(b"v", partition=number % 2) for number in range(10)])
    assert len(Librdkafka().read_as_member(server, "dump-group", "g-dump", 10)) == 10
    files = [str(path) for log_dir in server.log_dirs for path in log_dir.glob("__consumer_offsets-*/*.log")]
    lines = dump(tools, "--offsets-decoder", "--files", ",".join(files))
    for number in (0, 1):
        assert any('"topic":"dump-group"' in line and f'"partition":{number}' in line for line in lines)
    assert any('"group":"g-dump"' in line and '"protocolType":"consumer"' in line for line in lines)
    assert not [line for line in lines if "Unknown" in line or "rror" in line]


def test_states_of_transactions(server: Server, tools: Tools) -> None:
    """Kafka reads what the transaction coordinator wrote."""
    server.create("dump-transaction", 2)
    messages = [Message(b"v", partition=number) for number in (0, 1)]
    for commit in (True, False):
        Librdkafka().transact(server, "dump-transaction", messages, "x-dump", commit)

    def states() -> list[str]:
        files = [str(path) for log_dir in server.log_dirs for path in log_dir.glob("__transaction_state-*/*.log")]
        lines = dump(tools, "--transaction-log-decoder", "--files", ",".join(files))
        assert not [line for line in lines if "Unknown" in line or "rror" in line]
        mine = "\n".join(line for line in lines if "x-dump" in line)
        found = re.findall(r'"transactionStatus":"(\w+)"', mine)
        # Partitions may be added together or one by one.
        return [state for state, _ in itertools.groupby(found)]

    ended = ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "Empty", "Ongoing", "PrepareAbort", "CompleteAbort"]
    until(lambda: states()[-1:] == ended[-1:], "the last state")
    assert states() == ended


def metadata_dir(server: Server) -> Path:
    return server.log_dirs[0] / "__cluster_metadata-0"


def test_the_metadata_log(server: Server, tools: Tools) -> None:
    """Kafka decodes every record of the catalogue, a topic made just now among them."""
    server.create("dump-metadata", 1, cleanup_policy="compact")
    files = sorted([*metadata_dir(server).glob("*.log"), *metadata_dir(server).glob("*.checkpoint")])
    lines = until(
        lambda: [
            line
            for line in dump(
                tools, "--cluster-metadata-decoder", "--skip-record-metadata", "--files", ",".join(map(str, files))
            )
            if "payload:" in line
        ],
        "records",
    )
    kinds = set(re.findall(r'"type":"(\w+)"', "\n".join(lines)))
    assert {
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "CONFIG_RECORD",
        "FEATURE_LEVEL_RECORD",
        "REGISTER_BROKER_RECORD",
    } <= kinds
    assert any('"name":"dump-metadata"' in line for line in lines)
    assert not [line for line in lines if "Error" in line or "Unknown" in line]
