"""Runs clean jobs: in this process, or spread over several. The parent owns the locks and the checkpoint files.

A worker is a fresh process (spawned, not forked: nothing of the parent's locks, threads or terminal goes with it). It gets
a job, cleans that partition, and sends what happened: bytes as they pass, the next dirty offset after each round, the
report at the end. A worker that dies takes nothing with it but its partition's report; the others go on.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from compactd.config.errors import EXIT_IO
from compactd.storage.cleaning.run import CleanJob, CleanOptions, PartitionReport, clean_partition
from compactd.storage.kernel import active_kernel
from compactd.workers.throttle import Throttle

_PR_SET_PDEATHSIG = 1

#: Bytes read and written since the last call, and the job they belong to.
OnProgress = Callable[[CleanJob, int, int], None]
OnCheckpoint = Callable[[CleanJob, int], None]


class Stop:
    """Turns Ctrl-C and SIGTERM into a stop at a good place: between chunks of reading, never in the middle of a swap.

    The first signal is remembered and `check` raises it; a second one is raised at once. Use as a context manager, in the
    main thread (elsewhere it changes nothing).
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.check()

    def _remember(self, number: int, _frame: object) -> None:
        if self._signal is not None:
            raise stopped_by(number)
        self._signal = number

    def check(self) -> None:
        """Raises KeyboardInterrupt or SystemExit(143) if a signal came."""
        number, self._signal = self._signal, None
        if number is not None:
            raise stopped_by(number)


def stopped_by(number: int) -> BaseException:
    """What a signal means to the program."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


def run_jobs(
    jobs: Sequence[CleanJob],
    options: CleanOptions,
    workers: int,
    bytes_per_second: float,
    on_progress: OnProgress,
    on_checkpoint: OnCheckpoint,
) -> Iterator[PartitionReport]:
    """Cleans the jobs in order, `workers` at a time, and yields each report as it comes.

    `options.map_memory_bytes` and `bytes_per_second` are totals: each worker gets its share.
    Where fewer jobs than workers are left, each of them gets its share of the threads that would have nothing to do.
    """
    if workers == 1 or len(jobs) <= 1:
        throttle = Throttle(bytes_per_second)
        options = replace(options, threads=threads_for(workers, len(jobs)))
        for job in jobs:
            with Stop() as stop:
                report = _clean(job, options, throttle, stop, partial(on_progress, job), partial(on_checkpoint, job))
            yield report
        return
    with _Pool(options, workers, bytes_per_second) as pool:
        yield from pool.run(jobs, on_progress, on_checkpoint)


def threads_for(workers: int, jobs_left: int) -> int:
    """Threads of the next job, itself included, when so many are not done yet."""
    return max(1, workers // max(1, jobs_left))


def _clean(
    job: CleanJob,
    options: CleanOptions,
    throttle: Throttle,
    stop: Stop,
    report_progress: Callable[[int, int], None],
    report_checkpoint: Callable[[int], None],
) -> PartitionReport:
    def progress(read: int, written: int) -> None:
        stop.check()
        report_progress(read, written)
        throttle.observe(read + written, stop.check)

    return clean_partition(job, options, active_kernel(), time.perf_counter, progress, report_checkpoint)


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: CleanJob | None = None


class _Pool:
    def __init__(self, options: CleanOptions, workers: int, bytes_per_second: float) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._arguments = (options, bytes_per_second / workers, os.getpid())
        self._most = workers
        self._workers: list[_Worker] = []

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for worker in self._workers:
            worker.pipe.close()  # an idle worker sees the end of its pipe and stops
            if kind is not None:
                worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.process.close()
        self._workers.clear()

    def run(
        self, jobs: Sequence[CleanJob], on_progress: OnProgress, on_checkpoint: OnCheckpoint
    ) -> Iterator[PartitionReport]:
        waiting = deque(jobs)
        for _ in range(min(self._most, len(jobs))):
            self._hand_out(self._start(), waiting)
        while busy := {worker.pipe: worker for worker in self._workers if worker.job is not None}:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                worker = busy[pipe]
                report = self._receive(worker, on_progress, on_checkpoint)
                if report is None:
                    continue
                yield report
                if not worker.process.is_alive():
                    self._workers.remove(worker)
                    worker = self._start() if waiting else worker
                self._hand_out(worker, waiting)

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, *self._arguments), daemon=True)
        # A worker ignores Ctrl-C once it has come that far: until then it is not to be told of it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _hand_out(self, worker: _Worker, waiting: deque[CleanJob]) -> None:
        worker.job = None
        if waiting:
            running = sum(1 for other in self._workers if other.job is not None)
            threads = threads_for(self._most, running + len(waiting))
            worker.job = waiting.popleft()
            with contextlib.suppress(OSError):  # dead already: its pipe's end tells
                worker.pipe.send((worker.job, threads))

    @staticmethod
    def _receive(worker: _Worker, on_progress: OnProgress, on_checkpoint: OnCheckpoint) -> PartitionReport | None:
        """One message; the report where it is one, or where the worker died."""
        job = worker.job
        assert job is not None
        try:
            kind, content = worker.pipe.recv()
        except (EOFError, OSError):
            return _died(worker, job)
        if kind == "progress":
            on_progress(job, *content)
        elif kind == "checkpoint":
            on_checkpoint(job, content)
        else:
            assert isinstance(content, PartitionReport)
            return content
        return None


def _died(worker: _Worker, job: CleanJob) -> PartitionReport:
    worker.process.join()
    worker.pipe.close()
    code = worker.process.exitcode
    worker.job = None
    report = PartitionReport(job.topic_partition, job.directory)
    report.exit_code, report.outcome = EXIT_IO, "failed"
    how = f"exit code {code}"
    if code is not None and code < 0:
        how = f"signal {-code} ({signal.Signals(-code).name})"
        if -code == signal.SIGKILL:
            how += ", perhaps for lack of memory: give it a smaller log.cleaner.dedupe.buffer.size"
    report.reason = f"{job.directory}: the worker that cleaned it died with {how}. Clean again to finish what it left."
    return report


def _work(pipe: Connection, options: CleanOptions, bytes_per_second: float, parent: int) -> None:
    """A worker's body. The terminal's Ctrl-C is the parent's to answer: it terminates its workers."""
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    throttle = Throttle(bytes_per_second)

    def send(kind: str, content: Any) -> None:
        try:
            pipe.send((kind, content))
        except OSError:
            os._exit(EXIT_IO)  # the parent is gone, and its locks with it: touch nothing more

    while True:
        try:
            job, threads = pipe.recv()
        except (EOFError, OSError):
            return
        with Stop() as stop:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            report = _clean(
                job,
                replace(options, threads=threads),
                throttle,
                stop,
                lambda read, written: send("progress", (read, written)),
                lambda offset: send("checkpoint", offset),
            )
        send("report", report)


def _die_with(parent: int) -> None:
    """A killed parent's locks are free at once, so its workers must not outlive it. Every step of theirs may be the last."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(EXIT_IO)
