"""The stack that `benchmarks.at_work` tries: chats through OpenAI's own client, metrics and processes."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.servers import Running

MODEL = "bench"
_METRICS = re.compile(r"^ +(\S+) +gRPC \S+ +metrics (\S+)$", re.MULTILINE)  # in what `quire serve` prints
_REPEAT_SECONDS = 0.05
_NEAR = 0.3  # in log-probability: rounding may swap two tokens that are no farther apart
_TOPS = 20
_ANSWER_SECONDS = 90.0


class Unexpected(Exception):
    """What was observed is not what was expected."""


def expect(is_so: bool, seen: str) -> None:
    """Checks an expectation.

    Raises:
        Unexpected: it is not met; the text is `seen`.
    """
    if not is_so:
        raise Unexpected(seen)


@dataclass(frozen=True)
class Scale:
    """How much load is put on a server."""

    streams: int  # at once
    tokens: int  # of each
    prompt_tokens: int  # of a long prompt
    few_blocks: int  # blocks of a KV cache that does not hold all streams
    max_model_len: int  # with that KV cache


ON_GPU = Scale(streams=32, tokens=192, prompt_tokens=4000, few_blocks=64, max_model_len=1024)  # blocks of 64 tokens
ON_CPU = Scale(streams=8, tokens=48, prompt_tokens=1500, few_blocks=32, max_model_len=512)  # blocks of 16 tokens


@dataclass
class Answer:
    """The answer to one chat, complete or so far."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    tops: list[dict[int, float]] = field(default_factory=list)  # of each token, ids → log-probabilities
    finish_reason: str | None = None
    usage: Any = None

    def take(self, choice: Any, message: Any) -> None:
        """Adds a choice, of a completion or of a chunk.

        Args:
            message: the choice's message or delta.
        """
        self.ids += (choice.model_extra or {}).get("token_ids") or []
        self.text += ((message.model_extra or {}).get("reasoning") or "") + (message.content or "")
        for token in (choice.logprobs and choice.logprobs.content) or ():
            self.tops.append({_id(top.token): top.logprob for top in token.top_logprobs})
        self.finish_reason = choice.finish_reason or self.finish_reason


def _id(token: str) -> int:
    return int(token.removeprefix("token_id:"))


class Stack:
    """A running `quire serve`, and a client of it within `async with`. Failed requests are not retried."""

    def __init__(self, server: Running, port: int, log: Path, scale: Scale, is_invariant: bool) -> None:
        """
        Args:
            log: file with what the server prints.
            is_invariant: whether a sequence's tokens are independent of the rest of its batch.
        """
        self.server = server
        self.scale = scale
        self.is_invariant = is_invariant
        from openai import AsyncOpenAI  # takes half a second, and not all who read this file talk to a stack

        self.client = AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="unused", max_retries=0, timeout=_ANSWER_SECONDS
        )
        self._port, self._log = port, log

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def ask(self, prompt: str, tokens: int, **fields: Any) -> list[Answer]:
        """The choices of a chat that is not streamed; greedy unless fields say otherwise."""
        completion = await self.client.chat.completions.create(**_request(prompt, tokens, fields))
        answers = []
        for choice in sorted(completion.choices, key=lambda choice: choice.index):
            answers.append(Answer(usage=completion.usage))
            answers[-1].take(choice, choice.message)
        return answers

    async def stream(
        self, prompt: str, tokens: int, on_tokens: Callable[[Answer], None] = lambda _: None, **fields: Any
    ) -> Answer:
        """Like `ask`, but streamed, with one choice.

        Args:
            on_tokens: called after each chunk with the answer so far.
        """
        answer = Answer()
        request = _request(prompt, tokens, fields) | {"stream": True, "stream_options": {"include_usage": True}}
        async with await self.client.chat.completions.create(**request) as chunks:
            async for chunk in chunks:
                for choice in chunk.choices:
                    answer.take(choice, choice.delta)
                    on_tokens(answer)
                answer.usage = chunk.usage or answer.usage
        return answer

    async def administer(self, command: str) -> None:
        """Runs a command of --server-dev-mode, with its query parameters."""
        await asyncio.to_thread(_answer, f"http://127.0.0.1:{self._port}/{command}", _ANSWER_SECONDS, "POST")

    async def metric(self, name: str, service: str = "gateway", **labels: str) -> float:
        """The sum of a metric's values with these labels, in a service as named by `quire serve`."""
        urls = dict(_METRICS.findall(self._log.read_text(errors="replace")))
        url = urls.get(service, f"http://127.0.0.1:{self._port}/metrics")
        text = await asyncio.to_thread(_answer, url)
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def _answer(url: str, seconds: float = 10.0, method: str = "GET") -> str:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=seconds) as response:
        return str(response.read(), "utf-8")


def _request(prompt: str, tokens: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A request that returns token ids with the text, in which different invalid UTF-8 bytes look the same."""
    extra = {"ignore_eos": True, "return_token_ids": True, "return_tokens_as_token_ids": True}
    return {
        "model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0,
        "extra_body": extra, **fields,
    }  # fmt: skip


def with_tops() -> dict[str, Any]:
    """Fields that `compared` needs."""
    return {"logprobs": True, "top_logprobs": _TOPS}


def compared(one: Answer, other: Answer, is_invariant: bool) -> str:
    """Compares two greedy answers to one prompt, and says in words whether they are equal.

    If the rest of a batch, or what was cached, changes rounding, the answers may diverge at a near tie.

    Raises:
        Unexpected: they differ by more than that.
    """
    pairs = zip(one.ids, other.ids, strict=False)
    place = next((index for index, (left, right) in enumerate(pairs) if left != right), None)
    if place is None:
        expect(len(one.ids) == len(other.ids), f"{len(one.ids)} tokens and {len(other.ids)}")
        return "equal"
    expect(not is_invariant, f"token {place} is {one.ids[place]} and {other.ids[place]}")
    for answer, own, its in ((one, one.ids[place], other.ids[place]), (other, other.ids[place], one.ids[place])):
        expect(len(answer.tops) > place, "no log-probabilities")
        tops = answer.tops[place]
        expect(its in tops, f"token {place} is {own} and {its}, which is not among the {len(tops)} likeliest")
        gap = tops[own] - tops[its]
        expect(gap < _NEAR, f"token {place} is {own} and {its}, whose log-probabilities differ by {gap:.3f}")
    return f"equal up to a near tie at token {place}"


async def until(condition: Callable[[], Awaitable[bool]], seconds: float, what: str) -> float:
    """Waits until a condition holds, and returns how many seconds it took.

    Raises:
        Unexpected: it did not hold in time.
    """
    begin = time.monotonic()
    while not await condition():
        expect(time.monotonic() - begin < seconds, f"after {seconds:.0f} s: {what}")
        await asyncio.sleep(_REPEAT_SECONDS)
    return time.monotonic() - begin


def complete(answers: Sequence[Answer], tokens: int) -> None:
    """Checks that all answers are complete.

    Raises:
        Unexpected: one of them lacks tokens, or did not end because of its length.
    """
    for index, answer in enumerate(answers):
        counted = answer.usage.completion_tokens if answer.usage else None
        expect(
            len(answer.ids) == counted == tokens and answer.finish_reason == "length",
            f"stream {index} has {len(answer.ids)} tokens of {tokens}, says {counted}, ended by {answer.finish_reason}",
        )
