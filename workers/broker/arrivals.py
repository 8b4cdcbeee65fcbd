"""Which connections have something to be read: one epoll for all of them, itself watched by the loop.

Asyncio makes a handle of every event and runs it in a later pass over all of them. Clients that are ready together are
served here one after another, and then their answers are sent.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

#: Connections that are served before the loop looks after everything else.
_AT_ONCE = 64


class Arrivals:
    """On the broker's loop. A descriptor is taken out before it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, served: Callable[[], None]) -> None:
        """`served` is called when those that were ready together were told."""
        self._loop = loop
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}
        self._served = served
        #: Connections among those that are ready together are being told.
        self.is_telling = False
        loop.add_reader(self._epoll.fileno(), self._tell)

    def add(self, fd: int, call: Callable[[], None]) -> None:
        """`call` is called whenever there is something to be read from the socket, or its client is gone."""
        self._epoll.register(fd, select.EPOLLIN)
        self._calls[fd] = call

    def remove(self, fd: int) -> None:
        """Tells of this socket no more."""
        del self._calls[fd]
        self._epoll.unregister(fd)

    def close(self) -> None:
        """All connections are gone."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _tell(self) -> None:
        self.is_telling = True
        calls = self._calls
        try:
            for fd, _ in self._epoll.poll(0, _AT_ONCE):
                # Those before it may have had it taken out.
                call = calls.get(fd)
                if call is not None:
                    call()
        finally:
            self.is_telling = False
            self._served()
