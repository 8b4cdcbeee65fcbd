"""Leader epochs (LeaderEpochFileCacheTest; facts 1.7)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from compactd.config.errors import CorruptFileError
from compactd.storage.epochs import LeaderEpochs


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    made = LeaderEpochs()
    made.entries.extend(entries)
    return made


def test_golden(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    epochs((0, 0), (1, 5)).write(path)
    assert path.read_text() == "0\n2\n0 0\n1 5\n"
    assert LeaderEpochs.read(path).entries == [(0, 0), (1, 5)]
    LeaderEpochs().write(path)
    assert path.read_text() == "0\n0\n"


def test_absent_and_empty_files_have_no_entries(tmp_path: Path) -> None:
    assert LeaderEpochs.read(tmp_path / "absent").entries == []
    (tmp_path / "empty").touch()
    assert LeaderEpochs.read(tmp_path / "empty").entries == []
    assert LeaderEpochs().latest_epoch is None


@pytest.mark.parametrize(
    ("before", "new", "after", "changed"),
    [
        ([], (3, 0), [(3, 0)], True),
        ([(0, 0)], (0, 9), [(0, 0)], False),
        ([(0, 5)], (0, 5), [(0, 5)], False),
        ([(0, 5)], (0, 4), [(0, 4)], True),
        ([(0, 0)], (1, 9), [(0, 0), (1, 9)], True),
        ([(0, 0), (2, 5), (4, 9)], (3, 7), [(0, 0), (2, 5), (3, 7)], True),
        ([(0, 0), (2, 5), (4, 9)], (5, 5), [(0, 0), (5, 5)], True),
        ([(0, 0), (2, 5), (4, 9)], (2, 6), [(0, 0), (2, 6)], True),
        ([(1, 5)], (0, 9), [(0, 9)], True),
    ],
)
def test_assign(
    before: list[tuple[int, int]], new: tuple[int, int], after: list[tuple[int, int]], changed: bool
) -> None:
    found = epochs(*before)
    assert found.assign(*new) is changed
    assert found.entries == after
    assert found.latest_epoch == after[-1][0]


@pytest.mark.parametrize("new", [(-1, 0), (0, -1)])
def test_assign_refuses_negative_values(new: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="negative"):
        LeaderEpochs().assign(*new)


def test_truncate_from_end() -> None:
    found = epochs((0, 0), (1, 5), (2, 9))
    assert not found.truncate_from_end(10)
    assert found.truncate_from_end(9)
    assert found.entries == [(0, 0), (1, 5)]
    assert found.truncate_from_end(0)
    assert found.entries == []
    assert not found.truncate_from_end(0)


def test_truncate_from_start() -> None:
    found = epochs((0, 0))
    assert found.truncate_from_start(3)
    assert found.entries == [(0, 3)]  # as a broker left it after its log start rose to 3
    found = epochs((0, 2), (1, 5), (2, 9))
    assert not found.truncate_from_start(1)
    assert not found.truncate_from_start(2)
    assert found.truncate_from_start(5)
    assert found.entries == [(1, 5), (2, 9)]
    assert found.truncate_from_start(100)
    assert found.entries == [(2, 100)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0\n1\n0 0 0\n", "malformed line 3"),
        ("0\n1\nx 0\n", "malformed line 3: 'x' is not a number"),
        ("0\n2\n0 0\n-1 5\n", "malformed line 4: epoch -1 at offset 5"),
        ("0\n2\n0 0\n", "promises 2 entries"),
        ("7\n", "version 7"),
    ],
)
def test_damage_names_its_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(text)
    with pytest.raises(CorruptFileError) as caught:
        LeaderEpochs.read(path)
    assert reason in str(caught.value)


def test_lines_out_of_order_are_assigned_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n3\n0 0\n5 9\n3 4\n")
    assert LeaderEpochs.read(path).entries == [(0, 0), (3, 4)]


class EpochsMachine(RuleBasedStateMachine):
    """Against the plainest model: which epoch wrote each offset of a short log."""

    END = 12

    def __init__(self) -> None:
        super().__init__()
        self.epochs = LeaderEpochs()
        #: Epoch of each offset; None where no record is known. The log starts at `start` and may grow for ever.
        self.written: list[int | None] = [None] * self.END
        self.start = 0

    @rule(epoch=st.integers(0, 6), offset=st.integers(0, END - 1))
    def assign(self, epoch: int, offset: int) -> None:
        latest, begins = self.latest()
        self.epochs.assign(epoch, offset)
        if latest == epoch and begins <= offset:
            return
        # The new epoch owns everything from its start on; older entries that contradict it are gone.
        self.written = [
            epoch if at >= offset else None if known is None or known >= epoch else known
            for at, known in enumerate(self.written)
        ]
        known = [at for at in range(offset) if self.written[at] is not None]
        if known:  # what lay between the last kept epoch and the new one counts to the kept one
            last = self.written[known[-1]]
            for at in range(known[-1], offset):
                self.written[at] = last

    @rule(offset=st.integers(0, END))
    def truncate_from_end(self, offset: int) -> None:
        self.epochs.truncate_from_end(offset)
        before = self.written[offset - 1] if offset else None
        # The file does not know where the log ends: the last epoch goes on without end.
        self.written = [before if at >= offset else known for at, known in enumerate(self.written)]

    @rule(offset=st.integers(0, END - 1))
    def truncate_from_start(self, offset: int) -> None:
        self.epochs.truncate_from_start(offset)
        self.written = [None if at < offset else known for at, known in enumerate(self.written)]

    def latest(self) -> tuple[int | None, int]:
        last = self.written[-1]
        return last, self.written.index(last)

    @invariant()
    def agrees(self) -> None:
        expected: list[tuple[int, int]] = []
        for at, epoch in enumerate(self.written):
            if epoch is not None and (not expected or expected[-1][0] != epoch):
                expected.append((epoch, at))
        assert self.epochs.entries == expected


TestEpochsMachine = EpochsMachine.TestCase
