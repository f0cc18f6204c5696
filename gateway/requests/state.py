"""State of live requests: what is on its way between router, tokenizer service and client."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.answers.queue import AnswerQueue
from gateway.requests.generation_request import GenerationRequest
from quire.v1 import common_pb2

# A client whose text is complete waits so long for what it cost, and gets an answer without it then.
USAGE_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class ChoiceState:
    """One sequence. Its deltas wait in `pending` for their text, in order."""

    stream: StreamState
    index: int  # prompt * n + choice
    # Its number in the session with the replica of the tokenizer service that it is at; 0 while it is at none.
    text_id: int = 0
    # When its text must have gone on, by the monotonic clock; None while nothing is wrong.
    text_deadline: float | None = None
    pending: deque[common_pb2.GenerationDelta] = field(default_factory=deque)
    # Tokens that are the client's, and whether they are all of them.
    num_tokens: int = 0
    ended: bool = False
    # What routers have delivered so far, and whether they said that this is all: where another one has to go on.
    delivered: array[int] = field(default_factory=lambda: array("I"))
    finished: bool = False


@dataclass(slots=True)
class StreamState:
    """One generation at a router: a prompt and its n sequences."""

    owner: RequestState
    generation: common_pb2.Generation
    deadline: float  # by the monotonic clock
    choices: list[ChoiceState] = field(default_factory=list)
    # What it cost; None where nobody has told. And whether nothing more comes of it.
    usage: common_pb2.GenerationUsage | None = None
    over: bool = False
    # Its number in the session with the router that works on it; 0 while none does.
    stream_id: int = 0
    # Whether that router has sent something of it; and which ones have refused it.
    answered: bool = False
    refused_by: tuple[str, ...] = ()
    # How often it went on at another router.
    moves: int = 0
    # Waits for a router.
    waiting: asyncio.Task[None] | None = None

    @property
    def told(self) -> bool:
        """Whether the tokens of all its choices are here."""
        return all(choice.finished or choice.ended for choice in self.choices)


class RequestState(AnswerQueue):
    """One request of a client, with what has come of it and is not read yet."""

    def __init__(self, request: GenerationRequest, release: Callable[[RequestState], None]) -> None:
        """
        Args:
            release: frees what the request holds elsewhere; called once.
        """
        super().__init__(request.choices, request.parsers, request.answer_context)
        self.request = request
        self.streams: list[StreamState] = []
        self.open_choices = request.choices
        self._release = release
        self._settling: asyncio.TimerHandle | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(prompt.token_ids) for prompt in self.request.prompts)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache, as far as the engines have told."""
        return sum(stream.usage.cached_prompt_tokens for stream in self.streams if stream.usage)

    def settle(self) -> None:
        """Ends the request once all is said and the routers have told what it cost. Call it when either comes."""
        if self.open_choices or self.closed:
            return
        if all(stream.over for stream in self.streams):
            self.close()
        elif self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(USAGE_SECONDS, self.close)

    def release(self) -> None:
        """Frees what the request holds elsewhere; called once."""
        if self._settling is not None:
            self._settling.cancel()
        self._release(self)
