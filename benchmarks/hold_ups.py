"""Whether large requests of one client delay the stream of another: `python -m benchmarks.hold_ups`.

One client streams endlessly while another one sends large requests, one kind after the other. What counts is the
longest pause of the stream, and the longest response time of `/livez`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import heading
from benchmarks.processes import running_stack
from quire.serve.ports import free_ports

_HOST = "127.0.0.1"
_LIVEZ_SECONDS = 0.02
_CALM_SECONDS = 3.0


@dataclass(frozen=True)
class Kind:
    """One kind of large request."""

    name: str
    path: str
    body: Callable[[], dict[str, Any]]


@dataclass
class Longest:
    """The longest wait so far, in seconds."""

    seconds: float = 0.0

    def see(self, seconds: float) -> None:
        self.seconds = max(self.seconds, seconds)


def _completion(**fields: Any) -> dict[str, Any]:
    return {"max_tokens": 1, "temperature": 1, "ignore_eos": True} | fields


def _prompts(count: int, length: int) -> list[list[int]]:
    """Prompts of token ids, no two of which share a prefix."""
    return [[(prompt * 37 + position * 11) % 4000 + 10 for position in range(length)] for prompt in range(count)]


_WORDS = "It was a dark and stormy night; the rain fell in torrents. "
_LONG = (_WORDS * 70_000)[:4_000_000]
KINDS = (
    Kind("nothing", "", dict),
    Kind("24 prompts x 1,900 tokens", "/v1/completions", lambda: _completion(prompt=_prompts(24, 1900))),
    Kind(
        "the same, 20 prompt logprobs",
        "/v1/completions",
        lambda: _completion(prompt=_prompts(24, 1900), prompt_logprobs=20),
    ),
    Kind("/tokenize, 4 million characters", "/tokenize", lambda: {"prompt": _LONG}),
    Kind(
        "the same, with strings", "/tokenize",
        lambda: {"prompt": _LONG, "return_token_strs": True},
    ),
    Kind("/detokenize, 2 million ids", "/detokenize", lambda: {"tokens": [97 + n % 20 for n in range(2_000_000)]}),
    Kind("a prompt of 4 million characters", "/v1/completions", lambda: _completion(prompt=_LONG)),
    Kind(
        "a chat of 4 million characters", "/v1/chat/completions",
        lambda: {"max_tokens": 1, "messages": [{"role": "user", "content": _LONG[:3_900_000]}]},
    ),
    Kind(
        "a chat of 4,096 messages", "/v1/chat/completions",
        lambda: {"max_tokens": 1, "messages": [{"role": "user", "content": _WORDS * 25}] * 4096},
    ),
    Kind("1,024 choices", "/v1/completions", lambda: _completion(prompt=["A"] * 8, n=128, max_tokens=2)),
    Kind("1,024 prompts", "/v1/completions", lambda: _completion(prompt=[_WORDS * 20] * 1024)),
    Kind("a prompt of 2 million ids", "/v1/completions", lambda: _completion(prompt=[1] * 2_000_000)),
)  # fmt: skip


async def ask(port: int, path: str, body: bytes, method: str = "POST") -> tuple[int, int]:
    """Sends a request; returns (status, size of the response in bytes)."""
    reader, writer = await asyncio.open_connection(_HOST, port)
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
    status = int((await reader.readline()).split()[1])
    size = 0
    while data := await reader.read(2**20):
        size += len(data)
    writer.close()
    return status, size


async def stream(port: int, gaps: Longest) -> None:
    """Runs one endless stream after the other, until canceled, and records the gaps between chunks."""
    body = json.dumps(_completion(prompt="Once upon a time", max_tokens=1900, stream=True)).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    while True:
        reader, writer = await asyncio.open_connection(_HOST, port)
        writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
        last = 0.0
        async for line in reader:
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                if last:  # the first token rightly waits for the prompts of others
                    gaps.see(now - last)
                last = now
        writer.close()


async def watch_livez(port: int, waits: Longest) -> None:
    """Requests `/livez` over and over, until canceled."""
    while True:
        begin = time.perf_counter()
        await ask(port, "/livez", b"", "GET")
        waits.see(time.perf_counter() - begin)
        await asyncio.sleep(_LIVEZ_SECONDS)


async def measure(port: int, kind: Kind, rounds: int) -> tuple[float, float, str]:
    """(longest gap, longest wait for /livez, answer to the large request) of the best round, in seconds."""
    gaps, waits = Longest(), Longest()
    body = json.dumps(await asyncio.to_thread(kind.body), separators=(",", ":")).encode()
    tasks = [asyncio.create_task(stream(port, gaps)), asyncio.create_task(watch_livez(port, waits))]
    found = []
    for _ in range(rounds):
        await asyncio.sleep(1.0)
        gaps.seconds = waits.seconds = 0.0
        answer = await _round(port, kind, body)
        found.append((gaps.seconds, waits.seconds, answer))
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return min(found)


async def _round(port: int, kind: Kind, body: bytes) -> str:
    begin = time.perf_counter()
    if not kind.path:
        await asyncio.sleep(_CALM_SECONDS)
        return ""
    status, size = await ask(port, kind.path, body)
    return f"{status}, {size / 2**20:.1f} MiB, {time.perf_counter() - begin:.1f} s"


def peak_megabytes(services: Mapping[str, list[int]], service: str) -> float:
    """A service's peak memory in MiB."""
    status = Path(f"/proc/{services[service][0]}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo_model/quire-demo")
    parser.add_argument("--rounds", type=int, default=3, help="The calmest counts: other load only adds.")
    parser.add_argument("--only", default="", help="Measures the kinds whose name has this in it.")
    arguments = parser.parse_args()
    port = free_ports(1)[0]
    print(heading())
    print(f"`{Path(arguments.model).name}`; the calmest of {arguments.rounds} rounds.\n")
    print("| beside | longest gap, s | longest /livez, s | answer | gateway, peak MiB | tokenizer, peak MiB |")
    print("|---|---|---|---|---|---|", flush=True)
    for kind in KINDS:
        if arguments.only not in kind.name:
            continue
        with running_stack(arguments.model, ["--port", str(port)]) as services:
            gap, livez, answer = asyncio.run(measure(port, kind, arguments.rounds))
            peaks = [peak_megabytes(services, service) for service in ("gateway", "tokenizer")]
        print(f"| {kind.name} | {gap:.2f} | {livez:.2f} | {answer} | {peaks[0]:.0f} | {peaks[1]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
