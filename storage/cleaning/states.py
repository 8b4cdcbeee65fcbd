"""Which partitions are being cleaned, paused or set aside (LogCleanerManager; facts 4.1, 4.6, 4.7). In memory only.

    none -> IN_PROGRESS -> none                     a clean, or the deletion of old segments, that ran to its end
            IN_PROGRESS -> ABORTED -> PAUSED(1)     somebody wants the log for himself; whoever cleans it lets go
    none -> PAUSED(1) <-> PAUSED(n) ... -> none     one count for each that asked

Partitions whose cleaning failed are marked uncleanable, by log dir; nothing is chosen from them until the mark goes.

Kafka's rules for threads that share a process, with Kafka's tests. The daemon's cleaners are processes: what they clean is
leased to them by the coordinator (coordinator.cleaning), which keeps its pauses and its quarantine over restarts.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compactd.config.errors import CleaningAbortedError, CleaningStateError
from compactd.config.settings import TopicConfig
from compactd.storage.names import TopicPartition


class Phase(enum.Enum):
    """What a partition with an entry is in."""

    IN_PROGRESS = "being cleaned"
    ABORTED = "being stopped"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class CleaningState:
    """The state of one partition; a partition without one is idle."""

    phase: Phase
    #: How many asked for the pause; 0 in other phases.
    pauses: int = 0

    def __str__(self) -> str:
        return f"{self.phase.value} ({self.pauses})" if self.pauses else self.phase.value


_IN_PROGRESS = CleaningState(Phase.IN_PROGRESS)
_ABORTED = CleaningState(Phase.ABORTED)
_PAUSED_ONCE = CleaningState(Phase.PAUSED, 1)


class CleaningStates:
    """The states of all partitions. Every method may be called from any thread; those that are out of place raise
    CleaningStateError and change nothing."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._states: dict[TopicPartition, CleaningState] = {}
        self._uncleanable: dict[Path, set[TopicPartition]] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Several calls as one: nobody else changes or reads a state in between."""
        with self._changed:
            yield

    def state(self, topic_partition: TopicPartition) -> CleaningState | None:
        """None: idle."""
        with self._changed:
            return self._states.get(topic_partition)

    def states(self) -> dict[TopicPartition, CleaningState]:
        """All partitions that are not idle."""
        with self._changed:
            return dict(self._states)

    # ---- a clean, or the deletion of old segments

    def begin(self, topic_partition: TopicPartition) -> None:
        """Takes an idle partition."""
        with self._changed:
            self._expect(topic_partition, "begin", None)
            self._states[topic_partition] = _IN_PROGRESS

    def check_aborted(self, topic_partition: TopicPartition) -> None:
        """Raises CleaningAbortedError once somebody asked for the end; called every now and then while a clean runs."""
        if self.state(topic_partition) == _ABORTED:
            raise CleaningAbortedError(path=topic_partition, reason="its cleaning was aborted")

    def done_cleaning(self, topic_partition: TopicPartition, write_checkpoint: Callable[[], object]) -> bool:
        """The clean ended. Whether it counts: an aborted one writes no checkpoint, and leaves its partition paused.

        `write_checkpoint` is called before the partition becomes idle, so that nobody finds it idle and dirty.
        """
        with self._changed:
            state = self._expect(topic_partition, "finish cleaning", Phase.IN_PROGRESS, Phase.ABORTED)
            if state == _ABORTED:
                self._let_go(topic_partition)
                return False
            try:
                write_checkpoint()
            finally:
                del self._states[topic_partition]
            return True

    def done_deleting(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """The deletion of old segments, begun by `begin_deletable`, ended."""
        with self._changed:
            for topic_partition in topic_partitions:
                state = self._expect(topic_partition, "finish deleting", Phase.IN_PROGRESS, Phase.ABORTED)
                if state == _ABORTED:
                    self._let_go(topic_partition)
                else:
                    del self._states[topic_partition]

    def begin_deletable(self, hosted: Mapping[TopicPartition, tuple[Path, TopicConfig]]) -> list[TopicPartition]:
        """Takes every idle partition with compact in its policy that is not set aside, for the deletion of old segments.

        Those that are only compacted, too: what lies below their log start offset has to go. `hosted`: log dir and settings.
        """
        with self._changed:
            found = [
                topic_partition
                for topic_partition, (log_dir, config) in hosted.items()
                if config.compact
                and self._is_idle(topic_partition)
                and not self.is_uncleanable(log_dir, topic_partition)
            ]
            for topic_partition in found:
                self.begin(topic_partition)
            return found

    # ---- pauses

    def abort_and_pause(self, topic_partition: TopicPartition) -> CleaningState:
        """Nothing is to clean the partition until `resume`. PAUSED at once, or ABORTED where a clean has to let go first:
        then `wait_until_paused` (Kafka's abortAndPauseCleaning does both)."""
        with self._changed:
            state = self._expect(topic_partition, "pause", None, Phase.IN_PROGRESS, Phase.PAUSED)
            if state is None:
                state = _PAUSED_ONCE
            elif state == _IN_PROGRESS:
                state = _ABORTED
            else:
                state = CleaningState(Phase.PAUSED, state.pauses + 1)
            self._states[topic_partition] = state
            return state

    def wait_until_paused(self, topic_partition: TopicPartition, timeout_s: float | None = None) -> bool:
        """Blocks until the clean let go. False when that took longer than `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._phase(topic_partition) is not Phase.ABORTED, timeout_s)

    def resume(self, topic_partition: TopicPartition) -> CleaningState | None:
        """Takes one pause back; what is left of them."""
        with self._changed:
            state = self._expect(topic_partition, "resume", Phase.PAUSED)
            assert state is not None
            if state.pauses == 1:
                del self._states[topic_partition]
                return None
            self._states[topic_partition] = left = CleaningState(Phase.PAUSED, state.pauses - 1)
            return left

    def abort_cleaning(self, topic_partition: TopicPartition, timeout_s: float | None = None) -> bool:
        """Stops a running clean and lets the partition be chosen again. False: it did not let go in time, and stays aborted."""
        if self.abort_and_pause(topic_partition) == _ABORTED and not self.wait_until_paused(topic_partition, timeout_s):
            return False
        self.resume(topic_partition)
        return True

    def pause_non_compacted(self, configs: Mapping[TopicPartition, TopicConfig]) -> list[TopicPartition]:
        """Pauses every idle partition without compact in its policy while retention works on it; `resume` each of them.

        So retention and the cleaner never share a log whose policy is being changed.
        """
        with self._changed:
            found = [tp for tp, config in configs.items() if not config.compact and self._is_idle(tp)]
            for topic_partition in found:
                self._states[topic_partition] = _PAUSED_ONCE
            return found

    # ---- uncleanable partitions

    def mark_uncleanable(self, log_dir: Path, topic_partition: TopicPartition) -> None:
        """Cleaning it failed in a way that will not mend by itself."""
        with self._changed:
            self._uncleanable.setdefault(log_dir, set()).add(topic_partition)

    def unmark(self, log_dir: Path, topic_partition: TopicPartition) -> bool:
        """Lets it be chosen again; whether it was marked."""
        with self._changed:
            marked = self.is_uncleanable(log_dir, topic_partition)
            self._uncleanable.get(log_dir, set()).discard(topic_partition)
            return marked

    def is_uncleanable(self, log_dir: Path, topic_partition: TopicPartition) -> bool:
        with self._changed:
            return topic_partition in self._uncleanable.get(log_dir, ())

    def uncleanable(self, log_dir: Path) -> frozenset[TopicPartition]:
        """The marked partitions of a log dir (uncleanable-partitions-count)."""
        with self._changed:
            return frozenset(self._uncleanable.get(log_dir, ()))

    def move_mark(self, topic_partition: TopicPartition, source: Path, target: Path) -> None:
        """The partition moved to another log dir (alterCheckpointDir); its mark goes with it."""
        with self._changed:
            if self.unmark(source, topic_partition):
                self.mark_uncleanable(target, topic_partition)

    def drop_absent(self, hosted: Collection[TopicPartition]) -> None:
        """Forgets marks of partitions that do not exist any more (maintainUncleanablePartitions)."""
        with self._changed:
            for marked in self._uncleanable.values():
                marked.intersection_update(hosted)

    # ---- inside

    def _phase(self, topic_partition: TopicPartition) -> Phase | None:
        state = self._states.get(topic_partition)
        return None if state is None else state.phase

    def _is_idle(self, topic_partition: TopicPartition) -> bool:
        return topic_partition not in self._states

    def _let_go(self, topic_partition: TopicPartition) -> None:
        self._states[topic_partition] = _PAUSED_ONCE
        self._changed.notify_all()

    def _expect(self, topic_partition: TopicPartition, action: str, *phases: Phase | None) -> CleaningState | None:
        if self._phase(topic_partition) in phases:
            return self._states.get(topic_partition)
        state = self._states.get(topic_partition)
        raise CleaningStateError(
            topic_partition=topic_partition, action=action, state="idle" if state is None else state
        )
