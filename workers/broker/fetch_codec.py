"""Fetch answers by hand: what stands between the records, and the records as ranges of files.

Tested to be what kio writes and reads, for every version.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.reader import Range
from compactd.workers.broker.encoding import write_uvarint
from compactd.workers.broker.requests import Encoded

_FIRST_FLEXIBLE = 12
_FIRST_TOPIC_IDS = 13
#: Fewer bytes of records than this are read and copied: that costs less than a system call of their own.
SMALL = 32 << 10

_TOP = struct.Struct(">ihi")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_V4 = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_LEADER = struct.Struct(">ii")
_DIVERGING = struct.Struct(">iq")
_NO_UUID = bytes(16)


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
        #: None: not asked for. Errors have an empty list.
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
    endpoints: Sequence[tuple[int, str, int]] = (),
) -> Encoded:
    """The body of a FetchResponse v4 to v18; its ranges are closed with it."""
    parts: list[Any] = []
    out = bytearray()
    flexible = version >= _FIRST_FLEXIBLE
    if version >= 7:
        out += _TOP.pack(0, error, session_id)
    else:
        out += b"\0\0\0\0"
    _count(out, len(topics), flexible)
    for topic in topics:
        if version >= _FIRST_TOPIC_IDS:
            out += _NO_UUID if topic.topic_id is None else topic.topic_id.bytes
        else:
            _string(out, topic.name, flexible)
        _count(out, len(topic.partitions), flexible)
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
        _write_endpoints(out, endpoints if version >= 16 else ())
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
        _count(out, len(partition.aborted), flexible)
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


def _write_endpoints(out: bytearray, endpoints: Sequence[tuple[int, str, int]]) -> None:
    if not endpoints:
        out.append(0)
        return
    tag = bytearray()
    write_uvarint(tag, len(endpoints) + 1)
    for node_id, host, port in endpoints:
        tag += _INT32.pack(node_id)
        _string(tag, host, flexible=True)
        tag += _INT32.pack(port)
        tag += b"\0\0"  # no rack, no tags
    out += b"\x01\x00"
    write_uvarint(out, len(tag))
    out += tag


def _count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, count + 1)
    else:
        out += _INT32.pack(count)


def _string(out: bytearray, text: str, flexible: bool) -> None:
    data = text.encode()
    if flexible:
        write_uvarint(out, len(data) + 1)
    else:
        out += _INT16.pack(len(data))
    out += data
