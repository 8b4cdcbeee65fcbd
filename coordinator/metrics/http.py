"""The little web server of /metrics and /healthz: in threads of its own, with limits on how many and how long."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from compactd.config.listeners import format_address

#: Requests at a time; more are closed unanswered.
MAX_REQUESTS = 16
#: A client that sends or takes nothing for so long is let go.
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: int
    content_type: str
    body: bytes


#: Path and Accept header to an answer; None: there is no such page. Called in a thread of the server.
Render = Callable[[str, str], Page | None]


class WebServer:
    """Listens from the start; serves until `close`."""

    def __init__(self, host: str, port: int, render: Render) -> None:
        """OSError: it cannot listen there."""
        self._server = _server_class(host)((host, port), _handler(render))
        #: Where it listens.
        self.address = format_address(host or "0.0.0.0", self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.25,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A scrape may hang in its client; the end of the daemon does not wait for it.
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__(*arguments)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the name service for the host's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_Server]:
    return _Server6 if ":" in host else _Server


def _handler(render: Render) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT_SECONDS
        server_version = "compactd"
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are not worth a line each."""

        def _answer(self, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            page = render(path, self.headers.get("Accept", ""))
            if page is None:
                page = Page(404, "text/plain; charset=utf-8", b"There is /metrics, and there is /healthz.\n")
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            if with_body:
                self.wfile.write(page.body)

    return Handler
