"""The daemon's kinds of workers, as small as can be: started in place of the real ones by tests of the daemon.

What they are told, they note, a line each, in the file `told` of $COMPACTD_TEST_DIR.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
from pathlib import Path

from compactd.config.errors import WorkerBootError
from compactd.storage import names
from compactd.storage.names import TopicPartition
from compactd.workers.catalogue_update import CatalogueUpdate
from compactd.workers.channel import Channel
from compactd.workers.cleaning_messages import (
    CheckRetention,
    DeleteLater,
    DeleterState,
    LetGo,
    LetGoDone,
    RetentionDecided,
)
from compactd.workers.clock import Clock
from compactd.workers.message import Endpoint, Message
from compactd.workers.messages import Listening, Reconfigure, Serving, Stop, Stopped
from compactd.workers.partition_messages import (
    AssignPartitions,
    LogDirFailed,
    PartitionAssignment,
    PartitionsReady,
    PartitionsReleased,
    PartitionState,
    PartitionStates,
    ReleasePartitions,
)
from compactd.workers.process import KINDS, Kind, main

_DIR = Path(os.environ.get("COMPACTD_TEST_DIR", "."))


def note(channel: Channel, text: str) -> None:
    with open(_DIR / "told", "a") as file:
        file.write(f"{channel.kind}-{channel.number} {text}\n")


def state_of(part: PartitionAssignment, end: int) -> PartitionState:
    return PartitionState(
        topic=part.topic,
        partition=part.partition,
        log_dir=part.log_dir,
        log_start_offset=3,
        log_end_offset=end,
        high_watermark=end - 1,
        last_stable_offset=end - 1,
        recovery_point=end - 2,
        active_base_offset=0,
        active_size=100,
        closed=(),
    )


def broker(channel: Channel, clock: Clock) -> Stopped | None:
    wanted = channel.welcome.listen[0]
    listener = socket.create_server((wanted.host or "127.0.0.1", wanted.port))
    if (_DIR / "port-is-taken").exists():
        raise WorkerBootError(detail="the port is taken")
    if (_DIR / "bug").exists():
        raise ZeroDivisionError("a bug on purpose")
    if (_DIR / "module-is-missing").exists():
        importlib.import_module("compactd.nowhere")
    owned: dict[str, PartitionAssignment] = {}
    with listener:
        channel.send(Listening(endpoints=(Endpoint(wanted.listener, "127.0.0.1", listener.getsockname()[1]),)))
        note(channel, f"listening node {channel.welcome.node_id} port {listener.getsockname()[1]}")
        while True:
            message = channel.receive()
            if isinstance(message, Stop):
                note(channel, f"stop {message.reason}")
                time.sleep(float(os.environ.get("COMPACTD_TEST_SLOW_STOP", "0")))
                channel.send(PartitionStates(states=tuple(state_of(part, 200) for part in owned.values())))
                return Stopped(log_dirs_clean=tuple(sorted({part.log_dir for part in owned.values()})))
            _serve(channel, message, owned)
            if isinstance(message, CatalogueUpdate) and message.full:
                time.sleep(float(os.environ.get("COMPACTD_TEST_SLOW_SERVING", "0")))
                note(channel, "serving")
                channel.send(Serving())


def _serve(channel: Channel, message: Message | None, owned: dict[str, PartitionAssignment]) -> None:
    if isinstance(message, CatalogueUpdate):
        note(channel, f"catalogue full={message.full} {','.join(topic.name for topic in message.topics)}")
    elif isinstance(message, AssignPartitions):
        failed = {}
        for part in message.partitions:
            name = f"{part.topic}-{part.partition}"
            if part.topic == "bad":
                failed[name] = "its log is damaged"
                continue
            (Path(part.log_dir) / name).mkdir(exist_ok=True)
            owned[name] = part
            clean = part.log_dir in message.clean_log_dirs
            note(
                channel,
                f"assign {name} new={part.is_new} clean={clean} point={part.recovery_point} "
                f"start={part.log_start_offset} mark={part.high_watermark}",
            )
        ready = tuple(state_of(part, 100) for part in message.partitions if part.topic != "bad")
        channel.send(PartitionsReady(request_id=message.request_id, states=ready, failed=failed))
    elif isinstance(message, ReleasePartitions):
        directories = []
        for name in message.partitions:
            part = owned.pop(name)
            target = Path(part.log_dir) / names.delete_dir_name(TopicPartition(part.topic, part.partition))
            (Path(part.log_dir) / name).rename(target)
            directories.append(str(target))
            note(channel, f"release {name}")
        channel.send(PartitionsReleased(request_id=message.request_id, directories=tuple(directories)))
    elif isinstance(message, LetGo):
        note(channel, f"let go {','.join(message.partitions)}")
        part = owned[message.partitions[0]]
        path = Path(part.log_dir) / f"{part.topic}-{part.partition}" / "00000000000000000000.log.deleted"
        channel.send(LetGoDone(request_id=message.request_id, deleted=(str(path),)))
    elif isinstance(message, Reconfigure):
        note(channel, f"reconfigure {sorted(message.settings.items())}")
    elif isinstance(message, LogDirFailed):
        note(channel, f"failed {message.log_dir}")


def retention(channel: Channel, clock: Clock) -> None:
    while not isinstance(message := channel.receive(), Stop):
        if isinstance(message, CheckRetention):
            due = {f"{state.topic}-{state.partition}": "time" for state in message.states[:1]}
            channel.send(RetentionDecided(request_id=message.request_id, due=due))
    note(channel, "stop")


def deleter(channel: Channel, clock: Clock) -> None:
    queued = 0
    while not isinstance(message := channel.receive(), Stop):
        if isinstance(message, DeleteLater):
            queued += len(message.paths)
            for path in message.paths:
                note(channel, f"delete {Path(path).name}")
            channel.send(DeleterState(queued=queued, queued_bytes=0, removed=0, next_due_ms=message.due_ms))
    note(channel, "stop")


def cleaner(channel: Channel, clock: Clock) -> None:
    while not isinstance(message := channel.receive(), Stop):
        if isinstance(message, Reconfigure):
            note(channel, f"reconfigure {sorted(message.settings.items())}")
        if isinstance(message, LogDirFailed):
            channel.send(message)
    note(channel, "stop")


for _body in (broker, retention, deleter, cleaner):
    KINDS[_body.__name__] = Kind(f"{__name__}:{_body.__name__}", writes=_body is not retention)

if __name__ == "__main__":
    main()
