"""How long clients are told to keep still, against Kafka's ClientQuotaManager and its kinds, request by request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from compactd.config.settings import CleanerConfig, DaemonConfig, StorageConfig
from compactd.coordinator.catalogue.mutation_quotas import MutationQuotas
from compactd.coordinator.catalogue.topic_changes import PlanError
from compactd.coordinator.interfaces import Settings
from compactd.storage.metadata.image import MetadataImage
from compactd.workers.broker.quotas.clients import QuotaKind
from compactd.workers.broker.quotas.rates import Windows
from compactd.workers.catalogue_update import ClientQuota
from compactd.workers.clock import Clock
from compactd.workers.quota_messages import Mutation
from tests.oracle.driver import Oracle
from tests.strategies import TIMEOUT, examples

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(TIMEOUT)]

USERS, CLIENTS = ("ann", "bob"), ("c1", "c2")

#: An entity: the user and the client id that it has, None for the default.
entities = st.one_of(
    st.fixed_dictionaries({"user": st.sampled_from([*USERS, None])}),
    st.fixed_dictionaries({"client": st.sampled_from([*CLIENTS, None])}),
    st.fixed_dictionaries({"user": st.sampled_from([*USERS, None]), "client": st.sampled_from([*CLIENTS, None])}),
)
limits = st.one_of(st.integers(1, 5000), st.floats(0.1, 2000, allow_nan=False))
windows = st.tuples(st.sampled_from([1, 2, 3, 11, 11, 11]), st.sampled_from([1, 1, 2, 5]))


def _key(entity: dict[str, Any]) -> tuple[tuple[str, str | None], ...]:
    names = {"user": "user", "client": "client-id"}
    return tuple(sorted(((names[kind], name) for kind, name in entity.items()), key=lambda part: part[0]))


@st.composite
def histories(draw: st.DrawFn, largest: int) -> list[dict[str, Any]]:
    """Limits first, then requests, and now and then a limit that is another from then on."""
    known = draw(st.lists(entities, min_size=1, max_size=5, unique_by=_key))
    # Kafka counts from 1970: a bucket is full when time begins.
    at = 10**12 + draw(st.integers(0, 10**6))
    steps = [{"at": at, **entity, "limit": draw(limits)} for entity in known]
    for _ in range(draw(st.integers(1, 40))):
        at += draw(st.sampled_from([0, 1, 7, 100, 500, 999, 1000, 1001, 3000, 10_000, 11_000, 60_000]))
        if draw(st.integers(0, 9)) == 0:
            steps.append({"at": at, **draw(st.sampled_from(known)), "limit": draw(limits)})
        else:
            user, client = draw(st.sampled_from(USERS)), draw(st.sampled_from(CLIENTS))
            value = draw(st.one_of(st.integers(0, largest), st.floats(0, largest, allow_nan=False)))
            steps.append({"at": at, "user": user, "client": client, "value": value, "strict": draw(st.booleans())})
    return steps


def _quotas(steps: dict[tuple[tuple[str, str | None], ...], float], key: str) -> tuple[ClientQuota, ...]:
    return tuple(ClientQuota(entity, {key: limit}) for entity, limit in steps.items())


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=histories(20_000), shape=windows)
def test_bytes(oracle: Oracle, steps: list[dict[str, Any]], shape: tuple[int, int]) -> None:
    kind = QuotaKind("producer_byte_rate", Windows(*shape))
    known: dict[tuple[tuple[str, str | None], ...], float] = {}
    mine = []
    for step in steps:
        if "limit" in step:
            known[_key({name: step[name] for name in ("user", "client") if name in step})] = step["limit"]
            kind.changed(_quotas(known, "producer_byte_rate"))
        else:
            header: Any = SimpleNamespace(peer=SimpleNamespace(user=step["user"]), client_id=step["client"])
            mine.append(kind.throttle_ms(header, step["value"], step["at"]))
    theirs = oracle.request("quotas", kind="producer_byte_rate", windows=shape[0], seconds=shape[1], steps=steps)
    event(f"throttled: {any(mine)}")
    assert mine == theirs["throttled"]


class _Steps(Clock):
    now = 0

    def monotonic(self) -> float:
        return self.now / 1000


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=histories(2000), shape=windows)
def test_partitions(oracle: Oracle, steps: list[dict[str, Any]], shape: tuple[int, int]) -> None:
    clock = _Steps()
    daemon = {"controller.quota.window.num": shape[0], "controller.quota.window.size.seconds": shape[1]}
    parts = Settings(
        storage=StorageConfig.from_strings({}),
        cleaner=CleanerConfig.from_strings({}),
        daemon=DaemonConfig.from_strings(daemon),
    )
    quotas = MutationQuotas(parts, clock)
    image = MetadataImage()
    known: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {}
    mine = []
    for step in steps:
        clock.now = step["at"]
        if "limit" in step:
            entity = _key({name: step[name] for name in ("user", "client") if name in step})
            known[entity] = {"controller_mutation_rate": step["limit"]}
            image = MetadataImage(quotas=dict(known))
            continue
        charge = quotas.of(image, Mutation(user=step["user"], client_id=step["client"], strict=step["strict"]))
        try:
            charge.record(step["value"])
            mine.append(charge.throttle_ms)
        except PlanError:
            mine.append(-1 - charge.throttle_ms)
    theirs = oracle.request("quotas", kind="controller_mutation_rate", windows=shape[0], seconds=shape[1], steps=steps)
    event(f"refused: {any(each < 0 for each in mine)}")
    assert mine == theirs["throttled"]
