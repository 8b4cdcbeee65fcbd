"""The one hierarchy of errors. A class's docstring is the message a person reads; its fields fill the braces.

Exit codes are stable: 0 done, 1 faults found, 2 wrong usage, 3 refused, 4 I/O error.
"""

from __future__ import annotations

from typing import Any, ClassVar

EXIT_DONE = 0
EXIT_FAULTS = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_IO = 4


class CompactdError(Exception):
    """Something went wrong: {detail}."""

    exit_code: ClassVar[int] = EXIT_FAULTS

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        text = (type(self).__doc__ or "").strip()
        super().__init__(" ".join(text.split()).format(**fields))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.fields))

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None


def _rebuild(kind: type[CompactdError], fields: dict[str, Any]) -> CompactdError:
    """Unpickles an error that crossed a process border."""
    return kind(**fields)


class UsageError(CompactdError):
    """{detail}. See --help."""

    exit_code = EXIT_USAGE


class SettingError(UsageError):
    """{source}: setting {name} = {value!r}: {reason}."""


class RefusedError(CompactdError):
    """{path}: refused, {reason}. {advice}"""

    exit_code = EXIT_REFUSED


class LogDirLockedError(RefusedError):
    """{path}: its .lock is held, so a broker or another compactd is using this log dir. Stop it first, or work on a
    copy.
    """


class NoSpaceError(RefusedError):
    """{path}: {needed} bytes are needed for {what} and {free} are free. Free some space, or lower segment.bytes so
    that groups are smaller.
    """


class NotWritableError(RefusedError):
    """{path}: this process may not {action} it. Run as the owner of the log dir, or mend the file's permissions."""


class FaultError(CompactdError):
    """{path}: {reason}."""


class CorruptFileError(FaultError):
    """{path}: {reason} at byte {position}. {advice}"""


class CorruptBatchError(FaultError):
    """{path}: damaged batch at byte {position}, offsets {base_offset} to {last_offset}: {reason}. The files were
    left as they were; restore this segment from a replica or a backup, or run Kafka's own recovery.
    """

    # Fields beside those in the message: expected_crc and found_crc (int, or None where the CRC is not the fault).


class OffsetOverflowError(FaultError):
    """{path}: offset {offset} is further than 2147483647 from the segment's base {base_offset}. The segment has to
    be split before it can be cleaned.
    """

    # Field beside those in the message: source (index of the source segment in its group).


class CleaningAbortedError(CompactdError):
    """Cleaning of {path} was stopped: {reason}. Nothing was changed by the unfinished group."""


class CleaningStateError(CompactdError):
    """{topic_partition}: cannot {action}, it is {state}."""


class StorageIOError(CompactdError):
    """{path}: {action} failed: {reason}. The partition keeps its last complete state; check the disk, then try
    again.
    """

    exit_code = EXIT_IO


class ConnectionFailedError(StorageIOError):
    """{path}: {action} failed: {reason}."""


class LogError(CompactdError):
    """{path}: {detail}."""

    # Errors that a partition log answers a request with. `kafka_name` and `kafka_code` are those of Kafka's protocol, so
    # that a server passes them on as they are.
    kafka_name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    kafka_code: ClassVar[int] = -1


class OffsetOutOfRangeError(LogError):
    """{path}: offset {offset} is outside the log, which {detail}."""

    kafka_name = "OFFSET_OUT_OF_RANGE"
    kafka_code = 1


class CorruptMessageError(LogError):
    """{path}: refused a damaged batch: {detail}."""

    kafka_name = "CORRUPT_MESSAGE"
    kafka_code = 2


class MessageTooLargeError(LogError):
    """{path}: refused a batch of {size} bytes, more than max.message.bytes, which is {limit}."""

    kafka_name = "MESSAGE_TOO_LARGE"
    kafka_code = 10


class RecordListTooLargeError(LogError):
    """{path}: refused batches of {size} bytes in all, more than segment.bytes, which is {limit}."""

    kafka_name = "RECORD_LIST_TOO_LARGE"
    kafka_code = 18


class InvalidRecordError(LogError):
    """{path}: refused a batch: {detail}."""

    # Field beside those in the message: record_errors, a tuple of (record index in the batch, text), empty where the
    # batch as a whole is at fault.
    kafka_name = "INVALID_RECORD"
    kafka_code = 87


class InvalidTimestampError(InvalidRecordError):
    """{path}: refused a batch: {detail}."""

    kafka_name = "INVALID_TIMESTAMP"
    kafka_code = 32


class OutOfOrderSequenceError(LogError):
    """{path}: refused a batch of producer {producer_id} at offset {offset}: {detail}."""

    kafka_name = "OUT_OF_ORDER_SEQUENCE_NUMBER"
    kafka_code = 45


class InvalidProducerEpochError(LogError):
    """{path}: refused a batch of producer {producer_id} at offset {offset}: {detail}."""

    kafka_name = "INVALID_PRODUCER_EPOCH"
    kafka_code = 47


class InvalidTransactionStateError(LogError):
    """{path}: refused a batch of producer {producer_id} at offset {offset}: {detail}."""

    kafka_name = "INVALID_TXN_STATE"
    kafka_code = 48


class TransactionCoordinatorFencedError(LogError):
    """{path}: refused a marker of producer {producer_id} at offset {offset}: {detail}."""

    kafka_name = "TRANSACTION_COORDINATOR_FENCED"
    kafka_code = 52


class LogOfflineError(LogError):
    """{path}: the log takes no more changes after an I/O error: {detail}. Load it again once the disk is well."""

    kafka_name = "KAFKA_STORAGE_ERROR"
    kafka_code = 56
    exit_code = EXIT_IO


class UnsupportedCompressionTypeError(LogError):
    """{path}: refused a batch: {detail}."""

    kafka_name = "UNSUPPORTED_COMPRESSION_TYPE"
    kafka_code = 76


class InconsistentTopicIdError(LogError):
    """{path}: it belongs to the topic with id {found}, not to {wanted}."""

    kafka_name = "INCONSISTENT_TOPIC_ID"
    kafka_code = 103


class UnexpectedOffsetError(LogError):
    """{path}: refused replicated batches: {detail}."""

    # Kafka's UnexpectedAppendOffsetException and OffsetsOutOfOrderException: a follower's fetch went wrong.


class WorkerBootError(CompactdError):
    """This worker cannot run: {detail}. It is not started again; mend the cause, then restart compactd or send it
    SIGHUP.
    """


class NotRunningError(RefusedError):
    """{path}: no compactd is running there. Start one with `compactd serve`, or name its --run-dir or --config."""


class NoAnswerError(CompactdError):
    """{path}: compactd is running but did not answer within {seconds} s. Its log says what it is doing."""

    exit_code = EXIT_IO


class ServerError(CompactdError):
    """{what}: the server refused: {reason}."""

    # Field beside those in the message, where a broker answered: code (of Kafka's protocol).
    exit_code = EXIT_REFUSED


class DaemonError(CompactdError):
    """compactd cannot go on: {detail}."""

    exit_code = EXIT_IO
