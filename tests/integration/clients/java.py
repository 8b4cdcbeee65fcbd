"""Kafka's own Java clients, in the oracle's JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.integration.clients.interface import GROUP_PROTOCOLS, MOST_BYTES, SECONDS
from tests.integration.records import Message, Outcome, Record, Refused
from tests.integration.servers import Server
from tests.oracle.driver import Oracle, decode, encode

_CODES = {
    "UnknownTopicOrPartitionException": 3,
    "TimeoutException": 7,
    "RecordTooLargeException": 10,
    "InvalidTimestampException": 32,
    "InvalidRecordException": 87,
}


class Java:
    """See interface.Client."""

    name = "java"
    group_protocols = GROUP_PROTOCOLS

    def sendable(self, message: Message) -> Message:
        return message

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def produce(
        self,
        server: Server,
        topic: str,
        messages: Sequence[Message],
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[Outcome]:
        config = {"compression.type": codec, "acks": acks, "enable.idempotence": str(idempotent).lower()}
        return self._send(server, topic, messages, config)

    def transact(
        self, server: Server, topic: str, messages: Sequence[Message], transactional_id: str, commit: bool
    ) -> list[Outcome]:
        config = {"transactional.id": transactional_id}
        return self._send(server, topic, messages, config, end="commit" if commit else "abort")

    def _send(
        self, server: Server, topic: str, messages: Sequence[Message], config: dict[str, Any], **more: Any
    ) -> list[Outcome]:
        config = {"max.request.size": MOST_BYTES, "linger.ms": 5, **config}
        records = [
            {
                "topic": topic,
                "partition": each.partition,
                "key": encode(each.key),
                "value": encode(each.value),
                "headers": [[name, encode(value)] for name, value in each.headers],
                **({} if each.timestamp is None else {"ts": each.timestamp}),
            }
            for each in messages
        ]
        answer = self._oracle.request("produce", bootstrap=server.bootstrap, config=config, records=records, **more)
        return [_outcome(each) for each in answer["offsets"]]

    def consume(self, server: Server, topic: str, isolation: str = "read_uncommitted") -> list[Record]:
        answer = self._oracle.request(
            "consume", bootstrap=server.bootstrap, topics=[topic], timeoutMs=int(SECONDS * 1000),
            config={"isolation.level": isolation, "fetch.max.wait.ms": 100, "auto.offset.reset": "none"},
        )  # fmt: skip
        return _found(answer)

    def read_as_member(
        self, server: Server, topic: str, group: str, count: int, protocol: str = "classic"
    ) -> list[Record]:
        answer = self._oracle.request(
            "readAsMember", bootstrap=server.bootstrap, topic=topic, group=group, count=count,
            timeoutMs=int(SECONDS * 1000), config={"group.protocol": protocol, "fetch.max.wait.ms": 100},
        )  # fmt: skip
        return _found(answer)

    def transform(self, server: Server, source: str, target: str, group: str, count: int, commit: bool = True) -> int:
        moved: int = self._oracle.request(
            "transform", bootstrap=server.bootstrap, topic=source, into=target, group=group, count=count,
            timeoutMs=int(SECONDS * 1000), transactionalId=f"{group}-transform", end="commit" if commit else "abort",
            config={"isolation.level": "read_committed", "fetch.max.wait.ms": 100},
        )["moved"]  # fmt: skip
        return moved


def _outcome(told: int | str) -> Outcome:
    if isinstance(told, int):
        return told
    kind = told.split(":")[0].rsplit(".", 1)[-1]
    return Refused(_CODES[kind])


def _found(answer: dict[str, Any]) -> list[Record]:
    return [
        Record(
            each["partition"],
            each["offset"],
            each["ts"],
            decode(each["key"]),
            decode(each["value"]),
            tuple((name, decode(value)) for name, value in each["headers"]),
        )
        for each in answer["records"]
    ]
