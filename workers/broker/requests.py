"""Which APIs the broker answers, and how a request gets to the function that answers it.

    @handles(api_keys.METADATA, 0, 13)
    async def metadata(context: Context, header: RequestHeader, request: Any) -> Answer:
        return {"topics": [...]}

`request` is an instance of kio's class for the version; what only some versions have is read with `getattr(request, name,
default)`. The answer is a dict of all that any version could say (see `encoding`): one function serves all versions. It
may also be None for no answer at all, CLOSE to close the connection, or `Encoded`. Connections serve one request after
another, so a handler may wait as long as it likes; it must not block the loop. An exception is a bug: it is logged, and
answered with UNKNOWN_SERVER_ERROR where the API has room for it at the top, else by closing.

ApiVersions announces what is registered, nothing else.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from compactd.workers.broker.decoding import MalformedRequestError, decode, prepare_reader, skip_tags
from compactd.workers.broker.encoding import encode, prepare_writer
from compactd.workers.broker.layout import layout_of
from compactd.workers.broker.quotas.clients import EXEMPT, ClientQuotas, TimedWork
from compactd.workers.broker.schemas import API_VERSIONS, is_flexible, request_class, response_class

if TYPE_CHECKING:
    from compactd.workers.broker.context import Context

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Modules with handlers, imported when a broker starts.
HANDLER_MODULES = (
    "api_versions",
    "metadata",
    "describe_topic_partitions",
    "describe_cluster",
    "produce",
    "fetch",
    "list_offsets",
    "leader_epochs",
    "delete_records",
    "describe_log_dirs",
    "alter_replica_log_dirs",
    "reassignments",
    "describe_quorum",
    "update_features",
    "topics",
    "configs",
    "init_producer_id",
    "security.acls",
    "security.sasl_requests",
    "security.scram_credentials",
    "groups.find_coordinator",
    "groups.membership",
    "groups.offset_commit",
    "groups.txn_offset_commit",
    "groups.offset_fetch",
    "groups.administration",
    "groups.consumer.handlers",
    "groups.streams.handlers",
    "transactions.add",
    "transactions.end",
    "transactions.write_markers",
    "transactions.describe",
    "transactions.describe_producers",
    "quotas.administration",
)


@dataclass(slots=True)
class Peer:
    """Who is at the other end of a connection."""

    host: str
    port: int
    #: As the client's ApiVersions told; "" before, or of an old client.
    software_name: str = ""
    software_version: str = ""
    #: Who it has proved to be, as ACLs and quotas name it.
    principal: str = "User:ANONYMOUS"
    #: Name of the listener it came in on.
    listener: str = "PLAINTEXT"
    #: The request being served, while its time is counted (see `quotas.clients`), and until when (loop time, seconds) the
    #: connection then stays unread.
    work: TimedWork[Any] | None = None
    muted_until: float = 0.0
    #: It closed the connection, as far as we know.
    is_gone: bool = False
    #: Called when it does; whoever waits on its behalf sets this, and takes it away again.
    on_gone: Callable[[], None] | None = None

    def left(self) -> None:
        """The client closed the connection."""
        self.is_gone = True
        if self.on_gone is not None:
            self.on_gone()

    @property
    def user(self) -> str:
        """As quotas name it: the principal's name without its type."""
        return self.principal.partition(":")[2]

    @property
    def client_host(self) -> str:
        """As Kafka writes it into group records: with a slash."""
        return f"/{self.host}"


class RequestHeader(msgspec.Struct, frozen=True):
    """Request header of any version."""

    api_key: int
    version: int
    correlation_id: int
    #: "" where the client sent null.
    client_id: str
    peer: Peer
    #: Bytes of the frame, without its size.
    size: int = 0


class SendsFile(Protocol):
    """A part of an answer that the kernel sends from a file (storage.reader.Range)."""

    position: int
    length: int

    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Encoded(msgspec.Struct):
    """A body that is encoded already: buffers and ranges of files, in order. Ranges are closed by whoever sends it."""

    parts: list[bytes | bytearray | memoryview | SendsFile]

    def close(self) -> None:
        """Gives the files of an answer that is not sent back."""
        for part in self.parts:
            if not isinstance(part, (bytes, bytearray, memoryview)):
                part.close()


class _Close:
    def __repr__(self) -> str:
        return "CLOSE"


#: Answer of a handler that has the connection closed.
CLOSE: Final = _Close()

Answer = Mapping[str, Any] | Encoded | _Close | Any | None
Handler = Callable[["Context", RequestHeader, Any], Coroutine[Any, Any, Answer]]
#: Reads the body of a version.
Decoder = Callable[[int, memoryview], Any]


@dataclass(frozen=True, slots=True)
class Api:
    """One API that is answered."""

    key: int
    min_version: int
    max_version: int
    handler: Handler
    #: Lowest version in the ApiVersions answer.
    announced_min: int
    decoder: Decoder | None = None


@dataclass(slots=True)
class Registry:
    """The APIs that are answered, by key."""

    apis: dict[int, Api] = field(default_factory=dict)

    def add(self, api: Api) -> None:
        """ValueError when the key is taken, LookupError when a version has no schema."""
        known = self.apis.get(api.key)
        if known is not None and known.handler is not api.handler:
            raise ValueError(f"API {api.key} is handled twice")
        for version in range(api.min_version, api.max_version + 1):
            _check_schema(api.key, version)
        self.apis[api.key] = api


def _check_schema(api_key: int, version: int) -> None:
    """The classes are made at first use; that they are there is known from kio's index."""
    from kio.schema.index import api_key_map, schema_name_map  # noqa: PLC0415

    from compactd.workers.broker import schemas  # noqa: PLC0415

    known = schema_name_map.get(api_key_map.get(api_key, ""), {})
    if version not in known and not schemas.is_own(api_key, version):
        raise LookupError(f"no schema of API {api_key} version {version}")


REGISTRY = Registry()


def handles(
    api_key: int,
    min_version: int,
    max_version: int,
    *,
    announced_min: int | None = None,
    decoder: Decoder | None = None,
) -> Callable[[Handler], Handler]:
    """Registers a handler. `decoder` reads requests in place of kio; it raises MalformedRequestError."""

    def register(handler: Handler) -> Handler:
        lowest = min_version if announced_min is None else announced_min
        REGISTRY.add(Api(api_key, min_version, max_version, handler, lowest, decoder))
        return handler

    return register


def load_handlers() -> Registry:
    """Imports every module that registers handlers."""
    for name in HANDLER_MODULES:
        importlib.import_module(f"compactd.workers.broker.{name}")
    return REGISTRY


# ---- from frame to answer

#: Requests of more bytes are read, and answers of longer lists are written, in a thread.
_LARGE_REQUEST = 64 << 10
_LONG_LIST = 500
_FEW = 20

_HEADER = struct.Struct(">hhih")
_CORRELATION_ID = struct.Struct(">i")


def parse_header(frame: memoryview, peer: Peer) -> tuple[RequestHeader, int]:
    """The header of a frame, and where its body begins. MalformedRequestError for what gets no answer (facts 2)."""
    try:
        api_key, version, correlation_id, size = _HEADER.unpack_from(frame)
        position = _HEADER.size
        client_id = ""
        if size > 0:
            client_id = str(frame[position : position + size], "utf-8")
            position += size
        api = REGISTRY.apis.get(api_key)
        if api is None:
            raise MalformedRequestError(f"API {api_key} is not served")
        if not api.min_version <= version <= api.max_version:
            if api_key == API_VERSIONS:
                return RequestHeader(api_key, version, correlation_id, client_id, peer, len(frame)), len(frame)
            raise MalformedRequestError(f"version {version} of API {api_key} is not served")
        if is_flexible(api_key, version):
            # Mostly there are no tags, which is one zero.
            position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
        if position > len(frame):
            raise MalformedRequestError("the header reaches over the end")
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedRequestError(f"request header: {error}") from None
    return RequestHeader(api_key, version, correlation_id, client_id, peer, len(frame)), position


class _LongReading:
    """Reading large requests: in a thread, so that everybody else is served meanwhile, and one at a time, so that who sends
    many of them has one thread of us."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[], _T]) -> _T:
        """What it returns or raises."""
        async with self._lock:
            return await self._context.in_thread(work)


#: First four bytes of frames, API and version, whose messages are known.
_READY: set[bytes] = set()


async def get_ready(context: Context, frame: memoryview) -> None:
    """Makes the classes of an API's version when it is first asked: that takes tens of milliseconds."""
    if len(frame) < _HEADER.size or bytes(frame[:4]) in _READY:
        return
    api_key, version = _HEADER.unpack_from(frame)[:2]
    api = REGISTRY.apis.get(api_key)
    if api is not None and api.min_version <= version <= api.max_version:

        def make() -> None:
            prepare_reader(request_class(api_key, version))
            prepare_writer(response_class(api_key, version))

        await context.in_thread(make)
        _READY.add(bytes(frame[:4]))


async def answer(context: Context, frame: memoryview, peer: Peer) -> Encoded | _Close | None:
    """Serves one frame. MalformedRequestError: close the connection."""
    if bytes(frame[:4]) not in _READY:
        await get_ready(context, frame)
    header, position = parse_header(frame, peer)
    api = REGISTRY.apis[header.api_key]
    body = frame[position:]
    if not api.min_version <= header.version <= api.max_version:
        request = None  # ApiVersions of a version to come: its body is not looked at
    elif api.decoder is not None:
        request = api.decoder(header.version, body)
    elif len(body) > _LARGE_REQUEST:
        request = await context.part(_LongReading).run(
            lambda: decode(request_class(header.api_key, header.version), body)
        )
    else:
        request = decode(request_class(header.api_key, header.version), body)
    quotas = context.part(ClientQuotas)
    try:
        result = await quotas.timed(header, api.handler(context, header, request))
        if type(result) is dict and header.api_key not in EXEMPT:
            throttle_ms = quotas.answered(header, result.get("throttle_time", 0))
            if throttle_ms and _tells_throttling(header.api_key, api.max_version):
                result["throttle_time"] = throttle_ms
            if _is_long(result):
                return await context.in_thread(lambda: encode_answer(header, result))
        return encode_answer(header, result)
    except MalformedRequestError:
        raise
    except Exception:
        _LOGGER.exception(
            "a bug in answering API %d version %d of client %.300r", header.api_key, header.version, header.client_id
        )
        return _server_error(header)


def _is_long(result: Mapping[str, Any]) -> bool:
    """Whether a list of the answer, or of one of few things that it lists, is long."""
    for value in result.values():
        if type(value) is list:
            if len(value) > _LONG_LIST:
                return True
            for each in value[:_FEW]:
                if type(each) is dict and any(
                    type(inner) is list and len(inner) > _LONG_LIST for inner in each.values()
                ):
                    return True
    return False


@cache
def _tells_throttling(api_key: int, version: int) -> bool:
    """Whether answers have room for it; versions that have none leave it out."""
    return any(field.name == "throttle_time" for field in layout_of(response_class(api_key, version)).fields)


def encode_answer(header: RequestHeader, result: Answer) -> Encoded | _Close | None:
    """What a handler returned, with its header."""
    if result is None or result is CLOSE:
        return result
    head = response_header(header)
    if isinstance(result, Encoded):
        first = result.parts[0]
        if isinstance(first, bytearray):
            # In one piece with the header: every piece is a call of the kernel.
            first[0:0] = head
        else:
            result.parts.insert(0, head)
        return result
    # The one exception: ApiVersions of a version that is not served is answered as version 0.
    version = header.version
    if header.api_key == API_VERSIONS and not 0 <= version <= REGISTRY.apis[API_VERSIONS].max_version:
        version = 0
    return Encoded([encode(response_class(header.api_key, version), result, head)])


def response_header(header: RequestHeader) -> bytearray:
    """Correlation id and, for flexible versions but never for ApiVersions, an empty section of tags."""
    head = bytearray(_CORRELATION_ID.pack(header.correlation_id))
    if header.api_key != API_VERSIONS and is_flexible(header.api_key, header.version):
        head.append(0)
    return head


def _server_error(header: RequestHeader) -> Encoded | _Close:
    cls = response_class(header.api_key, header.version)
    if any(each.name == "error_code" for each in layout_of(cls).fields):
        return Encoded([encode(cls, {"error_code": -1}, response_header(header))])
    return CLOSE


def total_size(parts: Sequence[Any]) -> int:
    """Bytes of an answer's parts."""
    size = 0
    for part in parts:
        size += len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.length
    return size
