"""Clients in threads of their own while a test does harm."""

from __future__ import annotations

import threading
from typing import Self

from tests.daemon.daemons import PATIENCE_SECONDS


class Threads:
    """`with`: one thread for each number runs `_run(number)` until `_stopping` is set. What one raises fails the test."""

    def __init__(self, count: int) -> None:
        self.errors: list[BaseException] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._noted, args=(number,)) for number in range(count)]

    def _run(self, number: int) -> None:
        raise NotImplementedError

    def _noted(self, number: int) -> None:
        try:
            self._run(number)
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(3 * PATIENCE_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads), f"a thread of {type(self).__name__} hangs"
        assert not self.errors, self.errors
