"""Checks one partition's directory: every segment, and all that says something about the log. Reads only.

What it finds it says with file, position and offsets, and with what Kafka's own recovery would do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compactd.config.errors import CompactdError, CorruptBatchError, CorruptFileError
from compactd.config.settings import TopicConfig
from compactd.storage import files, names
from compactd.storage.epochs import LeaderEpochs
from compactd.storage.findings import FAULT, NOTE, Finding
from compactd.storage.kernel.interface import AbortedTransaction
from compactd.storage.names import TopicPartition
from compactd.storage.partition_metadata import read_partition_metadata
from compactd.storage.producers import ProducerState, read_snapshot
from compactd.storage.records.batch import read_batches
from compactd.storage.records.control import ControlRecordType
from compactd.storage.segment import LogSegment, list_segments
from compactd.storage.verify_keys import duplicate_keys
from compactd.storage.verify_segment import SegmentCheck, check_segment

_KEPT = ".cut"


@dataclass(frozen=True, slots=True)
class Expectations:
    """What the log dir's files say about a partition. None: nothing."""

    clean_shutdown: bool = True
    recovery_point: int | None = None
    log_start_offset: int | None = None
    high_watermark: int | None = None
    cleaner_offset: int | None = None
    #: The topic's id in the cluster's metadata, 22 characters.
    topic_id: str | None = None


@dataclass(slots=True)
class PartitionCheck:
    """Everything found in one partition."""

    topic_partition: TopicPartition
    directory: Path
    findings: list[Finding] = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0
    segments: list[LogSegment] = field(default_factory=list)
    bytes_read: int = 0
    #: Base offset of the first segment that recovery would have to read to mend what was found; None: none.
    recover_from: int | None = None

    @property
    def faults(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == FAULT]


def verify_partition(
    directory: Path,
    topic_partition: TopicPartition,
    config: TopicConfig,
    expected: Expectations,
    *,
    records: bool = False,
    progress: Callable[[int], None] | None = None,
) -> PartitionCheck:
    """Checks a live topic-partition directory. `records`: read every record of every batch, too (slow).

    `progress` is told bytes as they were read. Raises StorageIOError for what cannot be read at all.
    """
    return _PartitionVerifier(directory, topic_partition, config, expected, records, progress).run()


class _PartitionVerifier:
    def __init__(
        self,
        directory: Path,
        name: TopicPartition,
        config: TopicConfig,
        expected: Expectations,
        records: bool,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.directory = directory
        self.name = name
        self.config = config
        self.expected = expected
        self.records = records
        self.progress = progress or (lambda _count: None)
        self.result = PartitionCheck(name, directory)
        self.checks: list[SegmentCheck] = []

    def run(self) -> PartitionCheck:
        try:
            found = sorted(self.directory.iterdir())
        except OSError as error:
            raise files.failed(self.directory, "list", error) from error
        segments = list_segments(self.directory, self.config.index_interval_bytes)
        self.result.segments = segments
        self._check_names(found, {segment.base_offset for segment in segments})
        if segments:
            self._check_segments(segments)
            self._check_order()
        start = self.expected.log_start_offset or 0
        self.result.log_start_offset = max(start, segments[0].base_offset if segments else start)
        self.result.log_end_offset = self.checks[-1].scan.next_offset if self.checks else start
        self._check_snapshots(found, [segment.base_offset for segment in segments])
        self._check_metadata()
        self._check_checkpoints()
        if all(check.is_whole for check in self.checks):
            self._check_epochs()
            self._check_transactions()
            self._check_keys()
        return self.result

    # ---- files

    def _check_names(self, found: Sequence[Path], bases: set[int]) -> None:
        for path in found:
            parsed = names.parse_segment_name(path.name)
            if parsed is None:
                self._check_other_name(path)
            elif parsed.suffix == names.DELETED:
                self._note("DELETED_FILE", path, "waits to be removed", repair="the next start removes it")
            elif parsed.suffix:
                detail = "is left over from a clean or a split that did not end"
                self._fault("UNFINISHED_SWAP", path, detail, repair="the next start finishes or drops it")
            elif parsed.kind not in (names.LOG, names.SNAPSHOT) and parsed.base_offset not in bases:
                self._fault("ORPHAN_INDEX", path, "there is no .log beside it", repair="the next start removes it")

    def _check_other_name(self, path: Path) -> None:
        if path.name in (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA):
            return
        if path.name.endswith(files.TEMPORARY):
            self._note("TEMPORARY_FILE", path, "is left over from a write that did not end")
        elif path.name.endswith(_KEPT):
            self._note("KEPT_BY_REPAIR", path, "was cut off by a repair and kept; remove it when it is not needed")
        elif path.is_dir():
            self._note("FOREIGN_DIRECTORY", path, "does not belong into a partition's directory")
        else:
            self._note("FOREIGN_FILE", path, "is no file of Kafka's")

    def _check_segments(self, segments: Sequence[LogSegment]) -> None:
        point = self.expected.recovery_point or 0
        floor = max((s.base_offset for s in segments if s.base_offset <= point), default=0)
        clean = self.expected.clean_shutdown
        for segment in segments:
            is_active = segment is segments[-1]
            flushed = clean or segment.base_offset < floor
            try:
                check = check_segment(
                    segment,
                    self.name,
                    is_active=is_active,
                    is_flushed=flushed,
                    # After an unclean stop recovery rebuilds these indexes; the active one's are preallocated.
                    is_closed=clean or (not is_active and flushed),
                )
            except CorruptFileError as error:
                self._fault("UNREADABLE", Path(error.path), error.reason, error.position)
                continue
            if not flushed:
                self._soften(check)
            self.checks.append(check)
            self._take(check.findings, segment)
            self.progress(segment.size)
            self.result.bytes_read += segment.size
            if self.records and check.is_whole:
                self._check_records(segment)

    def _soften(self, check: SegmentCheck) -> None:
        """Indexes that recovery rebuilds at the next start anyhow are no faults after an unclean stop."""
        kinds = ("OFFSET_INDEX", "TIME_INDEX", "MISSING_INDEX", "TRANSACTION_INDEX")
        check.findings = [
            Finding(
                NOTE,
                each.code,
                each.path,
                each.detail,
                each.position,
                each.offset,
                "the next start rebuilds it",
                self.name,
            )
            if each.code in kinds
            else each
            for each in check.findings
        ]

    def _check_records(self, segment: LogSegment) -> None:
        for batch in read_batches(segment.log_path, 0, segment.size):
            try:
                batch.records()
            except CorruptBatchError as error:
                detail = f"offsets {error.base_offset} to {error.last_offset}: {error.reason}"
                self._fault("UNREADABLE_RECORDS", segment.log_path, detail, error.position, error.base_offset)

    def _check_order(self) -> None:
        """A segment ends below the next one's base."""
        for check, following in zip(self.checks, self.checks[1:], strict=False):
            upper = following.segment.base_offset
            if check.scan.next_offset > upper:
                detail = f"it reaches to offset {check.scan.next_offset - 1}, the next segment starts at {upper}"
                self._fault("OVERLAP", check.segment.log_path, detail, offset=upper)

    def _check_snapshots(self, found: Sequence[Path], bases: Sequence[int]) -> None:
        end = self.result.log_end_offset
        offsets = []
        for path in found:
            parsed = names.parse_segment_name(path.name)
            if parsed is None or parsed.kind != names.SNAPSHOT or parsed.suffix:
                continue
            offsets.append(parsed.base_offset)
            try:
                read_snapshot(path)
            except CorruptFileError as error:
                repair = "the next start removes it and reads the log instead"
                self._fault("SNAPSHOT", path, error.reason, error.position, repair=repair)
            if parsed.base_offset > end and all(check.is_whole for check in self.checks):
                detail = f"holds the producers at offset {parsed.base_offset}, beyond the log's end {end}"
                self._fault("SNAPSHOT_BEYOND_END", path, detail, repair="the next start removes it")
        stray = sorted(set(offsets) - set(bases))
        if stray and bases and stray[-1] >= bases[-1]:
            stray.pop()
        for offset in stray:
            path = self.directory / names.snapshot_name(offset)
            self._note("STRAY_SNAPSHOT", path, "is at no segment's base", repair="the next start removes it")

    def _check_metadata(self) -> None:
        path = self.directory / names.PARTITION_METADATA
        try:
            found = read_partition_metadata(path)
        except CorruptFileError as error:
            self._fault("PARTITION_METADATA", path, error.reason, error.position)
            return
        if found is not None and self.expected.topic_id not in (None, found.text):
            detail = f"says topic id {found.text}, the cluster's metadata say {self.expected.topic_id}"
            self._fault("TOPIC_ID", path, detail)

    def _check_checkpoints(self) -> None:
        """The log dir's entries for this partition against the log."""
        end, expected = self.result.log_end_offset, self.expected
        if not all(check.is_whole for check in self.checks):
            return
        parent = self.directory.parent
        for name, code, offset, repair in (
            ("recovery-point-offset-checkpoint", "RECOVERY_POINT", expected.recovery_point, "the next start lowers it"),
            (
                "log-start-offset-checkpoint",
                "LOG_START_OFFSET",
                expected.log_start_offset,
                "the next start empties the log",
            ),
            ("replication-offset-checkpoint", "HIGH_WATERMARK", expected.high_watermark, "the next start lowers it"),
            ("cleaner-offset-checkpoint", "CLEANER_OFFSET", expected.cleaner_offset, "the cleaner begins anew"),
        ):
            if offset is not None and offset > end:
                self._fault(
                    code, parent / name, f"says {offset}, beyond the log's end {end}", offset=offset, repair=repair
                )
        point = expected.recovery_point
        if expected.clean_shutdown and point is not None and point < end:
            detail = f"the log was stopped cleanly at offset {point}, and ends at {end}"
            self._fault(
                "END_MOVED", self.checks[-1].segment.log_path if self.checks else self.directory, detail, offset=end
            )

    # ---- what the batches say

    def _check_epochs(self) -> None:
        path = self.directory / names.LEADER_EPOCH_CHECKPOINT
        rebuilt = "recovery assigns the epochs of the batches it reads"
        try:
            epochs = LeaderEpochs.read(path)
        except CorruptFileError as error:
            self._fault("LEADER_EPOCHS", path, error.reason, error.position, repair=rebuilt)
            return
        changes = [change for check in self.checks for change in check.scan.epochs]
        if not self.expected.clean_shutdown and self.checks:
            # Recovery adds what it reads.
            point = self.expected.recovery_point or 0
            for epoch, offset in changes:
                if offset >= point and (epochs.latest_epoch is None or epoch > epochs.latest_epoch):
                    epochs.assign(epoch, offset)
        for epoch, offset in epochs.entries:
            if offset > self.result.log_end_offset:
                detail = f"epoch {epoch} starts at {offset}, beyond the log's end {self.result.log_end_offset}"
                self._fault("LEADER_EPOCHS", path, detail, offset=offset, repair="the next start drops it")
        for epoch, offset in changes:
            if offset < self.result.log_start_offset:
                continue
            known = max(((e, start) for e, start in epochs.entries if start <= offset), default=None)
            if known is None:
                if epochs.entries or path.exists():
                    self._fault(
                        "LEADER_EPOCHS", path, f"no epoch covers offset {offset}, whose batch has {epoch}", offset=offset,
                        repair=rebuilt,
                    )  # fmt: skip
                    return
            elif known[0] != epoch:
                detail = f"the batch at offset {offset} has leader epoch {epoch}, the checkpoint says {known[0]}"
                self._fault("LEADER_EPOCHS", path, detail, offset=offset, repair=rebuilt)

    def _check_transactions(self) -> None:
        """Stored aborted transactions against the markers and the data in the log."""
        state = ProducerState(2**62, str(self.directory))
        for check in self.checks:
            computed: dict[tuple[int, int], AbortedTransaction] = {}
            aborts: set[tuple[int, int]] = set()
            try:
                for batch in check.scan.produced():
                    completed = state.update(batch, batch.marker)
                    if batch.marker is not None and batch.marker.type == ControlRecordType.ABORT:
                        aborts.add((batch.producer_id, batch.base_offset))
                    if completed is not None and completed.is_aborted:
                        entry = completed.as_aborted()
                        computed[entry.producer_id, entry.last_offset] = entry
            except CompactdError as error:
                self._fault("TRANSACTION", check.segment.log_path, str(error))
                return
            self._compare_transactions(check, computed, aborts)

    def _compare_transactions(
        self,
        check: SegmentCheck,
        computed: dict[tuple[int, int], AbortedTransaction],
        aborts: set[tuple[int, int]],
    ) -> None:
        path = check.segment.transaction_index_path
        flushed = self.expected.clean_shutdown or check.segment.base_offset < (self.expected.recovery_point or 0)
        severity = FAULT if flushed else NOTE
        repair = "recovery rebuilds it from the .log"
        stored = {(entry.producer_id, entry.last_offset): entry for entry in check.aborted}
        for number, (key, entry) in enumerate(stored.items()):
            wanted = computed.get(key)
            detail = ""
            if key not in aborts:
                detail = f"offset {entry.last_offset} is no ABORT marker of producer {entry.producer_id}"
            elif wanted is not None and entry.first_offset > wanted.first_offset:
                detail = f"it starts at {entry.first_offset}, the transaction's first batch is at {wanted.first_offset}"
            elif wanted is not None and entry.last_stable_offset not in (
                wanted.last_stable_offset,
                # A follower that appends many batches at once counts transactions that begin in the same append.
                *(first for first in self._transaction_starts() if first > entry.last_offset),
            ):
                detail = f"its last stable offset is {entry.last_stable_offset}, not {wanted.last_stable_offset}"
            if detail:
                self._add(severity, "TRANSACTION_INDEX", path, f"entry {number}: {detail}", number * 34, None, repair)
        for key, entry in computed.items():
            if key not in stored and not any(f.code == "TRANSACTION_INDEX" for f in check.findings):
                detail = (
                    f"the transaction of producer {entry.producer_id} that was aborted at offset {entry.last_offset} is "
                    "missing: its records look committed"
                )
                self._add(severity, "TRANSACTION_INDEX", path, detail, None, entry.last_offset, repair)

    def _transaction_starts(self) -> Iterator[int]:
        for check in self.checks:
            for batch in check.scan.produced():
                if batch.is_transactional and not batch.is_control:
                    yield batch.base_offset

    def _check_keys(self) -> None:
        """In the clean section of a compacted log each key has one record."""
        cleaned = self.expected.cleaner_offset
        if not self.config.compact or cleaned is None or cleaned > self.result.log_end_offset:
            return
        bases = [check.segment.base_offset for check in self.checks]
        section = [
            check
            for check, following in zip(self.checks, [*bases[1:], self.result.log_end_offset], strict=True)
            if following <= cleaned and check.segment.size
        ]
        try:
            found = duplicate_keys(
                [check.segment for check in section],
                [entry for check in self.checks for entry in check.aborted],
                cleaned,
            )
        except CorruptBatchError as error:
            detail = f"offsets {error.base_offset} to {error.last_offset}: {error.reason}"
            self._fault("UNREADABLE_RECORDS", Path(error.path), detail, error.position, error.base_offset)
            return
        if found.count:
            shown = ", ".join(f"{key!r} at {first} and {last}"[1:] for key, first, last in found.examples)
            detail = f"{found.count} records below the cleaner's checkpoint {cleaned} are superseded: {shown}"
            self._fault("DUPLICATE_KEYS", self.directory, detail)

    # ---- results

    def _take(self, findings: Sequence[Finding], segment: LogSegment) -> None:
        for finding in findings:
            self.result.findings.append(finding)
            if finding.severity == FAULT:
                self._recover_from(segment.base_offset)

    def _recover_from(self, base_offset: int) -> None:
        known = self.result.recover_from
        self.result.recover_from = base_offset if known is None else min(known, base_offset)

    def _fault(
        self,
        code: str,
        path: Path,
        detail: str,
        position: int | None = None,
        offset: int | None = None,
        repair: str = "",
    ) -> None:
        self._add(FAULT, code, path, detail, position, offset, repair)

    def _note(self, code: str, path: Path, detail: str, repair: str = "") -> None:
        self._add(NOTE, code, path, detail, None, None, repair)

    def _add(
        self, severity: str, code: str, path: Path, detail: str, position: int | None, offset: int | None, repair: str
    ) -> None:
        self.result.findings.append(Finding(severity, code, path, detail, position, offset, repair, self.name))
        parsed = names.parse_segment_name(path.name)
        if severity == FAULT and parsed is not None and parsed.kind == names.TRANSACTION_INDEX:
            self._recover_from(parsed.base_offset)
