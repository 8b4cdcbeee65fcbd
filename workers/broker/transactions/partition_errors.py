"""What a broker answers to another one about partitions of a transaction."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.transactions.transaction import TopicPartitionKey


class PartitionErrors(msgspec.Struct, frozen=True):
    """(topic, partition, error code) of each."""

    errors: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, found: Mapping[TopicPartitionKey, ErrorCode]) -> PartitionErrors:
        """To be sent."""
        return cls(errors=tuple((topic, number, int(error)) for (topic, number), error in found.items()))

    def by_partition(self) -> dict[TopicPartitionKey, ErrorCode]:
        """As they came."""
        return {(topic, number): ErrorCode(code) for topic, number, code in self.errors}
