"""Names of files and directories in a log dir, both ways (LogFileUtils, LocalLog, UnifiedLog; facts 1.1 and 1.6)."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from dataclasses import dataclass
from typing import Literal

from compactd.config.errors import RefusedError

#: Kinds of segment files: what stands between the dots.
LOG = "log"
OFFSET_INDEX = "index"
TIME_INDEX = "timeindex"
TRANSACTION_INDEX = "txnindex"
SNAPSHOT = "snapshot"

#: Waiting to be deleted; output of an unfinished clean or split; finished output being swapped in.
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"

DELETE_DIR = "-delete"
FUTURE_DIR = "-future"
STRAY_DIR = "-stray"

#: At the top of a log dir; the offset checkpoints' names are in `checkpoints`.
LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"

#: In a partition's directory, beside the segments.
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
#: A directory of tiered storage at the top of a log dir; Kafka's loader passes it by.
REMOTE_LOG_INDEX_CACHE = "remote-log-index-cache"

LARGEST_OFFSET = 2**63 - 1
#: No name of a log dir's entry is longer, in characters.
LONGEST_DIR_NAME = 255

DirState = Literal["live", "delete", "future", "stray"]

_SEGMENT_FILE = re.compile(r"([0-9]{20})\.(log|index|timeindex|txnindex|snapshot)(\.deleted|\.cleaned|\.swap)?")
_MARKED_DIR = re.compile(r"\S+-\S+\.\S+-(delete|future|stray)", re.DOTALL)
_INTEGER = re.compile(r"\+?[0-9]{1,10}")
_LONGEST_TOPIC = 249
_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{_LONGEST_TOPIC}}}")
_STATES: dict[str, DirState] = {"delete": "delete", "future": "future", "stray": "stray"}


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition; str() is its directory's plain name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class SegmentFileName:
    """A segment file's name taken apart."""

    base_offset: int
    #: LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX or SNAPSHOT.
    kind: str
    #: "", DELETED, CLEANED or SWAP.
    suffix: str

    def __str__(self) -> str:
        return f"{self.base_offset:020d}.{self.kind}{self.suffix}"


@dataclass(frozen=True, slots=True)
class PartitionDir:
    """A partition's directory as its name tells it.

    Of a name in state "delete" or "stray" the topic may be shortened (the whole name fits 255 characters).
    """

    topic_partition: TopicPartition
    state: DirState
    #: The directory's name itself.
    name: str

    @property
    def is_cluster_metadata(self) -> bool:
        """The KRaft log, which Kafka's LogManager passes by and no cleaner may touch."""
        return self.topic_partition.topic == CLUSTER_METADATA_TOPIC


def log_name(base_offset: int, suffix: str = "") -> str:
    return _segment_name(base_offset, LOG, suffix)


def offset_index_name(base_offset: int, suffix: str = "") -> str:
    return _segment_name(base_offset, OFFSET_INDEX, suffix)


def time_index_name(base_offset: int, suffix: str = "") -> str:
    return _segment_name(base_offset, TIME_INDEX, suffix)


def transaction_index_name(base_offset: int, suffix: str = "") -> str:
    return _segment_name(base_offset, TRANSACTION_INDEX, suffix)


def snapshot_name(offset: int, suffix: str = "") -> str:
    """Producer state up to (exclusive) `offset`."""
    return _segment_name(offset, SNAPSHOT, suffix)


def parse_segment_name(name: str) -> SegmentFileName | None:
    """Takes a segment file's name apart; None for any other name. Twenty digits, offset below 2^63."""
    found = _SEGMENT_FILE.fullmatch(name)
    if found is None or int(found[1]) > LARGEST_OFFSET:
        return None
    return SegmentFileName(int(found[1]), found[2], found[3] or "")


def is_topic_name(name: str) -> bool:
    """Whether Kafka would create a topic of this name (1 to 249 of letters, digits, dot, dash, underscore)."""
    return name not in (".", "..") and _TOPIC.fullmatch(name) is not None


def topic_name_fault(name: str) -> str | None:
    """Why no topic may have this name, as Kafka says it (Topic.validate); None when one may."""
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > _LONGEST_TOPIC:
        reason = f"the length of '{name}' is longer than the max allowed length {_LONGEST_TOPIC}"
    elif not is_topic_name(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None if reason is None else f"Topic name is invalid: {reason}"


def parse_partition_dir(name: str) -> PartitionDir:
    """Reads a directory's name as Kafka's LocalLog.parseTopicPartitionName does.

    RefusedError on any other name: such a directory in a log dir keeps a broker from starting too.
    """
    marked = _MARKED_DIR.fullmatch(name)
    if "-" not in name or (name.endswith((DELETE_DIR, FUTURE_DIR, STRAY_DIR)) and marked is None):
        raise _foreign(name)
    state: DirState = _STATES[marked[1]] if marked else "live"
    plain = name[: name.rindex(".")] if marked else name
    topic, _, partition = plain.rpartition("-")
    if not topic or not _INTEGER.fullmatch(partition) or int(partition) > 2**31 - 1:
        raise _foreign(name)
    return PartitionDir(TopicPartition(topic, int(partition)), state, name)


def delete_dir_name(topic_partition: TopicPartition, unique: str | None = None) -> str:
    """Name of a partition being deleted; the topic is shortened so that the whole has 255 characters at most.

    `unique`: 32 hex digits, made up when not given.
    """
    return _shortened_dir_name(topic_partition, unique, DELETE_DIR)


def stray_dir_name(topic_partition: TopicPartition, unique: str | None = None) -> str:
    """Name of a partition that was set aside; shortened like `delete_dir_name`."""
    return _shortened_dir_name(topic_partition, unique, STRAY_DIR)


def future_dir_name(topic_partition: TopicPartition, unique: str | None = None) -> str:
    """Name of a replica being moved here from another log dir; never shortened, as in Kafka."""
    return f"{topic_partition}.{unique or uuid.uuid4().hex}{FUTURE_DIR}"


def uuid_text(value: uuid.UUID) -> str:
    """Kafka's form of a topic or directory id: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def parse_uuid(text: str) -> uuid.UUID:
    """Reads Kafka's form of an id. ValueError unless it holds exactly 16 bytes."""
    if len(text) > 24 or not re.fullmatch(r"[A-Za-z0-9_-]*={0,2}", text):
        raise ValueError(f"{text[:30]!r} is not an id in URL-safe base64")
    try:
        raw = base64.urlsafe_b64decode(text.rstrip("=") + "==")
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not an id in URL-safe base64") from error
    if len(raw) != 16:
        raise ValueError(f"{text!r} holds {len(raw)} bytes where an id has 16")
    return uuid.UUID(bytes=raw)


def _segment_name(offset: int, kind: str, suffix: str) -> str:
    if not 0 <= offset <= LARGEST_OFFSET:
        raise ValueError(f"{offset} is no offset")
    return f"{offset:020d}.{kind}{suffix}"


def _shortened_dir_name(topic_partition: TopicPartition, unique: str | None, suffix: str) -> str:
    tail = f"-{topic_partition.partition}.{unique or uuid.uuid4().hex}{suffix}"
    return topic_partition.topic[: LONGEST_DIR_NAME - len(tail)] + tail


def _foreign(name: str) -> RefusedError:
    return RefusedError(
        path=name,
        reason="the name is not in the form of topic-partition or topic-partition.uniqueId-delete (-future, -stray)",
        advice="Kafka does not start on such a directory either; move it out of the log dir.",
    )
