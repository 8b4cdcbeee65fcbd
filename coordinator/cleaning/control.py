"""What a person asks of the cleaning side over the control socket: clean now, pause, resume, retry, undo."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compactd.config.errors import CompactdError, RefusedError, UsageError
from compactd.coordinator.cleaning.pauses import EVERYTHING
from compactd.coordinator.control.messages import CleanNow, Control, Done, Pause, Refused, Resume, Retry, Undo
from compactd.coordinator.control.socket import refused
from compactd.coordinator.logs.retention import queue_deleted
from compactd.storage.names import TopicPartition
from compactd.workers.cleaning_messages import UndoClean, UndoDone
from compactd.workers.message import Message

if TYPE_CHECKING:
    from compactd.coordinator.cleaning.scheduler import CleaningScheduler

_log = logging.getLogger(__name__)

_UNDO_MS = 60_000
#: How long the deleter gets to let go of files that are to be put back.
_KEEP_MS = 300


def handle(cleaning: CleaningScheduler, request: Control, answer: Callable[[Control], None]) -> None:
    """Does what is asked, or answers why not; `answer` is called once."""
    try:
        if isinstance(request, CleanNow):
            answer(_clean_now(cleaning, request))
        elif isinstance(request, Pause):
            _pause(cleaning, request, answer)
        elif isinstance(request, Resume):
            _resume(cleaning, request, answer)
        elif isinstance(request, Retry):
            answer(_retry(cleaning, request))
        elif isinstance(request, Undo):
            _undo(cleaning, request, answer)
        else:
            answer(refused(UsageError(detail="the cleaning side does not know this request")))
    except CompactdError as error:
        answer(refused(error))


def _no(name: str, reason: str, advice: str) -> RefusedError:
    return RefusedError(path=name, reason=reason, advice=advice)


def _named(cleaning: CleaningScheduler, names: Sequence[str]) -> list[TopicPartition]:
    """Partitions that are served, by topic or by topic-partition. RefusedError names the one that is not."""
    found: list[TopicPartition] = []
    for name in names:
        some = [tp for tp in cleaning.frame.states if name in (tp.topic, str(tp))]
        if not some:
            raise _no(name, "there is no topic or partition of this name", "compactd topics list shows what there is.")
        found += [tp for tp in some if tp not in found]
    return sorted(found)


def _clean_now(cleaning: CleaningScheduler, request: CleanNow) -> Control:
    wanted = _named(cleaning, request.names)
    other = [str(name) for name in wanted if name not in cleaning.queue.weighed]
    if other:
        raise _no(", ".join(other), "cleanup.policy has no compact", "compactd topics alter sets it.")
    cleaner = cleaning.frame.settings.cleaner
    if not cleaner.enable or not cleaner.threads:
        raise _no(
            "cleaning",
            "no cleaner runs: log.cleaner.enable is false, or log.cleaner.threads is 0",
            "Change the setting and reload.",
        )
    cleaning.queue.forced.update(wanted)
    cleaning.quarantine.remove(map(str, wanted))
    cleaning.save_quarantine()
    cleaning.try_now(map(str, wanted))
    return Done(lines=tuple(f"{name} is cleaned next" for name in wanted))


def _pause(cleaning: CleaningScheduler, request: Pause, answer: Callable[[Control], None]) -> None:
    wanted = _named(cleaning, request.names)
    names = request.names or (EVERYTHING,)
    cleaning.pauses.names.update(names)
    for job in cleaning.jobs.running.values():
        if not request.names or job.partition in wanted:
            cleaning.jobs.abort(job, "it was paused")
    _save_pauses(cleaning, [f"{_shown(name)} is paused" for name in names], answer)


def _resume(cleaning: CleaningScheduler, request: Resume, answer: Callable[[Control], None]) -> None:
    wanted, paused = request.names or (EVERYTHING,), cleaning.pauses.names
    missing = [name for name in wanted if name not in paused]
    if missing:
        others = ", ".join(sorted(paused)) or "nothing"
        raise _no(", ".join(missing), "it is not paused under this name", f"Paused: {others}.")
    paused.difference_update(wanted)
    cleaning.consider_soon()
    _save_pauses(cleaning, [f"{_shown(name)} goes on" for name in wanted], answer)


def _shown(name: str) -> str:
    return "all cleaning" if name == EVERYTHING else name


def _save_pauses(cleaning: CleaningScheduler, lines: Sequence[str], answer: Callable[[Control], None]) -> None:
    """Answers once the change outlasts a restart."""

    def failed(error: Exception) -> None:
        answer(Refused(error=type(error).__name__, message=f"{', '.join(lines)}, but only until a restart: {error}"))

    cleaning.save_pauses(lambda: answer(Done(lines=tuple(lines))), failed)


def _retry(cleaning: CleaningScheduler, request: Retry) -> Control:
    names = [
        name
        for name in cleaning.quarantine.names()
        if not request.names or name in request.names or name.rpartition("-")[0] in request.names
    ]
    if request.names and not names:
        raise _no(", ".join(request.names), "it is not set aside", "compactd status lists what is.")
    released = cleaning.quarantine.remove(names)
    cleaning.save_quarantine()
    cleaning.try_now(released)
    return Done(lines=tuple(f"{name} is tried again" for name in released) or ("nothing is set aside",))


def _undo(cleaning: CleaningScheduler, request: Undo, answer: Callable[[Control], None]) -> None:
    names = _named(cleaning, [request.name])
    if len(names) != 1 or str(names[0]) != request.name:
        raise _no(request.name, "that names not one partition", "Name one partition, such as users-0.")
    name, owner = names[0], cleaning.frame.owner_of(names[0])
    if name in cleaning.jobs.running:
        raise _no(str(name), "it is being cleaned", "Pause it first: compactd pause.")
    if name not in cleaning.jobs.last or owner is None:
        raise _no(
            str(name), "it was not cleaned since compactd started, or nobody serves it just now", "Nothing was changed."
        )
    deleted, first_dirty = cleaning.jobs.last[name]
    cleaning.frame.keep_files(deleted)
    paused = cleaning.pauses.names
    was_paused = str(name) in paused
    # Whoever undoes a clean does not want another in the next moment, nor after a restart.
    paused.add(str(name))

    def ask() -> None:
        undo = UndoClean(request_id=cleaning.frame.next_request_id(), topic=name.topic, partition=name.partition)
        cleaning.frame.ask(owner, undo, done, _UNDO_MS)

    def done(message: Message) -> None:
        if isinstance(message, UndoDone) and not message.refused:
            cleaning.jobs.last.pop(name, None)
            cleaning.offsets.known[name] = first_dirty
            state = cleaning.frame.states.get(name)
            if state is not None:
                cleaning.offsets.write(Path(state.log_dir), {name: first_dirty})
            back = f"{len(message.restored)} files of {name} are back"
            answer(Done(lines=(f"{back}; it is paused until compactd resume {name}",)))
            return
        queue_deleted(cleaning.frame, deleted)
        take_back()
        reason = message.refused if isinstance(message, UndoDone) else getattr(message, "message", "no answer")
        answer(Refused(error="RefusedError", message=f"{name}: the last clean cannot be undone, {reason}"))

    def take_back() -> None:
        if not was_paused:
            paused.discard(str(name))
            cleaning.save_pauses(lambda: None, lambda error: _log.error(f"{cleaning.pauses.path}: {error}"))

    def not_saved(error: Exception) -> None:
        take_back()
        queue_deleted(cleaning.frame, deleted)
        answer(Refused(error=type(error).__name__, message=f"{name}: the last clean is not undone: {error}"))

    def saved() -> None:
        cleaning.frame.call_later(_KEEP_MS, ask)

    cleaning.save_pauses(saved, not_saved)
