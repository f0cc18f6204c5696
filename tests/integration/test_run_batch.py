"""`quire run-batch` with the built-in model, interrupted and resumed, and its files over HTTP."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.batch import run
from quire.batch.lines import BatchInput, BatchResponse, BatchResult
from quire.batch.results import Results
from quire.options.batch import BatchOptions
from quire.options.gateway import GatewayOptions
from tests.support.stack import ROOT
from tests.support.waiting import WAIT_SECONDS

pytestmark = pytest.mark.slow

SUMS = {17: "17 + 25 = 42.", 12: "12 + 25 = 37."}


def requests(folder: Path, count: int, max_tokens: int) -> Path:
    """Writes a batch of sums, whose last request is invalid."""
    lines: list[dict[str, Any]] = []
    for number in range(count):
        message = {"role": "user", "content": f"What is {list(SUMS)[number % 2]} + 25?"}
        body = {"messages": [message], "temperature": 0, "max_tokens": max_tokens}
        lines.append({"custom_id": f"sum-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})
    lines.append({"custom_id": "wrong", "method": "POST", "url": "/v1/completions", "body": {"prompt": []}})
    path = folder / "in.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "quire", "run-batch", *arguments], cwd=folder, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def check(lines: list[bytes], count: int) -> None:
    *sums, wrong = [json.loads(line) for line in lines]
    assert len(sums) == count
    for number, line in enumerate(sums):
        assert line["custom_id"] == f"sum-{number}"
        assert line["response"]["body"]["choices"][0]["message"]["content"] == list(SUMS.values())[number % 2]
    assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("wrong", 400)
    assert "prompt" in wrong["error"]["message"]


@pytest.fixture
def store() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A file server, and its files by path."""
    files: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("content-length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def do_PUT(self) -> None:
            content = b""
            if length := self.headers.get("content-length"):
                content = self.rfile.read(int(length))
            else:
                while size := int(self.rfile.readline(), 16):
                    content += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            files[self.path] = content
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", files
    server.shutdown()
    server.server_close()


def answer_all(batch: BatchOptions, requests: BatchInput, results: Results, groups: dict[str, Any]) -> None:
    for index in results.missing:
        results.add(index, BatchResult("id", f"r{index}", BatchResponse(200, "x", {})))


def test_over_http(
    tmp_path: Path, store: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The input is fetched and the output sent, whoever answers the requests."""
    monkeypatch.setattr(run, "_answer", answer_all)
    url, files = store
    files["/in.jsonl"] = requests(tmp_path, 4, 20).read_bytes()
    folder = tmp_path / "tmp"
    batch = BatchOptions(f"{url}/in.jsonl", f"{url}/out?signed=secret", str(folder))
    run.main(batch, gateway=GatewayOptions())
    said = capsys.readouterr()
    assert "5 answers are in" in said.out
    assert "secret" not in said.out + said.err
    lines = files["/out?signed=secret"].splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == [f"r{number}" for number in range(5)]
    assert not list(folder.iterdir())


def test_a_run_that_is_cut_goes_on(tmp_path: Path) -> None:
    """No answered request is sent again, and none is lost."""
    requests(tmp_path, 40, 20)
    arguments = ("-i", "in.jsonl", "-o", "out.jsonl", "--max-concurrent-requests", "1")
    process, partial = start(tmp_path, *arguments), tmp_path / "out.jsonl.partial"
    deadline = time.monotonic() + 3 * WAIT_SECONDS
    while not partial.exists() or len(partial.read_bytes().splitlines()) < 4:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "Run the same command again" in said
    assert not (tmp_path / "out.jsonl").exists()
    assert len(list((tmp_path / "state" / "quire").iterdir())) == 1
    before = partial.read_bytes().splitlines()[1:]
    assert 3 <= len(before) < 41
    again = start(tmp_path, *arguments)
    said, _ = again.communicate(timeout=240)
    assert again.returncode == 0, said
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    check(lines, 40)
    assert {line.partition(b" ")[2] for line in before} <= set(lines)
    assert "41 answers are in" in said
    assert not partial.exists()
    assert len(list((tmp_path / "state" / "quire").iterdir())) == 1  # of a run that ends well, none stays
