"""Collects a whole answer from the updates of its choices."""

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
from gateway.answers.stream import UpdateSource
from gateway.protocol.common import WeightSpan
from quire.errors import Cancelled

_WAIT_SECONDS = 60.0
Part = TypeVar("Part", bound=Content | Reasoning | ToolCall)


class CollectedChoice:
    """The whole output of one choice, which may be millions of tokens: text is accumulated as it arrives."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.scores: list[TokenScore] = []
        self.prompt_scores: Sequence[PromptScore] = ()
        self.routed_experts: list[bytes] = []
        self.sampling_masks: list[Sequence[int]] = []
        self.weight_versions: Sequence[WeightSpan] = ()
        self.finish = Finish(FinishReason.ABORT)  # until it is known
        self.ended = False
        self._parts: list[tuple[Content | Reasoning | ToolCall, io.StringIO]] = []  # with buffers of their text

    @property
    def parts(self) -> list[Content | Reasoning | ToolCall]:
        """The choice's parts in order; consecutive deltas of one kind, or of one tool call, are joined."""
        return [_with_text(part, text.getvalue()) for part, text in self._parts]

    @property
    def content(self) -> str:
        """Text of the answer."""
        return self._text(Content)

    @property
    def reasoning(self) -> str:
        """Text of the model's reasoning."""
        return self._text(Reasoning)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls."""
        return [_with_text(part, text.getvalue()) for part, text in self._parts if isinstance(part, ToolCall)]

    def add(self, update: ChoiceUpdate) -> None:
        """Adds an update."""
        for delta in update.deltas:
            self._add_delta(delta)
        self.token_ids += update.token_ids
        self.scores += update.scores
        self.routed_experts += update.routed_experts
        self.sampling_masks += update.sampling_masks
        self.weight_versions = update.weight_versions  # the last update has them
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
    """Whether a delta continues the preceding part."""
    if isinstance(part, ToolCall) and isinstance(delta, ToolCall):
        return part.index == delta.index
    return type(part) is type(delta)


def _with_text(part: Part, text: str) -> Part:
    return msgspec.structs.replace(part, **{"arguments" if isinstance(part, ToolCall) else "text": text})


async def collect(queue: AnswerQueue, choices: int, receive: Receive) -> list[CollectedChoice]:
    """Collects all choices until they end; a client that disconnects ends the request.

    Raises:
        QuireError: the request failed.
        Cancelled: the client has disconnected.
    """
    collected = [CollectedChoice() for _ in range(choices)]
    async with queue.read_by(receive):
        async for update in updates(queue):
            collected[update.index].add(update)
    if queue.error:
        raise queue.error
    if not all(choice.ended for choice in collected):
        raise Cancelled("The client has disconnected.")
    return collected


async def updates(queue: UpdateSource[ChoiceUpdate]) -> AsyncIterator[ChoiceUpdate]:
    """Yields all updates as they arrive, until the request ends; then the queue's `error` says whether it failed."""
    while (batch := await queue.next_batch(_WAIT_SECONDS)) != []:
        for update in batch or ():
            yield update
