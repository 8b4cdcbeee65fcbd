"""What a streams member is told besides its tasks (Kafka's StreamsGroupHeartbeatResponse.Status)."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """Codes of Kafka's protocol, all that 4.4.0 has."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6
