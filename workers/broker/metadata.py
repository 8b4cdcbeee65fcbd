"""Metadata v0 to v13: nodes, topics and who serves which partition (facts: kafka-protocol 4)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from compactd.config.errors import CompactdError
from compactd.storage.names import is_topic_name
from compactd.workers.broker.api_keys import METADATA
from compactd.workers.broker.context import Context
from compactd.workers.broker.encoding import Written, encode
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.image import INTERNAL_TOPICS, Topic
from compactd.workers.broker.layout import layout_of
from compactd.workers.broker.quotas.clients import charged
from compactd.workers.broker.requests import RequestHeader, handles
from compactd.workers.broker.schemas import response_class
from compactd.workers.broker.security.authorizer import NOT_ASKED, Authorizer, Operation, Resource
from compactd.workers.broker.turns import Turns
from compactd.workers.catalogue_messages import CreateTopics, NewTopic, TopicResults
from compactd.workers.catalogue_update import CataloguePartition
from compactd.workers.quota_messages import Mutation

_LOGGER = logging.getLogger(__name__)

#: From this version on clients know that a leader may not have the listener that they came by (KIP-103).
_WITH_LISTENERS = 6


@handles(METADATA, 0, 13)
async def metadata(context: Context, header: RequestHeader, request: Any) -> dict[str, Any]:
    """Topics that are asked for by name or id, or all; those that are missing are created where that is wanted."""
    version = header.version
    authorizer = context.part(Authorizer)
    asked = request.topics
    if asked is None or (version == 0 and not asked):
        topics: list[dict[str, Any] | Written] = []
        turns = Turns()
        for topic in context.image:
            await turns.others()
            if authorizer.allows(header, Operation.DESCRIBE, Resource.TOPIC, topic.name, log=False):
                topics.append(_described(context, header, topic, request))
    elif 10 <= version <= 11 and any(each.topic_id is not None or each.name is None for each in asked):
        return _refused(asked)
    elif any(getattr(each, "topic_id", None) is not None for each in asked):
        topics = [_by_id(context, header, each.topic_id, request) for each in asked if each.topic_id is not None]
    else:
        topics = await _by_name(context, header, [each.name for each in asked], request)
    return {
        "brokers": [
            {"node_id": node.node_id, "host": node.host, "port": node.port, "rack": context.config.broker_rack}
            for node in context.image.nodes_at(header.peer.listener)
        ],
        "cluster_id": context.image.cluster_id,
        "controller_id": _controller(context),
        "topics": topics,
        "cluster_authorized_operations": authorizer.cluster_operations(header)
        if getattr(request, "include_cluster_authorized_operations", False)
        else NOT_ASKED,
    }


def _controller(context: Context) -> int:
    nodes = context.image.nodes
    return nodes[0].node_id if nodes else -1


def _refused(asked: Iterable[Any]) -> dict[str, Any]:
    topics = [
        {
            "error_code": ErrorCode.INVALID_REQUEST,
            "name": "" if each.name is None else each.name,
            "topic_id": each.topic_id,
            "topic_authorized_operations": NOT_ASKED,
        }
        for each in asked
    ]
    return {"topics": topics, "controller_id": -1, "cluster_authorized_operations": NOT_ASKED}


async def _by_name(
    context: Context, header: RequestHeader, names: Sequence[str | None], request: Any
) -> list[dict[str, Any] | Written]:
    authorizer = context.part(Authorizer)
    wanted = list(dict.fromkeys(name or "" for name in names))
    # Whether a topic exists that somebody may not look at is not told.
    denied = {name for name in wanted if not authorizer.allows(header, Operation.DESCRIBE, Resource.TOPIC, name)}
    missing = [name for name in wanted if name not in context.image.topics and name not in denied]
    if missing and context.config.auto_create_topics_enable and getattr(request, "allow_auto_topic_creation", True):
        if not authorizer.allows(header, Operation.CREATE, Resource.CLUSTER, log=False):
            denied.update(
                name for name in missing if not authorizer.allows(header, Operation.CREATE, Resource.TOPIC, name)
            )
        # Internal topics have settings of their own; who needs one makes it.
        creatable = [
            name for name in missing if is_topic_name(name) and name not in INTERNAL_TOPICS and name not in denied
        ]
        if creatable:
            await create_topics(context, creatable, charged(header, strict=True))
    found: list[dict[str, Any] | Written] = []
    turns = Turns()
    for name in wanted:
        await turns.others()
        topic = context.image.topic(name)
        if name in denied:
            found.append(_missing(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name, None))
        elif topic is not None:
            found.append(_described(context, header, topic, request))
        else:
            good = is_topic_name(name)
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if good else ErrorCode.INVALID_TOPIC_EXCEPTION
            found.append(_missing(error, name, None, _operations(context, header, name, request)))
    return found


async def create_topics(context: Context, names: Sequence[str], by: Mutation) -> None:
    """Creates topics with the broker's defaults; whether that succeeded is seen in the image."""
    arguments = CreateTopics(topics=tuple(NewTopic(name=name) for name in names), by=by)
    try:
        outcome = await context.catalogue.change("create_topics", arguments, TopicResults)
    except (CompactdError, TimeoutError) as error:
        _LOGGER.warning("%s could not be created for a client: %s", ", ".join(names), error or "no answer in time")
        return
    for result in outcome.results:
        if result.error and result.error != ErrorCode.TOPIC_ALREADY_EXISTS:
            _LOGGER.warning("%s could not be created for a client: %s", result.name, result.message)


def _by_id(context: Context, header: RequestHeader, topic_id: uuid.UUID, request: Any) -> dict[str, Any] | Written:
    topic = context.image.topic_of_id(topic_id)
    if topic is None:
        return _missing(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
    if not context.part(Authorizer).allows(header, Operation.DESCRIBE, Resource.TOPIC, topic.name):
        return _missing(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic_id)
    return _described(context, header, topic, request)


def _missing(
    error: ErrorCode, name: str | None, topic_id: uuid.UUID | None, operations: int = NOT_ASKED
) -> dict[str, Any]:
    return {
        "error_code": error,
        "name": name,
        "topic_id": topic_id,
        "partitions": (),
        "topic_authorized_operations": operations,
    }


def _operations(context: Context, header: RequestHeader, name: str, request: Any) -> int:
    if not getattr(request, "include_topic_authorized_operations", False):
        return NOT_ASKED
    return context.part(Authorizer).operations(header, Resource.TOPIC, name)


class _Written:
    """Topics as they were written into answers: most clients ask for the same, and for many at once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        #: By version and listener, then by name.
        self._topics: dict[tuple[int, str], dict[str, tuple[Topic, Written]]] = {}
        self._state: tuple[object, ...] = ()

    def of(self, topic: Topic, version: int, listener: str) -> Written:
        """The topic in an answer of this version, without authorized operations."""
        context = self._context
        state = (context.image.nodes, context.image.nodes_at(listener), frozenset(context.partitions.offline_log_dirs))
        if state != self._state:
            self._topics.clear()
            self._state = state
        known = self._topics.setdefault((version, listener), {})
        found = known.get(topic.name)
        if found is None or found[0] is not topic:
            if len(known) > 2 * len(context.image.topics) + 100:
                known.clear()
            described = _plain(context, topic, version, listener)
            found = known[topic.name] = topic, Written(encode(_topic_class(version), described))
        return found[1]


@cache
def _topic_class(version: int) -> Any:
    fields = layout_of(response_class(METADATA, version)).fields
    return next(field.struct for field in fields if field.name == "topics")


def _described(context: Context, header: RequestHeader, topic: Topic, request: Any) -> dict[str, Any] | Written:
    operations = _operations(context, header, topic.name, request)
    if operations == NOT_ASKED:
        return context.part(_Written).of(topic, header.version, header.peer.listener)
    return _plain(context, topic, header.version, header.peer.listener, operations)


def _plain(context: Context, topic: Topic, version: int, listener: str, operations: int = NOT_ASKED) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [describe_partition(context, each, listener, version) for each in topic.partitions.values()],
        "topic_authorized_operations": operations,
    }


def describe_partition(
    context: Context, partition: CataloguePartition, listener: str, version: int = _WITH_LISTENERS
) -> dict[str, Any]:
    """A partition as Metadata (of a version) and DescribeTopicPartitions tell clients of a listener about it."""
    leader = context.image.leader(partition, listener)
    if leader is None and context.image.leader(partition) is not None and version >= _WITH_LISTENERS:
        missing = ErrorCode.LISTENER_NOT_FOUND
    else:
        missing = ErrorCode.LEADER_NOT_AVAILABLE
    replica = -1 if leader is None else leader.node_id
    offline = not partition.online or partition.log_dir in context.partitions.offline_log_dirs
    return {
        "error_code": missing if leader is None else ErrorCode.NONE,
        "partition_index": partition.partition,
        "leader_id": replica,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": [replica] if leader is not None else [],
        "isr_nodes": [replica] if leader is not None and not offline else [],
        "offline_replicas": [replica] if offline and leader is not None else [],
    }
