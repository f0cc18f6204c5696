"""State of live requests: data on its way between router, tokenizer service and client."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.answers.queue import AnswerQueue
from gateway.answers.weight_versions import WeightVersions
from gateway.requests.generation_request import GenerationRequest, TokenizedPrompt
from gateway.requests.named_key import Reservation
from quire.images import Image
from quire.rpc.context import Trace

# How long a client whose text is complete waits for the usage; after that, it gets an answer without it.
USAGE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class GenerationUsage:
    """Usage of one prompt and its sequences, as measured by engine and router."""

    cached_prompt_tokens: int
    router_queue_seconds: float
    queue_seconds: float  # in the engine
    prefill_seconds: float
    decode_seconds: float
    preemptions: int
    kv_source: str = ""  # host:port of the worker that keeps the prompt's KV blocks for another deployment


@dataclass(frozen=True, slots=True)
class AudioAppend:
    """Audio with which a recording goes on; see quire.v1.AudioAppend."""

    audio: Image
    is_last: bool


@dataclass(slots=True, eq=False)
class ChoiceState:
    """State of one sequence."""

    stream: StreamState
    index: int  # prompt * n + choice
    # Number of tokens passed to the client, and whether these are all.
    num_tokens: int = 0
    ended: bool = False
    # Tokens delivered by routers so far, and whether that is all: another router would continue from here.
    delivered: array[int] = field(default_factory=lambda: array("I"))
    finished: bool = False
    versions: WeightVersions | None = None  # of the weights that computed these tokens, if the answer tells them


@dataclass(slots=True)
class StreamState:
    """One generation at a router: a prompt and its n sequences."""

    owner: RequestState
    number: int  # index of the prompt
    seed: int | None  # None for greedy sampling
    deadline: float  # on the monotonic clock
    choices: list[ChoiceState] = field(default_factory=list)
    # Its usage, None until known; and whether nothing more will arrive.
    usage: GenerationUsage | None = None
    over: bool = False
    # Its id in the session with its current router; 0 while it has none.
    stream_id: int = 0
    # Whether that router has sent any output, and which routers have refused it.
    answered: bool = False
    refused_by: tuple[str, ...] = ()
    # How often it moved to another router.
    moves: int = 0
    # What has come of its recording, which goes on, while it has no router.
    coming: list[AudioAppend] = field(default_factory=list)
    # The task that waits for a router, if any.
    waiting: asyncio.Task[None] | None = None

    @property
    def prompt(self) -> TokenizedPrompt:
        """The prompt to continue."""
        return self.owner.request.prompts[self.number]

    @property
    def goes_on(self) -> bool:
        """Whether more of its recording follows."""
        return any(image.goes_on for image in self.prompt.images)

    @property
    def told(self) -> bool:
        """Whether all tokens of all its choices have arrived."""
        return all(choice.finished or choice.ended for choice in self.choices)


class RequestState(AnswerQueue):
    """One request of a client, and its output that has not been read yet."""

    def __init__(self, request: GenerationRequest, release: Callable[[RequestState], None]) -> None:
        """
        Args:
            release: frees the resources that the request holds elsewhere; called once.
        """
        super().__init__(request.choices, request.parsers, request.answer_context)
        self.request = request
        self.streams: list[StreamState] = []
        self.open_choices = request.choices
        self.reservation: Reservation | None = None  # of the tokens of a named key
        self.trace: Trace = ()  # the trace that work for this request belongs to
        self._release = release
        self._settling: asyncio.TimerHandle | None = None

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of all prompts."""
        return self.request.prompt_tokens

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens found in the prefix cache, as far as engines have reported."""
        return sum(stream.usage.cached_prompt_tokens for stream in self.streams if stream.usage)

    @property
    def kv_source(self) -> str:
        """Where its first prompt's KV blocks are kept for another deployment; empty if nowhere."""
        return next((stream.usage.kv_source for stream in self.streams if stream.usage), "")

    @property
    def num_generated(self) -> int:
        """Number of tokens of all choices so far."""
        return sum(choice.num_tokens for stream in self.streams for choice in stream.choices)

    def settle(self) -> None:
        """Ends the request once all choices are complete and the usage is known. Call it when either happens."""
        if self.open_choices or self.closed:
            return
        if all(stream.over for stream in self.streams):
            self.close()
        elif self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(USAGE_SECONDS, self.close)

    def release(self) -> None:
        """Frees the resources that the request holds elsewhere; called once."""
        if self._settling is not None:
            self._settling.cancel()
        self._release(self)
