"""Changing features: from a request and the image to a result and records, nothing written yet.

Checks, their order and texts are those of Kafka 4.4.0's FeatureControlManager, found by asking it. kraft.version is not a
record but control records of the log: the level, and with level 1 the voters, of which this node is the only one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compactd.coordinator.catalogue.topic_changes import config_record
from compactd.storage.metadata.image import BROKER_RESOURCE, MetadataImage
from compactd.storage.metadata.record_types import (
    ELR_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    MetadataRecord,
    RecordType,
)
from compactd.storage.records.control import ControlRecordType
from compactd.workers.catalogue_messages import ErrorCode
from compactd.workers.feature_messages import FeaturesResult, FeatureUpdate, UpdateFeatures, UpgradeType

#: Levels of metadata.version with which what records say changed (MetadataVersion.didMetadataChange).
_METADATA_CHANGES = frozenset({7, 8, 10, 11, 13, 14, 15, 17, 23, 30, 32, 33})
#: Feature and level to the features, and their least levels, that it needs.
_DEPENDENCIES: Mapping[tuple[str, int], Mapping[str, int]] = {(ELR_VERSION, 1): {METADATA_VERSION: 23}}
_MIN_ISR = "min.insync.replicas"


class _RefusedError(Exception):
    """Why an update can't be made, as Kafka words it."""


@dataclass(slots=True)
class FeaturePlan:
    """One result for all, and the records unless one of them was refused."""

    result: FeaturesResult = field(default_factory=FeaturesResult)
    records: list[MetadataRecord] = field(default_factory=list)
    #: The voters become part of the log: kraft.version is 1 from now on.
    names_voters: bool = False


def plan_features(request: UpdateFeatures, image: MetadataImage, node_id: int) -> FeaturePlan:
    """All updates, or the first fault among them. Of a feature that is named twice the last mention counts."""
    wanted = {update.name: update for update in request.updates}
    after = {**image.features, **{name: update.level for name, update in wanted.items()}}
    plan = FeaturePlan()
    try:
        for update in wanted.values():
            plan.records += _updated(update, image, after, node_id)
            plan.names_voters |= update.name == KRAFT_VERSION and update.level > image.kraft_version
    except _RefusedError as refusal:
        text = f"The update failed for all features since the following feature had an error: {refusal}"
        return FeaturePlan(FeaturesResult(error=ErrorCode.INVALID_UPDATE_VERSION, message=text))
    return FeaturePlan() if request.validate_only else plan


def _updated(
    update: FeatureUpdate, image: MetadataImage, after: Mapping[str, int], node_id: int
) -> list[MetadataRecord]:
    """The records of one update. A level that is there already is written again, as by Kafka."""
    name, level = update.name, update.level
    if update.upgrade_type not in set(UpgradeType):
        raise _invalid(update, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _invalid(update, "A feature version cannot be less than 0.")
    supported = SUPPORTED_FEATURES.get(name)
    if supported is None:
        missing = (
            f"Feature {name} not found." if level == 0 else f"Local controller {node_id} does not support this feature."
        )
        raise _invalid(update, missing)
    low, high = supported
    if not low <= level <= high:
        raise _invalid(update, f"Local controller {node_id} only supports versions {low}-{high}")
    now = image.kraft_version if name == KRAFT_VERSION else image.features.get(name, 0)
    if level < now and update.upgrade_type == UpgradeType.UPGRADE:
        raise _invalid(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.",
        )
    if level > now and update.upgrade_type != UpgradeType.UPGRADE:
        raise _invalid(update, "Can't downgrade to a newer version.")
    if name == KRAFT_VERSION:
        if level < now:
            raise _invalid(update, "Can't downgrade the version of this feature.")
        return []
    if name == METADATA_VERSION:
        _check_metadata_version(now, update)
    for other, least in _DEPENDENCIES.get((name, level), {}).items():
        if after.get(other, 0) < least:
            raise _invalid(update, f"{name} could not be set to {level} because it depends on {other} level {least}")
    record = MetadataRecord(RecordType.FEATURE_LEVEL, {"name": name, "featureLevel": level})
    if name == ELR_VERSION and level > 0:
        return [*_elr_records(image), record]
    return [record]


def voters_controls(
    image: MetadataImage, node_id: int, directory_id: str, host: str, port: int
) -> list[tuple[str, int, dict[str, Any]]]:
    """(name, number, data) of the control records of kraft.version 1. The voter is where its registration says, if it has one.

    Kafka goes by the id and the directory of its only voter, and takes up whatever address it has itself.
    """
    found = image.controllers.get(node_id)
    endpoints = [
        {"name": each["name"], "host": each["host"], "port": each["port"]}
        for each in (found or {}).get("endPoints", ())
    ] or [{"name": "CONTROLLER", "host": host, "port": port}]
    low, high = SUPPORTED_FEATURES[KRAFT_VERSION]
    voter = {
        "voterId": node_id,
        "voterDirectoryId": directory_id,
        "endpoints": endpoints,
        "kRaftVersionFeature": {"minSupportedVersion": low, "maxSupportedVersion": high},
    }
    return [
        ("KRAFT_VERSION", ControlRecordType.KRAFT_VERSION, {"kRaftVersion": high}),
        ("KRAFT_VOTERS", ControlRecordType.KRAFT_VOTERS, {"voters": [voter]}),
    ]


def _check_metadata_version(now: int, update: FeatureUpdate) -> None:
    """A downgrade must leave nothing behind that the older version could not read."""
    if update.level >= now or not _METADATA_CHANGES & set(range(update.level + 1, now + 1)):
        return
    why = (
        "Unsafe metadata downgrade is not supported in this version."
        if update.upgrade_type == UpgradeType.UNSAFE_DOWNGRADE
        else "Refusing to perform the requested downgrade because it might delete metadata information."
    )
    raise _RefusedError(f"Unsupported metadata.version downgrade from {now} to {update.level}. {why}")


def _elr_records(image: MetadataImage) -> list[MetadataRecord]:
    """With ELR on, min.insync.replicas is one for the cluster, and no broker has its own."""
    records = []
    if _MIN_ISR not in image.broker_configs(""):
        records.append(config_record(BROKER_RESOURCE, "", _MIN_ISR, "1"))
    for (kind, name), values in sorted(image.configs.items()):
        if kind == BROKER_RESOURCE and name and _MIN_ISR in values:
            records.append(config_record(BROKER_RESOURCE, name, _MIN_ISR, None))
    return records


def _invalid(update: FeatureUpdate, reason: str) -> _RefusedError:
    return _RefusedError(f"Invalid update version {update.level} for feature {update.name}. {reason}")
