"""Waits for a broker of Kafka, which hears of what its controller has changed a little after that was answered."""

from __future__ import annotations

import itertools
import time

from tests.workers.broker.harness import RawClient
from tests.workers.broker.quota_requests import described, limit

_SECONDS = 60.0
_NUMBERS = itertools.count(1)


def heard(client: RawClient) -> None:
    """Returns when the broker tells of changes that were made before this: it hears of all of them in order.

    What it does with them (quotas, its own settings) follows in the same step, at most a few milliseconds later.
    """
    name = f"sentinel-{next(_NUMBERS)}"
    for value, rows in ((1e9, 1), (None, 0)):
        limit(client, {"user": name}, producer_byte_rate=value)
        end = time.monotonic() + _SECONDS
        while len(described(client, ("user", 0, name))) != rows:
            assert time.monotonic() < end
            time.sleep(0.005)
