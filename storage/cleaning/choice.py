"""The next log to clean (LogCleanerManager.grabFilthiestCompactedLog; facts 4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compactd.config.errors import CompactdError
from compactd.storage.cleaning.cleanable import LogToClean, filthiest_first, log_to_clean, offsets_to_clean
from compactd.storage.cleaning.states import CleaningStates
from compactd.storage.names import TopicPartition
from compactd.storage.partition import Partition


@dataclass(slots=True)
class Choice:
    """What was chosen, and what was learned of all candidates."""

    #: Marked as in progress; None where nothing wants cleaning.
    log: LogToClean[Partition] | None = None
    #: Checkpoints outside their logs, with the offsets that take their place. To be written at once, chosen or not.
    corrected: dict[TopicPartition, int] = field(default_factory=dict)
    #: Logs that could not be weighed. They are marked uncleanable.
    failed: dict[TopicPartition, CompactdError] = field(default_factory=dict)
    #: Highest ratio of all candidates (max-dirty-percent is 100 times that).
    max_ratio: float = 0.0
    cleanable: int = 0
    #: Logs that max.compaction.lag.ms wants cleaned now, and by how many ms the worst is late (max-compaction-delay).
    delayed: int = 0
    max_compaction_delay_ms: int = 0


def grab_filthiest(
    states: CleaningStates, partitions: Iterable[Partition], checkpoints: Mapping[TopicPartition, int], now_ms: int
) -> Choice:
    """Weighs every compacted partition that is idle and not set aside, and takes the one with the highest dirty ratio.

    Equal ratios: the first one. A log that is forced by max.compaction.lag.ms wants cleaning whatever its ratio, but does
    not jump the queue. Different from Kafka: a log that cannot be weighed does not end the attempt, the others go on.
    """
    choice = Choice()
    with states.locked():
        weighed = []
        for partition in partitions:
            topic_partition, log_dir = partition.topic_partition, partition.directory.parent
            if not partition.config.compact or states.state(topic_partition) is not None:
                continue
            if states.is_uncleanable(log_dir, topic_partition):
                continue
            try:
                offsets = offsets_to_clean(partition, checkpoints.get(topic_partition), now_ms)
                log = log_to_clean(partition, offsets.first_dirty_offset, offsets.first_uncleanable_offset, now_ms)
            except CompactdError as error:
                choice.failed[topic_partition] = error
                states.mark_uncleanable(log_dir, topic_partition)
                continue
            if offsets.force_update_checkpoint:
                choice.corrected[topic_partition] = offsets.first_dirty_offset
            choice.delayed += log.compaction_delay_ms > 0
            choice.max_compaction_delay_ms = max(choice.max_compaction_delay_ms, log.compaction_delay_ms)
            if log.total_bytes:
                weighed.append(log)
        choice.max_ratio = max((log.cleanable_ratio for log in weighed), default=0.0)
        wanted = filthiest_first(weighed)
        choice.cleanable = len(wanted)
        if wanted:
            choice.log = wanted[0]
            states.begin(choice.log.partition.topic_partition)
    return choice
