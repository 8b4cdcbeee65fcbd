"""The daemon's parts as they are in earnest. Each is imported when it is made, so that what is not used costs nothing."""

from __future__ import annotations

import importlib
from typing import Any, cast

from compactd.coordinator.interfaces import (
    CataloguePart,
    CatalogueSetup,
    CleaningPart,
    Frame,
    MetricsPart,
    Parts,
)

CATALOGUE = "compactd.coordinator.catalogue.catalogue:Catalogue"
CLEANING = "compactd.coordinator.cleaning.scheduler:CleaningScheduler"
QUARANTINE = "compactd.coordinator.cleaning.quarantine:Quarantine"
PAUSES = "compactd.coordinator.cleaning.pauses:Pauses"
METRICS = "compactd.coordinator.metrics.metrics:Metrics"


def default_parts() -> Parts:
    return Parts(catalogue=_catalogue, cleaning=_cleaning, metrics=_metrics)


def _catalogue(setup: CatalogueSetup) -> CataloguePart:
    return cast(CataloguePart, _load(CATALOGUE).open(setup))


def _cleaning(frame: Frame) -> CleaningPart:
    # Quarantine and pauses are kept in the first log dir, as plain files, which Kafka passes over.
    first = frame.settings.storage.log_dirs[0]
    return cast(CleaningPart, _load(CLEANING)(frame, _load(QUARANTINE)(first), _load(PAUSES)(first)))


def _metrics(frame: Frame) -> MetricsPart:
    return cast(MetricsPart, _load(METRICS)(frame))


def _load(name: str) -> Any:
    module, attribute = name.split(":")
    return getattr(importlib.import_module(module), attribute)
