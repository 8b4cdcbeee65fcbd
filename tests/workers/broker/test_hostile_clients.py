"""Clients that mean harm, or know no better: what they may cost others, and what they may not do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactd.workers.broker.groups.consumer import regex
from compactd.workers.broker.groups.consumer.heartbeat import resolver
from compactd.workers.broker.groups.consumer.regex import TopicPattern
from compactd.workers.broker.groups.consumer.regex_syntax import RegexError
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.transactional import RawProducer

API_VERSIONS, FIND_COORDINATOR, LIST_TRANSACTIONS = 18, 10, 66
#: Each character of a name leads through all of its states.
COSTLY = "((.?){249}){20}"


@pytest.fixture
def broker(log_dir: Path) -> Iterator[CatalogueBroker]:
    with CatalogueBroker([log_dir]) as running:
        yield running


def test_an_expression_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = TopicPattern(COSTLY)
    names = [f"{number}-" + "x" * 30 for number in range(3)]
    assert pattern.topics(names) == frozenset(names)
    monkeypatch.setattr(regex, "MOST_WORK", 50_000)
    other = TopicPattern(COSTLY)
    with pytest.raises(RegexError, match="takes too long"):
        other.topics(names)
    # Every question has the time anew; a group with such an expression reads nothing by it.
    regex.compiled.cache_clear()
    assert TopicPattern(".*").topics(names) == frozenset(names)
    found = resolver([COSTLY, "0-x*"], names, 1, 2)
    assert {each: resolved.topics for each, resolved in found.items()} == {COSTLY: frozenset(), "0-x*": {names[0]}}
    regex.compiled.cache_clear()


def test_others_are_served_while_transactions_are_looked_for(
    broker: CatalogueBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regex, "MOST_WORK", 3_000_000)
    with RawClient(broker.port) as client, RawClient(broker.port) as other:
        client.ask(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ["0"]})
        for number in range(3):
            assert RawProducer(client, f"{number}{'x' * 800}", False).init() == 0
        other.ask(API_VERSIONS, 0, {})
        filters = {"state_filters": (), "producer_id_filters": (), "transactional_id_pattern": COSTLY}
        client.send(LIST_TRANSACTIONS, 2, filters)
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(client.receive(LIST_TRANSACTIONS, 2)))
        waiting.start()
        served = 0
        while waiting.is_alive():
            other.ask(API_VERSIONS, 0, {})
            served += 1
        waiting.join()
        assert served > 3
        assert answers[0].error_code == 128
