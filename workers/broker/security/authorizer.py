"""Whether a client may do what it asks (Kafka's StandardAuthorizer; facts: kafka-protocol 18)."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context
    from compactd.workers.broker.requests import RequestHeader

#: The one name of a resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"


class Operation(IntEnum):
    """Kafka's AclOperation."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Resource(IntEnum):
    """Kafka's ResourceType."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Authorizer:
    """`context.part(Authorizer)`. Without authorizer.class.name everybody may do everything."""

    def __init__(self, context: Context) -> None:
        self._image = context.image

    def allows(self, header: RequestHeader, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """Whether the client that sent `header` may do `operation` on the resource of this type and name."""
        return True
