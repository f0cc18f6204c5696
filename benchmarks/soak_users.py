"""The users of `benchmarks.soak`: what they ask, and whether the answers are right."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Self

from benchmarks.fleet import MODEL_NAME

_DEADLINE_SECONDS = 120.0
_TOPICS = ("What is Quire?", "How do I start it?", "What is 17 + 25?", "Which metrics are there?", "Say hello.")
_HISTORY = "The router keeps streams alive when a worker dies. " * 12
_SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["a", "b"],
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
}  # fmt: skip
# Requests that must be refused, whatever is going on.
_NONSENSE: tuple[dict[str, Any], ...] = (
    {"temperature": -1}, {"n": 10**9}, {"max_tokens": 0}, {"logit_bias": {"x": 1}}, {"stop": ["a"] * 1000},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}}},
)  # fmt: skip


class Users:
    """A number of users, each of whom sends one request after the other.

    Attributes:
        wrong: what should not have happened.
        ends: how requests ended, by kind.
    """

    def __init__(self, port: int, count: int, seed: int) -> None:
        from openai import AsyncOpenAI  # takes half a second

        self._client = AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="unused", max_retries=0, timeout=_DEADLINE_SECONDS
        )
        self._sources = [random.Random(f"{seed} {number}") for number in range(count)]
        self._answers: dict[str, str] = {}
        self.wrong: list[str] = []
        self.ends: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    @property
    def requests(self) -> int:
        """Requests that have ended."""
        return self.ends.total()

    async def run(self, until: float) -> None:
        """Sends requests until a time of the monotonic clock, and waits for the last ones."""
        await asyncio.gather(*(self._user(source, until) for source in self._sources))

    async def _user(self, source: random.Random, until: float) -> None:
        kinds: tuple[tuple[Callable[[random.Random], Awaitable[str]], int], ...] = (
            (self._whole, 6), (self._streamed, 8), (self._constrained, 2), (self._leaves, 3), (self._nonsense, 1),
        )  # fmt: skip
        while time.monotonic() < until:
            kind = source.choices([each for each, _ in kinds], [weight for _, weight in kinds])[0]
            begun, name = time.monotonic(), kind.__name__.strip("_")
            try:
                async with asyncio.timeout(_DEADLINE_SECONDS):
                    end = await kind(source)
            except Exception as error:
                end = f"{type(error).__name__} {getattr(error, 'status_code', '')}"
                self.wrong.append(f"{name} after {time.monotonic() - begun:.1f} s: {end}: {str(error)[:300]}")
            self.ends[f"{name}: {end}"] += 1

    async def _whole(self, source: random.Random) -> str:
        fields = _fields(source)
        answer = await self._client.chat.completions.create(**fields)
        texts = [choice.message.content or "" for choice in sorted(answer.choices, key=lambda each: each.index)]
        self._compare(fields, texts)
        return "complete"

    async def _streamed(self, source: random.Random) -> str:
        fields = _fields(source)
        texts = [""] * fields["n"]
        reasons: list[str | None] = [None] * fields["n"]
        async with await self._client.chat.completions.create(**fields, stream=True) as chunks:
            async for chunk in chunks:
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                    reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        if None in reasons:
            self.wrong.append(f"a stream ended without a reason: {fields}")
        self._compare(fields, texts)
        return "complete"

    async def _constrained(self, source: random.Random) -> str:
        fields = _fields(source) | {"n": 1, "max_tokens": 60, "stop": None}
        form = {"type": "json_schema", "json_schema": {"name": "pair", "schema": _SCHEMA, "strict": True}}
        asked: dict[str, Any] = fields | {"response_format": form}
        answer = await self._client.chat.completions.create(**asked)
        choice = answer.choices[0]
        if choice.finish_reason == "stop":
            found = json.loads(choice.message.content or "")
            if not (set(found) == {"a", "b"} and 0 <= found["a"] <= 99 and found["b"] in ("x", "y")):
                self.wrong.append(f"not what the schema says: {found}")
        self._compare(fields | {"schema": True}, [choice.message.content or ""])
        return "complete"

    async def _leaves(self, source: random.Random) -> str:
        """Leaves before the first token, or in the middle."""
        fields, patience = _fields(source) | {"max_tokens": 400}, source.choice((0, 0, 3, 10))
        if not patience:
            asking = asyncio.create_task(self._client.chat.completions.create(**fields))
            await asyncio.wait([asking], timeout=source.uniform(0, 0.3))
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            return "left"
        async with await self._client.chat.completions.create(**fields, stream=True) as chunks:
            async for _ in chunks:
                patience -= 1
                if not patience:
                    break
        return "left"

    async def _nonsense(self, source: random.Random) -> str:
        fields = _fields(source) | source.choice(_NONSENSE)
        try:
            await self._client.chat.completions.create(**fields)
        except Exception as error:
            if getattr(error, "status_code", None) == 400:
                return "refused"
            raise
        self.wrong.append(f"accepted: {fields}")
        return "accepted"

    def _compare(self, fields: dict[str, Any], texts: list[str]) -> None:
        key = json.dumps(fields, sort_keys=True)
        if self._answers.setdefault(key, json.dumps(texts)) != json.dumps(texts):
            self.wrong.append(f"another answer to {key}: {texts}, was {self._answers[key]}")


def _fields(source: random.Random) -> dict[str, Any]:
    """A request of which there are a few hundred different ones, so that the same ones come again."""
    topic, temperature = source.choice(_TOPICS), source.choice((0.0, 0.9))
    return {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": source.choice(("", _HISTORY)) + topic}],
        "max_tokens": source.choice((1, 24, 120)),
        "temperature": temperature,
        "seed": source.randrange(3),
        "n": source.choice((1, 1, 1, 2)) if temperature else 1,
        "stop": source.choice((None, ["."])),
    }
