"""Messages of streams groups that kio 0.6.5 lacks: v1 of StreamsGroupHeartbeat and Describe, and API 93 (KIP-1331, 1357).

Written as kio writes its own (see `schemas`): annotations must not be left to be evaluated later.
"""

import dataclasses
from typing import Any, ClassVar

from kio.schema.errors import ErrorCode
from kio.schema.streams_group_describe.v0.request import StreamsGroupDescribeRequest as StreamsGroupDescribeRequest0
from kio.schema.streams_group_describe.v0.response import Member, Topology
from kio.schema.streams_group_describe.v0.response import StreamsGroupDescribeResponse as StreamsGroupDescribeResponse0
from kio.schema.streams_group_heartbeat.v0.request import StreamsGroupHeartbeatRequest as StreamsGroupHeartbeatRequest0
from kio.schema.streams_group_heartbeat.v0.response import EndpointToPartitions, Status, TaskIds
from kio.schema.streams_group_heartbeat.v0.response import (
    StreamsGroupHeartbeatResponse as StreamsGroupHeartbeatResponse0,
)
from kio.schema.types import GroupId, TopicName
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

STREAMS_GROUP_HEARTBEAT = 88
STREAMS_GROUP_DESCRIBE = 89
STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupHeartbeatResponse1:
    """StreamsGroupHeartbeatResponse v1: the lag is a long, and the member may be asked to describe its topology."""

    __type__: ClassVar = StreamsGroupHeartbeatResponse0.__type__
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_HEARTBEAT)
    __header_schema__: ClassVar[Any] = StreamsGroupHeartbeatResponse0.__header_schema__
    throttle_time: i32Timedelta = dataclasses.field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = dataclasses.field(metadata={"kafka_type": "error_code"})
    error_message: str | None = dataclasses.field(metadata={"kafka_type": "string"}, default=None)
    member_id: str = dataclasses.field(metadata={"kafka_type": "string"})
    member_epoch: i32 = dataclasses.field(metadata={"kafka_type": "int32"})
    heartbeat_interval: i32Timedelta = dataclasses.field(metadata={"kafka_type": "timedelta_i32"})
    task_offset_interval: i32Timedelta = dataclasses.field(metadata={"kafka_type": "timedelta_i32"})
    acceptable_recovery_lag: i64 = dataclasses.field(metadata={"kafka_type": "int64"}, default=i64(-1))
    status: tuple[Status, ...] | None
    active_tasks: tuple[TaskIds, ...] | None
    standby_tasks: tuple[TaskIds, ...] | None
    warmup_tasks: tuple[TaskIds, ...] | None
    topology_description_required: bool = dataclasses.field(metadata={"kafka_type": "bool"}, default=False)
    endpoint_information_epoch: i32 = dataclasses.field(metadata={"kafka_type": "int32"})
    partitions_by_user_endpoint: tuple[EndpointToPartitions, ...] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupDescribeRequest1:
    """StreamsGroupDescribeRequest v1: what a plugin was told of the topology may be asked for."""

    __type__: ClassVar = StreamsGroupDescribeRequest0.__type__
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_DESCRIBE)
    __header_schema__: ClassVar[Any] = StreamsGroupDescribeRequest0.__header_schema__
    group_ids: tuple[GroupId, ...] = dataclasses.field(metadata={"kafka_type": "string"}, default=())
    include_authorized_operations: bool = dataclasses.field(metadata={"kafka_type": "bool"})
    include_topology_description: bool = dataclasses.field(metadata={"kafka_type": "bool"}, default=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDescriptionNode1:
    """A node of a described topology in StreamsGroupDescribeResponse v1."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_DESCRIBE)
    __header_schema__: ClassVar[Any] = StreamsGroupDescribeResponse0.__header_schema__
    name: str = dataclasses.field(metadata={"kafka_type": "string"})
    node_type: i8 = dataclasses.field(metadata={"kafka_type": "int8"})
    source_topics: tuple[TopicName, ...] = dataclasses.field(metadata={"kafka_type": "string"}, default=())
    sink_topic: TopicName | None = dataclasses.field(metadata={"kafka_type": "string"}, default=None)
    stores: tuple[str, ...] = dataclasses.field(metadata={"kafka_type": "string"}, default=())
    successors: tuple[str, ...] = dataclasses.field(metadata={"kafka_type": "string"}, default=())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDescriptionSubtopology1:
    """A subtopology of a described topology in StreamsGroupDescribeResponse v1."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_DESCRIBE)
    __header_schema__: ClassVar[Any] = StreamsGroupDescribeResponse0.__header_schema__
    subtopology_id: str = dataclasses.field(metadata={"kafka_type": "string"})
    nodes: tuple[TopologyDescriptionNode1, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDescriptionGlobalStore1:
    """A global store of a described topology in StreamsGroupDescribeResponse v1."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_DESCRIBE)
    __header_schema__: ClassVar[Any] = StreamsGroupDescribeResponse0.__header_schema__
    source: TopologyDescriptionNode1
    processor: TopologyDescriptionNode1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDescription1:
    """A described topology in StreamsGroupDescribeResponse v1."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_DESCRIBE)
    __header_schema__: ClassVar[Any] = StreamsGroupDescribeResponse0.__header_schema__
    subtopologies: tuple[TopologyDescriptionSubtopology1, ...]
    global_stores: tuple[TopologyDescriptionGlobalStore1, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup1:
    """A group in StreamsGroupDescribeResponse v1."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_DESCRIBE)
    __header_schema__: ClassVar[Any] = StreamsGroupDescribeResponse0.__header_schema__
    error_code: ErrorCode = dataclasses.field(metadata={"kafka_type": "error_code"})
    error_message: str | None = dataclasses.field(metadata={"kafka_type": "string"}, default=None)
    group_id: GroupId = dataclasses.field(metadata={"kafka_type": "string"})
    group_state: str = dataclasses.field(metadata={"kafka_type": "string"})
    group_epoch: i32 = dataclasses.field(metadata={"kafka_type": "int32"})
    assignment_epoch: i32 = dataclasses.field(metadata={"kafka_type": "int32"})
    topology: Topology | None = dataclasses.field(default=None)
    members: tuple[Member, ...]
    authorized_operations: i32 = dataclasses.field(metadata={"kafka_type": "int32"}, default=i32(-2147483648))
    topology_description: TopologyDescription1 | None = dataclasses.field(default=None)
    topology_description_status: i8 = dataclasses.field(metadata={"kafka_type": "int8"}, default=i8(0))
    assignor_name: str | None = dataclasses.field(metadata={"kafka_type": "string"}, default=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupDescribeResponse1:
    """StreamsGroupDescribeResponse v1: groups with the description of their topology, and the name of their assignor."""

    __type__: ClassVar = StreamsGroupDescribeResponse0.__type__
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_DESCRIBE)
    __header_schema__: ClassVar[Any] = StreamsGroupDescribeResponse0.__header_schema__
    throttle_time: i32Timedelta = dataclasses.field(metadata={"kafka_type": "timedelta_i32"})
    groups: tuple[DescribedGroup1, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PushedNode0:
    """A node in StreamsGroupTopologyDescriptionUpdateRequest v0."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE)
    __header_schema__: ClassVar[Any] = StreamsGroupHeartbeatRequest0.__header_schema__
    name: str = dataclasses.field(metadata={"kafka_type": "string"})
    node_type: i8 = dataclasses.field(metadata={"kafka_type": "int8"})
    source_topics: tuple[TopicName, ...] = dataclasses.field(metadata={"kafka_type": "string"}, default=())
    sink_topic: TopicName | None = dataclasses.field(metadata={"kafka_type": "string"}, default=None)
    stores: tuple[str, ...] = dataclasses.field(metadata={"kafka_type": "string"}, default=())
    successors: tuple[str, ...] = dataclasses.field(metadata={"kafka_type": "string"}, default=())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PushedSubtopology0:
    """A subtopology in StreamsGroupTopologyDescriptionUpdateRequest v0."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE)
    __header_schema__: ClassVar[Any] = StreamsGroupHeartbeatRequest0.__header_schema__
    subtopology_id: str = dataclasses.field(metadata={"kafka_type": "string"})
    nodes: tuple[PushedNode0, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PushedGlobalStore0:
    """A global store in StreamsGroupTopologyDescriptionUpdateRequest v0."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE)
    __header_schema__: ClassVar[Any] = StreamsGroupHeartbeatRequest0.__header_schema__
    source: PushedNode0
    processor: PushedNode0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PushedDescription0:
    """A topology in StreamsGroupTopologyDescriptionUpdateRequest v0."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE)
    __header_schema__: ClassVar[Any] = StreamsGroupHeartbeatRequest0.__header_schema__
    subtopologies: tuple[PushedSubtopology0, ...]
    global_stores: tuple[PushedGlobalStore0, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupTopologyDescriptionUpdateRequest0:
    """StreamsGroupTopologyDescriptionUpdateRequest v0: a member says what its topology looks like."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE)
    __header_schema__: ClassVar[Any] = StreamsGroupHeartbeatRequest0.__header_schema__
    group_id: GroupId = dataclasses.field(metadata={"kafka_type": "string"})
    member_id: str = dataclasses.field(metadata={"kafka_type": "string"})
    topology_epoch: i32 = dataclasses.field(metadata={"kafka_type": "int32"})
    topology_description: PushedDescription0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupTopologyDescriptionUpdateResponse0:
    """StreamsGroupTopologyDescriptionUpdateResponse v0."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE)
    __header_schema__: ClassVar[Any] = StreamsGroupHeartbeatResponse0.__header_schema__
    throttle_time: i32Timedelta = dataclasses.field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = dataclasses.field(metadata={"kafka_type": "error_code"})
    error_message: str | None = dataclasses.field(metadata={"kafka_type": "string"}, default=None)


#: As `schemas` has its own: (API key, version) to request and response.
OWN: dict[tuple[int, int], tuple[Any, Any]] = {
    (STREAMS_GROUP_HEARTBEAT, 1): (StreamsGroupHeartbeatRequest0, StreamsGroupHeartbeatResponse1),
    (STREAMS_GROUP_DESCRIBE, 1): (StreamsGroupDescribeRequest1, StreamsGroupDescribeResponse1),
    (STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0): (
        StreamsGroupTopologyDescriptionUpdateRequest0,
        StreamsGroupTopologyDescriptionUpdateResponse0,
    ),
}
