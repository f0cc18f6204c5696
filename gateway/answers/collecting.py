"""A whole answer: the updates of each choice put together."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Sequence

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


class CollectedChoice:
    """All of one choice, which may be millions of tokens: their text is joined as it comes."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.scores: list[TokenScore] = []
        self.prompt_scores: Sequence[PromptScore] = ()
        self.finish = Finish(FinishReason.ABORT)  # until it is known
        self.ended = False
        self._content = io.StringIO()
        self._reasoning = io.StringIO()
        self._calls: dict[int, tuple[ToolCall, io.StringIO]] = {}  # by their index, with what has come of them

    @property
    def content(self) -> str:
        """Its text."""
        return self._content.getvalue()

    @property
    def reasoning(self) -> str:
        """What came before the text."""
        return self._reasoning.getvalue()

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Its calls of tools."""
        return [msgspec.structs.replace(call, arguments=text.getvalue()) for call, text in self._calls.values()]

    def add(self, update: ChoiceUpdate) -> None:
        """Adds what an update brought."""
        for delta in update.deltas:
            self._add_delta(delta)
        self.token_ids += update.token_ids
        self.scores += update.scores
        self.prompt_scores = self.prompt_scores or update.prompt_scores

    def _add_delta(self, delta: Delta) -> None:
        match delta:
            case Content(text):
                self._content.write(text)
            case Reasoning(text):
                self._reasoning.write(text)
            case ToolCall(index, arguments):
                self._calls.setdefault(index, (delta, io.StringIO()))[1].write(arguments)
            case Finish():
                self.finish, self.ended = delta, True


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
