"""Records by which the only node of a cluster takes up and gives up its work (facts: kraft-and-coordinators A8, A12, A15)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compactd.coordinator.catalogue.topic_changes import config_record
from compactd.storage import names
from compactd.storage.metadata.format import feature_records, random_id
from compactd.storage.metadata.image import BROKER_RESOURCE, NO_LEADER, MetadataImage, PartitionImage
from compactd.storage.metadata.load import LoadedImage, load_bootstrap
from compactd.storage.metadata.log import Snapshot, read_snapshot
from compactd.storage.metadata.metadata_log import MetadataLog
from compactd.storage.metadata.record_types import (
    ELR_VERSION,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    MetadataRecord,
    RecordType,
    RecordVersions,
)
from compactd.storage.metadata.records import decode_control_record, read_body, read_frame
from compactd.workers.message import Endpoint

Key = tuple[str, int]

#: First metadata.version with metadata transactions.
_TRANSACTIONS = 13


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What the next epoch begins with."""

    #: Control records that go with the LeaderChange, of a dynamic quorum's first epoch.
    controls: Sequence[tuple[bytes, bytes]]
    #: Metadata records: those of a fresh log, or the end of a transaction that was left open.
    records: Sequence[MetadataRecord]

    @property
    def decoded_controls(self) -> list[tuple[str, dict[str, Any]]]:
        decoded = [decode_control_record(key, value) for key, value in self.controls]
        return [(control["type"], control["data"]) for control in decoded]

    @property
    def features(self) -> dict[str, int]:
        """Levels that the records set."""
        return {record.data["name"]: record.data["featureLevel"] for record in self.records if _is_feature(record)}

    @property
    def voters(self) -> list[dict[str, Any]]:
        return [voter for _, data in self.decoded_controls for voter in data.get("voters", ())]

    @property
    def kraft_version(self) -> int:
        return max((data.get("kRaftVersion", 0) for _, data in self.decoded_controls), default=0)


def read_bootstrap(log: MetadataLog, loaded: LoadedImage) -> Bootstrap:
    """What a log that was just formatted begins with, from its 0-0 checkpoint, as Kafka's controller does at activation.

    Without one: the `bootstrap.checkpoint` of Kafka 4.3 and older, or else metadata.version alone.
    """
    aborted = MetadataRecord(RecordType.ABORT_TRANSACTION, {"reason": "Controller failover"})
    if loaded.image.metadata_version is not None:
        return Bootstrap((), [aborted] if loaded.open_transaction else [])
    values, controls = load_bootstrap(log)
    if not values:
        values = _legacy_bootstrap(log)
    records = [_record(value) for value in values]
    features = {record.data["name"]: record.data["featureLevel"] for record in records if _is_feature(record)}
    if METADATA_VERSION not in features:
        features[METADATA_VERSION] = SUPPORTED_FEATURES[METADATA_VERSION][1]
        records = [*feature_records({METADATA_VERSION: features[METADATA_VERSION]}), *records]
    if features.get(ELR_VERSION, 0):
        # With ELR on, the cluster has a minimum of its own, which hides the one of the settings file.
        records.append(config_record(BROKER_RESOURCE, "", "min.insync.replicas", "1"))
    if features[METADATA_VERSION] >= _TRANSACTIONS:
        begin = MetadataRecord(RecordType.BEGIN_TRANSACTION, {"name": "Bootstrap records"})
        records = [begin, *records, MetadataRecord(RecordType.END_TRANSACTION, {})]
    if loaded.open_transaction:
        records = [aborted, *records]
    return Bootstrap(controls if log.end_offset == 0 else (), records)


def _legacy_bootstrap(log: MetadataLog) -> list[bytes]:
    path = log.directory.parent / "bootstrap.checkpoint"
    if not path.is_file():
        return []
    batches = read_snapshot(Snapshot(0, 0, path))
    return [
        record.value or b"" for batch in batches if not batch.header.is_control for record in batch.records()
    ]  # fmt: skip


def _record(value: bytes) -> MetadataRecord:
    frame = read_frame(value)
    return MetadataRecord(RecordType(frame.api_key), read_body(frame, value), frame.version)


def _is_feature(record: MetadataRecord) -> bool:
    return record.type == RecordType.FEATURE_LEVEL


def registration_records(
    image: MetadataImage,
    node_id: int,
    offset: int,
    endpoints: Sequence[Endpoint],
    directory_ids: Sequence[str],
    rack: str | None = None,
) -> list[MetadataRecord]:
    """Registers the node where it never was, fenced (`offset`: of this very batch); fences one that a crash left unfenced.

    A registration that is unfenced when Kafka starts costs it nine seconds.
    """
    versions = RecordVersions.of(image.features)
    found = image.brokers.get(node_id)
    if found is not None:
        if found["fenced"]:
            return []
        data = {"brokerId": node_id, "brokerEpoch": found["brokerEpoch"], "fenced": 1}
        return [MetadataRecord(RecordType.BROKER_REGISTRATION_CHANGE, data)]
    data = {
        "brokerId": node_id,
        "incarnationId": names.uuid_text(random_id()),
        "brokerEpoch": offset,
        "endPoints": [
            {"name": each.listener, "host": each.host, "port": each.port, "securityProtocol": each.protocol}
            for each in endpoints
        ],
        "features": [
            {"name": name, "minSupportedVersion": low, "maxSupportedVersion": high}
            for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
        ],
        "rack": rack,
        "fenced": True,
        "inControlledShutdown": False,
    }
    if versions.register_broker >= 2:
        data["isMigratingZkBroker"] = False
    if versions.register_broker >= 3:
        data["logDirs"] = directory_ids
    return [MetadataRecord(RecordType.REGISTER_BROKER, data, versions.register_broker)]


def elect(
    image: MetadataImage, node_id: int, places: Mapping[Key, str], is_online: Callable[[Key], bool]
) -> list[MetadataRecord]:
    """Makes the node leader of all its partitions that are online, each in a new epoch, and says where they really lie."""
    versions = RecordVersions.of(image.features)
    records = []
    for key, state in _partitions(image):
        if node_id not in state.replicas:
            continue
        if not is_online(key):
            if state.leader != NO_LEADER:
                records.append(_resigned(key, state, node_id, versions))
            continue
        data: dict[str, Any] = {"partitionId": key[1], "topicId": key[0], "leader": node_id}
        if state.isr != (node_id,):
            data["isr"] = [node_id]
        if state.elr:
            data["eligibleLeaderReplicas"] = []
        if state.last_known_elr:
            data["lastKnownElr"] = []
        if versions.has_directories and state.directories != (places[key],):
            data["directories"] = [places[key]]
        records.append(_change(data, versions))
    return records


def resign(image: MetadataImage, node_id: int, keys: Iterable[Key]) -> list[MetadataRecord]:
    """Gives the leadership of these partitions up, in the form of a broker's orderly stop."""
    versions = RecordVersions.of(image.features)
    wanted = set(keys)
    return [
        _resigned(key, state, node_id, versions)
        for key, state in _partitions(image)
        if key in wanted and state.leader == node_id
    ]


def moved(image: MetadataImage, topic_id: str, partition: int, directory_id: str) -> list[MetadataRecord]:
    """Says that a partition lies in another log dir. Nothing, where the cluster is too old to know log dirs."""
    versions = RecordVersions.of(image.features)
    if not versions.has_directories:
        return []
    data = {"partitionId": partition, "topicId": topic_id, "directories": [directory_id]}
    return [_change(data, versions)]


def _resigned(key: Key, state: PartitionImage, node_id: int, versions: RecordVersions) -> MetadataRecord:
    data: dict[str, Any] = {"partitionId": key[1], "topicId": key[0], "leader": NO_LEADER}
    if versions.elr:
        data |= {"isr": [], "eligibleLeaderReplicas": [node_id], "lastKnownElr": [node_id]}
    return _change(data, versions)


def _change(data: Mapping[str, Any], versions: RecordVersions) -> MetadataRecord:
    return MetadataRecord(RecordType.PARTITION_CHANGE, data, versions.partition_change)


def _partitions(image: MetadataImage) -> Iterable[tuple[Key, PartitionImage]]:
    for name in sorted(image.topics):
        topic = image.topics[name]
        for number in sorted(topic.partitions):
            yield (topic.topic_id, number), topic.partitions[number]
