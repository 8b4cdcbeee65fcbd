"""`compactd topics`: list, describe, create, alter and delete topics of a running daemon, without a Kafka client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from compactd.config.errors import RefusedError, UsageError
from compactd.config.raw import strict_entry
from compactd.config.settings import as_text, unknown_name
from compactd.config.table import BY_BROKER_NAME, BY_TOPIC_NAME
from compactd.coordinator.catalogue.config_tables import TOPIC_RULES
from compactd.coordinator.control.messages import CatalogueAnswer, ChangeCatalogue, GetTopics, TopicReport, Topics
from compactd.coordinator.control.socket import ControlClient
from compactd.scripts.output import Table, human_bytes, human_count, print_json, print_line
from compactd.scripts.running import connect, daemon_options
from compactd.workers.catalogue_messages import (
    NO_ID,
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ErrorCode,
    MorePartitions,
    NewTopic,
    ResourceChange,
    ResourceResults,
    ResourceType,
    Struct,
    TopicResult,
    TopicResults,
    results_of,
    to_raw,
)

_SETTINGS = {"help_option_names": ["-h", "--help"]}
_EPILOG = "Exit codes: 0 done, 2 wrong usage, 3 refused or no daemon runs, 4 I/O error."
#: New partitions are answered when they are loaded.
_SECONDS = 60.0
_ADVICE: dict[int, str] = {
    ErrorCode.TOPIC_ALREADY_EXISTS: "Use `compactd topics alter`, or --if-not-exists to leave it as it is.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`compactd topics list` shows what there is.",
    ErrorCode.INVALID_PARTITIONS: "A topic's partitions can only become more.",
    ErrorCode.INVALID_CONFIG: "`compactd config` shows each setting with its meaning; docs/settings.md has the ranges.",
    ErrorCode.TOPIC_DELETION_DISABLED: "Set delete.topic.enable=true and restart compactd.",
}

_json = click.option("--json", "as_json", is_flag=True, help="JSON lines.")
_sets = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the topic, e.g. retention.ms=7d. Repeatable.",
)


@click.group(name="topics", context_settings=_SETTINGS, epilog=_EPILOG)
def command() -> None:
    """List, describe, create, alter and delete topics.

    \b
    Examples:
      compactd topics list
      compactd topics create users --partitions 3 --set cleanup.policy=compact
      compactd topics alter users --set min.cleanable.dirty.ratio=0.1 --partitions 6
      compactd topics describe users
      compactd topics delete users
    """


@command.command(name="list", context_settings=_SETTINGS)
@_json
@daemon_options
def list_topics(as_json: bool, config: Path | None, run_dir: Path | None) -> None:
    """All topics, with their size."""
    with connect(config, run_dir) as daemon:
        topics = _topics(daemon)
    if as_json:
        for topic in topics:
            print_json(_summary(topic))
        return
    if not topics:
        print_line("there are no topics; `compactd topics create NAME` makes one")
        return
    table = Table(
        ("topic", ">partitions", "cleanup.policy", ">offsets", ">size", "own settings"), droppable=("own settings",)
    )
    for topic in topics:
        own = ", ".join(f"{name}={value}" for name, value in sorted(topic.configs.items()) if name != "cleanup.policy")
        fields = _summary(topic)
        table.row(
            topic.name,
            len(topic.partitions),
            fields["cleanupPolicy"] or "(none)",
            human_count(fields["offsets"]),
            human_bytes(fields["size"]),
            own or "-",
        )
    table.show()
    offline = sum(bool(part.offline) for topic in topics for part in topic.partitions)
    if offline:
        print_line(f"{offline} partitions are not served: `compactd status` says why")


@command.command(name="describe", context_settings=_SETTINGS)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--all", "show_all", is_flag=True, help="Every setting that is in force, and not only the topic's own.")
@_json
@daemon_options
def describe(names: tuple[str, ...], show_all: bool, as_json: bool, config: Path | None, run_dir: Path | None) -> None:
    """Partitions and settings of topics."""
    with connect(config, run_dir) as daemon:
        topics = _topics(daemon, names)
    if as_json:
        for topic in topics:
            print_json(_description(topic))
        return
    for number, topic in enumerate(topics):
        if number:
            print_line("")
        print_line(f"{topic.name}  (id {topic.topic_id})")
        settings = topic.effective if show_all else topic.configs
        for name, value in sorted(settings.items()):
            origin = "" if name in topic.configs or not show_all else "  (not its own)"
            print_line(f"  {name}={value}{origin}")
        if not settings:
            print_line("  no settings of its own; --all shows those in force")
        table = Table(
            (">partition", ">first offset", ">end offset", ">size", ">segments", "served by", "log dir"),
            droppable=("segments", "first offset"),
        )
        for part in topic.partitions:
            known = part.log_end_offset >= 0
            table.row(
                part.partition,
                part.log_start_offset if known else "-",
                part.log_end_offset if known else "-",
                human_bytes(part.size) if known else "-",
                part.segments if known else "-",
                f"nobody: {part.offline}" if part.offline else part.worker,
                part.log_dir,
            )
        table.show()


@command.command(name="create", context_settings=_SETTINGS)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="Default: num.partitions of the daemon.")
@_sets
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is.")
@_json
@daemon_options
def create(
    names: tuple[str, ...],
    partitions: int | None,
    sets: tuple[str, ...],
    if_not_exists: bool,
    as_json: bool,
    config: Path | None,
    run_dir: Path | None,
) -> None:
    """Create topics. Settings may have units: --set retention.ms=7d --set segment.bytes=128MiB."""
    configs = tuple(_configs(sets).items())
    wanted = tuple(
        NewTopic(name=name, num_partitions=-1 if partitions is None else partitions, configs=configs) for name in names
    )
    with connect(config, run_dir) as daemon:
        results = _change(daemon, "create_topics", CreateTopics(topics=wanted))
    assert isinstance(results, TopicResults)
    outcomes = []
    for result in results.results:
        allowed = if_not_exists and result.error == ErrorCode.TOPIC_ALREADY_EXISTS
        count = result.num_partitions
        text = "exists already" if allowed else f"was created, {count} partition" + ("s" if count != 1 else "")
        fields = {"created": not allowed}
        outcomes.append(_outcome(result, allowed, text, fields))
    _report(outcomes, as_json)


@command.command(name="alter", context_settings=_SETTINGS)
@click.argument("name", metavar="TOPIC")
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="How many there are to be in all.")
@_sets
@click.option("--unset", multiple=True, metavar="NAME", help="Go back to the default of a setting. Repeatable.")
@_json
@daemon_options
def alter(
    name: str,
    partitions: int | None,
    sets: tuple[str, ...],
    unset: tuple[str, ...],
    as_json: bool,
    config: Path | None,
    run_dir: Path | None,
) -> None:
    """Change settings of a topic, or give it more partitions.

    With more partitions, new records of a key may go to another partition than its old ones: compaction, which works on
    each partition by itself, then keeps one record of such a key in each.
    """
    configs = _configs(sets)
    for each in unset:
        _check_name(each, "", "--unset")
        if each in configs:
            raise UsageError(detail=f"{each}: either --set or --unset it")
    changes = [ConfigChange(name=each, value=value) for each, value in configs.items()]
    changes += [ConfigChange(name=each, value=None, operation=ConfigOperation.DELETE) for each in unset]
    if not changes and partitions is None:
        raise UsageError(detail="nothing to alter: give --set, --unset or --partitions")
    outcomes = []
    with connect(config, run_dir) as daemon:
        _topics(daemon, (name,))
        if changes:
            resource = ResourceChange(type=ResourceType.TOPIC, name=name, configs=tuple(changes))
            altered = _change(daemon, "alter_configs", AlterConfigs(resources=(resource,)))
            assert isinstance(altered, ResourceResults)
            for resource_result in altered.results:
                outcomes.append(
                    _Outcome(name, resource_result.error, resource_result.message, "has its new settings", {})
                )
        if partitions is not None and not any(outcome.error for outcome in outcomes):
            more = MorePartitions(name=name, count=partitions)
            results = _change(daemon, "create_partitions", CreatePartitions(topics=(more,)))
            assert isinstance(results, TopicResults)
            for result in results.results:
                text = f"has {partitions} partitions"
                outcomes.append(_Outcome(name, result.error, result.message, text, {"partitions": partitions}))
    _report(outcomes, as_json)


@command.command(name="delete", context_settings=_SETTINGS)
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="A topic that does not exist is no error.")
@_json
@daemon_options
def delete(names: tuple[str, ...], if_exists: bool, as_json: bool, config: Path | None, run_dir: Path | None) -> None:
    """Delete topics with all their records. Their files go after file.delete.delay.ms."""
    with connect(config, run_dir) as daemon:
        asked = DeleteTopics(topics=tuple((name, NO_ID) for name in names))
        results = _change(daemon, "delete_topics", asked)
    assert isinstance(results, TopicResults)
    outcomes = []
    for result in results.results:
        allowed = if_exists and result.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        text = "does not exist" if allowed else "was deleted"
        outcomes.append(_outcome(result, allowed, text, {"deleted": not allowed}))
    _report(outcomes, as_json)


# ---- what they share


class _Outcome(NamedTuple):
    """What became of one topic."""

    name: str
    error: int
    message: str | None
    text: str
    fields: dict[str, Any]


def _outcome(result: TopicResult, allowed: bool, text: str, fields: dict[str, Any]) -> _Outcome:
    """`allowed`: the caller said that this error is none."""
    return _Outcome(result.name or "?", 0 if allowed else result.error, result.message, text, fields)


def _topics(daemon: ControlClient, names: Sequence[str] = ()) -> tuple[TopicReport, ...]:
    """All, or those named. RefusedError for the first that doesn't exist."""
    answer = daemon.ask(GetTopics(names=tuple(names)))
    assert isinstance(answer, Topics)
    missing = [name for name in names if name not in {topic.name for topic in answer.topics}]
    if missing:
        raise RefusedError(
            path=f"topic {missing[0]}",
            reason="there is no such topic",
            advice=_ADVICE[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        )
    by_name = {topic.name: topic for topic in answer.topics}
    return tuple(by_name[name] for name in dict.fromkeys(names)) if names else answer.topics


def _change(daemon: ControlClient, operation: str, arguments: Struct) -> Struct:
    answer = daemon.ask(ChangeCatalogue(operation=operation, arguments=to_raw(arguments)), _SECONDS)
    assert isinstance(answer, CatalogueAnswer)
    return results_of(operation, answer.results)


def _report(outcomes: Sequence[_Outcome], as_json: bool) -> None:
    """Says what became of each; raises the first refusal when all has been said."""
    refused = [_refusal(outcome) for outcome in outcomes if outcome.error]
    for outcome in outcomes:
        if as_json:
            print_json(
                {
                    "topic": outcome.name,
                    "error": _error_name(outcome.error) if outcome.error else None,
                    "message": outcome.message if outcome.error else None,
                    **({} if outcome.error else outcome.fields),
                }
            )
        elif not outcome.error:
            print_line(f"topic {outcome.name} {outcome.text}")
    for error in refused[1:]:
        click.echo(f"compactd: {error}", err=True)
    if refused:
        raise refused[0]


def _refusal(outcome: _Outcome) -> RefusedError:
    name = _error_name(outcome.error)
    reason = (outcome.message or name).rstrip(".")
    return RefusedError(
        path=f"topic {outcome.name}",
        reason=f"{reason} ({name})",
        advice=_ADVICE.get(outcome.error, ""),
    )


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _configs(sets: Sequence[str]) -> dict[str, str]:
    """--set as the catalogue keeps it: without units. UsageError, SettingError with the nearest name."""
    configs = {}
    for pair in sets:
        name, equals, text = pair.partition("=")
        name = name.strip()
        if not equals:
            raise UsageError(detail=f"--set {pair}: write NAME=VALUE")
        _check_name(name, text, "--set")
        if name in BY_TOPIC_NAME:
            entry = strict_entry(name, text, "--set", "--set")
            configs[name] = as_text(entry.values[BY_TOPIC_NAME[name].field])
        else:
            configs[name] = text
    return configs


def _check_name(name: str, text: str, option: str) -> None:
    """A topic-level name, also one that compactd only keeps for Kafka's sake."""
    if name in BY_TOPIC_NAME or name in TOPIC_RULES:
        return
    topic_level = next((each.topic for each in BY_BROKER_NAME.get(name, ()) if each.topic), None)
    if topic_level is not None:
        raise UsageError(detail=f"{option} {name}: that is the broker's name of it; a topic's is {topic_level}")
    if name in BY_BROKER_NAME:
        raise UsageError(detail=f"{option} {name}: a setting of the daemon, which no topic has of its own")
    raise unknown_name(name, text, option, tuple(TOPIC_RULES))


def _summary(topic: TopicReport) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topicId": topic.topic_id,
        "partitions": len(topic.partitions),
        "cleanupPolicy": topic.effective.get("cleanup.policy", ""),
        "offsets": sum(max(part.log_end_offset - part.log_start_offset, 0) for part in topic.partitions),
        "size": sum(part.size for part in topic.partitions),
        "notServed": sum(bool(part.offline) for part in topic.partitions),
        "configs": topic.configs,
    }


def _description(topic: TopicReport) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topicId": topic.topic_id,
        "configs": topic.configs,
        "effective": topic.effective,
        "partitions": [
            {
                "partition": part.partition,
                "worker": part.worker,
                "logDir": part.log_dir,
                "leaderEpoch": part.leader_epoch,
                "logStartOffset": part.log_start_offset,
                "logEndOffset": part.log_end_offset,
                "highWatermark": part.high_watermark,
                "size": part.size,
                "segments": part.segments,
                "notServedBecause": part.offline,
            }
            for part in topic.partitions
        ],
    }
