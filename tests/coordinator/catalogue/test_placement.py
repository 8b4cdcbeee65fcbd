"""New partitions go where there are fewest; each has one owner, the same at every start."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from compactd.coordinator.catalogue.placement import LogDirLoad, place, worker_of


def test_the_emptiest_dir_takes_the_next_partition_and_the_first_of_equals() -> None:
    loads = [LogDirLoad("a", 0, 3), LogDirLoad("b", 1, 1), LogDirLoad("c", 2, 1)]
    assert place(6, loads) == ["b", "c", "b", "c", "a", "b"]


def test_dirs_that_are_offline_or_cordoned_are_passed_over() -> None:
    loads = [LogDirLoad("a", 0, 0, online=False), LogDirLoad("b", 1, 0, cordoned=True), LogDirLoad("c", 2, 50)]
    assert place(3, loads) == ["c", "c", "c"]
    assert place(1, loads[:2]) is None
    assert place(0, []) is None
    assert place(0, loads) == []


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    barred=st.sets(st.integers(0, 5)),
    count=st.integers(0, 60),
)
def test_no_usable_dir_ends_up_two_above_another_that_took_some(
    counts: list[int], barred: set[int], count: int
) -> None:
    loads = [LogDirLoad(str(n), n, partitions, online=n not in barred) for n, partitions in enumerate(counts)]
    placed = place(count, loads)
    usable = [n for n in range(len(counts)) if n not in barred]
    if not usable:
        assert placed is None
        return
    assert placed is not None
    assert len(placed) == count
    added = Counter(placed)
    assert set(added) <= {str(n) for n in usable}
    for name in added:
        after = counts[int(name)] + added[name]
        assert all(after - 1 <= counts[n] + added[str(n)] for n in usable)


def test_partitions_of_a_topic_are_dealt_out_over_the_workers() -> None:
    topic = "R0h2GY22SfSFe562CeoJag"
    owners = [worker_of(topic, partition, 4) for partition in range(8)]
    assert sorted(owners[:4]) == [0, 1, 2, 3]
    assert owners[:4] == owners[4:]
    assert [worker_of(topic, partition, 1) for partition in range(3)] == [0, 0, 0]
    # Not to change: the owner of a partition follows from it after an upgrade, too.
    assert owners[0] == 2
