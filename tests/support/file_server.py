"""A plain HTTP server of files with byte ranges: the reading half of what object stores speak."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class FileServer:
    """Serves ``files`` (path → bytes); ``paths`` are those that were asked for, ``headers`` the latest request's."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.paths: list[str] = []
        self.headers: dict[str, str] = {}
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = unquote(self.path.partition("?")[0])
                owner.paths.append(path)
                owner.headers = {name.lower(): value for name, value in self.headers.items()}
                data = files.get(path)
                if data is None:
                    self._send(404, b"", {})
                    return
                asked = owner.headers.get("range") or owner.headers.get("x-ms-range")
                if asked is None:
                    self._send(200, data, {})
                    return
                first, _, last = asked.removeprefix("bytes=").partition("-")
                start, end = int(first), min(int(last) + 1, len(data))
                self._send(206, data[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

            do_HEAD = do_GET

            def _send(self, status: int, body: bytes, more: Mapping[str, str]) -> None:
                self.send_response(status)
                headers = {"ETag": '"1"', "Last-Modified": formatdate(0, usegmt=True), "Content-Length": str(len(body))}
                for name, value in {**headers, **more}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FileServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
