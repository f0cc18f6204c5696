"""A request for generation as the engine's control side knows it: plain data, every default filled in."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine_svc.adapters.adapter import Adapter
from quire.prompt_embeds import PromptEmbeds
from quire.sampling import SamplingParameters
from quire.structured.base import Constraint


@dataclass(frozen=True)
class ChoiceProgress:
    """How far one of a request's sequences had come on another worker."""

    token_ids: list[int] = field(default_factory=list)  # all that it has generated
    finished: bool = False


@dataclass(frozen=True)
class GenerationRequest:
    """One request. Trustworthy once `validation.validate` has passed it."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    model: str = ""
    adapter: Adapter | None = None  # that `model` names
    priority: int = 0
    cache_salt: str = ""
    timeout_seconds: float | None = None
    prompt_embeds: PromptEmbeds | None = None  # in place of the prompt's token ids
    constraint: Constraint | None = None  # that all outputs follow
    progress: tuple[ChoiceProgress, ...] = ()  # of each of the n sequences; empty for a new request

    @property
    def embeds_bytes(self) -> int:
        """Of a prompt that came as embeddings."""
        return len(self.prompt_embeds.data) if self.prompt_embeds else 0

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt, whatever it came as."""
        return len(self.prompt_token_ids) if self.prompt_embeds is None else self.prompt_embeds.num_tokens

    @property
    def held_token_ids(self) -> list[int]:
        """Those of the prompt; of embeddings, ids that hold their places."""
        return self.prompt_token_ids if self.prompt_embeds is None else [0] * self.prompt_embeds.num_tokens

    @property
    def is_resumed(self) -> bool:
        """Whether another worker has generated a part of it."""
        return any(choice.token_ids or choice.finished for choice in self.progress)


@dataclass(frozen=True)
class RequestLimits:
    """What a request is checked against: facts of the model and the worker."""

    served_model_names: tuple[str, ...]
    vocab_size: int
    max_model_len: int  # tokens of prompt and output that fit, the KV cache's size considered
    max_logprobs: int
    scheduling_policy: str
    eos_token_ids: frozenset[int] = frozenset()
    dtype: str = "float32"  # of the model
    prompt_embeds_size: int = 0  # values of each row of prompt_embeds; 0 where none are taken
