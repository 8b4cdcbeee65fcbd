"""What the tests ask of a client library; one adapter a library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tests.integration.records import Message, Outcome, Record
from tests.integration.servers import Server

#: How long anything may take on a machine that does much else: a member that could not say that it leaves is waited for 45.
SECONDS = 180.0
#: Larger than what brokers take, so that it is they who refuse.
MOST_BYTES = 8 << 20
GROUP_PROTOCOLS = ("classic", "consumer")


class Client(Protocol):
    """Every call makes its own connections and closes them."""

    name: str
    #: Those of GROUP_PROTOCOLS that it speaks.
    group_protocols: tuple[str, ...]

    def sendable(self, message: Message) -> Message:
        """The message, or what comes nearest of what the library sends at all."""
        ...

    def produce(
        self,
        server: Server,
        topic: str,
        messages: Sequence[Message],
        codec: str = "none",
        acks: int = -1,
        idempotent: bool = False,
    ) -> list[Outcome]:
        """Writes messages; the offset of each (-1 without acks), or what it was refused with."""
        ...

    def transact(
        self, server: Server, topic: str, messages: Sequence[Message], transactional_id: str, commit: bool
    ) -> list[Outcome]:
        """Writes messages in one transaction."""
        ...

    def consume(self, server: Server, topic: str, isolation: str = "read_uncommitted") -> list[Record]:
        """Everything from the first offsets to those that are the ends at the time of the call."""
        ...

    def read_as_member(
        self, server: Server, topic: str, group: str, count: int, protocol: str = "classic"
    ) -> list[Record]:
        """So many records (or a few more) as the only member of a group, from where it stands; commits and leaves."""
        ...

    def transform(self, server: Server, source: str, target: str, group: str, count: int, commit: bool = True) -> int:
        """Copies so many records (or a few more) to another topic, with the group's offsets, in transactions; how many."""
        ...
