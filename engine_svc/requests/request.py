"""A request for generation as the engine's control side knows it: plain data, every default filled in."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    priority: int = 0
    cache_salt: str = ""
    timeout_seconds: float | None = None
    constraint: Constraint | None = None  # that all outputs follow
    progress: tuple[ChoiceProgress, ...] = ()  # of each of the n sequences; empty for a new request

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
