"""Updates of streams that echo the log-probabilities of their prompts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from starlette.types import Receive

from gateway.answers.deltas import ChoiceUpdate
from gateway.answers.queue import AnswerQueue
from quire.errors import QuireError


class PromptsFirst:
    """An UpdateSource that processes a prompt's scores before passing on updates of its choices.

    The scores come with the prompt's first choice. Its other choices wait for that one, because they may have text
    earlier.
    """

    def __init__(self, queue: AnswerQueue, n: int, learn: Callable[[ChoiceUpdate], Awaitable[None]]) -> None:
        """
        Args:
            n: choices per prompt.
            learn: processes the scores; gets the first update of a prompt's first choice.
        """
        self._queue, self._n, self._learn = queue, n, learn
        self._known: set[int] = set()  # prompts
        self._held: dict[int, list[ChoiceUpdate]] = {}  # by prompt

    @property
    def error(self) -> QuireError | None:
        """See UpdateSource."""
        return self._queue.error

    async def next_batch(self, timeout: float) -> list[ChoiceUpdate] | None:
        """See UpdateSource."""
        batch = await self._queue.next_batch(timeout)
        if not batch:
            return batch
        try:
            return [update for new in batch for update in await self._ready(new)] or None
        except QuireError as error:
            self._queue.fail(error)
            return []

    async def _ready(self, update: ChoiceUpdate) -> list[ChoiceUpdate]:
        """Returns the updates that can be passed on after this one."""
        prompt, choice = divmod(update.index, self._n)
        if prompt in self._known:
            return [update]
        self._held.setdefault(prompt, []).append(update)
        if choice:
            return []
        await self._learn(update)
        self._known.add(prompt)
        return self._held.pop(prompt)

    def read_by(self, receive: Receive) -> AbstractAsyncContextManager[None]:
        """See UpdateSource."""
        return self._queue.read_by(receive)
