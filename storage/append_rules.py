"""What an append is checked against, what comes out of it, and how it is refused (LogValidator; facts 10.1, 10.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import NoReturn

from compactd.config.errors import InvalidRecordError, InvalidTimestampError, MessageTooLargeError
from compactd.config.settings import TopicConfig
from compactd.storage.kernel.validating import NO_KEY, RecordError
from compactd.storage.producer_append import Origin
from compactd.storage.records.batch import BatchHeader

Buffer = bytes | bytearray | memoryview

#: Errors of single records that a message names.
_SHOWN = 3


@dataclass(slots=True)
class Validated:
    """Batches fit to be written."""

    #: Their bytes, offsets assigned.
    data: Buffer
    headers: list[BatchHeader]
    #: Largest record timestamp, -1 for none: what rolling by time looks at.
    max_timestamp: int
    #: Timestamp of every record where the topic's type is LogAppendTime; else -1.
    log_append_time: int = -1
    #: Whether records were written anew.
    converted: bool = False


@dataclass(slots=True)
class AppendRules:
    """What one append is checked against."""

    path: str
    config: TopicConfig
    origin: Origin
    now_ms: int
    leader_epoch: int
    #: Of the first record to come.
    next_offset: int


def check_size(size: int, rules: AppendRules) -> None:
    """MessageTooLargeError for a batch above max.message.bytes."""
    if size > rules.config.max_message_bytes:
        raise MessageTooLargeError(path=rules.path, size=size, limit=rules.config.max_message_bytes)


def refuse(rules: AppendRules, detail: str) -> NoReturn:
    """InvalidRecordError for a batch that is at fault as a whole."""
    raise InvalidRecordError(path=rules.path, detail=detail, record_errors=())


def refuse_records(errors: Sequence[RecordError], earliest: int, latest: int, rules: AppendRules) -> NoReturn:
    """Refuses the whole batch and names its records (LogValidator.processRecordErrors)."""
    named = tuple((index, _text(rules, index, kind, timestamp, earliest, latest)) for index, kind, timestamp in errors)
    shown = "; ".join(f"record {index}: {text}" for index, text in named[:_SHOWN])
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    kind = InvalidRecordError if all(error[1] == NO_KEY for error in errors) else InvalidTimestampError
    raise kind(path=rules.path, detail=shown + more, record_errors=named)


def _text(rules: AppendRules, index: int, kind: int, timestamp: int, earliest: int, latest: int) -> str:
    if kind == NO_KEY:
        return f"Compacted topic cannot accept message without key in topic partition {PurePath(rules.path).name}"
    if kind == 0:
        return "only the log may set the timestamp type LogAppendTime"
    return (
        f"Timestamp {timestamp} of message with offset {index} is out of range. "
        f"The timestamp should be within [{earliest}, {latest}]"
    )
