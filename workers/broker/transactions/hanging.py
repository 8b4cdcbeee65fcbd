"""Transactions that partitions have open when they are loaded: each is one that its coordinator knows, or is ended here.

Left over is what a power cut tore from its coordinator's record (see `claims`). It is looked for once, when a partition
comes: what is written later was first written down by the coordinator. Until the coordinators have spoken, the producer
may not begin anything else in that partition, lest its next commit have the leftover's records seen as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compactd.workers.broker.context import Context
from compactd.workers.broker.errors import ErrorCode
from compactd.workers.broker.peers import PeerError, Peers
from compactd.workers.broker.transactions.claims import AskedClaims, Claims, Opened, Verdict
from compactd.workers.broker.transactions.markers import Marker, MarkerWriter
from compactd.workers.broker.transactions.open_at_load import OpenAtLoad, OpenTransaction
from compactd.workers.broker.transactions.records import TRANSACTION_TOPIC
from compactd.workers.broker.transactions.transaction import EPOCH_BUMPS

if TYPE_CHECKING:
    from compactd.workers.broker.transactions.coordinator import TransactionCoordinator

_LOGGER = logging.getLogger(__name__)

_OPERATION = "transaction_claims"
#: Pauses before coordinators are asked again: the first, doubled up to the last.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0


class Hanging:
    """On the broker's loop."""

    def __init__(self, context: Context, coordinator: TransactionCoordinator) -> None:
        self._context = context
        self._coordinator = coordinator
        self._task: asyncio.Task[None] | None = None
        self._open = context.part(OpenAtLoad)
        self._open.on_found = self._begin
        context.part(Peers).serve(_OPERATION, AskedClaims, self._asked)
        self._begin()

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._context.spawn(self._sort_out())

    async def _sort_out(self) -> None:
        pause = _FIRST_PAUSE
        while found := list(self._open):
            if self._context.image.topic(TRANSACTION_TOPIC) is not None:
                await self._look(found)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _look(self, found: Sequence[OpenTransaction]) -> None:
        for each, verdict in zip(found, await self._verdicts(found), strict=True):
            if verdict is Verdict.LATER:
                continue
            if verdict is Verdict.GOES_ON or not each.is_there or await self._end(each, verdict):
                self._open.settled(each)

    async def _verdicts(self, found: Sequence[OpenTransaction]) -> list[Verdict]:
        """What the coordinators say; UNKNOWN only if all have spoken."""
        topic = self._context.image.topic(TRANSACTION_TOPIC)
        partitions = list(topic.partitions.values()) if topic is not None else []
        asked = AskedClaims(opened=tuple(Opened(each.key, each.producer_id, each.epoch) for each in found))
        answers = await asyncio.gather(*(self._ask(worker, asked) for worker in {each.worker for each in partitions}))
        complete = all(each.online for each in partitions) and all(answer.complete for answer in answers)
        unknown = Verdict.UNKNOWN if complete and partitions else Verdict.LATER
        return [
            next((each for each in given if each is not Verdict.UNKNOWN), unknown)
            for given in zip(*(answer.verdicts for answer in answers), strict=True)
        ] or [unknown] * len(found)

    async def _ask(self, worker: int, asked: AskedClaims) -> Claims:
        if worker == self._context.worker:
            return await self._asked(asked)
        try:
            return await self._context.part(Peers).ask(worker, _OPERATION, asked, Claims)
        except PeerError as error:
            _LOGGER.info("open transactions: %s", error)
            return Claims(verdicts=(Verdict.UNKNOWN,) * len(asked.opened), complete=False)

    async def _asked(self, asked: AskedClaims) -> Claims:
        return await self._coordinator.claims(asked.opened)

    async def _end(self, found: OpenTransaction, verdict: Verdict) -> bool:
        """Writes the marker; False: it is to be tried again."""
        entry = found.partition.log.producers.get(found.producer_id)
        # Of one that no record tells of, nobody has a newer epoch; a marker that was lost had the next one.
        epoch, version = (found.epoch, 1) if verdict is Verdict.UNKNOWN else (found.epoch + 1, EPOCH_BUMPS)
        marker = Marker(
            found.producer_id,
            epoch,
            verdict is Verdict.COMMIT,
            max(0, entry.coordinator_epoch if entry is not None else 0),
            version,
            (found.key,),
        )
        error = (await self._context.part(MarkerWriter).write_here(marker, [found.key]))[found.key]
        if error:
            _LOGGER.info(
                "%s: the marker of producer %d is tried again: %s", found.partition, found.producer_id, error.name
            )
            return error is ErrorCode.INVALID_PRODUCER_EPOCH
        _LOGGER.warning(
            "%s: the transaction of producer %d (epoch %d) that was open from offset %d on is %s: %s",
            found.partition, found.producer_id, found.epoch, found.first_offset,
            "committed" if marker.commit else "aborted",
            "no coordinator knows of it" if verdict is Verdict.UNKNOWN else "its coordinator has ended it already",
        )  # fmt: skip
        return True
