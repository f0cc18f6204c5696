"""What an endpoint asks of the services, free of HTTP and OpenAI: prompts in, events out."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from quire.errors import QuireError
from quire.v1 import common_pb2


@dataclass(frozen=True)
class DetokenizeOptions:
    """How a sequence's tokens become text."""

    skip_special_tokens: bool = True
    stop_strings: tuple[str, ...] = ()
    include_stop_string: bool = False
    min_tokens: int = 0
    ends_with_stop_token: bool = False  # the stop token's own text is part of the text


@dataclass(frozen=True)
class TokenizedPrompt:
    """One prompt as the model gets it."""

    token_ids: tuple[int, ...]
    block_keys: tuple[int, ...] = ()  # of its full blocks; empty where nobody has worked them out


@dataclass(frozen=True)
class Job:
    """One or more prompts that are sampled alike. Trustworthy: everything is validated."""

    request_id: str
    model: str  # its main name
    requested_model: str  # the name that the request used, which may be an alias of several models
    answering_model: str  # the name in the answer
    prompts: tuple[TokenizedPrompt, ...]
    sampling: common_pb2.SamplingParams
    timeout_seconds: float
    detokenize: DetokenizeOptions = field(default_factory=DetokenizeOptions)
    priority: int = 0
    cache_salt: str = ""
    max_model_len: int = 0  # an output that max_tokens leaves open ends here
    block_size: int = 0  # of the prompts' block keys
    tenant: str = ""
    session_id: str = ""

    @property
    def n(self) -> int:
        """Sequences of each prompt."""
        return self.sampling.n or 1

    @property
    def choices(self) -> int:
        """Sequences of all prompts."""
        return len(self.prompts) * self.n


class Finish(enum.Enum):
    """Why a choice ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True)
class TokenScore:
    """Log-probabilities at one position; the token itself comes first in all three."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    texts: tuple[bytes, ...]  # each token's own bytes
    rank: int


@dataclass(frozen=True, slots=True)
class ChoiceEvent:
    """News of one choice."""

    index: int  # prompt * n + choice
    text: str
    token_ids: tuple[int, ...]
    scores: tuple[TokenScore, ...] = ()  # one for each token, if asked for
    prompt_scores: tuple[common_pb2.TokenLogprobs, ...] = ()  # with the first event of a prompt's first choice
    finish: Finish | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True)
class FailureEvent:
    """The request as a whole failed; nothing follows."""

    error: QuireError


Event = ChoiceEvent | FailureEvent
