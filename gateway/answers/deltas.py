"""What an answer is made of: the same pieces, whether it is streamed or whole and whatever API it is for.

Some are made for every token: a struct takes a tenth of the time of a frozen dataclass.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec


class FinishReason(enum.Enum):
    """Why the engine ended a choice, in OpenAI's words. An API may have further ones for what a parser has found."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    REPETITION = "repetition"


class Content(msgspec.Struct, frozen=True):
    """Text of the answer itself."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Text of what the model thinks before it answers."""

    text: str


class ToolCall(msgspec.Struct, frozen=True):
    """A piece of a call of a tool: `id` and `name` come with its first piece, and only then."""

    index: int  # of the choice's calls
    arguments: str = ""  # JSON
    id: str = ""
    name: str = ""


class Finish(msgspec.Struct, frozen=True):
    """The end of a choice; nothing follows."""

    reason: FinishReason
    stop_reason: str | int | None = None  # the stop string or stop token that ended it


Delta = Content | Reasoning | ToolCall | Finish


class PromptScore(msgspec.Struct, frozen=True):
    """Log-probabilities at one position of a prompt; the token itself comes first in both."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    rank: int


class TokenScore(msgspec.Struct, frozen=True):
    """Log-probabilities at one position; the token itself comes first in all three."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    texts: tuple[bytes, ...]  # each token's own bytes; none of a request that wants no text
    rank: int
    text_length: int = 0  # characters that the token made certain of its choice's text, a stop string counted


class ChoiceUpdate(msgspec.Struct, frozen=True):
    """What is new of one choice: tokens, and what has become certain of their text, which may be less or more."""

    index: int  # prompt * n + choice
    deltas: tuple[Delta, ...]
    token_ids: tuple[int, ...]
    scores: tuple[TokenScore, ...] = ()  # one for each token, if asked for
    # With the first update of a prompt's first choice. Reading those of a long prompt takes long.
    prompt_scores: Sequence[PromptScore] = ()

    @property
    def finish(self) -> Finish | None:
        """The choice's end, if this is it."""
        last = self.deltas[-1] if self.deltas else None
        return last if isinstance(last, Finish) else None


def content_of(deltas: Iterable[Delta]) -> str:
    """The answer's own text among them."""
    return "".join([delta.text for delta in deltas if isinstance(delta, Content)])
