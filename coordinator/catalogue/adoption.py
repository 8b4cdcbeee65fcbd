"""Whether log dirs are ones that this node may take over, and what lies in them (facts: kraft-and-coordinators A1, A11–A13).

What speaks against it is found before anything is written, but for a torn tail that is cut off the metadata log and new
log dirs that are formatted, and said with what to do about it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compactd.config.errors import CorruptFileError, RefusedError
from compactd.coordinator.catalogue.leadership import Bootstrap
from compactd.storage import files, names
from compactd.storage.log_dir import LogDir, MetaProperties
from compactd.storage.log_exchange import forget_origin, origin_of
from compactd.storage.metadata.format import format_log_dirs, random_id
from compactd.storage.metadata.load import LoadedImage
from compactd.storage.metadata.log import METADATA_DIR
from compactd.storage.metadata.metadata_log import MetadataLog
from compactd.storage.metadata.raft_state import read_quorum_state
from compactd.storage.metadata.record_types import METADATA_VERSION, SUPPORTED_FEATURES
from compactd.storage.names import PartitionDir, uuid_text
from compactd.storage.partition_metadata import read_partition_metadata

_LOG = logging.getLogger("compactd.catalogue")


@dataclass(frozen=True, slots=True)
class Identity:
    """A log dir that may be used. `order`: its place in log.dirs."""

    path: Path
    directory_id: str
    order: int


@dataclass(frozen=True, slots=True)
class Stray:
    """A partition's directory that no partition of the catalogue is in. `deleted`: of a topic that was deleted."""

    path: Path
    entry: PartitionDir
    reason: str
    deleted: bool


@dataclass(slots=True)
class Survey:
    """What lies in the log dirs."""

    #: (topic id, partition) to the id of the log dir that really holds it.
    places: dict[tuple[str, int], str] = field(default_factory=dict)
    strays: list[Stray] = field(default_factory=list)
    #: Copies of moves that the catalogue has recorded already: they take the place of the original.
    promotions: list[tuple[Path, PartitionDir, Path | None]] = field(default_factory=list)
    #: Originals of moves that ended, which still have their names.
    left: list[tuple[Path, PartitionDir]] = field(default_factory=list)


def identify(
    log_dirs: Sequence[Path], offline: Mapping[Path, str], node_id: int, now_ms: int
) -> tuple[str, list[Identity]]:
    """Cluster id, and the identity of each log dir. Empty ones are formatted: all at the first start, or a new one later.

    RefusedError: of another node or cluster, of ZooKeeper's time, the metadata log in another dir than the first, two dirs
    with one id, a dir with partitions and no meta.properties.
    """
    metas: dict[Path, MetaProperties | None] = {
        path: LogDir(path).meta() if path.is_dir() else None for path in log_dirs
    }  # fmt: skip
    for path, meta in metas.items():
        if meta is not None:
            _check_meta(path, meta, node_id)
    clusters = {meta.cluster_id: path for path, meta in metas.items() if meta is not None}
    if len(clusters) > 1:
        (one, first), (other, second) = list(clusters.items())[:2]
        raise RefusedError(
            path=str(second),
            reason=f"it belongs to cluster {other}, and {first} to cluster {one}",
            advice="Name only log dirs of one broker in log.dirs.",
        )
    _check_metadata_dir(log_dirs, metas)
    cluster_id = format_log_dirs(log_dirs, node_id=node_id, now_ms=now_ms)
    identities: list[Identity] = []
    seen: dict[uuid.UUID, Path] = {}
    for order, path in enumerate(log_dirs):
        log_dir = LogDir(path)
        meta = log_dir.meta()
        assert meta is not None
        if meta.directory_id is None:
            # Kafka makes one up as well; from now on it is kept for ever.
            meta = replace(meta, directory_id=random_id())
            log_dir.write_meta(meta, now_ms)
        assert meta.directory_id is not None
        if meta.directory_id in seen:
            raise RefusedError(
                path=str(path),
                reason=f"its directory.id {uuid_text(meta.directory_id)} is that of {seen[meta.directory_id]} as well",
                advice="One is a copy of the other: take the copy out of log.dirs.",
            )
        seen[meta.directory_id] = path
        identities.append(Identity(path, uuid_text(meta.directory_id), order))
    if offline:
        _LOG.warning("log dirs that can not be used: %s", "; ".join(f"{path}: {why}" for path, why in offline.items()))
    return cluster_id, identities


def _check_meta(path: Path, meta: MetaProperties, node_id: int) -> None:
    if meta.version == 0:
        raise RefusedError(
            path=str(path),
            reason="it was formatted for a Kafka with ZooKeeper",
            advice="Migrate the broker to KRaft with Kafka 3.9 first.",
        )
    if meta.node_id != node_id:
        raise RefusedError(
            path=str(path),
            reason=f"it belongs to node {meta.node_id}, and node.id is {node_id}",
            advice=f"Set node.id to {meta.node_id}, or name other directories in log.dirs.",
        )


def _check_metadata_dir(log_dirs: Sequence[Path], metas: Mapping[Path, MetaProperties | None]) -> None:
    first = log_dirs[0]
    for path in log_dirs[1:]:
        if (path / METADATA_DIR).is_dir():
            raise RefusedError(
                path=str(path),
                reason=f"it holds {METADATA_DIR}, which belongs into the first entry of log.dirs, {first}",
                advice=f"Put {path} first in log.dirs (or, were it not this broker's, take it out).",
            )
    if metas[first] is None and any(meta is not None for meta in metas.values()):
        raise RefusedError(
            path=str(first),
            reason="it is the first entry of log.dirs and empty, while others belong to a broker",
            advice=f"Put the directory that holds {METADATA_DIR} first in log.dirs.",
        )


def check_metadata_dir(identities: Sequence[Identity]) -> None:
    """RefusedError where partitions lie in log dirs whose first holds no metadata log, as when one is left out of log.dirs.

    Before the metadata log is opened, which makes it: an empty one that stays behind keeps Kafka, and us, from starting
    with the right log.dirs (facts A1: it may lie in one log dir only).
    """
    directory = identities[0].path / METADATA_DIR
    if directory.is_dir():
        return
    for identity in identities:
        for entry in LogDir(identity.path).partition_dirs():
            if not entry.is_cluster_metadata and entry.state not in ("delete", "stray"):
                raise no_metadata(directory, identity.path / entry.name)


def no_metadata(directory: Path, partition: Path) -> RefusedError:
    """There are partitions, and nothing tells what they are."""
    return RefusedError(
        path=str(directory),
        reason=f"there is no metadata log, or an empty one, yet there are partitions, such as {partition}",
        advice="Name all log dirs of the broker in log.dirs, the one that holds __cluster_metadata-0 first (metadata.log.dir, "
        "if it was set). Where it is lost, restore it from a backup: without it no topic is known, and Kafka would set all "
        "of them aside.",
    )


def check_log(
    log: MetadataLog, loaded: LoadedImage, bootstrap: Bootstrap, node_id: int, metadata_dir: Identity
) -> None:
    """RefusedError for a catalogue that this node can't carry on: too new, or of a cluster of several."""
    image, path = loaded.image, str(log.directory)
    if loaded.has_records and image.metadata_version is None and not loaded.open_transaction:
        raise RefusedError(
            path=path,
            reason=f"its records never set {METADATA_VERSION}",
            advice="Kafka does not start on it either; restore the directory from a backup.",
        )
    for name, level in {**bootstrap.features, **image.features}.items():
        least, most = SUPPORTED_FEATURES.get(name, (0, 0))
        if not least <= level <= most:
            known = f"levels {least} to {most} are known" if most else "no such feature is known"
            raise RefusedError(
                path=path,
                reason=f"the cluster has feature {name} at level {level}, and {known}",
                advice="A newer Kafka made it; use that, or a compactd for it. Levels are never lowered here.",
            )
    _check_voters(log, image.voters or bootstrap.voters, node_id, metadata_dir)
    for broker, registration in image.brokers.items():
        if broker != node_id and not registration["fenced"]:
            raise RefusedError(
                path=path,
                reason=f"node {broker} is registered in this cluster and not fenced, so it has several brokers",
                advice="compactd serves clusters of one node. Shut the other down and unregister it with Kafka.",
            )
    for topic in image.topics.values():
        for number, state in topic.partitions.items():
            others = sorted(set(state.replicas) - {node_id})
            if others:
                raise RefusedError(
                    path=path,
                    reason=f"partition {topic.name}-{number} has replicas on nodes "
                    f"{', '.join(map(str, state.replicas))}, not on node {node_id} alone",
                    advice="compactd serves clusters of one node. Move all partitions to this one with "
                    "kafka-reassign-partitions first.",
                )


def _check_voters(
    log: MetadataLog, recorded: Sequence[Mapping[str, Any]], node_id: int, metadata_dir: Identity
) -> None:
    """`recorded`: the voters that the log itself names, which then count; else quorum-state tells what settings said."""
    state = read_quorum_state(log.directory)
    voters = tuple(voter["voterId"] for voter in recorded) or (() if state is None else state.voters)
    if voters and voters != (node_id,):
        raise RefusedError(
            path=str(log.directory),
            reason=f"the controllers of this cluster are {', '.join(map(str, voters))}, not node {node_id} alone",
            advice="compactd serves clusters of one node that is broker and controller.",
        )
    for voter in recorded:
        if voter["voterDirectoryId"] != metadata_dir.directory_id:
            raise RefusedError(
                path=str(metadata_dir.path),
                reason=f"its directory.id is {metadata_dir.directory_id}, but the cluster's controller is that of "
                f"directory {voter['voterDirectoryId']}",
                advice="Put the directory.id back into meta.properties; Kafka would wait for ever for a leader.",
            )


def survey(identities: Sequence[Identity], loaded: LoadedImage, node_id: int) -> Survey:
    """Looks at every partition's directory. Nothing is changed.

    RefusedError: a directory with a foreign name, one partition in two log dirs. A partition.metadata that can't be read
    counts as missing, as for Kafka.
    """
    found = Survey()
    copies: list[tuple[Identity, PartitionDir]] = []
    holders: dict[tuple[str, int], Path] = {}
    for identity in identities:
        for entry in LogDir(identity.path).partition_dirs():
            if entry.is_cluster_metadata or entry.state in ("delete", "stray"):
                continue
            if entry.state == "future":
                copies.append((identity, entry))
                continue
            path = identity.path / entry.name
            key, reason = _belongs(path, entry, loaded, node_id)
            if key is None:
                deleted = reason.startswith("of the deleted")
                found.strays.append(Stray(path, entry, reason, deleted))
            elif key in holders:
                path = _one_of(holders[key], path, entry, found)
                if path != holders[key]:
                    holders[key], found.places[key] = path, identity.directory_id
            else:
                holders[key] = path
                found.places[key] = identity.directory_id
    for identity, entry in copies:
        _settle_copy(identity, entry, loaded, holders, found)
    return found


def _one_of(one: Path, other: Path, entry: PartitionDir, found: Survey) -> Path:
    """Which of two directories of a partition is it: the one whose move ended, but for the old one's removal."""
    for moved, left in ((one, other), (other, one)):
        if origin_of(moved) == left:
            found.left.append((left, entry))
            return moved
    raise RefusedError(
        path=str(other),
        reason=f"partition {entry.topic_partition} lies in {one} as well",
        advice="Kafka does not start on this either: keep the directory with the records, move the other away.",
    )


def _belongs(path: Path, entry: PartitionDir, loaded: LoadedImage, node_id: int) -> tuple[tuple[str, int] | None, str]:
    """The catalogue's key of a directory; or None, and why it has none."""
    image, name, number = loaded.image, entry.topic_partition.topic, entry.topic_partition.partition
    topic_id = _topic_id(path)
    if topic_id is None:
        topic = image.topics.get(name)
        if topic is not None and number in topic.partitions and not _has_records(path):
            # Stopped between the directory and its partition.metadata: nothing is lost by going on with it.
            return (topic.topic_id, number), ""
        return None, "without a partition.metadata that names its topic"
    if topic_id in loaded.deleted_topics:
        return None, f"of the deleted topic {loaded.deleted_topics[topic_id]}"
    state = image.partition(topic_id, number)
    if state is None or image.names[topic_id] != name:
        return None, f"its topic id {topic_id} has no such partition in the catalogue"
    if node_id not in state.replicas:
        return None, f"the catalogue has no replica of it on node {node_id}"
    return (topic_id, number), ""


def _settle_copy(
    identity: Identity, entry: PartitionDir, loaded: LoadedImage, holders: dict[tuple[str, int], Path], found: Survey
) -> None:
    """A copy made by a move: once the catalogue says that the partition lies there, it is the partition.

    So is a complete one whose original is gone, of a cluster too old for a catalogue that says so. Others are gone on with.
    """
    path = identity.path / entry.name
    topic_id = _topic_id(path)
    if topic_id is None:
        return
    key = (topic_id, entry.topic_partition.partition)
    state = loaded.image.partition(*key)
    original = holders.get(key)
    if state is None:
        deleted = topic_id in loaded.deleted_topics
        reason = "a copy of a partition that " + ("was deleted" if deleted else "the catalogue does not know")
        found.strays.append(Stray(path, entry, reason, deleted))
        return
    is_recorded = state.directories[:1] == (identity.directory_id,)
    if not is_recorded and (original is not None or origin_of(path) is None):
        return
    if original is not None and original.parent == identity.path:
        return
    found.promotions.append((path, entry, original))
    found.places[key] = identity.directory_id
    holders[key] = path


def settle(found: Survey) -> None:
    """Renames what the survey found out of place: finished moves, deleted topics, strays. StorageIOError."""
    for path, entry, original in found.promotions:
        if original is not None:
            _rename(original, names.delete_dir_name(entry.topic_partition))
        _rename(path, str(entry.topic_partition))
        forget_origin(path.with_name(str(entry.topic_partition)))
        _LOG.info("finished the move of %s to %s", entry.topic_partition, path.parent)
    for path, entry in found.left:
        _rename(path, names.delete_dir_name(entry.topic_partition))
        _LOG.info("%s was moved, finishing its removal", path)
    for stray in found.strays:
        partition = stray.entry.topic_partition
        if stray.deleted:
            _rename(stray.path, names.delete_dir_name(partition))
            _LOG.info("%s: %s, finishing its deletion", stray.path, stray.reason)
        else:
            _rename(stray.path, names.stray_dir_name(partition))
            _LOG.warning("%s: %s; set aside as -stray, and not served", stray.path, stray.reason)


def _rename(path: Path, name: str) -> None:
    files.rename(path, path.with_name(name))
    files.fsync_dir(path.parent)


def _topic_id(path: Path) -> str | None:
    try:
        metadata = read_partition_metadata(path / names.PARTITION_METADATA)
    except CorruptFileError:
        return None
    return None if metadata is None else metadata.text


def _has_records(path: Path) -> bool:
    return any(entry.suffix == ".log" and entry.stat().st_size for entry in path.iterdir())
