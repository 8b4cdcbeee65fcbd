"""How many partitions clients may make and delete: the controller_mutation_rate of the one who asks (KIP-599).

The catalogue is Kafka's controller: here the permits are counted, whichever worker a client asked (facts: kafka-protocol 17).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compactd.coordinator.catalogue.client_rules import quotas_of
from compactd.coordinator.catalogue.topic_changes import PlanError
from compactd.coordinator.interfaces import Settings
from compactd.storage.metadata.image import MetadataImage
from compactd.workers.broker.quotas.limits import CONTROLLER_MUTATION_RATE, ClientLimits
from compactd.workers.broker.quotas.rates import TokenBucket, Windows
from compactd.workers.catalogue_messages import ErrorCode
from compactd.workers.clock import Clock
from compactd.workers.quota_messages import Mutation

#: So many buckets are kept before the full ones, which are as good as new ones, are dropped.
_REMEMBERED = 1000


class Charge:
    """What one request takes."""

    def __init__(self, bucket: TokenBucket | None, limit: float, strict: bool, clock: Clock) -> None:
        self._bucket = bucket
        self._limit = limit
        self._strict = strict
        self._clock = clock
        #: How long the client has to keep still.
        self.throttle_ms = 0

    def record(self, partitions: int) -> None:
        """Takes permits. PlanError where none are left and the client asked with a version that can be refused."""
        if self._bucket is None:
            return
        now_ms = int(self._clock.monotonic() * 1000)
        owed = self._bucket.throttle_ms(self._limit, now_ms)
        if self._strict and owed:
            self.throttle_ms = owed
            raise PlanError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, None)
        self._bucket.record(partitions, self._limit, now_ms)
        if not self._strict:
            self.throttle_ms = max(self.throttle_ms, self._bucket.throttle_ms(self._limit, now_ms))


class MutationQuotas:
    """All clients' permits. In the catalogue's lane."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        daemon = settings.daemon
        self._windows = Windows(daemon.controller_quota_window_num, daemon.controller_quota_window_size_seconds)
        self._clock = clock
        self._seen: Mapping[Any, Any] = {}
        self._limits = ClientLimits((), CONTROLLER_MUTATION_RATE)
        self._most = _REMEMBERED
        self._buckets: dict[tuple[str, str], tuple[TokenBucket, float]] = {}

    def of(self, image: MetadataImage, by: Mutation | None) -> Charge:
        """`by` None: nobody is charged."""
        if image.quotas is not self._seen:
            self._seen = image.quotas
            self._limits = ClientLimits(quotas_of(image), CONTROLLER_MUTATION_RATE)
        limit = None if by is None or not self._limits else self._limits.of(by.user, by.client_id)
        if by is None or limit is None:
            return Charge(None, 0.0, False, self._clock)
        found = self._buckets.get(limit.shared_by)
        if found is None and len(self._buckets) >= self._most:
            self._forget_full()
        bucket = TokenBucket(self._windows) if found is None else found[0]
        self._buckets[limit.shared_by] = bucket, limit.value
        return Charge(bucket, limit.value, by.strict, self._clock)

    def _forget_full(self) -> None:
        now_ms = int(self._clock.monotonic() * 1000)
        self._buckets = {
            key: (bucket, limit) for key, (bucket, limit) in self._buckets.items() if not bucket.is_full(limit, now_ms)
        }
        self._most = max(self._most, 2 * len(self._buckets))
