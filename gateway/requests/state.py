"""State of live requests: what is on its way between router, tokenizer service and client."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.answers.queue import AnswerQueue
from gateway.requests.generation_request import GenerationRequest, TokenizedPrompt
from quire.rpc.context import Trace

# A client whose text is complete waits so long for what it cost, and gets an answer without it then.
USAGE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class GenerationUsage:
    """What one prompt and its sequences took, as engine and router have measured it."""

    cached_prompt_tokens: int
    router_queue_seconds: float
    queue_seconds: float  # in the engine
    prefill_seconds: float
    decode_seconds: float


@dataclass(slots=True, eq=False)
class ChoiceState:
    """One sequence."""

    stream: StreamState
    index: int  # prompt * n + choice
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
    number: int  # of the prompt
    seed: int | None  # None: nothing is drawn
    deadline: float  # by the monotonic clock
    choices: list[ChoiceState] = field(default_factory=list)
    # What it cost; None where nobody has told. And whether nothing more comes of it.
    usage: GenerationUsage | None = None
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
    def prompt(self) -> TokenizedPrompt:
        """What it goes on from."""
        return self.owner.request.prompts[self.number]

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
        self.trace: Trace = ()  # what is done for it belongs to
        self._release = release
        self._settling: asyncio.TimerHandle | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(prompt.num_tokens for prompt in self.request.prompts)

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
