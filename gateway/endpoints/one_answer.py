"""Answers with a single choice, streamed or whole, in forms of other APIs than OpenAI's completions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.collecting import CollectedChoice, collect
from gateway.answers.deltas import ChoiceUpdate
from gateway.answers.stream import EventStream
from gateway.context import GatewayContext
from gateway.endpoints import large
from gateway.requests.state import RequestState
from quire.errors import QuireError


class OneAnswer(ABC):
    """Writes the answer to one request; an EventWriter of its stream."""

    def __init__(self, context: GatewayContext, state: RequestState, *, streams: bool) -> None:
        self._context, self.state, self.streams = context, state, streams
        self._num_tokens = 0  # written so far

    async def respond(self, request: Request) -> Response | EventStream:
        """Returns the response, streamed or whole as requested."""
        if self.streams:
            return EventStream(self.state, self, self._context.options.sse_keep_alive_interval)
        make = await self._read(request)
        return await large.answer(request, self._num_tokens, make)

    @abstractmethod
    async def _read(self, request: Request) -> Callable[[], Any]:
        """Reads the whole output, and returns what makes the answer of it.

        Raises:
            QuireError: the request failed.
            Cancelled: the client has disconnected.
        """

    @abstractmethod
    def opening(self) -> Iterable[bytes]:
        """See EventWriter."""

    @abstractmethod
    def update(self, update: ChoiceUpdate) -> Iterable[bytes]:
        """See EventWriter."""

    @abstractmethod
    def closing(self, error: QuireError | None) -> Iterable[bytes]:
        """See EventWriter."""


class CollectedAnswer(OneAnswer):
    """An answer that is made from its collected choice if it is not streamed."""

    async def _read(self, request: Request) -> Callable[[], Any]:
        (choice,) = await collect(self.state, 1, request.receive)
        self._num_tokens = len(choice.token_ids)
        return lambda: self._whole(choice)

    @abstractmethod
    def _whole(self, choice: CollectedChoice) -> Any:
        """Builds the whole answer."""
