"""Two gateways of one `quire serve` share a Unix socket (--uds), and clients reach them there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from quire.rpc.server import GrpcServer
from tests.support.engine_process import ROOT
from tests.support.fake_router import FakeRouter
from tests.support.waiting import WAIT_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@dataclass(frozen=True)
class Served:
    """A stack that has reported that it is ready."""

    process: asyncio.subprocess.Process
    path: Path
    summary: str
    log: Path  # set by --log-config-file


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tokenizer: GrpcServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("uds")
    path, log, config = folder / "quire.sock", folder / "log", folder / "logs.json"
    handler = {"class": "logging.FileHandler", "filename": str(log), "formatter": "own"}
    formatters = {"own": {"format": "%(service)s %(name)s %(message)s"}}
    root = {"handlers": ["file"], "level": "INFO"}
    config.write_text(json.dumps({"version": 1, "formatters": formatters, "handlers": {"file": handler}, "root": root}))
    router = await FakeRouter().start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire", "serve", "--router-address", router.address, "--tokenizer-address",
        f"127.0.0.1:{tokenizer.port}", "--uds", str(path), "--api-server-count", "2", "--log-config-file", str(config),
        "--drain-timeout-seconds", "1", cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout
    try:
        summary = ""
        async with asyncio.timeout(WAIT_SECONDS):
            while "\n  try" not in summary:
                line = await process.stdout.readline()
                assert line, summary
                summary += line.decode()
        yield Served(process, path, summary, log)
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), WAIT_SECONDS) == 0
        assert not path.exists()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await router.close()


async def test_the_summary_says_where(served: Served) -> None:
    assert f"unix:{served.path}" in served.summary
    command = served.summary[served.summary.index("curl ") :].strip()
    assert f"--unix-socket {served.path} http://localhost/v1/" in command
    shell = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE)
    answer, _ = await asyncio.wait_for(shell.communicate(), WAIT_SECONDS)
    assert b'"finish_reason"' in answer


async def test_logs_of_all_processes_go_where_their_configuration_says(served: Served) -> None:
    lines = served.log.read_text().splitlines()
    for name in ("gateway-0", "gateway-1"):
        assert f"{name} gateway.main listening on {served.path}" in lines
        assert any(line.startswith(f"{name} uvicorn.error ") for line in lines)


async def test_both_gateways_answer(served: Served) -> None:
    """Either gateway may accept a connection, and metrics cover both."""
    for _ in range(20):
        transport = httpx.AsyncHTTPTransport(uds=str(served.path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=20) as client:
            assert (await client.get("/health")).status_code == 200
            answer = await client.post("/v1/completions", json={"prompt": "A", "max_tokens": 2})
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "arguments",
    [
        ("chat", "--quick", "Hello", "--url", "unix:{}"),
        ("complete", "--quick", "Hello", "--url", "unix:{}"),
        ("bench", "serve", "--base-url", "unix:{}", "--num-prompts", "2", "--random-input-len", "8",
         "--random-output-len", "2", "--disable-tqdm"),
    ],
    ids=["chat", "complete", "bench"],
)  # fmt: skip
async def test_clients_find_it(served: Served, arguments: tuple[str, ...]) -> None:
    words = [word.format(served.path) for word in arguments]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire", *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    answer, _ = await asyncio.wait_for(process.communicate(), WAIT_SECONDS)
    assert process.returncode == 0
    assert answer.strip()
    if arguments[0] == "bench":
        assert b"Failed requests:                         0" in answer


async def test_a_second_stack_is_refused(served: Served) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire", "serve", "--uds", str(served.path), cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), WAIT_SECONDS)
    assert process.returncode == 1
    assert f"--uds {served.path} is in use by another process" in said.decode()
