"""Sending requests to a server that answers, refuses, is full, or goes away."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from gateway.requests.form import parse_form
from quire.batch import sending
from quire.batch.lines import BatchResult, read_input
from quire.batch.results import Results
from quire.batch.sending import BatchSender
from quire.errors import StartupError

Handler = Callable[[httpx.Request], httpx.Response]


async def run(folder: Path, count: int, handler: Handler, most: int = 4, **fields: object) -> list[dict[str, object]]:
    """Sends `count` requests, with other fields of their lines, and returns all lines of the output."""
    path = folder / "in.jsonl"
    usual = ({"custom_id": f"r{n}", "url": "/v1/completions", "body": {"prompt": n}} for n in range(count))
    lines = (line | fields for line in usual)
    path.write_text("\n".join(map(json.dumps, lines)))
    requests, told = read_input(path), list[BatchResult]()
    transport = httpx.MockTransport(handler)
    with Results(folder / "partial", requests) as results:
        async with httpx.AsyncClient(base_url="http://server", transport=transport) as client:
            await BatchSender(client, most, told.append).run(requests, results)
        assert len(told) == count
        results.write(folder / "out.jsonl")
    return [json.loads(line) for line in (folder / "out.jsonl").read_bytes().splitlines()]


async def test_each_is_answered_once_and_no_more_than_so_many_at_a_time(tmp_path: Path) -> None:
    seen: Counter[int] = Counter()
    under_way = most = 0

    async def handler(request: httpx.Request) -> httpx.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        number = json.loads(request.content)["prompt"]
        seen[number] += 1
        under_way -= 1
        return httpx.Response(200, json={"number": number})

    found = await run(tmp_path, 50, handler)  # type: ignore[arg-type]  # asynchronous ones are taken too
    assert [line["response"]["body"] for line in found] == [{"number": n} for n in range(50)]  # type: ignore[index]
    assert set(seen.values()) == {1}
    assert most <= 4


async def test_what_is_refused_is_an_answer_too(tmp_path: Path) -> None:
    error = {"message": "prompt is wrong", "type": "BadRequestError", "param": "prompt", "code": 400}
    (line,) = await run(tmp_path, 1, lambda request: httpx.Response(400, json={"error": error}))
    assert line["error"] == error
    assert line["response"]["status_code"] == 400  # type: ignore[index]


async def test_a_full_server_and_one_that_is_away_are_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_FIRST_PAUSE_SECONDS", 0.001)
    times: Counter[bytes] = Counter()

    def handler(request: httpx.Request) -> httpx.Response:
        times[request.content] += 1
        if times[request.content] == 1:
            raise httpx.ConnectError("refused")
        return httpx.Response(503 if times[request.content] == 2 else 200, json={})

    found = await run(tmp_path, 6, handler)
    assert all(line["error"] is None for line in found)
    assert set(times.values()) == {3}
    monkeypatch.setattr(sending, "_PATIENCE_SECONDS", 0.002)
    (tmp_path / "partial").unlink()
    (line,) = await run(tmp_path, 1, lambda request: httpx.Response(503, json={"error": {"message": "full"}}))
    assert line["error"] == {"message": "full"}


async def test_transcriptions_are_sent_as_forms(tmp_path: Path) -> None:
    body = {"file_url": "https://example.com/a.wav", "temperature": 0.5, "stream": False, "language": None}
    sent: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={"text": "Hello."})

    (line,) = await run(tmp_path, 1, handler, url="/v1/audio/transcriptions", body=body)
    assert line["response"]["body"] == {"text": "Hello."}  # type: ignore[index]
    parts = parse_form(sent[0].content, sent[0].headers["content-type"])
    assert [(part.name, part.content, part.is_file) for part in parts] == [
        ("file_url", b"https://example.com/a.wav", False), ("temperature", b"0.5", False), ("stream", b"false", False),
    ]  # fmt: skip


async def test_a_full_disk_is_told_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All senders that have an answer at the same time meet it."""

    def refuse(results: Results, index: int, result: BatchResult) -> None:
        raise StartupError("full")

    monkeypatch.setattr(Results, "add", refuse)
    with pytest.raises(StartupError, match=r"^full$"):
        await run(tmp_path, 8, lambda request: httpx.Response(200, json={}))
