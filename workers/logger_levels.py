"""Levels of single loggers, by Kafka's names of levels: what a client changes as BROKER_LOGGER, until the next start.

A client names a logger as Python does: `compactd.workers.broker.fetch`, or one above it, as `compactd.storage`; "root" is
above all. One that has no level of its own has that of the next one above it that does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

ROOT = "root"
#: As Kafka names them, and what they are here.
LEVELS: Mapping[str, int] = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
#: Loggers that are there in every process, whatever it has loaded.
AREAS = (
    "compactd",
    "compactd.catalogue",
    "compactd.config",
    "compactd.coordinator",
    "compactd.storage",
    "compactd.workers",
    "compactd.workers.broker",
    "compactd.workers.cleaner",
)

logging.addLevelName(LEVELS["TRACE"], "TRACE")


def levels() -> dict[str, str]:
    """Every logger that can be named, with the level that counts for it."""
    known = [name for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)]
    ours = {name for name in known if name.startswith("compactd.")} | set(AREAS)
    return {ROOT: _name(logging.root)} | {name: _name(logging.getLogger(name)) for name in sorted(ours)}


def set_levels(changes: Mapping[str, str | None]) -> None:
    """Name to level; None: it is again as the one above it."""
    for name, level in changes.items():
        logger = logging.root if name == ROOT else logging.getLogger(name)
        logger.setLevel(logging.NOTSET if level is None else LEVELS[level])


def _name(logger: logging.Logger) -> str:
    effective = logger.getEffectiveLevel()
    # The least of them that still holds all that this one lets through.
    return max((name for name, level in LEVELS.items() if level <= effective), key=LEVELS.__getitem__, default="TRACE")
