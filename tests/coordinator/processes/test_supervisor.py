"""The supervisor with fake workers, which are real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from compactd.coordinator.interfaces import WorkerId
from compactd.coordinator.processes.requests import Requests
from compactd.workers.cleaning_messages import DeleterState, LetGo, LetGoDone, PrepareClean
from compactd.workers.message import Message
from compactd.workers.messages import Failed, Stopped
from tests.coordinator.harness import Harness


def prepare(number: int) -> PrepareClean:
    return PrepareClean(request_id=1, topic="t", partition=number)


def test_a_worker_starts_answers_and_stops_in_good_order(fast_dir: Path) -> None:
    with Harness(fast_dir) as harness:
        worker = harness.start("idle")
        assert harness.supervisor.ready("idle") == [worker]
        assert harness.supervisor.send(worker, LetGo(request_id=7, partitions=(), now_ms=0))
        harness.until(lambda: harness.messages)
        (sender, answer) = harness.messages[0]
        assert sender == worker
        assert isinstance(answer, LetGoDone)
        harness.supervisor.stop(worker, "the test is over")
        harness.until(lambda: harness.gone)
        assert harness.gone == [(worker, "ended in good order, as the test is over")]
        assert harness.messages[-1] == (worker, Stopped(log_dirs_clean=("/fake",)))
        assert harness.state(worker) == "gone"
        assert not harness.supervisor.send(worker, prepare(0))


def test_heartbeats_come_while_a_worker_is_in_native_code(fast_dir: Path) -> None:
    with Harness(fast_dir, worker_timeout_ms=2500) as harness:
        worker = harness.start("native")
        harness.supervisor.send(worker, prepare(6))
        harness.until(lambda: any(each.phase == "in native code" for each in harness.supervisor.status()))
        # More than twice as long as it may be silent, and it is alive all the while.
        harness.until(lambda: any(isinstance(message, DeleterState) for _, message in harness.messages))
        assert harness.gone == []


def test_a_worker_that_keeps_the_interpreter_is_terminated_with_the_reason_and_started_again(fast_dir: Path) -> None:
    with Harness(fast_dir, worker_timeout_ms=1500, worker_stop_timeout_ms=300) as harness:
        worker = harness.start("stuck")
        first = harness.pid(worker)
        harness.supervisor.send(worker, prepare(0))
        harness.until(lambda: harness.gone)
        ((_, reason),) = harness.gone
        assert reason.startswith("was terminated, as nothing was heard of it for")
        harness.until(lambda: len(harness.ready) == 2)
        assert harness.pid(worker) != first


def test_a_worker_that_listens_to_nobody_is_killed(fast_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Harness(fast_dir, worker_stop_timeout_ms=300) as harness:
        worker = harness.start("deaf")
        harness.until(lambda: harness.messages)
        harness.supervisor.stop(worker, "compactd stops")
        harness.until(lambda: harness.gone)
        assert harness.gone == [(worker, "was killed, as compactd stops")]
    said = [record.getMessage() for record in caplog.records]
    asked = "deaf-0 was asked to stop (compactd stops) and did not: sent SIGTERM"
    killed = "deaf-0 did not end on SIGTERM (compactd stops): sent SIGKILL"
    assert said.index(asked) < said.index(killed)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGSEGV, "crashed in native code (SIGSEGV)"),
        (signal.SIGKILL, "was killed by somebody else (SIGKILL): out of memory? The kernel's log would say so"),
    ],
)
def test_a_crash_is_explained_in_words(fast_dir: Path, number: int, words: str) -> None:
    with Harness(fast_dir) as harness:
        worker = harness.start("crash")
        harness.supervisor.send(worker, prepare(number))
        harness.until(lambda: len(harness.ready) == 2)
        assert harness.gone == [(worker, words)]
        (status,) = harness.supervisor.status()
        assert (status.last_exit, status.restarts, status.state) == (words, 1, "running")


def test_restarts_back_off(fast_dir: Path) -> None:
    with Harness(fast_dir) as harness:
        harness.supervisor.start(WorkerId("bug", 0))
        pauses: list[str] = []

        def look() -> bool:
            (status,) = harness.supervisor.status()
            if status.state == "waiting" and status.phase not in pauses:
                pauses.append(status.phase)
            return len(pauses) == 3

        harness.until(look)
        assert pauses == [f"starts again after {seconds} s" for seconds in ("0.2", "0.4", "0.8")]
        assert harness.gone[0][1] == "failed, which is a bug: a bug on purpose"


def test_a_boot_error_does_not_loop_and_a_retry_mends_it(fast_dir: Path) -> None:
    (fast_dir / "broken").touch()
    with Harness(fast_dir) as harness:
        worker = WorkerId("boot", 0)
        harness.supervisor.start(worker)
        harness.until(lambda: harness.given_up)
        ((_, reason),) = harness.given_up
        assert "the port is taken" in reason
        assert harness.state(worker) == "given up"
        starts = len(harness.ready)
        (fast_dir / "broken").unlink()
        harness.supervisor.retry_given_up()
        harness.until(lambda: len(harness.ready) == starts + 1)
        assert harness.state(worker) == "running"


def test_scaling_up_and_down(fast_dir: Path) -> None:
    with Harness(fast_dir) as harness:
        harness.supervisor.scale("idle", 3, "the test says so")
        harness.until(lambda: len(harness.ready) == 3)
        harness.supervisor.scale("idle", 1, "the test says so")
        assert harness.supervisor.ready("idle") == [WorkerId("idle", 0)]
        harness.until(lambda: len(harness.gone) == 2)
        harness.supervisor.scale("idle", 2, "the test says so")
        harness.until(lambda: len(harness.ready) == 4)
        assert harness.supervisor.ready("idle") == [WorkerId("idle", 0), WorkerId("idle", 1)]


def test_a_process_that_is_not_ours_gets_nothing(fast_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    import subprocess  # noqa: PLC0415

    from tests.coordinator.harness import fake_command  # noqa: PLC0415

    with Harness(fast_dir) as harness:
        harness.start("idle")
        foreign = subprocess.Popen(fake_command(WorkerId("idle", 0), harness.run_dir.path))
        harness.until(lambda: any("was not started here" in record.getMessage() for record in caplog.records))
        foreign.kill()
        foreign.wait()
        assert len(harness.ready) == 1


def test_a_question_is_answered_once_even_when_the_worker_dies(fast_dir: Path) -> None:
    with Harness(fast_dir) as harness:
        requests = Requests(harness.loop)
        worker = harness.start("deaf")
        answers: list[Message] = []
        for _ in range(2):
            request_id = requests.next_id()
            harness.supervisor.send(worker, LetGo(request_id=request_id, partitions=(), now_ms=0))
            requests.expect(worker, request_id, answers.append, None)
        late = requests.next_id()
        requests.expect(worker, late, answers.append, 20)
        harness.until(lambda: answers)
        assert answers == [Failed(request_id=late, error="Timeout", message="deaf-0 did not answer within 20 ms")]
        os.kill(harness.pid(worker), signal.SIGKILL)
        harness.until(lambda: harness.gone)
        requests.worker_gone(*harness.gone[0])
        assert [(answer.request_id, answer.error) for answer in answers[1:] if isinstance(answer, Failed)] == [
            (1, "WorkerGone"),
            (2, "WorkerGone"),
        ]
        assert not requests.answer(worker, LetGoDone(request_id=1, deleted=()))


def test_a_worker_gives_a_silent_coordinator_up(fast_dir: Path) -> None:
    with Harness(fast_dir, silence_ms=1500) as harness:
        worker = harness.start("orphan")
        harness.until(lambda: harness.messages)
        pid = harness.pid(worker)
        # Nobody turns the loop: no heartbeat is answered.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        harness.until(lambda: harness.gone)
        assert harness.gone == [(worker, "ended because it took this coordinator for dead")]
