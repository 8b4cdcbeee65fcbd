"""What a consumer says that it reads: the metadata of the protocol type "consumer" (Kafka's ConsumerProtocolSubscription)."""

from __future__ import annotations

import struct
from collections.abc import Iterable

#: Protocol type of consumers; others (Connect's workers, say) talk among themselves in a way of their own.
CONSUMER = "consumer"

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Topics of all members; None when one of them can't be read."""
    topics: set[str] = set()
    for each in metadata:
        found = _topics(each)
        if found is None:
            return None
        topics |= found
    return frozenset(topics)


def _topics(data: bytes) -> set[str] | None:
    """The topics begin every version: a version, a count, names; what follows differs."""
    try:
        (count,) = _INT32.unpack_from(data, _INT16.size)
        position = _INT16.size + _INT32.size
        if not 0 <= count <= (len(data) - position) // _INT16.size:
            return None
        topics = set()
        for _ in range(count):
            (size,) = _INT16.unpack_from(data, position)
            position += _INT16.size
            if not 0 <= size <= len(data) - position:
                return None
            topics.add(data[position : position + size].decode())
            position += size
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
