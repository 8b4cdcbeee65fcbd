"""What groups commit counts all at once, though others have turns while it is planned and written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compactd.workers.broker import turns
from compactd.workers.broker.context import Context
from compactd.workers.broker.groups import shard as shards
from compactd.workers.broker.groups.committing import records_of_commit, written_at
from compactd.workers.broker.groups.coordinator import GroupCoordinator
from compactd.workers.broker.groups.member import GroupError
from compactd.workers.broker.groups.records import NO_ID, Committed
from compactd.workers.broker.groups.shard import Shard
from compactd.workers.broker.requests import Peer, RequestHeader, load_handlers
from tests.workers.broker.catalogue_harness import CatalogueBroker
from tests.workers.broker.harness import RawClient
from tests.workers.broker.test_groups import LEAVE, LIST, create, enter, fetched, found, join_body, stable

COUNT = 40
COMMIT, DELETE_OFFSETS = 8, 47


@pytest.fixture
def broker(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CatalogueBroker]:
    """Others have a turn after everything; batches are put together in a thread."""
    monkeypatch.setattr(turns, "_HELD_SECONDS", -1.0)
    monkeypatch.setattr(shards, "_MANY", 3)
    with CatalogueBroker([log_dir], {"offsets.topic.num.partitions": 1}) as running:
        with running.connect() as client:
            create(client, "t", COUNT)
            found(client, "g")
        yield running


@pytest.fixture
def client(broker: CatalogueBroker) -> Iterator[RawClient]:
    with broker.connect() as connected:
        yield connected


async def asked(context: Context, api_key: int, version: int, **body: Any) -> Any:
    header = RequestHeader(api_key, version, 1, "", Peer("127.0.0.1", 1))
    return await load_handlers().apis[api_key].handler(context, header, SimpleNamespace(**body))


def commit_body(offset: int, count: int = COUNT) -> dict[str, Any]:
    rows = [
        SimpleNamespace(
            partition_index=number, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        for number in range(count)
    ]
    topics = [SimpleNamespace(name="t", partitions=rows)]
    return {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}


def the_shard(context: Context) -> Shard:
    return context.part(GroupCoordinator).shard("g")


def test_who_reads_meanwhile_sees_all_of_a_commit_or_nothing(broker: CatalogueBroker, client: RawClient) -> None:
    async def run(context: Context) -> tuple[list[set[int]], Any]:
        state = the_shard(context).state
        seen: list[set[int]] = []

        async def watch() -> None:
            while True:
                known = state.offsets.get("g", {})
                seen.append({known[where].offset for where in known} if len(known) == COUNT else {-len(known)})
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(watch())
        answers = await asyncio.gather(*(asked(context, COMMIT, 9, **commit_body(each)) for each in (1, 2, 3)))
        beside.cancel()
        return seen, answers

    seen, answers = broker.in_loop(run)
    assert {row["error_code"] for answer in answers for row in answer["topics"][0]["partitions"]} == {0}
    assert len(seen) > 3 * COUNT
    different = [each for index, each in enumerate(seen) if index == 0 or seen[index - 1] != each]
    # One commit after another, each from one turn to the next.
    assert different == [{0}, {1}, {2}, {3}]
    assert len(fetched(client, "g", None)) == COUNT


def test_who_reads_meanwhile_sees_all_of_a_deletion_or_nothing(broker: CatalogueBroker, client: RawClient) -> None:
    async def run(context: Context) -> tuple[list[int], Any]:
        state = the_shard(context).state
        seen: list[int] = []

        async def watch() -> None:
            while True:
                seen.append(len(state.offsets.get("g", {})))
                await asyncio.sleep(0)

        await asked(context, COMMIT, 9, **commit_body(1))
        rows = [SimpleNamespace(partition_index=number) for number in range(COUNT)]
        beside = asyncio.ensure_future(watch())
        topics = [SimpleNamespace(name="t", partitions=rows)]
        answer = await asked(context, DELETE_OFFSETS, 0, group_id="g", topics=topics)
        beside.cancel()
        return seen, answer

    seen, answer = broker.in_loop(run)
    assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [0] * COUNT
    assert seen.count(COUNT) > COUNT
    assert set(seen) == {0, COUNT}
    assert fetched(client, "g", None) == {}


def test_a_group_that_goes_while_a_commit_is_planned_takes_nothing(broker: CatalogueBroker) -> None:
    """The partition is another broker's then: the client looks for its coordinator."""

    async def run(context: Context) -> tuple[Any, int]:
        shard = the_shard(context)
        before = shard.partition.log.log_end_offset
        task = asyncio.ensure_future(asked(context, COMMIT, 9, **commit_body(1)))
        while not shard.lock.locked():
            await asyncio.sleep(0)
        shard.gone()
        return await task, shard.partition.log.log_end_offset - before

    answer, written = broker.in_loop(run)
    assert {row["error_code"] for row in answer["topics"][0]["partitions"]} == {16}
    assert written == 0


def test_offsets_are_remembered_with_the_places_of_their_records() -> None:
    offsets = [("t", number, Committed(number, -1, "m", 5, -1, NO_ID)) for number in range(5)]

    async def run() -> None:
        placed = await written_at(100, offsets)
        assert [(where, each.offset, each.record_offset) for where, each in placed.items()] == [
            (("t", number), number, 100 + number) for number in range(5)
        ]
        assert len(await records_of_commit("g", offsets)) == 5

    asyncio.run(run())


def test_members_leave_together_and_strangers_are_told_so(broker: CatalogueBroker, client: RawClient) -> None:
    member = stable(client)
    strangers = [{"member_id": f"who-{number}"} for number in range(50)]
    body = {
        "group_id": "g",
        "members": [*strangers[:25], {"member_id": member}, *strangers[25:], {"member_id": member}],
    }
    answer = client.ask(LEAVE, 5, body)
    assert [each.error_code for each in answer.members] == [25] * 25 + [0] + [25] * 26
    assert [each.group_state for each in client.ask(LIST, 5, {}).groups] == ["Empty"]
    # One that was told its id and has not joined yet; one by its instance id; and one that another holds.
    pending = client.ask(11, 9, join_body("g")).member_id
    assert client.ask(LEAVE, 5, {"group_id": "g", "members": [{"member_id": pending}]}).members[0].error_code == 0
    enter(client, group_instance_id="i")
    rows = [
        {"member_id": "else", "group_instance_id": "i"},
        {"member_id": "else", "group_instance_id": "j"},
        {"member_id": "", "group_instance_id": "i"},
    ]
    answer = client.ask(LEAVE, 5, {"group_id": "g", "members": rows})
    assert [each.error_code for each in answer.members] == [82, 25, 0]
    assert client.ask(LEAVE, 2, {"group_id": "none", "member_id": "m"}).error_code == 25


def test_a_shard_that_is_gone_takes_no_batch(broker: CatalogueBroker) -> None:
    """It was put together in a thread, and the shard went meanwhile."""

    async def run(context: Context) -> str:
        shard = the_shard(context)
        records = [(b"k", b"v")] * 10
        async with shard.lock:
            task = asyncio.ensure_future(shard.write(records))
            await asyncio.sleep(0)
            shard.gone()
            try:
                await task
            except GroupError as error:
                return error.code.name
        return ""

    assert broker.in_loop(run) == "NOT_COORDINATOR"
