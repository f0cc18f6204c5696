"""The pieces of an answer: the same for streamed and whole answers of every API.

Some are created for every token, so they are structs: creating one takes a tenth of the time of a frozen dataclass.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from gateway.protocol.common import WeightSpan


class FinishReason(enum.Enum):
    """Why the engine ended a choice, in OpenAI's terms. APIs may add reasons for what a parser has found."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    REPETITION = "repetition"


class Content(msgspec.Struct, frozen=True):
    """Text of the answer itself."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Text of the model's reasoning before it answers."""

    text: str


class ToolCall(msgspec.Struct, frozen=True):
    """A piece of a tool call: only its first piece has `id` and `name`."""

    index: int  # among the choice's calls
    arguments: str = ""  # JSON
    id: str = ""
    name: str = ""


class Finish(msgspec.Struct, frozen=True):
    """The end of a choice; nothing follows."""

    reason: FinishReason
    stop_reason: str | int | None = None  # the stop string or stop token that ended it


Delta = Content | Reasoning | ToolCall | Finish


class PromptScore(msgspec.Struct, frozen=True):
    """Log-probabilities at one position of a prompt; the actual token comes first in both lists."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    rank: int


class TokenScore(msgspec.Struct, frozen=True):
    """Log-probabilities at one position; the sampled token comes first in all three lists."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    texts: tuple[bytes, ...]  # each token's bytes; empty if no text is wanted
    rank: int
    text_length: int = 0  # characters of text the token completed, including a stop string


class ChoiceUpdate(msgspec.Struct, frozen=True):
    """New tokens of one choice, and the text that is now final, which may be that of fewer or more tokens."""

    index: int  # prompt * n + choice
    deltas: tuple[Delta, ...]
    token_ids: tuple[int, ...]
    scores: tuple[TokenScore, ...] = ()  # one per token, if requested
    # Only in the first update of a prompt's first choice. Slow to read for a long prompt.
    prompt_scores: Sequence[PromptScore] = ()
    # One entry per token, if engines return them: see GenerationDelta.routed_experts.
    routed_experts: tuple[bytes, ...] = ()
    sampling_masks: tuple[tuple[int, ...], ...] = ()  # for each token those that it was sampled from, if returned
    weight_versions: tuple[WeightSpan, ...] = ()  # of all of the choice's tokens, in its last update, if requested

    @property
    def finish(self) -> Finish | None:
        """The end of the choice, if this is its last update."""
        last = self.deltas[-1] if self.deltas else None
        return last if isinstance(last, Finish) else None


def content_of(deltas: Iterable[Delta]) -> str:
    """Returns the text of the answer itself among the deltas."""
    return "".join([delta.text for delta in deltas if isinstance(delta, Content)])
