"""A real HTTP proxy in front of a real server that does to answers what networks do: storms, resets, cuts, stalls."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Request:
    """One request as it arrived."""

    number: int
    """Requests before it."""
    method: str
    path: str
    range: str | None
    authorization: str

    @property
    def seen(self) -> tuple[str, str | None]:
        return self.path, self.range


SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
SKEWED = b"<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>"
FAULTS = ("503", "403", "skew", "reset", "short", "cut", "wrong", "stall", "late", "lost")


class FaultyProxy:
    """Passes requests on to ``upstream``; ``fault`` names what goes wrong with each, or None.

    ``503``, ``403`` and ``skew`` (a clock that is off): the server's own words; ``reset``: the connection breaks in the middle of the body; ``short``: a
    shorter body with a matching length and the right status; ``cut``: less than the length that the header promised;
    ``wrong``: one byte differs; ``stall``: nothing comes through until `release` is called; ``late``: the server does
    what it was asked, and its answer stalls; ``lost``: likewise, and there is no answer.
    """

    def __init__(self, upstream: str, fault: Callable[[Request], str | None]) -> None:
        self.fault = fault
        self.requests: list[tuple[Request, str | None]] = []
        self._upstream = urlsplit(upstream).netloc
        self._lock = threading.Lock()
        self._released = threading.Event()
        self.held = threading.Event()
        """Whether a request, or its answer, has been held back."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._answer(self)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # clients that hang up are what this is about

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.shutdown()
        self._server.server_close()

    def release(self) -> None:
        """Let stalled requests go on."""
        self._released.set()

    def _hold(self) -> None:
        self.held.set()
        self._released.wait(120)

    def count(self, fault: str | None) -> int:
        """Requests that met this fault; None: that met none."""
        with self._lock:
            return sum(1 for _, met in self.requests if met == fault)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        headers = handler.headers
        with self._lock:
            request = Request(
                len(self.requests),
                handler.command,
                handler.path,
                headers.get("Range"),
                headers.get("Authorization", ""),
            )
            at = len(self.requests)
            self.requests.append((request, None))
        fault = self.fault(request)
        assert fault is None or fault in FAULTS, fault
        with self._lock:
            self.requests[at] = (request, fault)
        body = handler.rfile.read(int(headers.get("Content-Length") or 0))
        if fault == "stall":
            self._hold()
        refusal = {"503": SLOW_DOWN, "403": EXPIRED, "skew": SKEWED}.get(fault or "")
        if refusal is not None:
            self._send(handler, 503 if fault == "503" else 403, {"Content-Type": "application/xml"}, refusal)
            return
        status, answer_headers, answer = self._ask(handler, body)
        if fault == "late":
            self._hold()
        if fault == "lost":
            handler.connection.close()
            handler.close_connection = True
            return
        self._pass_on(handler, fault, status, answer_headers, answer)

    def _ask(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection(self._upstream, timeout=30)
        try:
            upstream.request(handler.command, handler.path, body or None, dict(handler.headers))
            response = upstream.getresponse()
            hop = {"connection", "transfer-encoding", "content-length", "keep-alive"}
            kept = {name: value for name, value in response.getheaders() if name.lower() not in hop}
            if handler.command == "HEAD":
                kept["Content-Length"] = response.getheader("Content-Length") or "0"
            return response.status, kept, response.read()
        finally:
            upstream.close()

    def _pass_on(
        self, handler: BaseHTTPRequestHandler, fault: str | None, status: int, headers: dict[str, str], body: bytes
    ) -> None:
        half = len(body) // 2
        if fault == "wrong" and body:
            body = body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :]
        if fault == "short":
            self._send(handler, status, headers, body[:half])
        elif fault in {"reset", "cut"}:
            self._send(handler, status, headers, body, upto=half)
            handler.wfile.flush()
            if fault == "reset":
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
            handler.close_connection = True
        else:
            self._send(handler, status, headers, body)

    @staticmethod
    def _send(
        handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes, upto: int | None = None
    ) -> None:
        handler.send_response_only(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if "Content-Length" not in headers:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[:upto])
