"""Every API in every version that compactd announces: the same requests to it and to Kafka, the answers field by field.

What differs for a reason is listed in differences.py, with the reason; everything else has to be equal.
"""

from __future__ import annotations

import re

import pytest

from tests.integration import servers
from tests.integration.answers.record import SCRIPTS, play, recorded
from tests.integration.answers.recording import KAFKA_VERSIONS, Log, Recording, differences, span
from tests.integration.differences import ANSWERS, DOCUMENT, document
from tests.integration.servers import Server

#: Kafka's controller gives its leadership up, and takes it again, at some requests of other scripts (NullPointerException).
_OF_THE_PAST = re.compile(r"API 55 v\d, quorum of __cluster_metadata-0: \S*\.leader_epoch is \d+ in Kafka, 1 here")


def unexplained(name: str, kafka: Log, ours: Log) -> list[str]:
    """What differs without a reason; every reason has to be needed."""
    found = differences(kafka, ours)
    explained = [each for each in ANSWERS if each.script == name]
    for each in explained:
        assert any(each.explains(line) for line in found), f"no longer so: {each.what}"
    return [line for line in found if not any(each.explains(line) for each in explained)]


@pytest.mark.kafka
@pytest.mark.parametrize("name", SCRIPTS)
def test_answers_are_those_of_kafka(name: str, pair: tuple[Server, Server]) -> None:
    kafka, ours = (play(name, server) for server in pair)
    versions = {api: set(span(api)) for api in SCRIPTS[name][1]}
    assert ours.asked == {**ours.asked, **versions}, "a version is not asked for"
    found = [line for line in unexplained(name, kafka.log, ours.log) if not _OF_THE_PAST.fullmatch(line)]
    assert not found, "\n".join(found)


def test_answers_are_those_that_were_recorded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same against a recording of Kafka's answers: where Kafka cannot run, too."""
    with servers.compactd(tmp_path_factory.mktemp("answers") / "home") as server:
        ours = {name: play(name, server).log for name in SCRIPTS}
    found = [line for name, kafka in recorded().items() for line in unexplained(name, kafka, ours[name])]
    assert not found, "\n".join(found)


def test_the_table_of_differences_is_as_the_tests_have_it() -> None:
    assert DOCUMENT.read_text() == document(), "python -m tests.integration.differences"


def test_every_api_is_asked_for() -> None:
    assert sorted(api for _, apis in SCRIPTS.values() for api in apis) == sorted(KAFKA_VERSIONS)


@pytest.mark.kafka
def test_what_is_announced(pair: tuple[Server, Server]) -> None:
    kafka, ours = (Recording(server) for server in pair)
    try:
        assert ours.versions == KAFKA_VERSIONS
        assert {api: kafka.versions[api] for api in KAFKA_VERSIONS} == KAFKA_VERSIONS
    finally:
        kafka.close()
        ours.close()
