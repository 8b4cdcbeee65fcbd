"""Client quotas in the catalogue: the records that they become, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactd.coordinator.catalogue.quota_changes import plan_quotas
from compactd.storage.metadata.delta import MetadataDelta
from compactd.storage.metadata.image import MetadataImage
from compactd.storage.metadata.records import read_body, read_frame
from compactd.workers.catalogue_messages import ErrorCode
from compactd.workers.quota_messages import AlterClientQuotas, EntityChange, QuotaChange

Entity = tuple[tuple[str, str | None], ...]


def _request(entity: Entity, validate_only: bool = False, **values: float | None) -> AlterClientQuotas:
    changes = tuple(QuotaChange(key=key, value=value) for key, value in values.items())
    return AlterClientQuotas(entities=(EntityChange(entity=entity, changes=changes),), validate_only=validate_only)


def _after(image: MetadataImage, request: AlterClientQuotas) -> MetadataImage:
    delta = MetadataDelta(image)
    for record in plan_quotas(request, image).records:
        frame = read_frame(record.value)
        delta.replay(frame.api_key, read_body(frame, record.value))
    return delta.apply(image.offset + 1, 1, 0)


def test_records_are_those_of_kafka() -> None:
    # Facts: kraft-and-coordinators A17.
    bob = (("user", "bob"),)
    (record,) = plan_quotas(_request(bob, producer_byte_rate=1024.0), MetadataImage()).records
    assert record.value.hex() == (
        "010e0002057573657204626f62001370726f64756365725f627974655f7261746540900000000000000000"
    )
    image = _after(MetadataImage(), _request(bob, producer_byte_rate=1024.0))
    (record,) = plan_quotas(_request(bob, producer_byte_rate=None), image).records
    assert record.value.hex() == (
        "010e0002057573657204626f62001370726f64756365725f627974655f7261746500000000000000000100"
    )
    both = (("user", None), ("client-id", "default-x"))
    (record,) = plan_quotas(_request(both, request_percentage=50.0), MetadataImage()).records
    assert record.value.hex() == (
        "010e00030a636c69656e742d69640a64656661756c742d78000575736572000013726571756573745f70657263656e74616765"
        "40490000000000000000"
    )


def test_only_what_changes_is_written() -> None:
    entity = (("client-id", None),)
    image = _after(MetadataImage(), _request(entity, producer_byte_rate=5.0, consumer_byte_rate=6.0))
    same = _request(entity, producer_byte_rate=5.0, request_percentage=None)
    assert plan_quotas(same, image).records == []
    assert [result.error for result in plan_quotas(same, image).results] == [ErrorCode.NONE]
    assert plan_quotas(_request(entity, validate_only=True, producer_byte_rate=7.0), image).records == []
    assert _after(image, _request(entity, producer_byte_rate=None, consumer_byte_rate=None)).quotas == {}


@pytest.mark.parametrize("value", [math.nan, 0.0, -0.0, -math.inf, math.inf, 0.5])
def test_numbers_that_are_no_rate_of_bytes(value: float) -> None:
    plan = plan_quotas(_request((("user", "u"),), producer_byte_rate=value), MetadataImage())
    assert plan.records == []
    assert plan.results[0].error == ErrorCode.INVALID_REQUEST


def test_too_many_changes_at_once() -> None:
    entities = tuple(
        EntityChange(entity=(("user", f"u{n}"),), changes=(QuotaChange(key="request_percentage", value=1.0),))
        for n in range(10_001)
    )
    plan = plan_quotas(AlterClientQuotas(entities=entities), MetadataImage())
    assert plan.records == []
    assert {result.error for result in plan.results} == {ErrorCode.POLICY_VIOLATION}


_names = st.none() | st.text(max_size=5)
_entities = st.dictionaries(st.sampled_from(["user", "client-id", "ip", "x", ""]), _names, max_size=3)
_changes = st.lists(
    st.builds(
        lambda key, value: QuotaChange(key=key, value=value),
        st.sampled_from(["producer_byte_rate", "request_percentage", "connection_creation_rate", "x"]),
        st.none() | st.floats(),
    ),
    max_size=3,
)


@given(st.lists(st.tuples(_entities, _changes), max_size=4))
def test_whatever_is_asked_is_answered_and_can_be_read_back(
    asked: list[tuple[dict[str, str | None], list[QuotaChange]]],
) -> None:
    request = AlterClientQuotas(
        entities=tuple(EntityChange(entity=tuple(entity.items()), changes=tuple(changes)) for entity, changes in asked)
    )
    image = MetadataImage()
    plan = plan_quotas(request, image)
    assert len(plan.results) == len({tuple(sorted(entity.items(), key=lambda part: part[0])) for entity, _ in asked})
    after = _after(image, request)
    for values in after.quotas.values():
        assert all(value > 0 for value in values.values())
