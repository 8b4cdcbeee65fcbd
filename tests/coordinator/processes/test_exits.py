from __future__ import annotations

import signal

import pytest

from compactd.coordinator.processes.exits import explain_exit


@pytest.mark.parametrize(
    ("code", "asked", "said", "words"),
    [
        (0, "compactd stops", "", "ended in good order, as compactd stops"),
        (0, "", "", "ended by itself"),
        (78, "", "the port is taken", "cannot run: the port is taken"),
        (75, "", "", "took this coordinator for dead"),
        (-signal.SIGKILL, "", "", "out of memory"),
        (-signal.SIGKILL, "it was silent", "", "was killed, as it was silent"),
        (-signal.SIGTERM, "it was silent", "", "was terminated, as it was silent"),
        (-signal.SIGTERM, "", "", "was ended by SIGTERM"),
        (-signal.SIGBUS, "", "", "a mapped file was cut short, or its disk failed (SIGBUS)"),
        (-200, "", "", "was ended by signal 200"),
        (143, "", "", "was terminated by somebody else"),
        (143, "it was silent", "", "was terminated, as it was silent"),
        (70, "", "division by zero", "which is a bug: division by zero"),
        (1, "", "", "failed with exit code 1: its output says more"),
    ],
)
def test_every_end_has_its_words(code: int, asked: str, said: str, words: str) -> None:
    assert words in explain_exit(code, asked, said)
