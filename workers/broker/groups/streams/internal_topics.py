"""Creating the topics that a streams application has for itself, in the name of the member whose heartbeat told of them.

Kafka's KafkaApis.handleStreamsGroupHeartbeat and AutoTopicCreationManager: the heartbeat doesn't wait, and what went
wrong is told with those that come in the next two intervals, in which it isn't tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from compactd.config.errors import CompactdError
from compactd.workers.broker.context import Context
from compactd.workers.broker.groups.consumer.java import listed
from compactd.workers.broker.groups.streams.configured import InternalTopic
from compactd.workers.broker.groups.streams.status import Status
from compactd.workers.broker.quotas.clients import charged
from compactd.workers.broker.requests import RequestHeader
from compactd.workers.broker.security.authorizer import Authorizer, Operation, Resource
from compactd.workers.broker.transactions.java_order import string_hash
from compactd.workers.catalogue_messages import CreateTopics, NewTopic, TopicResults

#: Topics whose errors are remembered, and errors that a message tells.
_REMEMBERED, _TOLD = 1000, 3
#: The one error that the coordinator gives without a text.
_THROTTLED = "The throttling quota has been exceeded."


class InternalTopics:
    """`context.part(InternalTopics)`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._creating: set[str] = set()
        #: Topic to text and until when, by the monotonic clock in seconds.
        self._errors: dict[str, tuple[str, float]] = {}

    def create(
        self,
        header: RequestHeader,
        missing: Mapping[str, InternalTopic],
        status: list[dict[str, Any]] | None,
        remember_ms: int,
    ) -> list[dict[str, Any]] | None:
        """Begins to create topics, if the client may; the answer's `status` with what there is to say of them.

        `remember_ms`: how long an error is told and nothing is tried; Kafka takes two heartbeat intervals.
        """
        if not missing:
            return status
        authorizer = self._context.part(Authorizer)
        if not authorizer.allows(header, Operation.CREATE, Resource.CLUSTER, log=False):
            denied = [name for name in missing if not authorizer.allows(header, Operation.CREATE, Resource.TOPIC, name)]
            if denied:
                return _added(status, f"Unauthorized to CREATE on topics {', '.join(denied)}.")
        self._begin(header, missing, remember_ms)
        errors = self._errors_of(missing)
        if not errors or not any(row["status_code"] == Status.MISSING_INTERNAL_TOPICS for row in status or ()):
            return status
        told = ", ".join(f"{name} ({text})" for name, text in errors[:_TOLD])
        more = f" and {len(errors) - _TOLD} more" if len(errors) > _TOLD else ""
        return _added(status, f"Creation failed: {told}{more}.")

    def _begin(self, header: RequestHeader, missing: Mapping[str, InternalTopic], remember_ms: int) -> None:
        names = [name for name in missing if self._error_of(name) is None and name not in self._creating]
        if names:
            self._creating.update(names)
            topics = [missing[name] for name in listed(names, string_hash)]
            self._context.spawn(self._create(header, topics, remember_ms))

    async def _create(self, header: RequestHeader, topics: list[InternalTopic], remember_ms: int) -> None:
        arguments = CreateTopics(
            topics=tuple(
                NewTopic(
                    name=topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication_factor or -1,
                    configs=tuple(topic.configs.items()),
                )
                for topic in topics
            ),
            by=charged(header, strict=True),
        )
        names = [topic.name for topic in topics]
        try:
            outcome = await self._context.catalogue.change("create_topics", arguments, TopicResults)
        except TimeoutError:
            self._remember(dict.fromkeys(names, "CreateTopicsRequest to controller timed out"), remember_ms)
        except CompactdError as error:
            self._remember(dict.fromkeys(names, str(error)), remember_ms)
        else:
            failed = {result.name: result.message or _THROTTLED for result in outcome.results if result.error}
            self._remember({name: text for name, text in failed.items() if name is not None}, remember_ms)
        finally:
            self._creating.difference_update(names)

    # ---- errors

    def _remember(self, errors: Mapping[str, str], remember_ms: int) -> None:
        now = self._context.clock.monotonic()
        self._errors |= {name: (text, now + remember_ms / 1000) for name, text in errors.items()}
        self._errors = {name: error for name, error in self._errors.items() if error[1] > now}
        while len(self._errors) > _REMEMBERED:
            del self._errors[min(self._errors, key=lambda name: self._errors[name][1])]

    def _error_of(self, name: str) -> str | None:
        text, until = self._errors.get(name, ("", 0.0))
        return text if text and until > self._context.clock.monotonic() else None

    def _errors_of(self, names: Iterable[str]) -> list[tuple[str, str]]:
        found = {name: text for name in names if (text := self._error_of(name)) is not None}
        return [(name, found[name]) for name in listed(found, string_hash)]


def _added(status: list[dict[str, Any]] | None, text: str) -> list[dict[str, Any]]:
    """More on the topics that are missing."""
    rows = [dict(row) for row in status or ()]
    for row in rows:
        if row["status_code"] == Status.MISSING_INTERNAL_TOPICS:
            row["status_detail"] = f"{row['status_detail']}; {text}"
            return rows
    return [*rows, {"status_code": Status.MISSING_INTERNAL_TOPICS, "status_detail": text}]
