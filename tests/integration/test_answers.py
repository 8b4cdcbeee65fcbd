"""Every API in every version that compactd announces: the same requests to it and to Kafka, the answers field by field.

What differs for a reason is listed in differences.py, with the reason; everything else has to be equal.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.answers import admin, cluster, groups, records, security, transactions
from tests.integration.answers.recording import KAFKA_VERSIONS, Recording, differences, span
from tests.integration.differences import ANSWERS, DOCUMENT, document
from tests.integration.servers import Server

pytestmark = pytest.mark.kafka

SCRIPTS: dict[Callable[[Recording], None], tuple[int, ...]] = {
    records.records: records.APIS,
    cluster.cluster: cluster.APIS,
    groups.groups: groups.APIS,
    transactions.transactions: transactions.APIS,
    admin.admin: admin.APIS,
    security.security: security.APIS,
}


@pytest.mark.parametrize("run", SCRIPTS, ids=lambda run: run.__name__)
def test_answers_are_those_of_kafka(run: Callable[[Recording], None], pair: tuple[Server, Server]) -> None:
    recordings = []
    for server in pair:
        recording = Recording(server)
        try:
            run(recording)
        finally:
            recording.close()
        recordings.append(recording)
    kafka, ours = recordings
    assert ours.asked == {**ours.asked, **{api: set(span(api)) for api in SCRIPTS[run]}}, "a version is not asked for"
    found = differences(kafka, ours)
    explained = [each for each in ANSWERS if each.script == run.__name__]
    unexplained = [line for line in found if not any(each.explains(line) for each in explained)]
    assert not unexplained, "\n".join(unexplained)
    for each in explained:
        assert any(each.explains(line) for line in found), f"no longer so: {each.what}"


def test_the_table_of_differences_is_as_the_tests_have_it() -> None:
    assert DOCUMENT.read_text() == document(), "python -m tests.integration.differences"


def test_every_api_is_asked_for() -> None:
    assert sorted(api for apis in SCRIPTS.values() for api in apis) == sorted(KAFKA_VERSIONS)


def test_what_is_announced(pair: tuple[Server, Server]) -> None:
    kafka, ours = (Recording(server) for server in pair)
    try:
        assert ours.versions == KAFKA_VERSIONS
        assert {api: kafka.versions[api] for api in KAFKA_VERSIONS} == KAFKA_VERSIONS
    finally:
        kafka.close()
        ours.close()
