"""`compactd analyze --top-keys`: which keys (of __consumer_offsets: which groups) a log's bytes belong to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compactd.config.errors import CompactdError
from compactd.scripts.output import Progress, Table, human_bytes, human_count, percent, print_json, warn
from compactd.scripts.plan import Plan, Planned
from compactd.scripts.values import json_fields, one_line, printable
from compactd.storage.metadata import decode_record
from compactd.storage.records.batch import read_batches
from compactd.storage.segment import list_segments

#: Keys are remembered to tell live bytes from superseded ones; those beyond are counted as one, "(other keys)".
MOST_KEYS = 2_000_000
OTHER_KEYS = "(other keys)"


#: What owns the keys of Kafka's own topics.
_OWNERS = {"__consumer_offsets": "group", "__transaction_state": "transactional id"}


@dataclass(slots=True)
class Share:
    """What belongs to one key or group. Bytes are of keys, values and headers, before compression."""

    records: int = 0
    bytes: int = 0
    #: Of these, what no later record of the same key replaces.
    live_keys: int = 0
    live_bytes: int = 0
    tombstones: int = 0


def show_top_keys(plan: Plan, most: int, as_json: bool) -> None:
    """Prints the `most` largest of each compacted partition."""
    planned = [each for each in plan.partitions if each.settings.config.compact]
    total = sum(segment.size for each in planned for segment in list_segments(each.target.directory))
    with Progress("keys", total) as progress:
        results = [(each, _shares(each, progress)) for each in planned]
    for each, shares in results:
        largest = sorted(shares.items(), key=lambda item: -item[1].bytes)[:most]
        if as_json:
            for name, share in largest:
                print_json(_json(each, name, share))
        elif largest:
            _show(each, largest, sum(share.bytes for share in shares.values()))


def _json(planned: Planned, name: bytes | str, share: Share) -> dict[str, object]:
    what = {"owner": name} if isinstance(name, str) else json_fields("key", name, "text")
    return {
        "type": "topKey",
        "topic": planned.target.topic_partition.topic,
        "partition": planned.target.topic_partition.partition,
        **what,
        "records": share.records,
        "bytes": share.bytes,
        "liveKeys": share.live_keys,
        "liveBytes": share.live_bytes,
        "supersededBytes": share.bytes - share.live_bytes,
        "tombstones": share.tombstones,
    }


def _show(planned: Planned, largest: list[tuple[bytes | str, Share]], total: int) -> None:
    what = _OWNERS.get(planned.target.topic_partition.topic, "key")
    table = Table(
        [what, ">records", ">bytes", ">of all", ">live keys", ">live bytes", ">superseded", ">tombstones"],
        title=f"\n{planned.name}: largest {what}s, by bytes of keys and values",
        droppable=("tombstones", "live bytes", "records"),
    )
    for name, share in largest:
        table.row(
            printable(name) if isinstance(name, str) else _short(one_line(name, "text")),
            human_count(share.records),
            human_bytes(share.bytes),
            percent(share.bytes, total),
            human_count(share.live_keys),
            human_bytes(share.live_bytes),
            percent(share.bytes - share.live_bytes, share.bytes),
            human_count(share.tombstones),
        )
    table.show()


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _shares(planned: Planned, progress: Progress) -> dict[bytes | str, Share]:
    topic = planned.target.topic_partition.topic
    shares: dict[bytes | str, Share] = {}
    #: Key to the name it counts under, and the size of its newest record.
    newest: dict[bytes, tuple[bytes | str, int]] = {}
    for key, size, is_tombstone in _keyed(planned.target.directory, progress, planned.name):
        known = newest.get(key)
        if known is not None:
            name = known[0]
        elif len(newest) >= MOST_KEYS:
            name = OTHER_KEYS
        else:
            name = _group(topic, key) or key
        share = shares.setdefault(name, Share())
        share.records += 1
        share.bytes += size
        share.tombstones += is_tombstone
        if name is OTHER_KEYS:
            share.live_bytes += size
            continue
        if known is None:
            share.live_keys += 1
        share.live_bytes += size - (known[1] if known is not None else 0)
        newest[key] = (name, size)
    return shares


def _group(topic: str, key: bytes) -> str | None:
    """The group that a key of __consumer_offsets, or the transactional id that one of __transaction_state, belongs to."""
    if not topic.startswith("__"):
        return None
    decoded = (decode_record(topic, key, None) or {}).get("key")
    if not isinstance(decoded, dict):
        return None
    return next((str(decoded[name]) for name in ("group", "transactionalId") if name in decoded), None)


def _keyed(directory: Path, progress: Progress, name: str) -> Iterator[tuple[bytes, int, bool]]:
    """Key, bytes, and whether the value is null, of every keyed record; damage ends the partition with a warning."""
    try:
        for segment in list_segments(directory):
            for batch in read_batches(segment.log_path, 0, segment.size):
                progress.advance(batch.header.size, name)
                if batch.header.is_control:
                    continue
                batch.check()
                for record in batch.records():
                    if record.key is not None:
                        headers = sum(len(key) + len(value or b"") for key, value in record.headers)
                        size = len(record.key) + len(record.value or b"") + headers
                        yield record.key, size, record.value is None
    except CompactdError as error:
        warn(f"{name}: keys were counted up to here only. {error}")
