"""Indexes, checkpoints, snapshots and the small files of a log dir, for `compactd dump`. Reads only.

Each function yields the entries of one file; damage that ends the reading raises a FaultError, other damage is an entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compactd.config.errors import CorruptFileError
from compactd.scripts.dump_log import fault_entry
from compactd.storage import files, names
from compactd.storage.checkpoints import OffsetCheckpoint, corrupt, parse_integer, read_frame
from compactd.storage.log_dir import read_clean_shutdown, read_meta_properties
from compactd.storage.offset_index import OffsetIndex
from compactd.storage.partition_metadata import read_partition_metadata
from compactd.storage.producers import read_snapshot
from compactd.storage.time_index import TimeIndex
from compactd.storage.transaction_index import read_transaction_index

#: No quorum-state is larger.
_LARGEST_QUORUM_STATE = 1 << 20

Entries = Iterator[dict[str, Any]]


def offset_index_entries(path: Path) -> Entries:
    """Last offset of a batch, and the byte in the .log where that batch starts."""
    index = OffsetIndex.read(path, _base_offset(path))
    for offset, position in index.entries:
        yield {"type": "offsetIndexEntry", "file": str(path), "offset": offset, "position": position}
    for fault in index.check(_log_size(path)):
        yield fault_entry(path, fault)


def time_index_entries(path: Path) -> Entries:
    """A timestamp in ms, and the offset up to which no record is newer."""
    index = TimeIndex.read(path, _base_offset(path))
    for timestamp, offset in index.entries:
        yield {"type": "timeIndexEntry", "file": str(path), "timestamp": timestamp, "offset": offset}
    for fault in index.check():
        yield fault_entry(path, fault)


def transaction_index_entries(path: Path) -> Entries:
    """Aborted transactions; `lastOffset` is that of the ABORT marker."""
    for entry in read_transaction_index(path, _base_offset(path)):
        yield {
            "type": "abortedTransaction",
            "file": str(path),
            "producerId": entry.producer_id,
            "firstOffset": entry.first_offset,
            "lastOffset": entry.last_offset,
            "lastStableOffset": entry.last_stable_offset,
        }


def snapshot_entries(path: Path) -> Entries:
    """Producers in the file's own order; `currentTransactionFirstOffset` is null without an open transaction."""
    for entry in read_snapshot(path):
        yield {
            "type": "producer",
            "file": str(path),
            "producerId": entry.producer_id,
            "producerEpoch": entry.producer_epoch,
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_data_offset,
            "offsetDelta": entry.last_offset_delta,
            "timestamp": entry.last_timestamp,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTransactionFirstOffset": entry.current_txn_first_offset,
        }


def offset_checkpoint_entries(path: Path) -> Entries:
    """Entries by topic and partition."""
    for key, offset in sorted(OffsetCheckpoint(path).read().items()):
        yield {
            "type": "checkpointEntry",
            "file": str(path),
            "topic": key.topic,
            "partition": key.partition,
            "offset": offset,
        }


def leader_epoch_entries(path: Path) -> Entries:
    """Leader epochs and the first offset written in each, as they stand in the file."""
    for number, position, (epoch, start) in read_frame(path, 2):
        try:
            numbers = parse_integer(epoch, 31), parse_integer(start, 63)
        except ValueError as error:
            raise corrupt(path, f"malformed line {number}: {error}", position) from None
        yield {"type": "leaderEpoch", "file": str(path), "epoch": numbers[0], "startOffset": numbers[1]}


def partition_metadata_entries(path: Path) -> Entries:
    """The topic's id."""
    found = read_partition_metadata(path)
    if found is not None:
        yield {"type": "partitionMetadata", "file": str(path), "version": found.version, "topicId": found.text}


def meta_properties_entries(path: Path) -> Entries:
    """Which cluster, node and directory the log dir belongs to; what is not in the file is null."""
    found = read_meta_properties(path)
    if found is not None:
        yield {
            "type": "metaProperties",
            "file": str(path),
            "version": found.version,
            "clusterId": found.cluster_id,
            "nodeId": found.node_id,
            "directoryId": None if found.directory_id is None else names.uuid_text(found.directory_id),
        }


def clean_shutdown_entries(path: Path) -> Entries:
    """The mark of an orderly stop; `brokerEpoch` is null in the empty file that older brokers write."""
    found = read_clean_shutdown(path)
    if found is not None:
        yield {"type": "cleanShutdown", "file": str(path), "brokerEpoch": found.broker_epoch}


def quorum_state_entries(path: Path) -> Entries:
    """KRaft's vote and leader, as they stand in the file."""
    data = files.read_file(path, _LARGEST_QUORUM_STATE)
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise CorruptFileError(path=path, reason="the file is not a JSON object", position=0, advice="")
    yield {"type": "quorumState", "file": str(path), "state": state}


def _base_offset(path: Path) -> int:
    parsed = names.parse_segment_name(path.name.removesuffix(".tmp"))
    return 0 if parsed is None else parsed.base_offset


def _log_size(index_path: Path) -> int | None:
    """Bytes of the .log that belongs to an index, under the same suffix; None where there is none."""
    parsed = names.parse_segment_name(index_path.name)
    if parsed is None:
        return None
    log = index_path.with_name(names.log_name(parsed.base_offset, parsed.suffix))
    return log.stat().st_size if log.exists() else None
