"""The configuration read again while the daemon runs: what may change does, what needs a restart is refused by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from compactd.config.errors import CompactdError
from compactd.config.listener_settings import shown
from compactd.coordinator.configuration import Configuration, changed_names, given_now, keep_static
from compactd.coordinator.control.messages import Control, Refused, Reloaded
from compactd.coordinator.control.socket import refused
from compactd.coordinator.interfaces import KINDS
from compactd.coordinator.topics_section import apply_topics
from compactd.workers import log_output
from compactd.workers.messages import Reconfigure
from compactd.workers.partition_messages import ConfigChanged

if TYPE_CHECKING:
    from compactd.coordinator.daemon import Daemon

_log = logging.getLogger(__name__)


def reload(daemon: Daemon, answer: Callable[[Control], None]) -> None:
    """Reads the file again, in a lane, and applies it. A file that can't be used changes nothing."""
    daemon.notifier.reloading()

    def read(configuration: Configuration) -> None:
        if daemon.is_stopping:
            answer(Refused(error="DaemonError", message="compactd stops"))
            return
        try:
            answer(_apply(daemon, configuration))
        except CompactdError as error:
            failed(error)
        daemon.notifier.ready("reloaded")

    def failed(error: Exception) -> None:
        _log.error(f"the configuration was not reloaded, all stays as it was: {error}")
        answer(refused(error) if isinstance(error, CompactdError) else Refused(error="Exception", message=repr(error)))
        daemon.notifier.ready("the configuration was not reloaded")

    daemon.in_lane("reload", daemon.configuration.read_again, read, failed)


def resolve_again(daemon: Daemon) -> None:
    """Settings of the catalogue changed: what of it may change is applied, the rest waits for the next start."""
    try:
        # While clients are served the settings before stay; at the start there are none.
        _take_settings(daemon, daemon.configuration, strict=daemon.is_running)
    except CompactdError as error:
        _log.error(f"settings of the catalogue were not applied: {error}")
    daemon.cleaning.configs_changed(update_topic_configs(daemon, daemon.partitions.topics))


def update_topic_configs(daemon: Daemon, topics: Iterable[str]) -> list[str]:
    """Works the effective settings of topics out and tells their owners. The topics that changed."""
    partitions, resolver = daemon.partitions, daemon.resolver()
    changed = []
    for name in topics:
        topic = partitions.topics.get(name)
        if topic is None:
            continue
        config = resolver.of(name, topic.configs)
        if partitions.configs.get(name) != config:
            partitions.configs[name] = config
            changed.append(name)
    for name, reason in resolver.faults.items():
        _log.error(f"topic {name} has settings that can't be used, it goes without them: {reason}")
    if changed and daemon.is_running:
        daemon.send_all("broker", ConfigChanged(configs={name: partitions.configs[name] for name in changed}))
    return changed


def apply_section(daemon: Daemon) -> None:
    """The topics section, into the catalogue."""
    sections = daemon.configuration.topics
    if sections:
        apply_topics(sections, daemon.partitions.topics, daemon.changes.apply, _log.info)


def scale_cleaners(daemon: Daemon) -> None:
    """As many cleaners as log.cleaner.threads says, none with log.cleaner.enable=false."""
    cleaner = daemon.settings.cleaner
    count = cleaner.threads if cleaner.enable else 0
    daemon.supervisor.scale("cleaner", count, f"log.cleaner.threads is {count}")


def _apply(daemon: Daemon, configuration: Configuration) -> Reloaded:
    applied, not_applied = _take_settings(daemon, configuration)
    daemon.configuration = configuration
    given = given_now(daemon.given, configuration.given)
    if given != daemon.given:
        daemon.given = given
        daemon.send_all("broker", Reconfigure(settings={}, given=given))
    daemon.supervisor.retry_given_up()
    topics = update_topic_configs(daemon, daemon.partitions.topics)
    if topics:
        daemon.cleaning.configs_changed(topics)
        applied.append(f"settings of {len(topics)} topics")
    apply_section(daemon)
    for line in not_applied:
        _log.warning(f"not reloaded: {line}")
    _log.info(f"the configuration was reloaded: {'; '.join(applied) or 'nothing changed'}")
    return Reloaded(applied=tuple(applied), refused=tuple(not_applied))


def _take_settings(daemon: Daemon, configuration: Configuration, strict: bool = False) -> tuple[list[str], list[str]]:
    before = daemon.settings
    after, faults = configuration.resolve_stored(daemon.catalogue_configs(), strict)
    for fault in faults:
        _log.error(f"a setting of the catalogue is no good, and not applied: {fault}")
    apply, refuse = changed_names(before, after)
    if apply:
        daemon.settings = keep_static(before, after)
        _tell(daemon, apply)
    applied = [f"{name} = {shown(name, value)}" for name, value in apply.items()]
    not_applied = [
        f"{name} stays {shown(name, was) or 'unset'}: {shown(name, now) or 'unset'} counts from the next start on"
        for name, (was, now) in refuse.items()
    ]
    return applied, not_applied


def _tell(daemon: Daemon, apply: dict[str, str]) -> None:
    if "log.level" in apply:
        log_output.set_level(apply["log.level"])
    for kind in KINDS:
        daemon.send_all(kind, Reconfigure(settings=apply))
    if "log.cleaner.threads" in apply:
        scale_cleaners(daemon)
    daemon.cleaning.settings_changed()
    catalogue, settings = daemon.catalogue, daemon.settings
    if catalogue is not None:
        daemon.in_lane(
            "catalogue",
            lambda: catalogue.settings_changed(settings),
            lambda _: None,
            lambda error: _log.error(f"the catalogue did not take its settings: {error}"),
        )
