"""What a broker worker asks of the catalogue and what it gets: arguments and results of `workers.catalogue_update.CatalogueChange`.

Errors are Kafka's codes and texts (facts: kafka-protocol 9 and 10). Checks that need to know the client, which are those
of authorisation and of request versions, are the worker's; everything else is decided here.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from compactd.workers import acl_messages, credential_messages, feature_messages, quota_messages
from compactd.workers.catalogue_struct import Struct as Struct  # noqa: PLC0414 (others take it from here)

#: Topic id "none", as Kafka writes it.
NO_ID = "A" * 22


class ErrorCode(IntEnum):
    """The codes of Kafka's protocol that the catalogue answers with."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_TOPIC_EXCEPTION = 17
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    THROTTLING_QUOTA_EXCEEDED = 89
    TOPIC_DELETION_DISABLED = 73
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100


class ResourceType(IntEnum):
    """Kinds of resources that have settings in the catalogue (BROKER_LOGGER, 8, is never stored)."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(IntEnum):
    """What IncrementalAlterConfigs may do to a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class NewTopic(Struct, frozen=True):
    """A topic to create. -1: the broker's default. With `assignments` both numbers must be -1."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    #: (partition, broker ids) as the client listed them.
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    #: (name, value) as the client listed them; the last of a name counts.
    configs: tuple[tuple[str, str | None], ...] = ()


class CreateTopics(Struct, frozen=True):
    """All of these, each by itself; those that can be created are created in one batch."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False
    #: Who is charged for the partitions; None: nobody.
    by: quota_messages.Mutation | None = None


class TopicResult(Struct, frozen=True):
    """One topic's outcome. On error the numbers are -1; `name` is None where the client gave an unknown id."""

    name: str | None
    topic_id: str = NO_ID
    error: int = 0
    message: str | None = None
    num_partitions: int = -1
    replication_factor: int = -1


class TopicResults(Struct, frozen=True):
    results: tuple[TopicResult, ...]
    #: How long the client has to keep still.
    throttle_ms: int = 0


class DeleteTopics(Struct, frozen=True):
    """Topics by (name, NO_ID) or by (None, id), as DeleteTopics v6 lists them."""

    topics: tuple[tuple[str | None, str], ...]
    #: As for CreateTopics.
    by: quota_messages.Mutation | None = None


class MorePartitions(Struct, frozen=True):
    """`count`: how many partitions the topic shall have in all. `assignments` None: placed by the catalogue."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitions(Struct, frozen=True):
    topics: tuple[MorePartitions, ...]
    validate_only: bool = False
    #: Who is charged for the partitions; None: nobody.
    by: quota_messages.Mutation | None = None


class ConfigChange(Struct, frozen=True):
    """One setting. Of the legacy AlterConfigs `operation` is always SET. Unknown operations are passed on as they are."""

    name: str
    value: str | None
    operation: int = ConfigOperation.SET


class ResourceChange(Struct, frozen=True):
    """`type`: a ResourceType, or any number that a client sent. `name` of a BROKER: a node id, or "" for the default."""

    type: int
    name: str
    configs: tuple[ConfigChange, ...]
    #: Why the client may not do this; it is told unless the change is wrong in itself.
    denied: int = 0


class AlterConfigs(Struct, frozen=True):
    """`incremental` False: AlterConfigs, which replaces all settings of each resource."""

    resources: tuple[ResourceChange, ...]
    incremental: bool = True
    validate_only: bool = False


class ResourceResult(Struct, frozen=True):
    type: int
    name: str
    error: int = 0
    message: str | None = None


class ResourceResults(Struct, frozen=True):
    """One for each resource, in the order asked."""

    results: tuple[ResourceResult, ...]


class AllocateProducerIds(Struct, frozen=True):
    """Asks for a block of producer ids. Ids of a block that were not used when its holder ends are lost, as in Kafka."""


class ProducerIdBlock(Struct, frozen=True):
    """Ids first .. first + count - 1, handed out to nobody else, ever."""

    first: int
    count: int
    error: int = 0
    message: str | None = None


class MoveReplica(Struct, frozen=True):
    """A partition whose copy in another log dir has caught up: from now on it lies in `log_dir` (a path)."""

    topic_id: str
    partition: int
    log_dir: str


class AssignLogDirs(Struct, frozen=True):
    """Records where partitions lie, before the copy takes the original's place (AlterReplicaLogDirs)."""

    moves: tuple[MoveReplica, ...]


class Preference(Struct, frozen=True):
    """A partition that is not there yet, and the log dir (a path) that it is to be made in."""

    topic: str
    partition: int
    log_dir: str


class PreferLogDirs(Struct, frozen=True):
    """Remembers where partitions are wanted (AlterReplicaLogDirs of partitions to come). The results are empty."""

    partitions: tuple[Preference, ...]


class MoveResult(Struct, frozen=True):
    topic_id: str
    partition: int
    error: int = 0
    message: str | None = None


class MoveResults(Struct, frozen=True):
    results: tuple[MoveResult, ...]


Arguments = CreateTopics | DeleteTopics | CreatePartitions | AlterConfigs | AllocateProducerIds | AssignLogDirs
Results = TopicResults | ResourceResults | ProducerIdBlock | MoveResults

#: Operation of a CatalogueChange: its arguments, and its results.
OPERATIONS: dict[str, tuple[type[Struct], type[Struct]]] = {
    "create_topics": (CreateTopics, TopicResults),
    "delete_topics": (DeleteTopics, TopicResults),
    "create_partitions": (CreatePartitions, TopicResults),
    "alter_configs": (AlterConfigs, ResourceResults),
    "allocate_producer_ids": (AllocateProducerIds, ProducerIdBlock),
    "assign_log_dirs": (AssignLogDirs, MoveResults),
    "prefer_log_dirs": (PreferLogDirs, MoveResults),
    **acl_messages.OPERATIONS,
    **credential_messages.OPERATIONS,
    **feature_messages.OPERATIONS,
    **quota_messages.OPERATIONS,
}

_ENCODER = msgspec.msgpack.Encoder()


def to_raw(value: Struct) -> msgspec.Raw:
    """Arguments or results, as they travel inside a message."""
    return msgspec.Raw(_ENCODER.encode(value))


def arguments_of(operation: str, raw: msgspec.Raw) -> Struct:
    """Raises KeyError for an unknown operation, msgspec.ValidationError for other content."""
    return msgspec.msgpack.decode(raw, type=OPERATIONS[operation][0])


def results_of(operation: str, raw: msgspec.Raw) -> Struct:
    """Raises KeyError for an unknown operation, msgspec.ValidationError for other content."""
    return msgspec.msgpack.decode(raw, type=OPERATIONS[operation][1])
