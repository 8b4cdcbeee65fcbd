"""The message classes of each API and version: kio's, and those that kio 0.6.5 lacks (facts: kraft-and-coordinators C1).

The ones that are missing are written here as kio writes its own, so that readers and writers do not know the difference.
(Kio looks at the types of fields: their annotations must not be left to be evaluated later.)
"""

import dataclasses
from functools import cache
from typing import Any, ClassVar, TypeAlias

from kio.index import load_request_schema, load_response_schema
from kio.schema.api_versions.v4.request import ApiVersionsRequest as ApiVersionsRequest4
from kio.schema.api_versions.v4.response import ApiVersionsResponse as ApiVersionsResponse4
from kio.static.primitive import i16, i32

#: A class that kio generated from Kafka's schemas, or one of the same make.
Schema: TypeAlias = Any

API_VERSIONS = 18


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


#: (API key, version): request and response. The response of v5 is that of v4.
_OWN: dict[tuple[int, int], tuple[Schema, Schema]] = {
    (API_VERSIONS, 5): (ApiVersionsRequest5, ApiVersionsResponse4),
}


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
