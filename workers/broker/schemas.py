"""The message classes of each API and version: kio's, and those that kio 0.6.5 lacks (facts: kraft-and-coordinators C1).

The ones that are missing are written here as kio writes its own, so that readers and writers do not know the difference.
(Kio looks at the types of fields: their annotations must not be left to be evaluated later.)
"""

import dataclasses
import uuid
from functools import cache
from typing import Any, ClassVar, TypeAlias

from kio.index import load_request_schema, load_response_schema
from kio.schema.api_versions.v4.request import ApiVersionsRequest as ApiVersionsRequest4
from kio.schema.api_versions.v4.response import ApiVersionsResponse as ApiVersionsResponse4
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest as DeleteGroupsRequest2
from kio.schema.delete_groups.v2.response import DeleteGroupsResponse as DeleteGroupsResponse2
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest as DescribeTransactionsRequest0
from kio.schema.describe_transactions.v0.response import (
    DescribeTransactionsResponse as KioDescribeTransactionsResponse0,
)
from kio.schema.describe_transactions.v0.response import TopicData
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest as TxnOffsetCommitRequest5
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequestPartition
from kio.schema.txn_offset_commit.v5.response import TxnOffsetCommitResponse as TxnOffsetCommitResponse5
from kio.schema.txn_offset_commit.v5.response import TxnOffsetCommitResponsePartition
from kio.schema.types import GroupId, ProducerId, TransactionalId
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i32Timedelta, i64

from compactd.workers.broker import streams_schemas

#: A class that kio generated from Kafka's schemas, or one of the same make.
Schema: TypeAlias = Any

API_VERSIONS = 18
TXN_OFFSET_COMMIT = 28
DELETE_GROUPS = 42
DESCRIBE_TRANSACTIONS = 65


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest5:
    """ApiVersionsRequest v5: the client names the cluster and the node that it thinks it talks to (KIP-1242)."""

    __type__: ClassVar = ApiVersionsRequest4.__type__
    __version__: ClassVar[i16] = i16(5)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(API_VERSIONS)
    __header_schema__: ClassVar[Any] = ApiVersionsRequest4.__header_schema__
    client_software_name: str = dataclasses.field(metadata={"kafka_type": "string"})
    client_software_version: str = dataclasses.field(metadata={"kafka_type": "string"})
    cluster_id: str | None = dataclasses.field(metadata={"kafka_type": "string"}, default=None)
    node_id: i32 = dataclasses.field(metadata={"kafka_type": "int32"}, default=i32(-1))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequestTopic6:
    """A topic in TxnOffsetCommitRequest v6."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(6)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(TXN_OFFSET_COMMIT)
    __header_schema__: ClassVar[Any] = TxnOffsetCommitRequest5.__header_schema__
    topic_id: uuid.UUID | None = dataclasses.field(metadata={"kafka_type": "uuid"})
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest6:
    """TxnOffsetCommitRequest v6: topics by id (KIP-1319)."""

    __type__: ClassVar = TxnOffsetCommitRequest5.__type__
    __version__: ClassVar[i16] = i16(6)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(TXN_OFFSET_COMMIT)
    __header_schema__: ClassVar[Any] = TxnOffsetCommitRequest5.__header_schema__
    transactional_id: TransactionalId = dataclasses.field(metadata={"kafka_type": "string"})
    group_id: GroupId = dataclasses.field(metadata={"kafka_type": "string"})
    producer_id: ProducerId = dataclasses.field(metadata={"kafka_type": "int64"})
    producer_epoch: i16 = dataclasses.field(metadata={"kafka_type": "int16"})
    generation_id: i32 = dataclasses.field(metadata={"kafka_type": "int32"}, default=i32(-1))
    member_id: str = dataclasses.field(metadata={"kafka_type": "string"}, default="")
    group_instance_id: str | None = dataclasses.field(metadata={"kafka_type": "string"}, default=None)
    topics: tuple[TxnOffsetCommitRequestTopic6, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponseTopic6:
    """A topic in TxnOffsetCommitResponse v6."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(6)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(TXN_OFFSET_COMMIT)
    __header_schema__: ClassVar[Any] = TxnOffsetCommitResponse5.__header_schema__
    topic_id: uuid.UUID | None = dataclasses.field(metadata={"kafka_type": "uuid"})
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponse6:
    """TxnOffsetCommitResponse v6: topics by id (KIP-1319)."""

    __type__: ClassVar = TxnOffsetCommitResponse5.__type__
    __version__: ClassVar[i16] = i16(6)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(TXN_OFFSET_COMMIT)
    __header_schema__: ClassVar[Any] = TxnOffsetCommitResponse5.__header_schema__
    throttle_time: i32Timedelta = dataclasses.field(metadata={"kafka_type": "timedelta_i32"})
    topics: tuple[TxnOffsetCommitResponseTopic6, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeletableGroupResult3:
    """A group in DeleteGroupsResponse v3."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(3)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DELETE_GROUPS)
    __header_schema__: ClassVar[Any] = DeleteGroupsResponse2.__header_schema__
    group_id: GroupId = dataclasses.field(metadata={"kafka_type": "string"})
    error_code: ErrorCode = dataclasses.field(metadata={"kafka_type": "error_code"})
    error_message: str | None = dataclasses.field(metadata={"kafka_type": "string"}, default=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse3:
    """DeleteGroupsResponse v3: each group says why it is still there."""

    __type__: ClassVar = DeleteGroupsResponse2.__type__
    __version__: ClassVar[i16] = i16(3)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DELETE_GROUPS)
    __header_schema__: ClassVar[Any] = DeleteGroupsResponse2.__header_schema__
    throttle_time: i32Timedelta = dataclasses.field(metadata={"kafka_type": "timedelta_i32"})
    results: tuple[DeletableGroupResult3, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState0:
    """A transaction in DescribeTransactionsResponse v0."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_TRANSACTIONS)
    __header_schema__: ClassVar[Any] = KioDescribeTransactionsResponse0.__header_schema__
    error_code: ErrorCode = dataclasses.field(metadata={"kafka_type": "error_code"})
    transactional_id: TransactionalId = dataclasses.field(metadata={"kafka_type": "string"})
    transaction_state: str = dataclasses.field(metadata={"kafka_type": "string"})
    transaction_timeout: i32Timedelta = dataclasses.field(metadata={"kafka_type": "timedelta_i32"})
    transaction_start_time: i64 = dataclasses.field(metadata={"kafka_type": "int64"})
    producer_id: ProducerId = dataclasses.field(metadata={"kafka_type": "int64"})
    producer_epoch: i16 = dataclasses.field(metadata={"kafka_type": "int16"})
    topics: tuple[TopicData, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponse0:
    """DescribeTransactionsResponse v0: kio's can't say that nothing has begun, which is -1."""

    __type__: ClassVar = KioDescribeTransactionsResponse0.__type__
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_TRANSACTIONS)
    __header_schema__: ClassVar[Any] = KioDescribeTransactionsResponse0.__header_schema__
    throttle_time: i32Timedelta = dataclasses.field(metadata={"kafka_type": "timedelta_i32"})
    transaction_states: tuple[TransactionState0, ...]


#: (API key, version): request and response. Where only one of the two changed, the other is kio's of the version before.
_OWN: dict[tuple[int, int], tuple[Schema, Schema]] = {
    (API_VERSIONS, 5): (ApiVersionsRequest5, ApiVersionsResponse4),
    (TXN_OFFSET_COMMIT, 6): (TxnOffsetCommitRequest6, TxnOffsetCommitResponse6),
    (DELETE_GROUPS, 3): (DeleteGroupsRequest2, DeleteGroupsResponse3),
    (DESCRIBE_TRANSACTIONS, 0): (DescribeTransactionsRequest0, DescribeTransactionsResponse0),
    **streams_schemas.OWN,
}


def versions_of(api_key: int) -> list[int]:
    """Versions of an API that there are classes for, here or of kio's."""
    of_kio = schema_name_map[api_key_map[api_key]] if api_key in api_key_map else ()
    return sorted({*of_kio, *(version for key, version in _OWN if key == api_key)})


def is_own(api_key: int, version: int) -> bool:
    """Whether the classes are written here."""
    return (api_key, version) in _OWN


@cache
def request_class(api_key: int, version: int) -> Schema:
    """LookupError when there is none."""
    own = _OWN.get((api_key, version))
    if own is not None:
        return own[0]
    try:
        return load_request_schema(api_key, version)
    except RuntimeError as error:
        raise LookupError(f"no schema of API {api_key} version {version}") from error


@cache
def response_class(api_key: int, version: int) -> Schema:
    """LookupError when there is none."""
    own = _OWN.get((api_key, version))
    if own is not None:
        return own[1]
    try:
        return load_response_schema(api_key, version)
    except RuntimeError as error:
        raise LookupError(f"no schema of API {api_key} version {version}") from error


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether the request has tagged fields, in its header too (the response then has them as well)."""
    return bool(request_class(api_key, version).__flexible__)
