"""A real broker's own before and after: cleaning the `.deleted` sources gives the cleaned segments beside them.

The data was written by Apache Kafka 4.3.1 with real clients (lz4 and plain with tombstones and an idempotent producer; snappy
and gzip; zstd), cleaned by its own cleaner, and killed. It carries zstd 1.5.6, so there only the records are compared.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import time
from pathlib import Path

import pytest
import zstandard

from compactd.config.settings import TopicConfig
from compactd.storage import names
from compactd.storage.cleaning.run import CleanJob, CleanOptions, clean_partition
from compactd.storage.kernel import active_kernel, reference_kernel
from compactd.storage.kernel.interface import Kernel
from compactd.storage.records.batch import Batch, read_batches

ARCHIVE = Path(__file__).parents[2] / "data" / "kafka-4.3.1-before-and-after.tar.zst"
#: Partition directory, its delete.retention.ms, and whether Kafka's compressed bytes can be had with today's library.
PARTITIONS = [("d2/users-1", 60_000, True), ("d1/sessions-1", 86_400_000, True), ("d1/prices-0", 86_400_000, False)]
FIRST = [names.log_name(0), names.offset_index_name(0), names.time_index_name(0)]


def unpack(target: Path) -> None:
    data = zstandard.ZstdDecompressor().stream_reader(ARCHIVE.read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(target, filter="data")


def put_sources_back(directory: Path, after: Path) -> None:
    """Moves the cleaned segment to `after` and gives its sources their names again."""
    after.mkdir()
    for name in FIRST:
        shutil.move(directory / name, after / name)
    for path in directory.glob("*.deleted"):
        path.rename(path.with_suffix(""))


def round_time(batches: list[Batch], delete_retention_ms: int) -> int:
    """When Kafka cleaned: the delete horizon that it wrote, less the retention."""
    horizons = {b.header.delete_horizon_ms for b in batches if b.header.delete_horizon_ms is not None}
    assert len(horizons) <= 1, "one round writes one horizon"
    return horizons.pop() - delete_retention_ms if horizons else 1_796_006_120_000


@pytest.mark.parametrize("kernel", [active_kernel(), reference_kernel()], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("name", "retention", "same_codec"), PARTITIONS, ids=[p[0].rpartition("/")[2] for p in PARTITIONS]
)
def test_the_sources_become_what_kafka_made_of_them(
    tmp_path: Path, name: str, retention: int, same_codec: bool, kernel: Kernel
) -> None:
    unpack(tmp_path)
    directory, after = tmp_path / name, tmp_path / "after"
    put_sources_back(directory, after)
    theirs = list(read_batches(after / names.log_name(0)))
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), delete_retention_ms=retention, segment_bytes=1 << 20)
    job = CleanJob(names.parse_partition_dir(directory.name).topic_partition, directory, config, None, None)
    options = CleanOptions(now_ms=round_time(theirs, retention), kafka_map=True)

    report = clean_partition(job, options, kernel, time.perf_counter)

    assert (report.outcome, report.rounds) == ("cleaned", 1)
    ours = list(read_batches(directory / names.log_name(0)))
    assert [_content(batch) for batch in ours] == [_content(batch) for batch in theirs]
    if same_codec:
        for file in FIRST:
            assert (directory / file).read_bytes() == (after / file).read_bytes(), file


def _content(batch: Batch) -> tuple[object, ...]:
    """All of a batch but its position, size and CRC, which follow from the compressed bytes."""
    header = batch.header
    return (
        header.base_offset,
        header.last_offset,
        header.attributes,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.leader_epoch,
        batch.records(),
    )
