"""Entries of `compactd dump` as lines for people. An entry is the object that `--json` prints, see docs of each `type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from compactd.scripts.output import NO_TIMESTAMP, human_time
from compactd.scripts.values import compact_json, printable

Entry = Mapping[str, Any]

#: Heading over the lines of a kind of entry, aligned with them.
HEADINGS = {
    "batch": (
        f"  {'position':>10}  {'offsets':<23} {'records':>7} {'bytes':>9}  {'codec':<6} {'max timestamp':<24}"
        "  producer, flags"
    ),
    "offsetIndexEntry": f"  {'offset':>20}  {'position':>10}",
    "timeIndexEntry": f"  {'offset':>20}  timestamp",
    "abortedTransaction": f"  {'producer id':>20}  {'first offset':>20}  {'abort marker':>20}  {'last stable offset':>20}",
    "producer": (
        f"  {'producer id':>20}  {'epoch':>5}  {'last sequence':>13}  {'last offset':>20}  {'offset delta':>12}"
        f"  {'timestamp':<24}  {'coordinator epoch':>17}  open transaction since offset"
    ),
    "leaderEpoch": f"  {'epoch':>10}  {'start offset':>20}",
    "checkpointEntry": f"  {'offset':>20}  topic-partition",
}


def _batch(e: Entry) -> str:
    flags = []
    if e["producerId"] >= 0:
        sequence = "" if e["baseSequence"] < 0 else f" seq {e['baseSequence']}..{e['lastSequence']}"
        flags.append(f"pid {e['producerId']} epoch {e['producerEpoch']}{sequence}")
    flags += [word for word, on in (("transactional", e["isTransactional"]), ("control", e["isControl"])) if on]
    if e["deleteHorizonMs"] is not None:
        flags.append(f"delete horizon {human_time(e['deleteHorizonMs'])}")
    if e["timestampType"] == "LogAppendTime":
        flags.append("LogAppendTime")
    if e["leaderEpoch"] >= 0:
        flags.append(f"leader epoch {e['leaderEpoch']}")
    if e["magic"] != 2:
        flags.append(f"magic {e['magic']}")
    offsets = f"{e['baseOffset']}..{e['lastOffset']}"
    count = "-" if e["count"] is None else e["count"]
    return (
        f"  {e['position']:>10}  {offsets:<23} {count:>7} {e['size']:>9}  {e['codec']:<6} "
        f"{human_time(e['maxTimestamp']):<24}  {', '.join(flags)}"
    ).rstrip()


def _record(e: Entry) -> str:
    parts = [f"      offset {e['offset']}"]
    if e["timestamp"] != NO_TIMESTAMP:
        parts.append(human_time(e["timestamp"]))
    if "control" in e:
        parts.append(f"marker {compact_json(e['control'])}")
    elif "decoded" in e:
        parts.append(compact_json(e["decoded"]))
    else:
        parts += [f"key {e['_key']}", f"value {e['_value']}"]
    if e["_headers"]:
        parts.append("headers " + ", ".join(f"{name}={value}" for name, value in e["_headers"]))
    return "  ".join(parts)


def _fault(e: Entry) -> str:
    where = f" at byte {e['position']}" if e["position"] is not None else ""
    known = e["baseOffset"] is not None and e["lastOffset"] is not None
    offsets = f", offsets {e['baseOffset']} to {e['lastOffset']}" if known else ""
    resumed = f"; reading goes on at byte {e['resumedAt']}" if e["resumedAt"] is not None else ""
    return f"  FAULT{where}{offsets}: {printable(e['reason'])}{resumed}"


def _aborted(e: Entry) -> str:
    return f"  {e['producerId']:>20}  {e['firstOffset']:>20}  {e['lastOffset']:>20}  {e['lastStableOffset']:>20}"


def _producer(e: Entry) -> str:
    open_since = e["currentTransactionFirstOffset"]
    return (
        f"  {e['producerId']:>20}  {e['producerEpoch']:>5}  {e['lastSequence']:>13}  {e['lastOffset']:>20}"
        f"  {e['offsetDelta']:>12}  {human_time(e['timestamp']):<24}  {e['coordinatorEpoch']:>17}"
        f"  {'-' if open_since is None else open_since}"
    )


def _properties(e: Entry) -> str:
    pairs = ((name, value) for name, value in e.items() if name not in ("type", "file"))
    return "\n".join(f"  {printable(name)}: {_plain_value(value)}" for name, value in pairs)


def _plain_value(value: Any) -> str:
    return printable(value) if isinstance(value, str) else compact_json(value)


_LINES: dict[str, Callable[[Entry], str]] = {
    "batch": _batch,
    "record": _record,
    "fault": _fault,
    "offsetIndexEntry": lambda e: f"  {e['offset']:>20}  {e['position']:>10}",
    "timeIndexEntry": lambda e: f"  {e['offset']:>20}  {human_time(e['timestamp'])}",
    "abortedTransaction": _aborted,
    "producer": _producer,
    "leaderEpoch": lambda e: f"  {e['epoch']:>10}  {e['startOffset']:>20}",
    "checkpointEntry": lambda e: f"  {e['offset']:>20}  {printable(e['topic'])}-{e['partition']}",
    "partitionMetadata": _properties,
    "metaProperties": _properties,
    "cleanShutdown": _properties,
    "quorumState": _properties,
}


def line(entry: Entry) -> str:
    """The entry as one line (key-value files: one line a key)."""
    return _LINES[entry["type"]](entry)
