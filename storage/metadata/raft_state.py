"""The small files beside the metadata log: quorum-state, leader-epoch-checkpoint, a snapshot's time (facts A3, A16)."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from compactd.config.errors import CorruptFileError, FaultError
from compactd.storage import files, names
from compactd.storage.epochs import LeaderEpochs
from compactd.storage.metadata.log import Snapshot, read_checked
from compactd.storage.metadata.records import decode_control_record
from compactd.storage.records.varint import MalformedError

QUORUM_STATE = "quorum-state"

#: Topic id of `__cluster_metadata`, the same in every cluster.
METADATA_TOPIC_ID = uuid.UUID(int=1)

_LARGEST_STATE = 1 << 20


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What quorum-state says. `voters`: node ids; empty where the file doesn't list them (kraft.version 1)."""

    leader_id: int
    epoch: int
    voters: tuple[int, ...]


def read_quorum_state(directory: Path) -> QuorumState | None:
    """Reads its first line, as Kafka does; None when there is no file. CorruptFileError: Kafka would not start on it."""
    path = directory / QUORUM_STATE
    raw = files.read_file(path, _LARGEST_STATE, missing_ok=True)
    if not raw and not path.exists():
        return None
    try:
        found = json.loads(raw.split(b"\n", 1)[0])
        voters = found.get("currentVoters") or ()
        state = QuorumState(
            _number(found["leaderId"]),
            _number(found["leaderEpoch"]),
            tuple(_number(voter["voterId"]) for voter in voters),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptFileError(
            path=path,
            reason=f"cannot be read ({error!r})",
            position=0,
            advice="Kafka does not start on it either. Remove it: the epoch is then taken from the log.",
        ) from None
    if state.epoch < 0:
        raise CorruptFileError(path=path, reason=f"leaderEpoch is {state.epoch}", position=0, advice="Remove the file.")
    return state


def write_quorum_state(directory: Path, node_id: int, epoch: int, kraft_version: int) -> None:
    """Says that `node_id` leads in `epoch`, in the form of this kraft.version."""
    state: dict[str, object]
    if kraft_version == 0:
        state = {
            "clusterId": "",
            "leaderId": node_id,
            "leaderEpoch": epoch,
            "votedId": -1,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": node_id}],
            "data_version": 0,
        }
    else:
        state = {
            "leaderId": node_id,
            "leaderEpoch": epoch,
            "votedId": -1,
            "votedDirectoryId": names.uuid_text(uuid.UUID(int=0)),
            "data_version": 1,
        }
    files.write_atomically(directory / QUORUM_STATE, json.dumps(state, separators=(",", ":")).encode())


def write_epochs(directory: Path, epochs: LeaderEpochs) -> None:
    """Writes leader-epoch-checkpoint."""
    epochs.write(directory / names.LEADER_EPOCH_CHECKPOINT)


def snapshot_timestamp(snapshot: Snapshot) -> int | None:
    """Append time (ms) of the last batch that a snapshot contains, from its header; None when it can't be read."""
    try:
        with closing(read_checked(snapshot.path)) as batches:
            first = next(batches).records()[0]
        decoded = decode_control_record(first.key or b"", first.value)
        timestamp: int = decoded["data"]["lastContainedLogTimestamp"]
    except (FaultError, MalformedError, StopIteration, IndexError, KeyError):
        return None
    return timestamp


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no number")
    return value
