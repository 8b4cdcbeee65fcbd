"""What the metadata log says about the cluster: topics, partitions, settings and features, by replay (facts A9)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from compactd.config.errors import CompactdError, CorruptFileError, FaultError, StorageIOError
from compactd.config.properties import properties_dict
from compactd.storage.metadata.log import (
    METADATA_DIR,
    Snapshot,
    list_files,
    metadata_dirs,
    newest_snapshot,
    read_log,
    read_snapshot,
)
from compactd.storage.metadata.records import Frame, decode_control_record, read_body, read_frame
from compactd.storage.records.batch import HEADER_SIZE, Batch
from compactd.storage.records.varint import MalformedError

_TOPIC, _PARTITION, _CONFIG, _PARTITION_CHANGE, _REMOVE_TOPIC, _FEATURE = 2, 3, 4, 5, 9, 12
_BEGIN, _END, _ABORT = 23, 24, 25

#: Types whose content the catalogue keeps; the others are only checked for being known.
_REPLAYED = frozenset((_TOPIC, _PARTITION, _CONFIG, _PARTITION_CHANGE, _REMOVE_TOPIC, _FEATURE))

_RESOURCES = {2: "topic", 4: "broker"}

#: The record area of a batch with one NoOpRecord: an idle controller writes two a second, most of many a log.
_NO_OP = bytes.fromhex("1400000001080114000000")

#: How often the files are looked for while a running broker takes them away.
ATTEMPTS = 3

#: Warnings beyond this many are counted, not kept.
MAX_WARNINGS = 50


class PartitionState(NamedTuple):
    """A partition as the cluster sees it. Leader -1 is none; directories are ids of log dirs, in the replicas' order."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[str, ...]


@dataclass(slots=True)
class ClusterMetadata:
    """The catalogue at the end of the metadata log. Ids are Kafka's 22-character text."""

    #: The directory it was read from.
    path: Path
    #: Topic name to id.
    topics: dict[str, str] = field(default_factory=dict)
    #: Topic id to partition number to state.
    partitions: dict[str, dict[int, PartitionState]] = field(default_factory=dict)
    #: Topic name to setting to value. May name topics that don't exist, as in Kafka.
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Broker id in decimal, "" for the cluster-wide defaults, to setting to value.
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Topic id to name of topics that were removed since the snapshot (or the log's start).
    deleted_topics: dict[str, str] = field(default_factory=dict)
    #: Feature to level, metadata.version among them.
    features: dict[str, int] = field(default_factory=dict)
    #: node.id and cluster.id of the log dir that holds the log (meta.properties); None when it has none.
    node_id: int | None = None
    cluster_id: str | None = None
    #: The next offset of the log, and the name of the snapshot that was read.
    end_offset: int = 0
    snapshot: str | None = None
    #: What couldn't be read or doesn't fit together, each a sentence for the person.
    warnings: list[str] = field(default_factory=list)
    #: Setting to the place it was last set at.
    origins: dict[tuple[str, str, str], str] = field(default_factory=dict)

    @property
    def metadata_version(self) -> int | None:
        """Level of metadata.version; None in a log that never set it."""
        return self.features.get("metadata.version")

    def topic_name(self, topic_id: str) -> str | None:
        """Name of a topic that exists, by its id."""
        return next((name for name, known in self.topics.items() if known == topic_id), None)

    def config_source(self, kind: str, resource: str, name: str) -> str:
        """Where a setting was set (`kind` is topic or broker): `__cluster_metadata-0 offset 57 (topic users)`."""
        what = f"{kind} {resource}" if resource else "all brokers"
        return f"{METADATA_DIR} {self.origins.get((kind, resource, name), 'unknown')} ({what})"


def read_cluster_metadata(log_dirs: Sequence[Path | str], strict: bool = False) -> ClusterMetadata | None:
    """The catalogue from the one of `log_dirs` that holds `__cluster_metadata-0`; None when none does.

    Safe beside a running broker: a batch that is being written ends the log. The high watermark isn't stored, so the
    last records of a quorum with several voters may not be committed; a warning says so (facts A11). Without `strict`,
    what can't be read is left out and named in `warnings`. With it, raises FaultError (CorruptFileError,
    CorruptBatchError) at the first fault. Raises StorageIOError in both cases.
    """
    directories = metadata_dirs([Path(log_dir) for log_dir in log_dirs])
    if not directories:
        return None
    for _ in range(ATTEMPTS - 1):
        try:
            return _read(directories, strict)
        except StorageIOError as fault:
            # A running broker deletes old segments and snapshots; look again at what there is now.
            if not isinstance(fault.__cause__, FileNotFoundError):
                raise
    return _read(directories, strict)


def _read(directories: Sequence[Path], strict: bool) -> ClusterMetadata:
    directory = directories[0]
    cluster = ClusterMetadata(path=directory)
    replay = _Replay(cluster, strict)
    if len(directories) > 1:
        others = ", ".join(str(path) for path in directories[1:])
        reason = f"only one log dir may hold the metadata log, but so does {others}"
        replay.warn(FaultError(path=directory, reason=reason))
    _identity(cluster, replay)
    snapshots, segments = list_files(directory)
    faults: list[FaultError] = []
    newest = newest_snapshot(snapshots, faults)
    replay.warn(*faults)
    if newest is not None:
        snapshot, batches = newest
        cluster.snapshot = snapshot.path.name
        cluster.end_offset = snapshot.offset
        replay.apply(batches, f"snapshot {snapshot.path.name.removesuffix('.checkpoint')}")
    faults.clear()
    with closing(read_log(segments, cluster.end_offset, faults)) as log:
        replay.apply(log, None)
    replay.warn(*faults)
    replay.finish(snapshots)
    return cluster


def _identity(cluster: ClusterMetadata, replay: _Replay) -> None:
    """node.id and cluster.id of the dir, and how many voters its quorum has."""
    meta = cluster.path.parent / "meta.properties"
    try:
        values = properties_dict(meta.read_bytes(), str(meta))
        node = values.get("node.id", values.get("broker.id"))
        cluster.node_id = None if node is None else int(node)
        cluster.cluster_id = values.get("cluster.id")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, CompactdError) as fault:
        replay.warn(FaultError(path=meta, reason=f"cannot be used, so per-broker settings don't apply: {fault}"))
    try:
        line = (cluster.path / "quorum-state").read_text("utf-8").split("\n", 1)[0]
        voters = json.loads(line).get("currentVoters")
        replay.voters = len(voters) if isinstance(voters, list) else 0
    except (OSError, ValueError, AttributeError, RecursionError):
        # Kafka starts without this file; voters may be named by control records.
        pass


class _Replay:
    """Applies records in offset order: a batch as a whole, a metadata transaction when it ends."""

    def __init__(self, cluster: ClusterMetadata, strict: bool) -> None:
        self.cluster = cluster
        self.strict = strict
        self.voters = 0
        self.suppressed = 0
        self.path = cluster.path
        self.ids: dict[str, str] = {}
        #: Records of an open metadata transaction; None outside of one.
        self.pending: list[tuple[int, str, int, dict[str, Any]]] | None = None

    def warn(self, *faults: FaultError) -> None:
        for fault in faults:
            if self.strict:
                raise fault
            if len(self.cluster.warnings) < MAX_WARNINGS:
                self.cluster.warnings.append(str(fault))
            else:
                self.suppressed += 1

    def apply(self, batches: Iterable[Batch], place: str | None) -> None:
        """Replays batches of the log, or of a snapshot, whose own offsets mean nothing: then `place` names it."""
        for batch in batches:
            if batch.data[HEADER_SIZE:] == _NO_OP and batch.header.codec == 0 and place is None:
                self.cluster.end_offset = batch.header.next_offset
                continue
            try:
                records = batch.records()
            except FaultError as fault:
                self.warn(fault)
                continue
            if batch.header.is_control:
                for record in records:
                    self._control(batch, record.offset, record.key, record.value)
            else:
                for record in records:
                    self._record(batch, record.offset, record.key, record.value, place or f"offset {record.offset}")
            if place is None:
                self.cluster.end_offset = batch.header.next_offset

    def finish(self, snapshots: Sequence[Snapshot]) -> None:
        """What is left to say when the end of the log is reached. An open transaction is void, as for Kafka."""
        cluster = self.cluster
        if not cluster.features:
            self._bootstrap(snapshots)
        if self.voters > 1:
            cluster.warnings.append(
                f"{cluster.path}: this node is one of {self.voters} voters, and its log doesn't say which of its last "
                "records are committed. All are taken as committed."
            )
        if self.suppressed:
            cluster.warnings.append(f"{cluster.path}: {self.suppressed} more faults like these.")

    def _bootstrap(self, snapshots: Sequence[Snapshot]) -> None:
        """A dir that was formatted but never started: its 0-0 checkpoint holds the features it will start with."""
        for snapshot in snapshots:
            if snapshot.offset == 0:
                try:
                    batches = read_snapshot(snapshot)
                except FaultError as fault:
                    self.warn(fault)
                    continue
                features = ClusterMetadata(path=self.cluster.path)
                _Replay(features, self.strict).apply(batches, "bootstrap")
                self.cluster.features.update(features.features)

    def _fault(self, batch: Batch, offset: int, reason: str) -> None:
        advice = "This record was left out; a newer Kafka may have written it."
        position = batch.header.position
        self.warn(
            CorruptFileError(path=batch.path, reason=f"offset {offset}: {reason}", position=position, advice=advice)
        )

    def _control(self, batch: Batch, offset: int, key: bytes | None, value: bytes | None) -> None:
        try:
            control = decode_control_record(key or b"", value)
        except MalformedError as fault:
            self._fault(batch, offset, str(fault))
            return
        data = control["data"]
        if control["type"] == "KRAFT_VERSION":
            self.cluster.features["kraft.version"] = data["kRaftVersion"]
        elif control["type"] in ("KRAFT_VOTERS", "LEADER_CHANGE"):
            self.voters = len(data["voters"])

    def _record(self, batch: Batch, offset: int, key: bytes | None, value: bytes | None, place: str) -> None:
        try:
            if key is not None:
                raise MalformedError("a metadata record has a key")
            frame = read_frame(value)
            assert value is not None
            # In strict use every body is read; else only those that matter.
            data = read_body(frame, value) if self.strict or frame.api_key in _REPLAYED else {}
        except MalformedError as fault:
            self._fault(batch, offset, str(fault))
            return
        self._step(batch, offset, place, frame, data)

    def _step(self, batch: Batch, offset: int, place: str, frame: Frame, data: dict[str, Any]) -> None:
        if frame.api_key == _BEGIN:
            self.pending = []
        elif frame.api_key == _ABORT:
            self.pending = None
        elif frame.api_key == _END:
            pending, self.pending = self.pending or [], None
            for record in pending:
                self._replay(batch, *record)
        elif frame.api_key in _REPLAYED:
            if self.pending is not None:
                self.pending.append((offset, place, frame.api_key, data))
            else:
                self._replay(batch, offset, place, frame.api_key, data)

    def _replay(self, batch: Batch, offset: int, place: str, api_key: int, data: dict[str, Any]) -> None:
        reason = self._change(place, api_key, data)
        if reason is not None:
            self._fault(batch, offset, reason)

    def _change(self, place: str, api_key: int, data: dict[str, Any]) -> str | None:
        """Applies one record; the reason when it contradicts what came before it (Kafka wouldn't start, facts A10)."""
        cluster = self.cluster
        if api_key == _TOPIC:
            if data["name"] in cluster.topics:
                return f"topic {data['name']} exists already"
            cluster.topics[data["name"]] = data["topicId"]
            cluster.partitions[data["topicId"]] = {}
            self.ids[data["topicId"]] = data["name"]
        elif api_key == _PARTITION:
            partitions = cluster.partitions.get(data["topicId"])
            if partitions is None:
                return f"a partition of the unknown topic id {data['topicId']}"
            partitions[data["partitionId"]] = _partition(data)
        elif api_key == _PARTITION_CHANGE:
            partitions = cluster.partitions.get(data["topicId"], {})
            state = partitions.get(data["partitionId"])
            if state is None:
                return f"a change of the unknown partition {data['partitionId']} of topic id {data['topicId']}"
            partitions[data["partitionId"]] = _changed(state, data)
        elif api_key == _REMOVE_TOPIC:
            name = self.ids.pop(data["topicId"], None)
            if name is None:
                return f"removal of the unknown topic id {data['topicId']}"
            del cluster.topics[name], cluster.partitions[data["topicId"]]
            cluster.topic_configs.pop(name, None)
            cluster.deleted_topics[data["topicId"]] = name
        elif api_key == _CONFIG:
            self._config(place, data)
        elif data["name"] != "kraft.version":
            if data["featureLevel"] == 0:
                cluster.features.pop(data["name"], None)
            else:
                cluster.features[data["name"]] = data["featureLevel"]
        return None

    def _config(self, place: str, data: dict[str, Any]) -> None:
        kind = _RESOURCES.get(data["resourceType"])
        if kind is None:
            return
        configs = self.cluster.topic_configs if kind == "topic" else self.cluster.broker_configs
        resource, name = data["resourceName"], data["name"]
        if data["value"] is None:
            configs.get(resource, {}).pop(name, None)
            if not configs.get(resource, True):
                del configs[resource]
        else:
            configs.setdefault(resource, {})[name] = data["value"]
            self.cluster.origins[kind, resource, name] = place


def _partition(data: dict[str, Any]) -> PartitionState:
    return PartitionState(
        tuple(data["replicas"]),
        tuple(data["isr"]),
        data["leader"],
        data["leaderEpoch"],
        data["partitionEpoch"],
        tuple(data.get("directories", ())),
    )


def _changed(state: PartitionState, data: dict[str, Any]) -> PartitionState:
    """Fields that are there replace; a leader that is there, even the same, raises the leader epoch."""
    elected = data["leader"] != -2
    directories = data.get("directories")
    return PartitionState(
        state.replicas if data["replicas"] is None else tuple(data["replicas"]),
        state.isr if data["isr"] is None else tuple(data["isr"]),
        data["leader"] if elected else state.leader,
        state.leader_epoch + elected,
        state.partition_epoch + 1,
        state.directories if directories is None else tuple(directories),
    )
