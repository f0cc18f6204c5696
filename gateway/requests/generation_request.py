"""A request to the services, independent of HTTP and OpenAI: prompts in, updates out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.answers.context import NO_CONTEXT, AnswerContext
from gateway.answers.parser import AnswerParser
from gateway.answers.routed_experts import RoutedExpertsForm
from gateway.requests.beams import BeamSearchParameters
from gateway.requests.kv_transfer import NO_KV_TRANSFER, KvTransfer
from gateway.requests.named_key import Admission
from gateway.requests.thinking import Thinking
from quire.images import Image
from quire.prompt_embeds import PromptEmbeds
from quire.reasoning import ReasoningMarks
from quire.sampling import SamplingParameters
from quire.structured.base import Constraint


@dataclass(frozen=True)
class DetokenizeOptions:
    """How a sequence's tokens become text."""

    skip_special_tokens: bool = True
    kept_special_tokens: tuple[str, ...] = ()  # special tokens, as text, that are kept regardless
    join_special_tokens: bool = False  # without a space between them
    stop_strings: tuple[str, ...] = ()
    include_stop_string: bool = False
    min_tokens: int = 0
    reasoning: ReasoningMarks | None = None  # stop strings are matched only after the reasoning
    ends_with_stop_token: bool = False  # includes the text of the stop token


@dataclass(frozen=True)
class TokenizedPrompt:
    """One prompt as the model receives it."""

    token_ids: tuple[int, ...]
    block_keys: tuple[int, ...] = ()  # of its full blocks; empty if not computed
    embeds: PromptEmbeds | None = None  # instead of token ids
    images: tuple[Image, ...] = ()  # and videos and audio
    audio_seconds: float = 0.0  # length of its audio
    known_tokens: int | None = None  # set if token_ids has only the prompt's end, or nothing
    token_offsets: tuple[tuple[int, int], ...] = ()  # if wanted: where each token begins and ends in the prompt's text

    @property
    def num_tokens(self) -> int:
        """Number of tokens, in whichever form the prompt was given."""
        if self.known_tokens is not None:
            return self.known_tokens
        return len(self.token_ids) if self.embeds is None else self.embeds.num_tokens

    @property
    def content_bytes(self) -> int:
        """Bytes of its embeddings and images, which are kept in memory while the request runs."""
        embeds = len(self.embeds.data) if self.embeds else 0
        return embeds + sum(image.num_bytes for image in self.images)


@dataclass(frozen=True)
class GenerationRequest:
    """One or more prompts sampled with the same parameters. Everything is validated already."""

    request_id: str
    model: str  # the model's main name
    requested_model: str  # the name that the request used, which may be an alias of several models
    answering_model: str  # the name reported in the answer
    prompts: tuple[TokenizedPrompt, ...]
    sampling: SamplingParameters
    timeout_seconds: float
    wants_text: bool = True  # False: token ids and logprobs only
    token_by_token: bool = False  # one update per token with logprobs, even if several arrive at once
    detokenize: DetokenizeOptions = field(default_factory=DetokenizeOptions)
    parsers: tuple[type[AnswerParser], ...] = ()  # applied to each choice's text, in order
    constraint: Constraint | None = None  # on each output
    answer_context: AnswerContext = NO_CONTEXT  # what the parsers know of the request
    beams: BeamSearchParameters | None = None  # set for beam search, which samples nothing
    thinking: Thinking | None = None  # set if reasoning is separated from the answer
    priority: int = 0
    cache_salt: str = ""
    routed_experts: RoutedExpertsForm | None = None  # set if the answer has them
    with_weight_versions: bool = False  # the answer tells which weights computed its tokens
    max_model_len: int = 0  # ends outputs without max_tokens
    block_size: int = 0  # that the prompts' block keys are for
    tenant: str = ""
    session_id: str = ""
    part_of: str | None = None  # id of the request that it is a part of; None if it is all of it
    admission: Admission | None = None  # of a named key, whose tokens it uses
    kv_transfer: KvTransfer = NO_KV_TRANSFER

    @property
    def n(self) -> int:
        """Sequences per prompt."""
        return self.sampling.n

    @property
    def weight(self) -> float:
        """The tenant's share in the routers' queues, relative to those of others."""
        return self.admission.key.entry.weight if self.admission else 1.0

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of all prompts."""
        return sum(prompt.num_tokens for prompt in self.prompts)

    @property
    def output_tokens(self) -> int:
        """Maximum number of tokens that all sequences may generate."""
        width = self.beams.width if self.beams else self.n
        return most_output_tokens(self.prompts, self.sampling.max_tokens, width, self.max_model_len)

    @property
    def content_bytes(self) -> int:
        """Total bytes of the prompts' embeddings and images."""
        return sum(prompt.content_bytes for prompt in self.prompts)

    @property
    def sequences(self) -> int:
        """Sequences that engines run at a time, for all prompts: there may be more beams than choices."""
        return len(self.prompts) * self.beams.width if self.beams else self.choices

    @property
    def choices(self) -> int:
        """Choices of all prompts."""
        return len(self.prompts) * self.n


def most_output_tokens(prompts: Sequence[TokenizedPrompt], max_tokens: int | None, n: int, max_model_len: int) -> int:
    """Returns the maximum number of tokens that n sequences for each prompt may generate.

    Args:
        max_tokens: per sequence; None means as many as fit.
    """
    room = (max_model_len - prompt.num_tokens for prompt in prompts)
    return n * sum(each if max_tokens is None else min(each, max_tokens) for each in room)
