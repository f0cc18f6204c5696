"""A server for `bench serve` that counts letters as tokens and records its requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Server(ThreadingHTTPServer):
    """A fake server of a model.

    Attributes:
        kind: API flavor. openai has no tokenizer; vllm and llama each have their own API for it.
        failures: number of requests to refuse first.
        missing: name of a model that it does not have.
        tokenized: number of texts whose tokens it will still count.
        seen: (path, headers, body) of each request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.kind = "vllm"
        self.failures = 0
        self.missing = ""
        self.tokenized = 1_000
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def bodies(self) -> list[dict[str, Any]]:
        """Bodies of the completion requests it received."""
        return [body for path, _, body in self.seen if path.endswith("completions")]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Suppresses logging."""

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "small"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append((self.path, dict(self.headers.items()), body))
        key = {"vllm": "prompt", "llama": "content"}.get(self.server.kind)
        if body.get("model") == self.server.missing:
            self._answer(404, {"error": {"message": "The model does not exist. Served here: small.", "param": "model"}})
        elif self.path == "/tokenize" and key and self.server.tokenized:
            self.server.tokenized -= 1
            self._answer(200, {"tokens": [ord(letter) for letter in body.get(key, "")]})
        elif self.path == "/detokenize" and key:
            self._answer(200, {key: "".join(map(chr, body["tokens"]))})
        elif self.path in ("/v1/embeddings", "/pooling", "/v1/rerank"):
            self._answer(200, {"data": [], "results": [], "usage": {"prompt_tokens": 5, "total_tokens": 5}})
        elif not self.path.endswith("completions"):
            self._answer(404, {"error": {"message": "no such path"}})
        elif self.server.failures:
            self.server.failures -= 1
            self._answer(503, {"error": {"message": "busy"}})
        else:
            self._stream(body)

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, body: dict[str, Any]) -> None:
        is_chat = "messages" in body
        count = body["max_completion_tokens" if is_chat else "max_tokens"]
        prompt = body["messages"][0]["content"] if is_chat else body["prompt"]
        choice = {"delta": {"content": "x"}} if is_chat else {"text": "x"}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in [*[{"choices": [choice]}] * count, {"choices": [], "usage": usage}]:
            self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()
