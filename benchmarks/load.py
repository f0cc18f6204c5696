"""Load generator: streaming completions over raw sockets, so that the client uses as little CPU time as possible."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Workload:
    """What each of `streams` clients requests, one request after the other."""

    streams: int
    requests_per_stream: int
    input_length: int  # tokens
    output_length: int  # tokens
    vocab_size: int
    seed: int = 0

    def prompts(self) -> list[list[int]]:
        """One prompt of random tokens for each request; no two share a prefix."""
        random_source = random.Random(self.seed)
        count = self.streams * self.requests_per_stream
        return [[random_source.randrange(self.vocab_size) for _ in range(self.input_length)] for _ in range(count)]


@dataclass
class Timings:
    """When one request's tokens arrived, in seconds since it was sent."""

    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt; reported by servers with --enable-prompt-tokens-details
    text: str = ""

    @property
    def per_output_token(self) -> float:
        """TPOT: the mean time between tokens after the first."""
        return (self.last - self.first) / max(1, self.tokens - 1)


@dataclass
class Result:
    """All requests of one run."""

    seconds: float
    timings: list[Timings] = field(default_factory=list)

    @property
    def output_tokens(self) -> int:
        return sum(timing.tokens for timing in self.timings)

    @property
    def tokens_per_second(self) -> float:
        return self.output_tokens / self.seconds


async def run_http(host: str, port: int, model: str, workload: Workload) -> Result:
    """Runs the workload against a server; `streams` requests are in flight at any time."""
    prompts = workload.prompts()

    async def client(index: int) -> list[Timings]:
        mine = prompts[index :: workload.streams]
        return [await complete(host, port, model, prompt, workload.output_length) for prompt in mine]

    start = time.perf_counter()
    timings = await asyncio.gather(*(client(index) for index in range(workload.streams)))
    return Result(time.perf_counter() - start, [timing for group in timings for timing in group])


async def complete(host: str, port: int, model: str, prompt: list[int] | str, output_length: int) -> Timings:
    """Sends one completion request and waits for its end.

    Raises:
        RuntimeError: the server refused it, or generated fewer tokens than requested.
    """
    body = {"model": model, "prompt": prompt, "max_tokens": output_length, "temperature": 0, "ignore_eos": True}
    timings = await stream(host, port, "/v1/completions", body)
    if timings.tokens != output_length:
        raise RuntimeError(f"asked for {output_length} tokens, got {timings.tokens}")
    return timings


async def stream(host: str, port: int, path: str, body: dict[str, Any]) -> Timings:
    """Sends one streamed request and collects its timings and text.

    Raises:
        RuntimeError: the server refused it.
    """
    content = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    reader, writer = await asyncio.open_connection(host, port)
    start = time.perf_counter()
    writer.write(f"{head}content-length: {len(content)}\r\nconnection: close\r\n\r\n".encode() + content)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"the server answered {status!r}: {await reader.read(4000)!r}")
    timings = Timings()
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter() - start
        event = json.loads(line[6:])
        if event["choices"]:
            timings.first = timings.first or now
            timings.last = now
            timings.text += _text(event["choices"][0])
        if usage := event.get("usage"):
            timings.tokens = usage["completion_tokens"]
            timings.prompt_tokens = usage["prompt_tokens"]
            timings.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    writer.close()
    return timings


def _text(choice: dict[str, Any]) -> str:
    """What an event contains: text, or a piece of a tool call."""
    if "text" in choice:
        return str(choice["text"])
    delta = choice["delta"]
    calls = "".join(
        (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
        for call in delta.get("tool_calls") or ()
    )
    return (delta.get("content") or "") + calls
