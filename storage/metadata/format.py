"""Makes log dirs for a new cluster of one node, as Kafka 4.4.0's storage tool formats them (facts A1, A2)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from compactd.config.errors import RefusedError
from compactd.storage import files, names
from compactd.storage.log_dir import LogDir, MetaProperties
from compactd.storage.metadata.log import METADATA_DIR
from compactd.storage.metadata.record_types import DEFAULT_FEATURES, METADATA_VERSION, MetadataRecord, RecordType
from compactd.storage.metadata.snapshots import place_snapshot, snapshot_bytes

#: Ids below this are reserved (MIGRATING, UNASSIGNED, LOST and such to come).
_RESERVED = 100


def random_id() -> uuid.UUID:
    """A random id as Kafka draws them: version 4, not reserved, and its text doesn't begin with a dash."""
    while True:
        drawn = uuid.uuid4()
        if drawn.int >= _RESERVED and not names.uuid_text(drawn).startswith("-"):
            return drawn


def format_log_dirs(
    log_dirs: Sequence[Path],
    *,
    node_id: int,
    now_ms: int,
    cluster_id: str | None = None,
    features: Mapping[str, int] = DEFAULT_FEATURES,
) -> str:
    """Formats empty log dirs, made if absent; the first one takes the metadata log. The cluster id.

    A dir that has a meta.properties of this node and cluster already is left alone: formatting that was stopped half-way
    goes on. RefusedError: a dir belongs to another cluster or node, or holds directories and no meta.properties.
    """
    found = {path: LogDir(path).meta() if path.is_dir() else None for path in log_dirs}
    known = {meta.cluster_id for meta in found.values() if meta is not None}
    if cluster_id is None:
        cluster_id = next(iter(known), None) or names.uuid_text(random_id())
    for path, meta in found.items():
        if meta is not None and (meta.cluster_id, meta.node_id) != (cluster_id, node_id):
            raise RefusedError(
                path=str(path),
                reason=f"it belongs to node {meta.node_id} of cluster {meta.cluster_id}, "
                f"not to node {node_id} of cluster {cluster_id}",
                advice="Take another directory, or set node.id to that of this one.",
            )
        if meta is None:
            _refuse_content(path)
    used = {meta.directory_id for meta in found.values() if meta is not None}
    for index, path in enumerate(log_dirs):
        if found[path] is not None:
            continue
        _make(path)
        if index == 0:
            _write_bootstrap(path, features, now_ms)
        # Last, as Kafka does: a dir with this file is formatted.
        directory_id = random_id()
        while directory_id in used:
            directory_id = random_id()
        used.add(directory_id)
        LogDir(path).write_meta(MetaProperties(1, cluster_id, node_id, directory_id), now_ms)
    return cluster_id


def feature_records(features: Mapping[str, int]) -> list[MetadataRecord]:
    """FeatureLevel records in Kafka's order; level 0 is not written."""
    ordered = sorted(features, key=lambda name: (name != METADATA_VERSION, name))
    return [
        MetadataRecord(RecordType.FEATURE_LEVEL, {"name": name, "featureLevel": features[name]})
        for name in ordered
        if features[name]
    ]


def _write_bootstrap(log_dir: Path, features: Mapping[str, int], now_ms: int) -> None:
    directory = log_dir / METADATA_DIR
    if not directory.is_dir():
        files.make_dir(directory)
    values = [record.value for record in feature_records(features)]
    place_snapshot(directory, 0, 0, snapshot_bytes(values, epoch=0, timestamp=now_ms, now_ms=now_ms))


def _make(path: Path) -> None:
    missing = [path, *path.parents]
    for directory in reversed([entry for entry in missing if not entry.is_dir()]):
        files.make_dir(directory)


def _refuse_content(path: Path) -> None:
    if not path.is_dir():
        return
    try:
        held = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
    except OSError as error:
        raise files.failed(path, "list", error) from error
    # A metadata directory with nothing but a 0-0 checkpoint is what a stopped format leaves behind.
    strange = [name for name in held if name != METADATA_DIR]
    log = path / METADATA_DIR
    if METADATA_DIR in held and any(entry.suffix == ".log" for entry in log.iterdir()):
        strange.append(METADATA_DIR)
    if strange:
        raise RefusedError(
            path=str(path),
            reason=f"it has no meta.properties, yet holds {', '.join(strange[:3])}{', …' if len(strange) > 3 else ''}",
            advice="If these are a broker's, put its meta.properties back; else name an empty directory in log.dirs.",
        )
