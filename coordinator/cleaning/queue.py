"""What is cleaned next: every log on the scales, those that may not be cleaned now, and the order of the others."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from compactd.config.errors import CompactdError
from compactd.coordinator.cleaning.choice import EXPECTED_KEPT, Weighed, gain, room_needed, weigh
from compactd.coordinator.cleaning.job import Job
from compactd.coordinator.cleaning.offsets import CleanOffsets
from compactd.coordinator.cleaning.pauses import EVERYTHING, Pauses
from compactd.coordinator.cleaning.quarantine import Quarantine
from compactd.coordinator.interfaces import Frame
from compactd.storage import files
from compactd.storage.names import TopicPartition
from compactd.workers.partition_messages import PartitionState

_log = logging.getLogger(__name__)

#: With less than this share of its file system free, a log dir is cleaned by what frees most for what it writes.
TIGHT_SHARE = 0.1
#: A log whose clean came to nothing is left alone for so long: what stood in its way mostly still does.
_HOLD_MS = 1_000


class CleaningQueue:
    """See the module. On the loop's thread."""

    def __init__(self, frame: Frame, offsets: CleanOffsets, quarantine: Quarantine, pauses: Pauses) -> None:
        self._frame = frame
        self._offsets = offsets
        self._quarantine = quarantine
        self._pauses = pauses
        self.weighed: dict[TopicPartition, Weighed] = {}
        #: Asked for by a person: whatever the ratio.
        self.forced: set[TopicPartition] = set()
        #: Share of the bytes read that each partition's last clean kept.
        self.kept: dict[TopicPartition, float] = {}
        #: Why a log that wants cleaning waits although a cleaner is idle; "": none does.
        self.held_by = ""
        #: Monotonic seconds until which a log is left alone.
        self._held: dict[TopicPartition, float] = {}

    def weigh(self, states: Iterable[PartitionState], running: Mapping[TopicPartition, Job]) -> None:
        """Takes new states in. A checkpoint outside its log is set right, unless a clean of it is `running`."""
        now, corrected = self._frame.clock.now_ms(), {}
        for state in states:
            name = TopicPartition(state.topic, state.partition)
            config = self._frame.topic_config(state.topic)
            if not config.compact:
                self.weighed.pop(name, None)
                continue
            weighed = weigh(state, config, self._offsets.of(name, state), now)
            self.weighed[name] = weighed
            if weighed.offsets.force_update_checkpoint and name not in running:
                corrected[name] = weighed
        for name, weighed in corrected.items():
            first = weighed.offsets.first_dirty_offset
            if not weighed.log.partition.config.delete:
                _log.warning(
                    f"the cleaner checkpoint of {name}, {self._offsets.known.get(name)}, lies outside its log "
                    f"[{weighed.state.log_start_offset}, {weighed.state.log_end_offset}]: it is {first} now"
                )
            self._offsets.set(name, Path(weighed.state.log_dir), first)

    def gone(self, name: TopicPartition) -> Weighed | None:
        """The partition is not there any more; what was known of it."""
        self.forced.discard(name)
        self.kept.pop(name, None)
        return self.weighed.pop(name, None)

    def is_paused(self, name: TopicPartition) -> bool:
        return bool(self._pauses.names & {EVERYTHING, name.topic, str(name)})

    def hold(self, name: TopicPartition) -> int:
        """Its clean came to nothing. In how many ms it may be tried again."""
        self._held[name] = self._frame.clock.monotonic() + _HOLD_MS / 1000
        return _HOLD_MS + 1

    def release(self, names: Iterable[str]) -> None:
        """Whatever stood in their way is gone."""
        wanted = set(names)
        self._held = {name: until for name, until in self._held.items() if str(name) not in wanted}

    def in_order(self, running: Mapping[TopicPartition, Job]) -> list[TopicPartition]:
        """Partitions to clean, those that a person asked for first, then the filthiest."""
        now, moment = self._frame.clock.now_ms(), self._frame.clock.monotonic()
        self._held = {name: until for name, until in self._held.items() if until > moment}
        free = [
            (name, weighed)
            for name, weighed in self.weighed.items()
            if name not in running
            and name not in self._held
            and not weighed.state.moving_to
            and not self.is_paused(name)
            and (name in self.forced or (weighed.log.wants_cleaning and not self._quarantine.holds(str(name), now)))
        ]
        tight = {log_dir for log_dir in {weighed.state.log_dir for _, weighed in free} if _is_tight(log_dir)}

        def order(pair: tuple[TopicPartition, Weighed]) -> tuple[bool, bool, float]:
            name, weighed = pair
            if weighed.state.log_dir in tight:
                return name not in self.forced, False, -gain(weighed, self.kept.get(name, EXPECTED_KEPT))
            return name not in self.forced, True, -weighed.rank

        free.sort(key=order)
        return [name for name, _ in free if self._frame.owner_of(name) is not None]

    def fits(self, name: TopicPartition, running: Mapping[TopicPartition, Job]) -> bool:
        """Whether its log dir has room for the clean; else `held_by` says why not."""
        weighed = self.weighed[name]
        log_dir = weighed.state.log_dir
        # What running cleans may still take is not free.
        taken = sum(
            room_needed(self.weighed[other], 0)
            for other, job in running.items()
            if job.log_dir == log_dir and other in self.weighed
        )
        needed = room_needed(weighed, self._frame.settings.daemon.cleaner_free_space_margin) + taken
        try:
            free = files.free_bytes(log_dir)
        except CompactdError as error:
            self.held_by = str(error)
            return False
        if free < needed:
            self.held_by = (
                f"{weighed.name} waits for space: a clean needs {needed:,} bytes in {log_dir}, {free:,} are free"
            )
            return False
        return True


def _is_tight(log_dir: str) -> bool:
    """Whether a log dir runs short of space; one that does not answer is not chosen by it."""
    try:
        return files.free_share(log_dir) < TIGHT_SHARE
    except CompactdError:
        return False
