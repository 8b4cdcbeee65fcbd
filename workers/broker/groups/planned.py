"""From a plan to what is so: what requests of consumer and streams groups have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from compactd.workers.broker.groups.member import Answer, Moment, Ticket
from compactd.workers.broker.groups.records import KeyValue

if TYPE_CHECKING:
    from compactd.workers.broker.groups.shard import Shard


class Planned(Protocol):
    """What is to be written, and then to be done."""

    def records(self) -> list[KeyValue]: ...


_P = TypeVar("_P", bound=Planned)


async def carry_out(
    shard: Shard, work: Callable[[Moment], _P], done: Callable[[_P, bool], list[tuple[Ticket, Answer]]]
) -> _P:  # fmt: skip
    """Runs `work`, writes what it plans, and has it `done` (with whether anything was written), all at once.

    `done` returns answers of those who waited. GroupError, those of `work` too: nothing was done.
    """
    async with shard.lock:
        shard.check()
        plan = work(shard.moment())
        records = plan.records()
        _, flush = await shard.write(records)
        answers = done(plan, bool(records))
    await shard.durable(flush)
    shard.deliver(answers)
    return plan
