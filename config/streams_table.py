"""Settings of streams groups (KIP-1071). Part of `config.table`."""

from __future__ import annotations

from compactd.config.daemon_rows import kafka
from compactd.config.setting import INT_MAX, Dynamic, Kind, Setting, Unit

_SHORTEST, _LONGEST = "shortest that groups may set it to", "longest that groups may set it to"

STREAMS: tuple[Setting, ...] = (
    kafka(
        "group.streams.session.timeout.ms",
        Kind.INT,
        45_000,
        "a member of a streams group (KIP-1071) that is not heard of for this long is out",
        unit=Unit.MS,
        low=1,
    ),
    kafka("group.streams.min.session.timeout.ms", Kind.INT, 45_000, _SHORTEST, unit=Unit.MS, low=1),
    kafka("group.streams.max.session.timeout.ms", Kind.INT, 60_000, _LONGEST, unit=Unit.MS, low=1),
    kafka(
        "group.streams.heartbeat.interval.ms",
        Kind.INT,
        5000,
        "members of streams groups are told to be heard of this often",
        unit=Unit.MS,
        low=1,
    ),
    kafka("group.streams.min.heartbeat.interval.ms", Kind.INT, 5000, _SHORTEST, unit=Unit.MS, low=1),
    kafka("group.streams.max.heartbeat.interval.ms", Kind.INT, 15_000, _LONGEST, unit=Unit.MS, low=1),
    kafka("group.streams.max.size", Kind.INT, INT_MAX, "members of a streams group", low=1),
    kafka("group.streams.num.standby.replicas", Kind.INT, 0, "copies of the state of each task", low=0),
    kafka("group.streams.max.standby.replicas", Kind.INT, 2, "most that groups may set it to", low=0),
    kafka(
        "group.streams.initial.rebalance.delay.ms",
        Kind.INT,
        3000,
        "a new streams group waits this long for members",
        unit=Unit.MS,
        low=0,
    ),
    kafka(
        "group.streams.assignment.interval.ms",
        Kind.INT,
        1000,
        "the assignment of a streams group is computed no more often than this",
        Dynamic.YES,
        unit=Unit.MS,
        low=0,
    ),
    kafka("group.streams.min.assignment.interval.ms", Kind.INT, 0, _SHORTEST, unit=Unit.MS, low=0),
    kafka("group.streams.max.assignment.interval.ms", Kind.INT, 15_000, _LONGEST, unit=Unit.MS, low=0),
    kafka(
        "group.streams.assignors",
        Kind.LIST,
        ("sticky",),
        "assignors that groups may ask for, the default first; Kafka's own, no classes",
        choices=("sticky",),
        may_be_empty=False,
    ),
    kafka(
        "group.streams.rack.aware.assignment.tags",
        Kind.LIST,
        (),
        "tags of members by which copies of state are spread",
    ),
    kafka(
        "group.streams.task.offset.interval.ms",
        Kind.INT,
        60_000,
        "members of streams groups are told to say this often how far they have got",
        unit=Unit.MS,
        low=1,
    ),
    kafka("group.streams.min.task.offset.interval.ms", Kind.INT, 15_000, _SHORTEST, unit=Unit.MS, low=1),
    kafka(
        "group.streams.acceptable.recovery.lag",
        Kind.LONG,
        10_000,
        "offsets that a copy of a task's state may be behind; members are told",
        low=0,
    ),
)
