"""Fetch requests and answers by hand: answers are what stands between the records, and the records as ranges of files.

Tested to be what kio reads and writes, for every version.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.reader import Range
from compactd.workers.broker.decoding import MOST_PARTITIONS, MalformedRequestError, read_uvarint, skip_tags
from compactd.workers.broker.encoding import Leader, write_count, write_endpoints, write_string, write_uvarint
from compactd.workers.broker.requests import Encoded

_FIRST_FLEXIBLE = 12
_FIRST_TOPIC_IDS = 13
#: Fewer bytes of records than this are read and copied: that costs less than a system call of their own.
SMALL = 32 << 10

_FIRST_REPLICA_STATE = 15
_LIMITS = struct.Struct(">iiib")
#: One partition of a request, by the version that brought the form.
_ASKED = {
    4: struct.Struct(">iqi"),
    5: struct.Struct(">iqqi"),
    9: struct.Struct(">iiqqi"),
    12: struct.Struct(">iiqiqi"),
}
_TOP = struct.Struct(">ihi")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_V4 = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_LEADER = struct.Struct(">ii")
_DIVERGING = struct.Struct(">iq")
_NO_UUID = bytes(16)
#: Makes a named tuple of a tuple, in half the time that its class needs.
_new = tuple.__new__


class AskedPartition(NamedTuple):
    """What a consumer wants of one partition. -1: it does not know the epoch."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    partition_max_bytes: int


#: A topic's name, or from v13 on its id, where the zero id is None.
TopicKey = str | uuid.UUID | None


class FetchRequest(NamedTuple):
    """FetchRequest v4 to v18."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[AskedPartition]]]
    #: Of a session: what is not read any more.
    forgotten: list[tuple[TopicKey, list[int]]]


def decode_fetch(version: int, data: memoryview) -> FetchRequest:
    """Reads the body of a FetchRequest. MalformedRequestError."""
    try:
        return _decode(version, data)
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedRequestError(f"FetchRequest v{version}: {error}") from None


def _decode(version: int, data: memoryview) -> FetchRequest:
    flexible = version >= _FIRST_FLEXIBLE
    replica_id, position = -1, 0
    if version < _FIRST_REPLICA_STATE:
        (replica_id,), position = _INT32.unpack_from(data), 4
    wait, least, most, isolation = _LIMITS.unpack_from(data, position)
    position += _LIMITS.size
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _LEADER.unpack_from(data, position)
        position += 8
    form = _ASKED[4 if version < 5 else 5 if version < 9 else 9 if version < 12 else 12]
    topics: list[tuple[TopicKey, list[AskedPartition]]] = []
    named = 0
    count, position = _read_count(data, position, flexible)
    for _ in range(count):
        topic, position = _read_topic(data, position, version)
        partition_count, position = _read_count(data, position, flexible)
        partitions: list[AskedPartition] = []
        for _ in range(partition_count):
            values = form.unpack_from(data, position)
            position += form.size
            if flexible:
                number, leader_epoch, offset, last_epoch, _, most_bytes = values
                partitions.append(_new(AskedPartition, (number, leader_epoch, offset, last_epoch, most_bytes)))
                position = position + 1 if data[position] == 0 else skip_tags(data, position)
            elif version >= 9:
                partitions.append(AskedPartition(values[0], values[1], values[2], -1, values[4]))
            else:
                partitions.append(AskedPartition(values[0], -1, values[1], -1, values[-1]))
        if flexible:
            position = position + 1 if data[position] == 0 else skip_tags(data, position)
        topics.append((topic, partitions))
        named += partition_count
        if named > MOST_PARTITIONS:
            raise ValueError(f"more than {MOST_PARTITIONS} partitions")
    forgotten: list[tuple[TopicKey, list[int]]] = []
    if version >= 7:
        count, position = _read_count(data, position, flexible)
        for _ in range(count):
            topic, position = _read_topic(data, position, version)
            number_count, position = _read_count(data, position, flexible)
            numbers = struct.unpack_from(f">{number_count}i", data, position)
            position += 4 * number_count
            if flexible:
                position = skip_tags(data, position)
            forgotten.append((topic, list(numbers)))
    if version >= 11:
        _, position = _read_text(data, position, flexible)  # the consumer's rack
    if flexible:
        replica_id = _read_tags(data, position, version, replica_id)
    return _new(FetchRequest, (replica_id, wait, least, most, isolation, session_id, session_epoch, topics, forgotten))


def _read_topic(data: memoryview, position: int, version: int) -> tuple[TopicKey, int]:
    if version < _FIRST_TOPIC_IDS:
        return _read_text(data, position, version >= _FIRST_FLEXIBLE)
    raw = bytes(data[position : position + 16])
    if len(raw) < 16:
        raise ValueError("an id reaches over the end")
    return (None if raw == _NO_UUID else _uuid_of(raw)), position + 16


@lru_cache(4096)
def _uuid_of(raw: bytes) -> uuid.UUID:
    """Making one takes longer than finding it; most requests name the same few."""
    return uuid.UUID(bytes=raw)


def _read_text(data: memoryview, position: int, flexible: bool) -> tuple[str, int]:
    if flexible and 0 < data[position] < 0x80:
        size, position = data[position] - 1, position + 1
    elif flexible:
        size, position = read_uvarint(data, position)
        size -= 1
    else:
        (size,), position = _INT16.unpack_from(data, position), position + 2
    if size < 0 or position + size > len(data):
        raise ValueError("a string reaches over the end, or is null where it cannot be")
    return str(data[position : position + size], "utf-8"), position + size


def _read_count(data: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    if flexible and 0 < data[position] < 0x80:
        # One byte, mostly.
        count, position = data[position] - 1, position + 1
    elif flexible:
        count, position = read_uvarint(data, position)
        count -= 1
    else:
        (count,), position = _INT32.unpack_from(data, position), position + 4
    if not 0 <= count <= min(len(data) - position, MOST_PARTITIONS):
        raise ValueError(f"an array of {count} elements in {len(data) - position} bytes")
    return count, position


def _read_tags(data: memoryview, position: int, version: int, replica_id: int) -> int:
    """The replica id, which moved into the tagged ReplicaState (number 1) with v15."""
    count, position = read_uvarint(data, position)
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        if position + size > len(data):
            raise ValueError("a tagged field reaches over the end")
        if tag == 1 and version >= _FIRST_REPLICA_STATE:
            (replica_id,) = _INT32.unpack_from(data[position : position + size])
        position += size
    return replica_id


class FetchedPartition:
    """Answer for one partition (facts: kafka-protocol 7.4)."""

    __slots__ = (
        "aborted", "diverging", "error", "high_watermark", "last_stable", "leader", "log_start", "number", "records",
    )  # fmt: skip

    def __init__(self, number: int, error: int = 0) -> None:
        self.number = number
        self.error = error
        self.high_watermark = -1
        self.last_stable = -1
        self.log_start = -1
        #: None: not asked for, or refused by the log. A partition that is unknown has an empty list.
        self.aborted: Sequence[AbortedTransaction] | None = ()
        self.records: Range | None = None
        #: (node id, leader epoch), from v16 on.
        self.leader: tuple[int, int] | None = None
        #: (epoch, end offset) where the follower's log has another history, from v12 on.
        self.diverging: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Bytes of records."""
        return 0 if self.records is None else self.records.length

    def close(self) -> None:
        """Gives the file back, if the answer is not sent."""
        if self.records is not None:
            self.records.close()


class FetchedTopic(NamedTuple):
    name: str
    topic_id: uuid.UUID | None
    partitions: list[FetchedPartition]


def encode_fetch(
    version: int,
    topics: Sequence[FetchedTopic],
    *,
    error: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    endpoints: Sequence[Leader] = (),
) -> Encoded:
    """The body of a FetchResponse v4 to v18; its ranges are closed with it."""
    parts: list[Any] = []
    out = bytearray()
    flexible = version >= _FIRST_FLEXIBLE
    if version >= 7:
        out += _TOP.pack(throttle_ms, error, session_id)
    else:
        out += _INT32.pack(throttle_ms)
    write_count(out, len(topics), flexible)
    for topic in topics:
        if version >= _FIRST_TOPIC_IDS:
            out += _NO_UUID if topic.topic_id is None else topic.topic_id.bytes
        else:
            write_string(out, topic.name, flexible)
        write_count(out, len(topic.partitions), flexible)
        for partition in topic.partitions:
            _write_partition(out, version, partition)
            records = partition.records
            size = 0 if records is None else records.length
            if flexible:
                write_uvarint(out, size + 1)
            else:
                out += _INT32.pack(size)
            if records is not None:
                if size < SMALL:
                    out += records.read()
                    records.close()
                else:
                    parts.append(out)
                    parts.append(records)
                    out = bytearray()
            if flexible:
                _write_tags(out, version, partition)
        if flexible:
            out.append(0)
    if flexible:
        write_endpoints(out, endpoints if version >= 16 else ())
    parts.append(out)
    return Encoded(parts)


def _write_partition(out: bytearray, version: int, partition: FetchedPartition) -> None:
    """All fields before the records."""
    flexible = version >= _FIRST_FLEXIBLE
    if version >= 5:
        out += _PARTITION.pack(
            partition.number, partition.error, partition.high_watermark, partition.last_stable, partition.log_start
        )
    else:
        out += _PARTITION_V4.pack(partition.number, partition.error, partition.high_watermark, partition.last_stable)
    if partition.aborted is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        write_count(out, len(partition.aborted), flexible)
        for each in partition.aborted:
            out += _ABORTED.pack(each.producer_id, each.first_offset)
            if flexible:
                out.append(0)
    if version >= 11:
        out += b"\xff\xff\xff\xff"  # no preferred read replica


def _write_tags(out: bytearray, version: int, partition: FetchedPartition) -> None:
    leader = partition.leader if version >= 16 else None
    diverging = partition.diverging
    if leader is None and diverging is None:
        out.append(0)
        return
    out.append((leader is not None) + (diverging is not None))
    if diverging is not None:
        out += b"\x00\x0d" + _DIVERGING.pack(*diverging) + b"\0"
    if leader is not None:
        out += b"\x01\x09" + _LEADER.pack(*leader) + b"\0"
