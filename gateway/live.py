"""State of live requests: what is on its way between router, tokenizer service and client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.job import Event, FailureEvent, Job
from quire.errors import Overloaded, QuireError
from quire.v1 import common_pb2

# Events that wait for a client which does not read: far more than a healthy one ever has.
MAX_WAITING_EVENTS = 16384


@dataclass(slots=True)
class LiveChoice:
    """One sequence. Its deltas wait in `pending` for their text, in order."""

    stream: LiveStream
    index: int  # prompt * n + choice
    text_id: int  # its stream id at the tokenizer service
    pending: deque[common_pb2.GenerationDelta] = field(default_factory=deque)
    ended: bool = False


@dataclass(slots=True)
class LiveStream:
    """One generation at the router: a prompt and its n sequences."""

    request: LiveRequest
    stream_id: int
    choices: list[LiveChoice]
    usage: common_pb2.GenerationUsage | None = None


class LiveRequest:
    """One request of a client: iterate over `batches()`; call `cancel` when the client has gone."""

    def __init__(self, job: Job, release: Callable[[LiveRequest], None]) -> None:
        """
        Args:
            release: frees what the request holds elsewhere; called once.
        """
        self.job = job
        self.streams: list[LiveStream] = []
        self.open_choices = len(job.prompts) * job.n
        self.completion_tokens = 0
        self._release = release
        self._events: deque[Event] = deque()
        self._ready = asyncio.Event()
        self._closed = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(prompt) for prompt in self.job.prompts)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache, as far as the engines have told."""
        return sum(stream.usage.cached_prompt_tokens for stream in self.streams if stream.usage)

    def push(self, event: Event) -> None:
        """Hands an event to the client's task."""
        if len(self._events) >= MAX_WAITING_EVENTS:
            self.fail(Overloaded("The client does not read its stream; it is ended."))
            return
        self._events.append(event)
        self._ready.set()

    def fail(self, error: QuireError) -> None:
        """Ends the request with an error."""
        if not self._closed:
            self._events.append(FailureEvent(error))
            self.close()

    def cancel(self) -> None:
        """The client has gone: ends the request without another event."""
        self._events.clear()
        self.close()

    def close(self) -> None:
        """Frees what the request holds; events that wait are still delivered. May be called twice."""
        if not self._closed:
            self._closed = True
            self._release(self)
            self._ready.set()

    async def next_batch(self, timeout: float) -> list[Event] | None:
        """All events that are ready, at least one; an empty list at the end; None when nothing came in time."""
        if not self._events and not self._closed:
            self._ready.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._ready.wait()
            except TimeoutError:
                return None
        batch = list(self._events)
        self._events.clear()
        return batch
