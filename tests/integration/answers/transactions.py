"""InitProducerId, transactions in every version, what describes and repairs them."""

from __future__ import annotations

import uuid
from typing import Any

from tests.integration.answers.recording import THEN_MS, Recording, span
from tests.workers.broker.batches import PRODUCE, batch, produce_body

(INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, WRITE_MARKERS, TXN_OFFSET_COMMIT, DESCRIBE_PRODUCERS,
 DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS) = (22, 24, 25, 26, 27, 28, 61, 65, 66)  # fmt: skip
APIS = (
    INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, WRITE_MARKERS, TXN_OFFSET_COMMIT, DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS,
)  # fmt: skip
CONCURRENT_TRANSACTIONS = 51


def initialised(script: Recording, transactional_id: str, version: int = 5) -> tuple[int, int]:
    """A producer's id and epoch, when no earlier transaction of it is being ended."""
    body = {"transactional_id": transactional_id, "transaction_timeout": 60_000}
    answer: list[Any] = []

    def right(found: Any) -> bool:
        answer[:] = [found]
        return found.error_code not in (14, 15, 16, CONCURRENT_TRANSACTIONS)

    script.until(INIT_PRODUCER_ID, version, body, right, f"a producer id for {transactional_id}")
    assert answer[0].error_code == 0, answer
    script.named(answer[0].producer_id, f"producer of {transactional_id}")
    return answer[0].producer_id, answer[0].producer_epoch


def transactions(script: Recording) -> None:
    script.create("moved", 3)
    for kind in (0, 1):  # the one that asks where a coordinator is has its topic made
        found = {"key_type": kind, "coordinator_keys": ["first"]}
        script.until(10, 6, found, lambda answer: answer.coordinators[0].error_code == 0, "a coordinator")
    initialised(script, "first")
    for body in (
        {"transactional_id": ""}, {"transactional_id": "x", "transaction_timeout": 900_001},
        {"transactional_id": "x", "transaction_timeout": 0}, {"transactional_id": "x", "transaction_timeout": -1},
    ):  # fmt: skip
        script.each(str(body), INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout": 1000, **body})
    for body in ({"producer_id": 5}, {"producer_epoch": 3}, {"producer_id": 5, "producer_epoch": 3}):
        given = {"transactional_id": None, "transaction_timeout": 1000, **body}
        script.each(f"idempotent {sorted(body)}", INIT_PRODUCER_ID, given, lowest=3)
        script.each(f"transactional {sorted(body)}", INIT_PRODUCER_ID, {**given, "transactional_id": "first"}, lowest=3)
    for version in range(4):
        answer = script.quietly(
            INIT_PRODUCER_ID, version, {"transactional_id": None, "transaction_timeout": 1000}
        )  # fmt: skip
        assert (answer.error_code, answer.producer_epoch) == (0, 0)
    for version in range(6):
        old_way(script, version)
    new_way(script)
    repairs(script)


def old_way(script: Recording, version: int) -> None:
    """Partitions and offsets are added by the client; version: of every API, as far as it goes."""
    name = f"old{version}"
    producer, epoch = initialised(script, name, version)
    mine = {"transactional_id": name, "producer_id": producer, "producer_epoch": epoch}

    def at(api: int, most: int = 99) -> int:
        return min(version, span(api)[-1], most)

    def add(label: str, **more: Any) -> None:
        given = {**mine, **more}
        topics = [{"name": "moved", "partitions": [0, 1]}]
        topics = given.pop("topics", topics)
        body = {f"v3_and_below_{key}": value for key, value in given.items()} | {"v3_and_below_topics": topics}
        body["transactions"] = [{**given, "verify_only": False, "topics": topics}]
        script.ask(f"{name}, add {label}", ADD_PARTITIONS, at(ADD_PARTITIONS), body)

    def end(label: str, committed: bool, **more: Any) -> Any:
        # Version 5 would raise the epoch: see new_way.
        return script.ask(f"{name}, {label}", END_TXN, at(END_TXN, 4), {**mine, "committed": committed, **more})

    end("end of nothing", True)
    for more in (
        {"producer_epoch": epoch + 1}, {"producer_id": producer + 100_000}, {"transactional_id": "nobody"},
        {"transactional_id": ""}, {"topics": [{"name": "nowhere", "partitions": [0]}, {"name": "moved", "partitions": [0]}]},
        {"topics": [{"name": "moved", "partitions": [9]}]},
    ):  # fmt: skip
        add(str(sorted(more)), **more)
    add("two")
    add("again")
    script.ask(f"{name}, verify", ADD_PARTITIONS, max(4, at(ADD_PARTITIONS)), {
        "transactions": [{**mine, "verify_only": True, "topics": [{"name": "moved", "partitions": [0, 2]}]}],
    })  # fmt: skip
    data = batch(
        [b"v"], timestamp=THEN_MS, transactional=True, producer_id=producer, producer_epoch=epoch, base_sequence=0
    )
    for partition in (0, 2):
        body = {**produce_body(data, "moved", partition), "transactional_id": name}
        script.ask(f"{name}, produce to {partition}", PRODUCE, 9, body)
    for more in (
        {}, {"producer_epoch": epoch + 1}, {"transactional_id": "nobody"}, {"group_id": ""}, {"transactional_id": ""},
    ):  # fmt: skip
        script.ask(
            f"{name}, offsets {sorted(more)}",
            ADD_OFFSETS,
            at(ADD_OFFSETS),
            {**mine, "group_id": f"gt{version}", **more},
        )
    for more in ({}, {"producer_epoch": epoch + 1}, {"member_id": "m", "generation_id": 3}, {"group_id": ""}):
        rows = [{"partition_index": number, "committed_offset": 3, "committed_metadata": ""} for number in (0, 9)]
        topics = [{"name": topic, "partitions": rows} for topic in ("moved", "nowhere")]
        body = {**mine, "group_id": f"gt{version}", "topics": topics, "member_id": "", "generation_id": -1, **more}
        script.ask(f"{name}, commit offsets {sorted(more)}", TXN_OFFSET_COMMIT, at(TXN_OFFSET_COMMIT, 4), body)
    script.ask(f"{name}, describe", DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [name, "nobody", ""]})
    for state in ([], ["Ongoing"], ["nonsense"]):
        script.each(
            f"{name}, list {state}", LIST_TRANSACTIONS, {"state_filters": state, "producer_id_filters": [producer]}
        )
    script.each(
        f"{name}, list by pattern",
        LIST_TRANSACTIONS,
        {"transactional_id_pattern": "old.*", "producer_id_filters": [producer]},
        lowest=2,
    )
    script.each(f"{name}, list by a bad pattern", LIST_TRANSACTIONS, {"transactional_id_pattern": "("}, lowest=2)
    rows = [{"name": topic, "partition_indexes": [0, 9]} for topic in ("moved", "nowhere")]
    script.ask(f"{name}, producers", DESCRIBE_PRODUCERS, 0, {"topics": rows})
    end("end by an old one", True, producer_epoch=epoch - 1)
    end("end", version % 2 == 0)
    script.until(
        DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [name]},
        lambda found: found.transaction_states[0].transaction_state.startswith("Complete"), "its end",
    )  # fmt: skip
    end("end again", version % 2 == 0)
    end("end otherwise", version % 2 == 1)
    script.ask(f"{name}, described again", DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [name]})
    script.ask(f"{name}, offsets of the group", 9, 9, {"groups": [{"group_id": f"gt{version}", "topics": None}]})


def new_way(script: Recording) -> None:
    """Partitions add themselves, and each end raises the epoch (KIP-890)."""
    producer, epoch = initialised(script, "new")
    mine = {"transactional_id": "new", "producer_id": producer, "producer_epoch": epoch}
    data = batch(
        [b"v"], timestamp=THEN_MS, transactional=True, producer_id=producer, producer_epoch=epoch, base_sequence=0
    )
    for version in (12, 13):
        name = {"topic_id": script.ids["moved"]} if version >= 13 else {"topic": "moved"}
        body = {**produce_body(data, partition=version - 12, **name), "transactional_id": "new"}
        script.ask("new, produce", PRODUCE, version, body)
    for version in (5, 6):
        rows = [{"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}]
        topics: list[dict[str, Any]] = [{"name": name, "partitions": rows} for name in ("moved", "nowhere")]
        if version >= 6:
            topics = [{"topic_id": each, "partitions": rows} for each in (script.ids["moved"], uuid.UUID(int=5))]
        body = {**mine, "group_id": "gn", "topics": topics, "member_id": "", "generation_id": -1}
        script.ask("new, commit offsets", TXN_OFFSET_COMMIT, version, body)
    script.ask("new, describe", DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["new"]})
    script.ask("new, end", END_TXN, 5, {**mine, "committed": True})
    script.until(
        DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["new"]},
        lambda found: found.transaction_states[0].transaction_state == "CompleteCommit", "its end",
    )  # fmt: skip
    script.ask("new, end again", END_TXN, 5, {**mine, "committed": True})
    script.ask("new, end otherwise", END_TXN, 5, {**mine, "committed": False})
    script.ask("new, abort of nothing", END_TXN, 5, {**mine, "producer_epoch": epoch + 1, "committed": False})
    script.until(
        DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["new"]},
        lambda found: found.transaction_states[0].transaction_state == "CompleteAbort", "its end",
    )  # fmt: skip
    script.ask("new, commit of nothing", END_TXN, 5, {**mine, "producer_epoch": epoch + 2, "committed": True})
    script.ask("new, the group", 9, 9, {"groups": [{"group_id": "gn", "topics": None}]})


def repairs(script: Recording) -> None:
    """WriteTxnMarkers by hand."""
    for version in span(WRITE_MARKERS):
        name = f"hanging{version}"
        producer, epoch = initialised(script, name)
        data = batch(
            [b"v"], timestamp=THEN_MS, transactional=True, producer_id=producer, producer_epoch=epoch, base_sequence=0
        )
        body = {**produce_body(data, "moved", 0), "transactional_id": name}
        script.ask(f"{name}, produce", PRODUCE, 12, body)
        topics = [{"name": topic, "partition_indexes": [0, 9]} for topic in ("moved", "nowhere")]
        for more in ({"producer_epoch": epoch - 1}, {}, {"coordinator_epoch": -1}):
            marker = {
                "producer_id": producer, "producer_epoch": epoch, "transaction_result": False, "topics": topics,
                "coordinator_epoch": 5, "transaction_version": 0, **more,
            }  # fmt: skip
            script.ask(f"{name}, markers {sorted(more)}", WRITE_MARKERS, version, {"markers": [marker]})
    script.each("none", WRITE_MARKERS, {"markers": []})
