"""CreateTopics, DeleteTopics and CreatePartitions (facts: kafka-protocol 9).

The catalogue decides; here are the forms of the request's versions. Topics that Metadata creates on its own are in
`metadata`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from compactd.storage.names import CLUSTER_METADATA_TOPIC, parse_uuid, uuid_text
from compactd.workers.broker.api_keys import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from compactd.workers.broker.asking import Unanswered, ask_catalogue
from compactd.workers.broker.config_values import ConfigValues
from compactd.workers.broker.context import Context
from compactd.workers.broker.decoding import milliseconds
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.quotas.clients import charged
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.catalogue_messages import (
    NO_ID,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicResult,
    TopicResults,
)

_T = TypeVar("_T")

#: DeleteTopics: topics by name or id; CreateTopics: its answer tells of configs.
_DELETE_BY_ID, _TELLS_CONFIGS = 6, 5
#: DeleteTopics knows TOPIC_DELETION_DISABLED from here on.
_KNOWS_DISABLED = 3
#: From these versions on, what is over a client's controller_mutation_rate is refused; others are only told to keep still.
_CREATE_REFUSED, _GROW_REFUSED, _DELETE_REFUSED = 6, 3, 5


@handles(CREATE_TOPICS, 2, 7)
async def create_topics(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Each topic by itself; what is created is there when this is answered."""
    authorizer = context.part(Authorizer)
    anywhere = authorizer.allows(header, Operation.CREATE, Resource.CLUSTER, log=False)
    denied = {
        name
        for name in _once(topic.name for topic in request.topics)
        if not (anywhere or name == CLUSTER_METADATA_TOPIC)
        and not authorizer.allows(header, Operation.CREATE, Resource.TOPIC, name)
    }
    asked = [topic for topic in request.topics if topic.name not in denied]
    arguments = CreateTopics(
        topics=tuple(
            NewTopic(
                name=topic.name,
                num_partitions=topic.num_partitions,
                replication_factor=topic.replication_factor,
                assignments=tuple(
                    (each.partition_index, tuple(_nodes(context, each.broker_ids))) for each in topic.assignments
                ),
                configs=tuple((each.name, each.value) for each in topic.configs),
            )
            for topic in asked
        ),
        validate_only=request.validate_only,
        by=charged(header, strict=header.version >= _CREATE_REFUSED),
    )
    given = {topic.name: {each.name: each.value for each in topic.configs} for topic in asked}
    changed = await _change(context, "create_topics", arguments, [topic.name for topic in asked])
    # Kafka creates, and says that it took too long.
    hurried = milliseconds(request.timeout) <= 0 and not request.validate_only
    return {
        "throttle_time": changed.throttle_ms,
        "topics": [
            *(_created(context, header, result, given, hurried) for result in changed.results),
            *(_failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.") for name in denied),
        ],
    }


def _created(
    context: Context, header: RequestHeader, result: TopicResult, given: dict[str, dict[str, str | None]], hurried: bool
) -> dict[str, Any]:
    name = result.name or ""
    if hurried and not result.error:
        return _failed(name, ErrorCode.REQUEST_TIMED_OUT, None)
    if result.error:
        return _failed(name, result.error, result.message)
    created = {
        "name": name,
        "topic_id": None if result.topic_id == NO_ID else parse_uuid(result.topic_id),
        "error_code": ErrorCode.NONE,
        "error_message": None,
    }
    if not context.part(Authorizer).allows(header, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name, log=False):
        return {**created, "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "configs": []}
    configs: list[dict[str, Any]] = []
    if header.version >= _TELLS_CONFIGS:
        values = ConfigValues(context)
        overrides = {key: value for key, value in given.get(name, {}).items() if value is not None}
        configs = [
            {
                "name": each.name,
                "value": each.value,
                "read_only": False,
                "config_source": each.source,
                "is_sensitive": False,
            }
            for each in values.of_topic(overrides, created=True)
        ]
    return {
        **created,
        "num_partitions": result.num_partitions,
        "replication_factor": result.replication_factor,
        "configs": configs,
    }


def _failed(name: str, error: int, message: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "error_code": error,
        "error_message": message,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }


@handles(DELETE_TOPICS, 1, 6)
async def delete_topics(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """By name, or from v6 on by id."""
    if header.version >= _DELETE_BY_ID:
        asked = [
            (topic.name, NO_ID if topic.topic_id is None else uuid_text(topic.topic_id)) for topic in request.topics
        ]
    else:
        asked = [(name, NO_ID) for name in request.topic_names]
    denied = _not_to_be_deleted(context, header, asked)
    asked = [each for each in asked if each not in denied]
    names = [name for name, _ in asked]
    changed = await _change(
        context,
        "delete_topics",
        DeleteTopics(topics=tuple(asked), by=charged(header, strict=header.version >= _DELETE_REFUSED)),
        names,
    )
    responses = []
    for result in (*changed.results, *denied.values()):
        error = result.error
        if error == ErrorCode.TOPIC_DELETION_DISABLED and header.version < _KNOWS_DISABLED:
            error = ErrorCode.INVALID_REQUEST
        responses.append(
            {
                "name": result.name if header.version >= _DELETE_BY_ID else result.name or "",
                "topic_id": None if result.topic_id == NO_ID else parse_uuid(result.topic_id),
                "error_code": error,
                "error_message": result.message,
            }
        )
    return {"throttle_time": changed.throttle_ms, "responses": responses}


def _not_to_be_deleted(
    context: Context, header: RequestHeader, asked: Sequence[tuple[str | None, str]]
) -> dict[tuple[str | None, str], TopicResult]:
    """Those that the client may not delete, and what it is told: never a name or an id that it may not know."""
    authorizer = context.part(Authorizer)
    if not context.config.delete_topic_enable or authorizer.allows(
        header, Operation.DELETE, Resource.CLUSTER, log=False
    ):
        return {}

    def may(operation: Operation, name: str) -> bool:
        return authorizer.allows(header, operation, Resource.TOPIC, name)

    denied: dict[tuple[str | None, str], tuple[str | None, str]] = {}
    for name, topic_id in _once(asked):
        if name is not None and topic_id == NO_ID:
            exists = name in context.image.topics
            if not may(Operation.DESCRIBE, name) or (exists and not may(Operation.DELETE, name)):
                denied[name, topic_id] = name, NO_ID
        elif name is None and topic_id != NO_ID:
            topic = context.image.topic_of_id(parse_uuid(topic_id))
            if topic is not None and not may(Operation.DELETE, topic.name):
                denied[name, topic_id] = topic.name if may(Operation.DESCRIBE, topic.name) else None, topic_id
    error, message = ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."
    return {
        each: TopicResult(name=name, topic_id=topic_id, error=error, message=message)
        for each, (name, topic_id) in denied.items()
    }


def _once(values: Iterable[_T]) -> list[_T]:
    """Those that come once: what comes twice is refused whatever it is."""
    return [value for value, count in Counter(values).items() if count == 1]


@handles(CREATE_PARTITIONS, 0, 3)
async def create_partitions(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Topics grow; they never shrink."""
    authorizer = context.part(Authorizer)
    denied = {
        name
        for name in _once(topic.name for topic in request.topics)
        if not authorizer.allows(header, Operation.ALTER, Resource.TOPIC, name)
    }
    asked = [topic for topic in request.topics if topic.name not in denied]
    arguments = CreatePartitions(
        topics=tuple(
            MorePartitions(
                name=topic.name,
                count=topic.count,
                assignments=None
                if topic.assignments is None
                else tuple(tuple(_nodes(context, each.broker_ids)) for each in topic.assignments),
            )
            for topic in asked
        ),
        validate_only=request.validate_only,
        by=charged(header, strict=header.version >= _GROW_REFUSED),
    )
    changed = await _change(context, "create_partitions", arguments, [topic.name for topic in asked])
    return {
        "throttle_time": changed.throttle_ms,
        "results": [
            {"name": result.name or "", "error_code": result.error, "error_message": result.message}
            for result in (
                *changed.results,
                *(TopicResult(name=name, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED) for name in denied),
            )
        ],
    }


def _nodes(context: Context, broker_ids: Iterable[int]) -> list[int]:
    """Replicas as the catalogue knows them: to clients each worker is a broker, to the catalogue there is one."""
    workers = {node.node_id for node in context.image.nodes}
    return [context.config.node_id if each in workers else each for each in broker_ids]


async def _change(
    context: Context,
    operation: str,
    arguments: CreateTopics | DeleteTopics | CreatePartitions,
    names: Sequence[str | None],
) -> TopicResults:
    """The catalogue's results; where it gives none, that for each topic."""
    if not arguments.topics:
        return TopicResults(results=())
    outcome = await ask_catalogue(context, operation, arguments, TopicResults)
    if not isinstance(outcome, Unanswered):
        return outcome
    error, message = outcome
    return TopicResults(results=tuple(TopicResult(name=name, error=error, message=message) for name in names))
