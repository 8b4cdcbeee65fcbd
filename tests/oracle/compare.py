"""Two partition directories, file by file: bytes, and times where Kafka sets them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compactd.storage import names
from compactd.storage.records.batch import Batch, iter_batches

#: Kafka's snappy is the C++ library and ours is not: the same records, now and then in other bytes.
SNAPPY = 2
GZIP = 1


@dataclass(frozen=True)
class Comparison:
    """What differs, one line a thing; nothing when the directories are the same to a broker."""

    differences: list[str]
    #: Base offsets of segments whose .log is the same but for what a library-dependent codec made of it. Their indexes and
    #: the bytes written are not comparable.
    recompressed: frozenset[int]


def compare(
    before: Path,
    kafka: Path,
    ours: Path,
    times_below: int,
    loose_codecs: frozenset[int],
    only_segments_below: int | None = None,
) -> Comparison:
    """Compares every file of a partition's directory as Kafka left it and as compactd did, both starting from `before`.

    `times_below`: modification times are compared for segments with a base offset below it, those that were cleaned.
    An index that compactd left alone, where Kafka wrote the same bytes anew, may keep its own time: nothing reads it.
    `loose_codecs`: ids of the codecs whose bytes depend on a library that the two sides do not share.
    `only_segments_below`: leaves everything but the files of segments with a base offset below it out.
    """
    theirs, mine = (_names(directory, only_segments_below) for directory in (kafka, ours))
    found = [f"only Kafka has {name}" for name in sorted(theirs - mine)]
    found += [f"only compactd has {name}" for name in sorted(mine - theirs)]
    recompressed: set[int] = set()
    # ".log" sorts after ".index": the logs have to be seen first.
    for name in sorted(theirs & mine, key=lambda name: (not name.endswith(".log"), name)):
        parsed = names.parse_segment_name(name)
        expected, got = (kafka / name).read_bytes(), (ours / name).read_bytes()
        if parsed is not None and parsed.kind == names.LOG and expected != got:
            unlike = _unlike(expected, got, loose_codecs)
            found += [f"{name}: {line}" for line in unlike]
            if not unlike:
                recompressed.add(parsed.base_offset)
        elif expected != got and not (parsed and parsed.kind in _TIMED and parsed.base_offset in recompressed):
            found.append(
                f"{name}: Kafka has {len(expected)} bytes {_short(expected)}, compactd {len(got)} {_short(got)}"
            )
        if parsed is not None and parsed.kind in _TIMED and parsed.base_offset < times_below:
            at, mine_at = _mtime_ms(kafka / name), _mtime_ms(ours / name)
            untouched = parsed.kind != names.LOG and (before / name).exists() and mine_at == _mtime_ms(before / name)
            if at != mine_at and not untouched:
                found.append(f"{name}: modified at {at} by Kafka, {mine_at} by compactd")
    return Comparison(found, frozenset(recompressed))


_TIMED = frozenset({names.LOG, names.OFFSET_INDEX, names.TIME_INDEX})


def _names(directory: Path, only_segments_below: int | None) -> set[str]:
    found = {path.name for path in directory.iterdir()}
    if only_segments_below is None:
        return found
    segments = {name: names.parse_segment_name(name) for name in found}
    return {
        name
        for name, parsed in segments.items()
        if parsed is not None and parsed.kind != names.SNAPSHOT and parsed.base_offset < only_segments_below
    }


def _mtime_ms(path: Path) -> int:
    return path.stat().st_mtime_ns // 1_000_000


def _short(data: bytes) -> str:
    return data.hex() if len(data) <= 100 else data[:100].hex() + ".."


def _unlike(expected: bytes, got: bytes, loose_codecs: frozenset[int]) -> list[str]:
    """How two .log files differ; nothing where only a loose codec's bytes do."""
    theirs, mine = list(iter_batches(expected)), list(iter_batches(got))
    lines = []
    if len(theirs) != len(mine):
        lines.append(f"Kafka has {len(theirs)} batches, compactd {len(mine)}")
    for a, b in zip(theirs, mine, strict=False):
        if a.data == b.data or (a.header.codec in loose_codecs and _same_but_compression(a, b)):
            continue
        lines.append(f"Kafka {a.header} {_short(a.data)}")
        lines.append(f"compactd {b.header} {_short(b.data)}")
    return lines


def _same_but_compression(a: Batch, b: Batch) -> bool:
    def key(batch: Batch) -> tuple[object, ...]:
        h = batch.header
        return (
            h.base_offset,
            h.last_offset,
            h.magic,
            h.attributes,
            h.base_timestamp,
            h.max_timestamp,
            h.producer_id,
            h.producer_epoch,
            h.base_sequence,
            h.record_count,
            h.leader_epoch,
            batch.records(),
        )

    return key(a) == key(b)
