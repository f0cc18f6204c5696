"""A client of a stream, which can be inspected while it reads."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

from tests.support.gateway_stack import Gateway
from tests.support.waiting import WAIT_SECONDS


class Reader:
    """A stream as its client puts it together."""

    def __init__(self, gateway: Gateway, path: str, body: dict[str, Any]) -> None:
        self._gateway, self._path, self._body = gateway, path, body | {"stream": True}
        self.choices: dict[int, dict[str, Any]] = defaultdict(
            lambda: {"text": "", "tokens": [], "logprobs": [], "finish": None, "stop": None}
        )
        self.usage: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        self._begun = False
        self.task = asyncio.create_task(self._read())

    @property
    def begun(self) -> bool:
        """Whether the answer has begun.

        Raises:
            Exception: the error, if the stream has ended before that.
        """
        if self.task.done():
            self.task.result()
        return self._begun

    @property
    def tokens(self) -> int:
        return sum(len(choice["tokens"]) for choice in self.choices.values())

    async def result(self) -> tuple[dict[int, dict[str, Any]], dict[str, Any] | None]:
        await asyncio.wait_for(self.task, WAIT_SECONDS)
        assert self.error is None
        return dict(self.choices), self.usage

    async def _read(self) -> None:
        async with self._gateway.client.stream("POST", self._path, json=self._body) as response:
            assert response.status_code == 200, await response.aread()
            self._begun = True
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self._take(json.loads(line.removeprefix("data: ")))

    def _take(self, chunk: dict[str, Any]) -> None:
        self.error = chunk.get("error", self.error)
        self.usage = chunk.get("usage") or self.usage
        for part in chunk.get("choices", ()):
            choice = self.choices[part["index"]]
            choice["text"] += part["delta"].get("content", "") if "delta" in part else part["text"]
            choice["tokens"] += part.get("token_ids") or []
            scores = part.get("logprobs") or {}
            choice["logprobs"] += scores.get("content") or scores.get("token_logprobs") or []
            choice["finish"] = part["finish_reason"] or choice["finish"]
            choice["stop"] = part.get("stop_reason") or choice["stop"]
