"""A request for generation as the engine's control side knows it: plain data, every default filled in."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SamplingParameters:
    """How to turn logits into tokens; the meaning of each field is told in protos/quire/v1/common.proto."""

    n: int = 1
    max_tokens: int | None = None  # None: as many as fit
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None


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
