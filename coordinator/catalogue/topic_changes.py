"""Creating, growing and deleting topics: from a request and the image to results and records, nothing written yet.

Checks, their order, codes and texts are those of Kafka 4.4.0's ControllerApis and ReplicationControlManager for a cluster of
one node (facts: kafka-protocol 9).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from compactd.config.settings import DaemonConfig
from compactd.coordinator.catalogue.config_rules import MAX_VALUE_LENGTH, topic_error
from compactd.storage import names
from compactd.storage.metadata.format import random_id
from compactd.storage.metadata.image import TOPIC_RESOURCE, MetadataImage, PartitionImage
from compactd.storage.metadata.record_types import MetadataRecord, RecordType, RecordVersions
from compactd.storage.metadata.snapshots import partition_record
from compactd.workers.catalogue_messages import (
    NO_ID,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ErrorCode,
    MorePartitions,
    NewTopic,
    TopicResult,
)

#: Kafka's limits on one request: partitions, and records.
MAX_PARTITIONS = 10_000
MAX_RECORDS = 10_000

_CLUSTER_METADATA = names.CLUSTER_METADATA_TOPIC


class PlanError(Exception):
    """Refuses one resource with a code and Kafka's text (None where Kafka gives none)."""

    def __init__(self, code: ErrorCode, message: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Place(NamedTuple):
    """Where a new partition is to lie."""

    topic_id: str
    partition: int
    directory_id: str


@dataclass(slots=True)
class Plan:
    """Records to write in one batch, and what they settle."""

    results: list[TopicResult] = field(default_factory=list)
    records: list[MetadataRecord] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)


def _for_free(partitions: int) -> None:
    """Nobody's quota."""


def _no_preference(_topic: str, _partition: int) -> None:
    """Nobody said where."""


@dataclass(frozen=True, slots=True)
class Context:
    """What planning needs beside the image."""

    image: MetadataImage
    node_id: int
    num_partitions: int
    delete_topic_enable: bool
    #: Log dir ids for so many new partitions, told apart from earlier calls; None when no dir takes any.
    place: Callable[[int], list[str] | None]
    #: Value that a topic-level setting has where the topic doesn't set it; None for Kafka's default.
    inherited: Callable[[str], str | None]
    #: Counts partitions that are made or deleted against a quota; raises PlanError where it is used up.
    charge: Callable[[int], None] = _for_free
    #: Id of the log dir that a partition, not there yet, was wanted in (AlterReplicaLogDirs); None: nobody said.
    preferred: Callable[[str, int], str | None] = _no_preference
    #: Settings that limit those of groups.
    daemon: DaemonConfig = field(default_factory=DaemonConfig)

    @property
    def versions(self) -> RecordVersions:
        return RecordVersions.of(self.image.features)


# ---- create


def plan_create(request: CreateTopics, context: Context) -> Plan:
    """Results for topics in the order asked, then those of names given twice, then of `__cluster_metadata`."""
    counted = Counter(topic.name for topic in request.topics)
    topics = [topic for topic in request.topics if counted[topic.name] == 1 and topic.name != _CLUSTER_METADATA]
    plan = Plan()
    if _partitions_asked(topics, context.num_partitions) > MAX_PARTITIONS:
        return _all_refused(
            [topic.name for topic in request.topics], "Excessively large number of partitions per request."
        )
    colliding = _colliding_names(context.image)
    for topic in topics:
        try:
            plan.results.append(_create(topic, context, plan, colliding))
        except PlanError as error:
            plan.results.append(TopicResult(name=topic.name, error=error.code, message=error.message))
    for name, count in counted.items():
        if count > 1:
            message = "Duplicate topic name."
        elif name == _CLUSTER_METADATA:
            message = f"Creation of internal topic {_CLUSTER_METADATA} is prohibited."
        else:
            continue
        plan.results.append(TopicResult(name=name, error=ErrorCode.INVALID_REQUEST, message=message))
    return _settled(plan, request.validate_only, [topic.name for topic in request.topics])


def _create(topic: NewTopic, context: Context, plan: Plan, colliding: Mapping[str, str]) -> TopicResult:
    name, image = topic.name, context.image
    if name in image.topics:
        raise PlanError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = colliding.get(name.replace(".", "_")) if "." in name or "_" in name else None
    if other is not None:
        text = f"Topic '{name}' collides with existing topic: {other}"
        raise PlanError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    fault = names.topic_name_fault(name)
    if fault is not None:
        raise PlanError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    configs = _checked_configs(topic, context)
    numbers: Sequence[int] = _assigned(topic, context) if topic.assignments else range(_count(topic, context))
    directories = _placed(name, numbers, context)
    context.charge(len(numbers))
    topic_id = names.uuid_text(random_id())
    plan.records.append(MetadataRecord(RecordType.TOPIC, {"name": name, "topicId": topic_id}))
    plan.records += [
        config_record(TOPIC_RESOURCE, name, key, value) for key, value in configs.items()
    ]  # fmt: skip
    if "min.insync.replicas" in configs and context.versions.elr:
        plan.records.append(MetadataRecord(RecordType.CLEAR_ELR, {"topicName": name}))
    _add_partitions(plan, topic_id, zip(numbers, directories, strict=True), context)
    return TopicResult(name=name, topic_id=topic_id, num_partitions=len(numbers), replication_factor=1)


def config_record(kind: int, resource: str, name: str, value: str | None) -> MetadataRecord:
    """Sets one setting, or removes it (None)."""
    data = {"resourceType": kind, "resourceName": resource, "name": name, "value": value}
    return MetadataRecord(RecordType.CONFIG, data)


def _checked_configs(topic: NewTopic, context: Context) -> dict[str, str]:
    nulls = [name for name, value in topic.configs if value is None]
    if nulls:
        text = f"Null value not supported for topic configs: {','.join(nulls)}"
        raise PlanError(ErrorCode.INVALID_CONFIG, text)
    configs = {name: value for name, value in topic.configs if value is not None}
    if any(utf16_length(value) > MAX_VALUE_LENGTH for value in configs.values()):
        raise PlanError(ErrorCode.INVALID_CONFIG, VALUE_TOO_LONG)
    # Settings of a topic that was not there yet apply when it comes; they are checked with its own.
    stored = context.image.topic_configs(topic.name)
    fault = topic_error({**stored, **configs}, context.inherited)
    if fault is not None:
        raise PlanError(ErrorCode.INVALID_CONFIG, fault)
    return configs


VALUE_TOO_LONG = (
    "The configuration value cannot be added because it exceeds the maximum value size of "
    f"{MAX_VALUE_LENGTH} bytes."
)  # fmt: skip


def utf16_length(text: str) -> int:
    """Length as Java counts it."""
    return len(text) + sum(char > "\uffff" for char in text)


def _count(topic: NewTopic, context: Context) -> int:
    factor, partitions = topic.replication_factor, topic.num_partitions
    if factor < -1 or factor == 0:
        text = "Replication factor must be larger than 0, or -1 to use the default value."
        raise PlanError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    if partitions < -1 or partitions == 0:
        text = "Number of partitions was set to an invalid non-positive value."
        raise PlanError(ErrorCode.INVALID_PARTITIONS, text)
    if factor > 1:
        text = f"Unable to replicate the partition {factor} time(s): {_too_few_brokers(factor)}"
        raise PlanError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    return context.num_partitions if partitions == -1 else partitions


def _assigned(topic: NewTopic, context: Context) -> list[int]:
    for what, number in (("replication factor", topic.replication_factor), ("numPartitions", topic.num_partitions)):
        if number != -1:
            text = f"A manual partition assignment was specified, but {what} was not set to -1."
            raise PlanError(ErrorCode.INVALID_REQUEST, text)
    seen: set[int] = set()
    factor = None
    for partition, brokers in topic.assignments:
        if partition in seen:
            text = f"Found multiple manual partition assignments for partition {partition}"
            raise PlanError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        check_assignment(brokers, factor, context)
        factor = len(brokers)
        seen.add(partition)
    if seen != set(range(len(seen))):
        text = "partitions should be a consecutive 0-based integer sequence"
        raise PlanError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return sorted(seen)


def check_assignment(brokers: Sequence[int], factor: int | None, context: Context) -> None:
    """Raises PlanError for replicas that this cluster of one node can't have."""
    fault = None
    if not brokers:
        fault = "The manual partition assignment includes an empty replica list."
    previous = None
    for broker in sorted(brokers):
        if broker not in context.image.brokers:
            fault = (
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            )  # fmt: skip
        elif broker == previous:
            fault = f"The manual partition assignment includes the broker {broker} more than once."
        if fault is not None:
            break
        previous = broker
    if fault is None and factor is not None and len(brokers) != factor:
        fault = (
            f"The manual partition assignment includes a partition with {len(brokers)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s)."
        )
    if fault is not None:
        raise PlanError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)


def _placed(topic: str, numbers: Sequence[int], context: Context) -> list[str]:
    """Log dirs of new partitions: where somebody wanted each before it was there, or else where there is most room."""
    wanted = [context.preferred(topic, number) for number in numbers]
    directories = context.place(len(numbers) - sum(each is not None for each in wanted))
    if directories is None:
        text = (
            "Unable to replicate the partition 1 time(s): All brokers are currently fenced, or have all their log "
            "directories cordoned."
        )
        raise PlanError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    chosen = iter(directories)
    return [next(chosen) if each is None else each for each in wanted]


def _add_partitions(plan: Plan, topic_id: str, places: Iterable[tuple[int, str]], context: Context) -> None:
    versions = context.versions
    for number, directory in places:
        state = PartitionImage((context.node_id,), (context.node_id,), context.node_id, 0, 0, (directory,))
        plan.records.append(partition_record(topic_id, number, state, versions))
        plan.places.append(Place(topic_id, number, directory))


def _colliding_names(image: MetadataImage) -> dict[str, str]:
    """Metric names turn dots into underscores: names that are the same then can't both exist."""
    return {name.replace(".", "_"): name for name in image.topics if "." in name or "_" in name}


def _partitions_asked(topics: Sequence[NewTopic], default: int) -> int:
    return sum(
        len(topic.assignments) or (default if topic.num_partitions == -1 else max(topic.num_partitions, 0))
        for topic in topics
    )


def _too_few_brokers(factor: int) -> str:
    return (
        f"The target replication factor of {factor} cannot be reached because only 1 broker(s) are registered or some "
        "brokers have all their log directories cordoned."
    )


# ---- grow


def plan_grow(request: CreatePartitions, context: Context) -> Plan:
    """Results for names given twice, then for topics in the order asked."""
    counted = Counter(topic.name for topic in request.topics)
    plan = Plan()
    for name, count in counted.items():
        if count > 1:
            plan.results.append(
                TopicResult(name=name, error=ErrorCode.INVALID_REQUEST, message="Duplicate topic name.")
            )
    for topic in request.topics:
        if counted[topic.name] == 1:
            try:
                plan.results.append(_grow(topic, context, plan))
            except PlanError as error:
                plan.results.append(TopicResult(name=topic.name, error=error.code, message=error.message))
    return _settled(plan, request.validate_only, [topic.name for topic in request.topics])


def _grow(topic: MorePartitions, context: Context, plan: Plan) -> TopicResult:
    found = context.image.topics.get(topic.name)
    if found is None:
        raise PlanError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
    present = len(found.partitions)
    if topic.count == present:
        raise PlanError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if topic.count < present:
        text = (
            f"The topic {topic.name} currently has {present} partition(s); {topic.count} would not be an increase."
        )  # fmt: skip
        raise PlanError(ErrorCode.INVALID_PARTITIONS, text)
    added = topic.count - present
    if topic.assignments is not None and len(topic.assignments) != added:
        text = (
            f"Attempted to add {added} additional partition(s), but only {len(topic.assignments)} assignment(s) "
            "were specified."
        )
        raise PlanError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    context.charge(added)
    for brokers in topic.assignments or ():
        check_assignment(brokers, 1, context)
    if added > MAX_RECORDS:
        # Kafka's list of records is full; so is ours, before memory is spent on them.
        raise PlanError(ErrorCode.POLICY_VIOLATION, TOO_LARGE)
    directories = _placed(topic.name, range(present, topic.count), context)
    _add_partitions(plan, found.topic_id, zip(range(present, topic.count), directories, strict=True), context)
    return TopicResult(name=topic.name, topic_id=found.topic_id, num_partitions=topic.count, replication_factor=1)


# ---- delete


def plan_delete(request: DeleteTopics, context: Context) -> Plan:
    """Results in no special order; Kafka shuffles them so that nobody learns from their places."""
    plan = Plan()
    if not context.delete_topic_enable:
        for name, topic_id in request.topics:
            _refuse(plan, name, topic_id, ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
        return plan
    image = context.image
    named: Counter[str] = Counter()
    identified: Counter[str] = Counter()
    for name, topic_id in request.topics:
        if name is not None and topic_id != NO_ID:
            text = "You may not specify both topic name and topic id."
            _refuse(plan, name, topic_id, ErrorCode.INVALID_REQUEST, text)
        elif name is not None:
            named[name] += 1
        elif topic_id != NO_ID:
            identified[topic_id] += 1
        else:
            _refuse(plan, None, NO_ID, ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    chosen: dict[str, str] = {}
    for topic_id, count in identified.items():
        if count > 1:
            _refuse(plan, None, topic_id, ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
        elif topic_id not in image.names:
            _refuse(plan, None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        else:
            chosen[topic_id] = image.names[topic_id]
    for name, count in named.items():
        found = image.topics.get(name)
        if count > 1:
            _refuse(plan, name, NO_ID, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        elif found is None:
            text = "This server does not host this topic-partition."
            _refuse(plan, name, NO_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        elif found.topic_id in identified:
            chosen.pop(found.topic_id, None)
            text = "The provided topic name maps to an ID that was already supplied."
            _refuse(plan, name, found.topic_id, ErrorCode.INVALID_REQUEST, text)
        else:
            chosen[found.topic_id] = name
    for topic_id, name in chosen.items():
        try:
            context.charge(len(image.topics[name].partitions))
        except PlanError as error:
            _refuse(plan, name, topic_id, error.code, error.message)
            continue
        plan.records.append(MetadataRecord(RecordType.REMOVE_TOPIC, {"topicId": topic_id}))
        plan.results.append(TopicResult(name=name, topic_id=topic_id))
    return plan


def _refuse(plan: Plan, name: str | None, topic_id: str, code: ErrorCode, text: str | None) -> None:
    plan.results.append(TopicResult(name=name, topic_id=topic_id, error=code, message=text))


# ---- all


TOO_LARGE = "Unable to perform excessively large batch operation."


def _settled(plan: Plan, validate_only: bool, asked: Sequence[str]) -> Plan:
    if len(plan.records) > MAX_RECORDS:
        return _all_refused(asked, TOO_LARGE)
    if validate_only:
        # An id that nothing got must not be told.
        results = [
            result if result.error else TopicResult(
                name=result.name,
                num_partitions=result.num_partitions,
                replication_factor=result.replication_factor,
            )
            for result in plan.results
        ]  # fmt: skip
        return Plan(results)
    return plan


def _all_refused(asked: Sequence[str], text: str) -> Plan:
    unique = dict.fromkeys(asked)
    return Plan([TopicResult(name=name, error=ErrorCode.POLICY_VIOLATION, message=text) for name in unique])
