"""Snapshots of the metadata log: an image as records, and the `*.checkpoint` file that holds them (facts A2, A16).

A snapshot counts from its last rename on: it is filled under a `.part` name, fsynced, made read-only and renamed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compactd.storage import files
from compactd.storage.metadata.image import MetadataImage, PartitionImage
from compactd.storage.metadata.log import Snapshot
from compactd.storage.metadata.record_types import METADATA_VERSION, MetadataRecord, RecordType, RecordVersions
from compactd.storage.metadata.records import encode_control_record
from compactd.storage.records.builder import build_batch
from compactd.storage.records.control import ControlRecordType
from compactd.storage.records.record import Record

#: A batch is closed when it has this many bytes of values; Kafka's limit is 8 MiB.
BATCH_BYTES = 1 << 20

_READ_ONLY = 0o400


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Records that make this image from nothing, in Kafka's order; none for what has only default values."""
    versions = RecordVersions.of(image.features)
    # metadata.version leads: the versions of all others follow from it.
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION, name)):
        yield MetadataRecord(RecordType.FEATURE_LEVEL, {"name": name, "featureLevel": image.features[name]})
    for _, broker in sorted(image.brokers.items()):
        yield MetadataRecord(RecordType.REGISTER_BROKER, _known(broker, versions), versions.register_broker)
    for _, controller in sorted(image.controllers.items()):
        yield MetadataRecord(RecordType.REGISTER_CONTROLLER, controller)
    for name in sorted(image.topics):
        topic = image.topics[name]
        yield MetadataRecord(RecordType.TOPIC, {"name": name, "topicId": topic.topic_id})
        for number in sorted(topic.partitions):
            yield partition_record(topic.topic_id, number, topic.partitions[number], versions)
    for kind, resource in sorted(image.configs):
        for name, value in sorted(image.configs[kind, resource].items()):
            data = {"resourceType": kind, "resourceName": resource, "name": name, "value": value}
            yield MetadataRecord(RecordType.CONFIG, data)
    for entity, values in image.quotas.items():
        parts = [{"entityType": kind, "entityName": name} for kind, name in entity]
        for key, rate in sorted(values.items()):
            quota = {"entity": parts, "key": key, "value": rate, "remove": False}
            yield MetadataRecord(RecordType.CLIENT_QUOTA, quota)
    if image.next_producer_id:
        ids = {"brokerId": -1, "brokerEpoch": -1, "nextProducerId": image.next_producer_id}
        yield MetadataRecord(RecordType.PRODUCER_IDS, ids)
    for _, acl in sorted(image.acls.items()):
        yield MetadataRecord(RecordType.ACCESS_CONTROL_ENTRY, acl)
    for _, credential in sorted(image.scram.items()):
        yield MetadataRecord(RecordType.USER_SCRAM_CREDENTIAL, credential)
    for _, token in sorted(image.tokens.items()):
        yield MetadataRecord(RecordType.DELEGATION_TOKEN, token)


def partition_record(topic_id: str, number: int, state: PartitionImage, versions: RecordVersions) -> MetadataRecord:
    """The full state of a partition, as far as the record's version can say it."""
    data = {
        "partitionId": number,
        "topicId": topic_id,
        "replicas": state.replicas,
        "isr": state.isr,
        "removingReplicas": state.removing,
        "addingReplicas": state.adding,
        "leader": state.leader,
        "leaderRecoveryState": state.recovery_state,
        "leaderEpoch": state.leader_epoch,
        "partitionEpoch": state.partition_epoch,
    }
    if versions.has_directories:
        # A partition from before log dirs had ids: MIGRATING, "not known yet".
        data["directories"] = state.directories or ("A" * 22,) * len(state.replicas)
    if versions.partition >= 2:
        data["eligibleLeaderReplicas"] = state.elr or None
        data["lastKnownElr"] = state.last_known_elr or None
    return MetadataRecord(RecordType.PARTITION, data, versions.partition)


def snapshot_bytes(
    values: Iterable[bytes],
    *,
    epoch: int,
    timestamp: int,
    now_ms: int,
    extra: Sequence[tuple[bytes, bytes]] = (),
) -> Iterator[bytes]:
    """The batches of a snapshot file: header, metadata records, footer, offsets counted from 0.

    `timestamp`: append time of the last batch contained. `extra`: control records behind the header's (KRaftVersion and
    Voters). Times are ms.
    """
    header = encode_control_record(ControlRecordType.SNAPSHOT_HEADER, 0, {"lastContainedLogTimestamp": timestamp})
    offset = 0

    def batch(entries: Sequence[tuple[bytes | None, bytes]], control: bool) -> bytes:
        nonlocal offset
        records = [Record(offset + index, now_ms, key, value) for index, (key, value) in enumerate(entries)]
        data = build_batch(records, base_offset=offset, leader_epoch=epoch, control=control)
        offset += len(records)
        return data

    yield batch([header, *extra], control=True)
    waiting: list[tuple[bytes | None, bytes]] = []
    size = 0
    for value in values:
        if waiting and size + len(value) > BATCH_BYTES:
            yield batch(waiting, control=False)
            waiting, size = [], 0
        waiting.append((None, value))
        size += len(value)
    if waiting:
        yield batch(waiting, control=False)
    yield batch([encode_control_record(ControlRecordType.SNAPSHOT_FOOTER, 0, {})], control=True)


def write_snapshot(directory: Path, image: MetadataImage, now_ms: int) -> Snapshot:
    """Writes the snapshot of an image into the metadata log's directory; durable on return. StorageIOError.

    Touches no other file, so that a thread may do it while the log goes on.
    """
    batches = snapshot_bytes(
        (record.value for record in image_records(image)),
        epoch=image.epoch,
        timestamp=image.timestamp,
        now_ms=now_ms,
        extra=quorum_records(image),
    )
    return place_snapshot(directory, image.offset, image.epoch, batches)


def quorum_records(image: MetadataImage) -> list[tuple[bytes, bytes]]:
    """The control records that a snapshot of a dynamic quorum (kraft.version 1) has behind its header."""
    if not image.kraft_version:
        return []
    records = [encode_control_record(ControlRecordType.KRAFT_VERSION, 0, {"kRaftVersion": image.kraft_version})]
    if image.voters is not None:
        records.append(encode_control_record(ControlRecordType.KRAFT_VOTERS, 0, {"voters": image.voters}))
    return records


def place_snapshot(directory: Path, offset: int, epoch: int, batches: Iterable[bytes]) -> Snapshot:
    """Puts the batches of a snapshot under its name, atomically."""
    path = directory / f"{offset:020d}-{epoch:010d}.checkpoint"
    part = path.with_name(f"{path.stem}-{secrets.token_hex(8)}.checkpoint.part")
    try:
        with files.create_output(part) as output:
            for batch in batches:
                output.write(batch)
            output.set_mode(_READ_ONLY)
            output.sync()
        files.rename(part, path)
    except Exception:
        files.discard(part)
        raise
    files.fsync_dir(directory)
    return Snapshot(offset, epoch, path)


def _known(broker: Mapping[str, Any], versions: RecordVersions) -> dict[str, Any]:
    """The fields of a registration that the version in force has."""
    since = {"isMigratingZkBroker": 2, "inControlledShutdown": 1, "logDirs": 3, "cordonedLogDirs": 4}
    data = {name: value for name, value in broker.items() if since.get(name, 0) <= versions.register_broker}
    if versions.register_broker >= 2:
        data.setdefault("isMigratingZkBroker", False)
    if versions.register_broker >= 1:
        data.setdefault("inControlledShutdown", False)
    return data
