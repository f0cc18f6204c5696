"""A local server that implements S3 downloads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def running_bucket(files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serves a bucket's objects by their keys; yields (its URL, the Authorization header of each request)."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    asked: list[str] = []
    server.files, server.asked = files, asked  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        files: Mapping[str, bytes] = self.server.files  # type: ignore[attr-defined]
        self.server.asked.append(self.headers.get("Authorization", ""))  # type: ignore[attr-defined]
        key = self.path.partition("?")[0].strip("/").partition("/")[2]
        if not key:
            entries = "".join(f"<Contents><Key>{key}</Key><Size>{len(files[key])}</Size></Contents>" for key in files)
            body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()
        else:
            body = files.get(key, b"")
        self.send_response(200 if not key or key in files else 404)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
