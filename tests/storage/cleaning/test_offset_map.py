"""Kafka's LogCleanerTest: what pass one maps (facts 12.1, 5.2), by Kafka's test names."""

from __future__ import annotations

from collections.abc import Sequence

from compactd.storage.cleaning.round import CleaningRound, RoundOptions
from compactd.storage.kernel.interface import Kernel, MapResult
from compactd.storage.partition import Partition
from tests.logs import NOW_MS
from tests.storage.cleaning.conftest import LogMaker
from tests.storage.cleaning.rounds import load


def build_map(
    partition: Partition, kernel: Kernel, first: int, end: int, keys: Sequence[int], slots: int | None = None
) -> tuple[MapResult, list[int]]:
    """Pass one over [first, end): its outcome, and those of the keys that were mapped."""
    options = RoundOptions(
        NOW_MS, 1 << 20 if slots is None else 24 * slots, map_load_factor=0.75, kafka_map=slots is not None
    )
    with CleaningRound(partition, first, end, options, kernel) as cleaning:
        mapped = cleaning.build_map()
        kernel_round = cleaning._kernel_round  # the only way to ask which keys it holds
        return mapped, [key for key in keys if kernel_round.contains(str(key).encode())]


def test_build_offset_map(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    for key in range(500):
        log.append((key, key))
    partition = load(log)
    bases = [segment.base_offset for segment in partition.segments]
    assert len(bases) > 4
    for first, end in ((0, bases[1]), (bases[1], bases[3]), (bases[3], partition.log_end_offset)):
        mapped, found = build_map(partition, kernel, first, end, range(-1, 502))
        assert mapped.latest_offset + 1 == end
        assert mapped.entries == end - first
        assert found == list(range(first, end))
        assert mapped.messages_read == end - first
        assert not mapped.full


def test_build_offset_map_fake_large(make_log: LogMaker, kernel: Kernel) -> None:
    """Offsets far apart in one range."""
    log = make_log(segment_bytes=120, segment_index_bytes=120)
    log.append((0, 0), offset=0)
    log.append((1, 1), offset=7206178)
    mapped, found = build_map(load(log), kernel, 0, 7206179, [0, 1, 2])
    assert mapped.latest_offset == 7206178
    assert mapped.entries == 2
    assert found == [0, 1]


def test_build_partial_offset_map(make_log: LogMaker, kernel: Kernel) -> None:
    """A map of 3 slots holds 2 keys; reading begins with the batch before the first dirty offset."""
    log = make_log()
    for key in range(5):
        log.append((key, key))
    log.roll()
    mapped, found = build_map(load(log), kernel, 2, 2**31 - 1, range(5), slots=3)
    assert mapped.entries == 2
    assert found == [2, 3]
    assert mapped.messages_read == 4
    assert mapped.full
    assert mapped.latest_offset == 3


def test_a_key_that_is_mapped_already_does_not_fit_a_full_map_either(make_log: LogMaker, kernel: Kernel) -> None:
    log = make_log()
    log.append(*((key, 0) for key in (1, 2, 1, 2)))
    log.roll()
    mapped, _ = build_map(load(log), kernel, 0, 4, [1, 2], slots=3)
    assert (mapped.full, mapped.latest_offset, mapped.messages_read) == (True, 1, 2)
