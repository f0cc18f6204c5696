"""A whole answer: the updates of each choice put together."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import msgspec
from starlette.types import Receive

from gateway.answers.deltas import (
    ChoiceUpdate,
    Content,
    Delta,
    Finish,
    FinishReason,
    PromptScore,
    Reasoning,
    TokenScore,
    ToolCall,
)
from gateway.answers.queue import AnswerQueue
from quire.errors import Cancelled

_WAIT_SECONDS = 60.0
Part = TypeVar("Part", bound=Content | Reasoning | ToolCall)


class CollectedChoice:
    """All of one choice, which may be millions of tokens: their text is joined as it comes."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.scores: list[TokenScore] = []
        self.prompt_scores: Sequence[PromptScore] = ()
        self.finish = Finish(FinishReason.ABORT)  # until it is known
        self.ended = False
        self._parts: list[tuple[Content | Reasoning | ToolCall, io.StringIO]] = []  # each with all of its text

    @property
    def parts(self) -> list[Content | Reasoning | ToolCall]:
        """What it is made of, in order; what follows each other of one kind, or of one call, is one."""
        return [_with_text(part, text.getvalue()) for part, text in self._parts]

    @property
    def content(self) -> str:
        """Its text."""
        return self._text(Content)

    @property
    def reasoning(self) -> str:
        """What the model has thought."""
        return self._text(Reasoning)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Its calls of tools."""
        return [_with_text(part, text.getvalue()) for part, text in self._parts if isinstance(part, ToolCall)]

    def add(self, update: ChoiceUpdate) -> None:
        """Adds what an update brought."""
        for delta in update.deltas:
            self._add_delta(delta)
        self.token_ids += update.token_ids
        self.scores += update.scores
        self.prompt_scores = self.prompt_scores or update.prompt_scores

    def _add_delta(self, delta: Delta) -> None:
        if isinstance(delta, Finish):
            self.finish, self.ended = delta, True
            return
        if not self._parts or not _goes_on(self._parts[-1][0], delta):
            self._parts.append((delta, io.StringIO()))
        self._parts[-1][1].write(delta.arguments if isinstance(delta, ToolCall) else delta.text)

    def _text(self, kind: type[Content | Reasoning]) -> str:
        return "".join(text.getvalue() for part, text in self._parts if isinstance(part, kind))


def _goes_on(part: Delta, delta: Delta) -> bool:
    """Whether a delta is of the part before it."""
    if isinstance(part, ToolCall) and isinstance(delta, ToolCall):
        return part.index == delta.index
    return type(part) is type(delta)


def _with_text(part: Part, text: str) -> Part:
    return msgspec.structs.replace(part, **{"arguments" if isinstance(part, ToolCall) else "text": text})


async def collect(queue: AnswerQueue, choices: int, receive: Receive) -> list[CollectedChoice]:
    """Waits for all choices; a client that goes away ends the request.

    Raises:
        QuireError: the request failed.
        Cancelled: the client has gone.
    """
    collected = [CollectedChoice() for _ in range(choices)]
    async with queue.read_by(receive):
        async for update in updates(queue):
            collected[update.index].add(update)
    if queue.error:
        raise queue.error
    if not all(choice.ended for choice in collected):
        raise Cancelled("The client has gone.")
    return collected


async def updates(queue: AnswerQueue) -> AsyncIterator[ChoiceUpdate]:
    """All updates as they come, up to the request's end or to the error that the queue has then."""
    while (batch := await queue.next_batch(_WAIT_SECONDS)) != []:
        for update in batch or ():
            yield update
