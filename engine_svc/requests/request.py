"""A generation request on the engine's control side: plain data, with every default filled in."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine_svc.adapters.adapter import Adapter
from engine_svc.plan import RoutedExpertsForm
from quire.block_hash import Content
from quire.images import Image, contents_of
from quire.prompt_embeds import PromptEmbeds
from quire.sampling import SamplingParameters
from quire.structured.base import Constraint


@dataclass(frozen=True)
class ChoiceProgress:
    """Progress of one of a request's sequences on another worker."""

    token_ids: list[int] = field(default_factory=list)  # all generated tokens
    finished: bool = False


@dataclass(frozen=True)
class GenerationRequest:
    """A generation request. Only trustworthy once `validation.validate` has accepted it."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    model: str = ""
    adapter: Adapter | None = None  # the adapter that `model` names
    priority: int = 0
    cache_salt: str = ""
    timeout_seconds: float | None = None
    prompt_embeds: PromptEmbeds | None = None  # in place of the prompt's token ids
    images: tuple[Image, ...] = ()  # within the prompt
    constraint: Constraint | None = None  # followed by all outputs
    progress: tuple[ChoiceProgress, ...] = ()  # one per sequence; empty for a new request
    hands_over: bool = False  # another worker continues once the prompt's blocks are saved; see core/hand_overs.py
    remote_decode: bool = False  # another deployment continues; it ends once the prompt's blocks are saved
    kv_source: str = ""  # address of the worker that has computed the prompt and keeps its blocks; empty if none does

    @property
    def content_bytes(self) -> int:
        """Bytes of the prompt's embeddings and images; 0 for a prompt of token ids alone."""
        embeds = len(self.prompt_embeds.data) if self.prompt_embeds else 0
        return embeds + sum(image.num_bytes for image in self.images)

    @property
    def contents(self) -> tuple[Content, ...]:
        """What token ids do not tell of the prompt, for the hashes of its blocks."""
        return contents_of(self.images) if self.prompt_embeds is None else ((0, self.prompt_embeds.digest),)

    @functools.cached_property
    def image_runs(self) -> tuple[range, ...]:
        """The places of image tokens that stand together: those of an image, or of one of a video's frames."""
        return tuple(run for image in self.images if not image.is_audio for run in self._runs_of(image))

    def _runs_of(self, image: Image) -> Iterator[range]:
        first, last = (self.prompt_token_ids[place] for place in (image.offset, image.end - 1))
        if first != last:  # a video that ends with its sound
            yield range(image.offset, image.end)
            return
        place = image.offset
        for is_own, tokens in itertools.groupby(self.prompt_token_ids[place : image.end], first.__eq__):
            end = place + len([*tokens])
            if is_own:
                yield range(place, end)
            place = end

    @property
    def num_prompt_tokens(self) -> int:
        """Number of prompt tokens, given as token ids or as embeddings."""
        return len(self.prompt_token_ids) if self.prompt_embeds is None else self.prompt_embeds.num_tokens

    @property
    def held_token_ids(self) -> list[int]:
        """Token ids of the prompt; zeros as placeholders for embeddings."""
        return self.prompt_token_ids if self.prompt_embeds is None else [0] * self.prompt_embeds.num_tokens

    @property
    def is_resumed(self) -> bool:
        """Whether another worker has already generated part of the output."""
        return any(choice.token_ids or choice.finished for choice in self.progress)


@dataclass(frozen=True)
class RequestLimits:
    """Properties of the model and the worker that requests are validated against."""

    served_model_names: tuple[str, ...]
    vocab_size: int
    max_model_len: int  # most tokens of prompt and output, given the KV cache's size
    max_logprobs: int
    scheduling_policy: str
    eos_token_ids: frozenset[int] = frozenset()
    dtype: str = "float32"  # of the model
    prompt_embeds_size: int = 0  # row size of prompt_embeds; 0 if they are not accepted
    accepts_media: bool = False  # images, videos or audio
    # Tokens that each prompt begins with and that stand for its only recording; 0 means that prompts are as they like.
    encoder_tokens: int = 0
    frames_per_token: int = 0  # of a recording, which each token of a sequence hears: see ModelFacts
    max_image_tokens: int | None = None  # most tokens of an image; None means any number
    image_window: int | None = None  # the same, beyond which some layers would not see all of it
    routed_experts: RoutedExpertsForm | None = None  # None if they are not returned
    has_watermark: bool = False
