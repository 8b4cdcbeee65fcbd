"""The daemon's status as a head line and tables, the same for a pipe, a terminal and the live screen; and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from compactd.coordinator.control.messages import (
    CleaningStatus,
    JobStatus,
    LogDirStatus,
    PartitionStatus,
    QuarantineStatus,
    Status,
    WorkerStatus,
)
from compactd.scripts.output import human_bytes, human_count, human_ms, human_second, percent

#: A worker that says something every second and was silent for this long is worth a word.
_SILENT_SECONDS = 5.0
#: Shown unless all are asked for.
MAX_PARTITIONS = 20


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a title, or, without rows, lines alone."""

    title: str
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    #: Columns that a narrow terminal may do without, the first one first.
    droppable: tuple[str, ...] = ()
    #: Below the table.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """Everything that is shown."""

    head: str
    #: What a person should know first; empty when all is well.
    alarms: tuple[str, ...]
    sections: tuple[Section, ...] = field(default=())


def view_of(status: Status, max_partitions: int | None = MAX_PARTITIONS) -> View:
    """`max_partitions` None: all that the status has."""
    cleaning = status.cleaning
    sections = [_processes(status.workers, cleaning.jobs)]
    if cleaning.jobs:
        sections.append(_cleans(cleaning.jobs))
    sections.append(_partitions(cleaning, status.now_ms, max_partitions))
    if cleaning.quarantine:
        sections.append(_quarantine(cleaning.quarantine, status.now_ms))
    if status.offline:
        sections.append(_named("Not served", "because", status.offline, max_partitions))
    if status.moves:
        sections.append(_named("On their way", "to", status.moves, max_partitions))
    sections.append(_log_dirs(status.log_dirs))
    sections.append(_rest(status))
    return View(_head(status), tuple(_alarms(status)), tuple(sections))


def to_json(status: Status) -> dict[str, Any]:
    """The whole status; names as other commands write them."""
    fields: dict[str, Any] = _camel(status)
    return fields


# ---- the parts


def _head(status: Status) -> str:
    cluster = f", cluster {status.cluster_id}" if status.cluster_id else ""
    return (
        f"compactd {status.version} is {status.state}, up {human_ms(status.up_seconds * 1000)}, pid {status.pid}; "
        f"node {status.node_id}{cluster}; "
        f"{_counted(status.topics, 'topic')}, {_counted(status.partitions, 'partition')}"
    )


def _alarms(status: Status) -> list[str]:
    alarms = []
    failed = [each for each in status.log_dirs if each.offline_because]
    alarms += [f"log dir {each.path} is offline: {each.offline_because}" for each in failed]
    alarms += [
        f"{each.name} is given up: {each.last_exit or 'see the log'}"
        for each in status.workers
        if each.state == "given up"
    ]
    if status.offline and status.state == "running":
        count = len(status.offline)
        alarms.append(f"{_counted(count, 'partition')} {'is' if count == 1 else 'are'} not served")
    if status.cleaning.quarantine:
        alarms.append(f"{_counted(len(status.cleaning.quarantine), 'partition')} in quarantine")
    return alarms


def _processes(workers: Sequence[WorkerStatus], jobs: Sequence[JobStatus]) -> Section:
    # What the coordinator knows of a clean is newer than the last heartbeat.
    busy = {job.worker: f"{job.phase} {job.partition}" for job in jobs}
    rows = []
    for worker in workers:
        phase = busy.get(worker.name, worker.phase) if worker.state == "running" else worker.state
        if worker.silent_seconds > _SILENT_SECONDS:
            phase += f", silent for {human_ms(worker.silent_seconds * 1000)}"
        rows.append(
            (
                worker.name,
                phase,
                worker.address or "-",
                "-" if worker.pid is None else str(worker.pid),
                human_ms(worker.up_seconds * 1000) if worker.up_seconds else "-",
                str(worker.restarts),
                worker.last_exit or "-",
            )
        )
    return Section(
        "Processes",
        ("process", "phase", "listens at", ">pid", ">up", ">restarts", "last exit"),
        tuple(rows),
        droppable=("last exit", "pid", "up", "listens at"),
    )


def _cleans(jobs: Sequence[JobStatus]) -> Section:
    rows = []
    for job in jobs:
        freed = job.bytes_read - job.bytes_written
        rows.append(
            (
                job.worker,
                job.partition,
                job.phase,
                percent(min(job.bytes_read, job.bytes_total), job.bytes_total),
                f"{job.bytes_per_second / 1e6:.1f}",
                human_count(round(job.records_per_second)),
                f"{100 * job.map_fill:.0f} %",
                human_bytes(max(freed, 0)) if job.bytes_written else "-",
                "-" if job.seconds_left is None else human_ms(round(job.seconds_left) * 1000),
            )
        )
    return Section(
        "Cleaning now",
        ("cleaner", "partition", "phase", ">done", ">MB/s", ">records/s", ">map", ">freed", ">time left"),
        tuple(rows),
        droppable=("freed", "phase", "done"),
    )


def _partitions(cleaning: CleaningStatus, now_ms: int, most: int | None) -> Section:
    notes = []
    if cleaning.paused:
        names = "everything" if "*" in cleaning.paused else ", ".join(cleaning.paused)
        notes.append(f"paused: {names}; `compactd resume` goes on")
    if cleaning.held_by:
        notes.append(f"no clean is begun: {cleaning.held_by}")
    ordered = sorted(
        cleaning.partitions,
        key=lambda each: (
            1.0 if each.dirty_ratio is None else -each.dirty_ratio,
            -each.dirty_bytes,
            -each.size,
            _order(each),
        ),
    )
    # Without a ratio: all of a compacted log is in its active segment, or the topic is not compacted at all.
    compacted = [each for each in ordered if each.dirty_ratio is not None or (each.blocked_by and each.size)]
    shown = ordered if most is None else compacted[:most]
    left = len(compacted) - len(shown)
    if left > 0:
        notes.append(f"and {human_count(left)} less dirty ones: --all lists them")
    if not shown:
        notes.insert(0, "no compacted topic has records")
    rows = tuple(_partition_row(each, now_ms) for each in shown)
    return Section(
        "Partitions by dirty ratio",
        ("partition", ">ratio", ">dirty", ">size", ">segments", "not cleaned now because", "clears"),
        rows,
        droppable=("segments", "size", "dirty", "clears"),
        notes=tuple(notes),
    )


def _order(partition: PartitionStatus) -> tuple[str, int]:
    """users-9 before users-10."""
    topic, _, number = partition.name.rpartition("-")
    return topic, int(number) if number.isdecimal() else -1


def _partition_row(partition: PartitionStatus, now_ms: int) -> tuple[str, ...]:
    is_compacted = partition.dirty_ratio is not None or partition.blocked_by
    return (
        partition.name,
        f"{partition.dirty_ratio:.3f}" if partition.dirty_ratio is not None else "-",
        human_bytes(partition.dirty_bytes) if is_compacted else "-",
        human_bytes(partition.size),
        str(partition.segments),
        partition.blocked_by or ("-" if is_compacted else "its topic is not compacted"),
        _when(partition.clears_at_ms, now_ms),
    )


def _quarantine(entries: Sequence[QuarantineStatus], now_ms: int) -> Section:
    rows = []
    for entry in entries:
        place = entry.fields.get("path", "")
        if "position" in entry.fields:
            place += f" at byte {entry.fields['position']}"
        rows.append(
            (
                entry.partition,
                human_second(entry.since_ms),
                str(entry.attempts),
                "by hand" if entry.retry_at_ms is None else _when(entry.retry_at_ms, now_ms),
                place or "-",
                entry.reason,
            )
        )
    return Section(
        "Quarantine",
        ("partition", "since", ">attempts", "next try", "file", "reason"),
        tuple(rows),
        droppable=("file", "attempts", "since"),
        notes=("`compactd retry` releases them at once",),
    )


def _named(title: str, what: str, told: dict[str, str], most: int | None) -> Section:
    """Partitions, and what there is to say of each."""
    names = sorted(told)
    shown = names if most is None else names[:most]
    left = len(names) - len(shown)
    return Section(
        title,
        ("partition", what),
        tuple((name, told[name]) for name in shown),
        notes=(f"and {human_count(left)} more: --all lists them",) if left else (),
    )


def _log_dirs(log_dirs: Sequence[LogDirStatus]) -> Section:
    rows = []
    for each in log_dirs:
        state = f"offline: {each.offline_because}" if each.offline_because else "online"
        if each.cordoned:
            state += ", cordoned"
        known = each.total_bytes > 0
        rows.append(
            (
                each.path,
                str(each.partitions),
                human_bytes(each.free_bytes) if known else "-",
                human_bytes(each.total_bytes) if known else "-",
                percent(each.free_bytes, each.total_bytes),
                state,
            )
        )
    return Section(
        "Log dirs", ("path", ">partitions", ">free", ">of", ">free %", "state"), tuple(rows), ("free %", "of")
    )


def _rest(status: Status) -> Section:
    deleter, loop = status.deleter, status.loop
    queue = f"deleter: {_counted(deleter.queued, 'file')} queued"
    if deleter.queued_bytes:
        queue += f", {human_bytes(deleter.queued_bytes)}"
    if deleter.next_due_ms is not None:
        queue += f", next {_when(deleter.next_due_ms, status.now_ms)}"
    queue += f"; {human_count(deleter.removed)} removed"
    health = f"coordinator: {human_count(loop.turns)} turns, {human_count(loop.slow_turns)} of them over 100 ms"
    health += f", slowest {loop.slowest_ms:.0f} ms" + (f" ({loop.slowest})" if loop.slowest else "")
    if status.up_seconds:
        health += f", busy {percent(loop.busy_seconds, status.up_seconds)}"
    notes = [queue, health]
    if status.metrics:
        notes.append(f"metrics: http://{status.metrics}/metrics")
    return Section("", notes=tuple(notes))


def _when(at_ms: int | None, now_ms: int) -> str:
    """`in 3 min 5 s`, and for what is days away the time of day, too."""
    if at_ms is None:
        return "-"
    if at_ms <= now_ms:
        return "now"
    left = at_ms - now_ms
    text = f"in {human_ms(left if left < 1000 else -(-left // 1000) * 1000)}"
    return text if left < 86_400_000 else human_second(at_ms)


def _counted(count: int, noun: str) -> str:
    return f"{human_count(count)} {noun}" + ("" if count == 1 else "s")


def _camel(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {_camel_name(name): _camel(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, (tuple, list)):
        return [_camel(each) for each in value]
    return value


def _camel_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each.capitalize() for each in others)
