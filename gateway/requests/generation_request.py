"""What an endpoint asks of the services, free of HTTP and OpenAI: prompts in, updates out."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.answers.context import NO_CONTEXT, AnswerContext
from gateway.answers.parser import AnswerParser
from gateway.requests.beams import BeamSearchParameters
from gateway.requests.thinking import Thinking
from quire.prompt_embeds import PromptEmbeds
from quire.reasoning import ReasoningMarks
from quire.sampling import SamplingParameters
from quire.structured.base import Constraint


@dataclass(frozen=True)
class DetokenizeOptions:
    """How a sequence's tokens become text."""

    skip_special_tokens: bool = True
    kept_special_tokens: tuple[str, ...] = ()  # that stay even so, by their text
    join_special_tokens: bool = False  # without a space between them
    stop_strings: tuple[str, ...] = ()
    include_stop_string: bool = False
    min_tokens: int = 0
    reasoning: ReasoningMarks | None = None  # stop strings are matched behind it
    ends_with_stop_token: bool = False  # the stop token's own text is part of the text


@dataclass(frozen=True)
class TokenizedPrompt:
    """One prompt as the model gets it."""

    token_ids: tuple[int, ...]
    block_keys: tuple[int, ...] = ()  # of its full blocks; empty where nobody has worked them out
    embeds: PromptEmbeds | None = None  # in place of the token ids
    known_tokens: int | None = None  # where the token ids are its end, or none

    @property
    def num_tokens(self) -> int:
        """Tokens, whatever it came as."""
        if self.known_tokens is not None:
            return self.known_tokens
        return len(self.token_ids) if self.embeds is None else self.embeds.num_tokens


@dataclass(frozen=True)
class GenerationRequest:
    """One or more prompts that are sampled alike. Trustworthy: everything is validated."""

    request_id: str
    model: str  # its main name
    requested_model: str  # the name that the request used, which may be an alias of several models
    answering_model: str  # the name in the answer
    prompts: tuple[TokenizedPrompt, ...]
    sampling: SamplingParameters
    timeout_seconds: float
    wants_text: bool = True  # or token ids and scores alone
    token_by_token: bool = False  # tokens with scores become an update each, however many come at once
    detokenize: DetokenizeOptions = field(default_factory=DetokenizeOptions)
    parsers: tuple[type[AnswerParser], ...] = ()  # of each choice's text, in order
    constraint: Constraint | None = None  # what each output has to look like
    answer_context: AnswerContext = NO_CONTEXT  # what they know of the request
    beams: BeamSearchParameters | None = None  # with them, nothing is sampled
    thinking: Thinking | None = None  # where its tokens are told apart from the answer's
    priority: int = 0
    cache_salt: str = ""
    max_model_len: int = 0  # an output that max_tokens leaves open ends here
    block_size: int = 0  # of the prompts' block keys
    tenant: str = ""
    session_id: str = ""

    @property
    def n(self) -> int:
        """Sequences of each prompt."""
        return self.sampling.n

    @property
    def embeds_bytes(self) -> int:
        """Of the prompts that are embeddings; they are kept while it runs."""
        return sum(len(prompt.embeds.data) for prompt in self.prompts if prompt.embeds)

    @property
    def sequences(self) -> int:
        """What engines run of it at a time, for all prompts: beams are more than choices."""
        return len(self.prompts) * self.beams.width if self.beams else self.choices

    @property
    def choices(self) -> int:
        """Sequences of all prompts."""
        return len(self.prompts) * self.n
