"""What commands ask of the running daemon over the control socket, each request done by the part that it concerns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from compactd.config.errors import CompactdError, DaemonError
from compactd.coordinator import reloading
from compactd.coordinator.control import status, topics, users
from compactd.coordinator.control.messages import (
    CatalogueAnswer,
    ChangeCatalogue,
    Control,
    Done,
    GetStatus,
    GetTopics,
    GetUsers,
    Refused,
    Reload,
    Request,
    StopDaemon,
)
from compactd.coordinator.control.socket import refused

if TYPE_CHECKING:
    from compactd.coordinator.daemon import Daemon


def do(daemon: Daemon, request: Request, answer: Callable[[Control], None]) -> None:
    """`answer` is called once, at any later time."""
    if isinstance(request, GetStatus):
        answer(status.build(daemon, request.all_partitions))
    elif isinstance(request, GetTopics):
        answer(topics.build(daemon, request.names))
    elif isinstance(request, GetUsers):
        answer(users.build(daemon))
    elif isinstance(request, StopDaemon):
        answer(Done(lines=("compactd stops",)))
        daemon.stop("a command asked for it")
    elif isinstance(request, Reload):
        reloading.reload(daemon, answer)
    elif isinstance(request, ChangeCatalogue):

        def failed(error: Exception) -> None:
            if isinstance(error, CompactdError):
                answer(refused(error))
            else:
                answer(Refused(error=type(error).__name__, message=str(error)))

        daemon.changes.request(
            request.operation, request.arguments, lambda results: answer(CatalogueAnswer(results=results)), failed
        )
    elif daemon.is_running:
        daemon.cleaning.control(request, answer)
    else:
        answer(refused(DaemonError(detail=f"it is {daemon.state}, try again in a moment")))
