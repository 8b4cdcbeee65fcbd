"""Python's collector of cycles, kept out of the way of clients.

A whole collection walks through everything that lives: with 3,000 partitions it held the loop for 150 to 300 ms, and a
request about all of them was enough to cause one. Partitions, topics and code mostly stay, and what leaves is freed by its
count of references. So they are set apart as they come, and collections look at what is younger.
"""

from __future__ import annotations

import gc

#: Objects made before the youngest are looked at, such looks before the next older are, and those before all are.
_THRESHOLDS = (5000, 20, 20)


class _State:
    is_on = False


def begin() -> None:
    """For a process that is a broker worker and nothing else."""
    _State.is_on = True
    gc.set_threshold(*_THRESHOLDS)
    gc.freeze()


def settle() -> None:
    """What is there now mostly stays."""
    if _State.is_on:
        gc.freeze()
