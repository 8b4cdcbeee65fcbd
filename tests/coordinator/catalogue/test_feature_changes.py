"""Features in the catalogue: levels that need others, downgrades of old clusters, ELR's settings, and the voters' records.

What Kafka answers on a cluster of 4.4 is compared in tests/workers/broker/test_quorum_admin.py; the answers here are those
that Kafka 4.4.0 gave on one formatted for 3.9.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactd.coordinator.catalogue.catalogue import Catalogue
from compactd.coordinator.catalogue.feature_changes import FeaturePlan, plan_features
from compactd.storage.metadata.image import MetadataImage
from compactd.storage.metadata.load import load_image
from compactd.workers.catalogue_messages import AlterConfigs, ConfigChange, ErrorCode, ResourceChange
from compactd.workers.feature_messages import DescribeQuorum, FeaturesResult, FeatureUpdate, QuorumState, UpdateFeatures
from tests.coordinator.catalogues import started

_ELR = "eligible.leader.replicas.version"
_PREFIX = "The update failed for all features since the following feature had an error: "


def plan(image: MetadataImage, *updates: tuple[str, int, int], validate_only: bool = False) -> FeaturePlan:
    asked = tuple(FeatureUpdate(name=name, level=level, upgrade_type=kind) for name, level, kind in updates)
    return plan_features(UpdateFeatures(updates=asked, validate_only=validate_only), image, 1)


def old(level: int = 21) -> MetadataImage:
    return replace(MetadataImage(), features={"metadata.version": level})


@pytest.mark.parametrize(
    ("updates", "fault"),
    [
        ([(_ELR, 1, 1)], f"Invalid update version 1 for feature {_ELR}. {_ELR} could not be set to 1 because it depends "
         "on metadata.version level 23"),
        ([("group.version", 1, 1)], None),
        ([("group.version", 1, 2)], "Invalid update version 1 for feature group.version. Can't downgrade to a newer version."),
        ([("metadata.version", 23, 1), (_ELR, 1, 1)], None),
        ([(_ELR, 1, 1), ("metadata.version", 23, 1)], None),
        ([("metadata.version", 22, 3)], "Invalid update version 22 for feature metadata.version. Can't downgrade to a "
         "newer version."),
        ([("metadata.version", 20, 2)], None),
        ([("metadata.version", 17, 3)], None),
        ([("metadata.version", 16, 2)], "Unsupported metadata.version downgrade from 21 to 16. Refusing to perform the "
         "requested downgrade because it might delete metadata information."),
        ([("metadata.version", 16, 3)], "Unsupported metadata.version downgrade from 21 to 16. Unsafe metadata downgrade "
         "is not supported in this version."),
        ([("metadata.version", 21, 2)], None),
        ([("transaction.version", 2, 1), ("streams.version", 1, 1)], None),
    ],
    ids=str,
)  # fmt: skip
def test_what_an_old_cluster_may(updates: list[tuple[str, int, int]], fault: str | None) -> None:
    found = plan(old(), *updates)
    if fault is None:
        assert found.result == FeaturesResult() and len(found.records) >= len(updates)
        assert [plan(old(), *updates, validate_only=True)] == [FeaturePlan()]
    else:
        assert found.result == FeaturesResult(error=ErrorCode.INVALID_UPDATE_VERSION, message=_PREFIX + fault)
        assert not found.records


def test_one_fault_keeps_all_from_being_made() -> None:
    found = plan(old(), ("group.version", 1, 1), ("no.such", 0, 2))
    assert found.result.message == f"{_PREFIX}Invalid update version 0 for feature no.such. Feature no.such not found."
    assert not found.records


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "d1", tmp_path / "d2"]
    for each in made:
        each.mkdir()
    return made


def change(catalogue: Catalogue, *updates: tuple[str, int, int]) -> Any:
    asked = tuple(FeatureUpdate(name=name, level=level, upgrade_type=kind) for name, level, kind in updates)
    return catalogue.apply("update_features", UpdateFeatures(updates=asked))


def test_levels_are_kept_and_told(dirs: list[Path]) -> None:
    catalogue = started(dirs)
    result, update = change(catalogue, ("group.version", 0, 2), ("transaction.version", 1, 3))
    assert result == FeaturesResult()
    assert "group.version" not in update.features and update.features["transaction.version"] == 1
    catalogue.close()
    again = started(dirs)
    assert "group.version" not in again.image.features and again.image.features["transaction.version"] == 1
    again.close()


def test_elr_takes_the_brokers_own_minimum_away(dirs: list[Path]) -> None:
    catalogue = started(dirs)
    assert change(catalogue, (_ELR, 0, 2))[0] == FeaturesResult()
    wish = ResourceChange(type=4, name="1", configs=(ConfigChange(name="min.insync.replicas", value="1"),))
    catalogue.apply("alter_configs", AlterConfigs(resources=(wish,)))
    removal = ResourceChange(
        type=4, name="", configs=(ConfigChange(name="min.insync.replicas", value=None, operation=1),)
    )
    catalogue.apply("alter_configs", AlterConfigs(resources=(removal,)))
    result, update = change(catalogue, (_ELR, 1, 1))
    assert result == FeaturesResult()
    assert update.broker_configs == {"": {"min.insync.replicas": "1"}, "1": {}}
    catalogue.close()


def test_the_voters_become_part_of_the_log(dirs: list[Path]) -> None:
    """kafka-features upgrade --release-version asks for it."""
    catalogue = started(dirs)
    state, _ = catalogue.apply("describe_quorum", DescribeQuorum())
    assert isinstance(state, QuorumState) and not state.directory_id
    result, update = change(catalogue, ("kraft.version", 1, 1), ("group.version", 0, 2))
    assert result == FeaturesResult()
    assert update.features["kraft.version"] == 1 and "group.version" not in update.features
    after, _ = catalogue.apply("describe_quorum", DescribeQuorum())
    assert after.directory_id and after.log_end_offset == state.log_end_offset + 3
    assert change(catalogue, ("kraft.version", 1, 1)) == (FeaturesResult(), None)
    refused, _ = change(catalogue, ("kraft.version", 0, 2))
    assert refused.error == ErrorCode.INVALID_UPDATE_VERSION and "Can't downgrade" in refused.message
    assert catalogue.full_update().features["kraft.version"] == 1
    catalogue.close()
    again = started(dirs)
    assert again.image.kraft_version == 1
    assert again.image.voters is not None and [voter["voterId"] for voter in again.image.voters] == [1]
    assert again.full_update().features["kraft.version"] == 1
    assert load_image(again._log).image.kraft_version == 1
    again.close()
