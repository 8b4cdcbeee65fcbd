"""Features and the quorum: what a broker asks of the catalogue, and what it gets (facts: kraft-and-coordinators A7)."""

from __future__ import annotations

from enum import IntEnum

from compactd.workers.catalogue_struct import Struct


class UpgradeType(IntEnum):
    """How a feature may be changed. Other numbers that a client sends are passed on as they are."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(Struct, frozen=True):
    """The level that a feature is to have from now on; 0: none."""

    name: str
    level: int
    upgrade_type: int


class UpdateFeatures(Struct, frozen=True):
    """All of these or none, written in one batch."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


class FeaturesResult(Struct, frozen=True):
    """For all updates together."""

    error: int = 0
    message: str | None = None


class DescribeQuorum(Struct, frozen=True):
    """Asks how far the metadata log is."""


class QuorumState(Struct, frozen=True):
    """The metadata log of its only voter. `directory_id`: of the voter, "" where the log names none (kraft.version 0)."""

    leader_epoch: int
    log_end_offset: int
    directory_id: str


#: Operations of a CatalogueChange: arguments and results.
OPERATIONS: dict[str, tuple[type[Struct], type[Struct]]] = {
    "update_features": (UpdateFeatures, FeaturesResult),
    "describe_quorum": (DescribeQuorum, QuorumState),
}
