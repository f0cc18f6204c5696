"""Options for the defaults and limits of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from quire.options.base import ANY_WORD, option
from quire.options.seed import seed_option
from quire.options.tokenizer_init import skip_tokenizer_option
from quire.sampling import MODEL_DEFAULTS

# The keys of generation_config.json that may be overridden.
GenerationOverrides = msgspec.defstruct(
    "GenerationOverrides",
    [
        *((name, float | None, None) for name in MODEL_DEFAULTS),
        ("max_new_tokens", int | None, None),
        ("eos_token_id", int | list[int] | None, None),
    ],
)


@dataclass(frozen=True)
class GenerationOptions:
    """Defaults and limits of requests."""

    group: ClassVar[str] = "ModelConfig"

    generation_config: str = option(
        "auto",
        "Where sampling defaults come from: auto (the model's generation_config.json), vllm (neutral) or a folder. Its "
        "max_new_tokens also limits every request.",
    )  # fmt: skip
    override_generation_config: dict[str, Any] = option(
        {},
        "Sampling defaults that override the generation config, as JSON; null removes one.",
        schema=GenerationOverrides,
    )
    max_logprobs: int = option(
        20, "Maximum number of alternatives that logprobs may request; -1 allows the whole vocabulary.", minimum=-1
    )
    logprobs_mode: str = option(
        "raw_logprobs", "What is returned as a token's log-probability: the log-probability (logprobs) or the logit "
        "(logits), as the model computed it (raw) or as it is sampled from (processed), after biases, penalties, "
        "forbidden tokens, temperature and truncation. In prompts, penalties and bad words are not applied.",
        choices=("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"), affects_output=True,
    )  # fmt: skip
    enable_prompt_embeds: bool = option(
        False, "Accepts prompts as embeddings: prompt_embeds of completions, a safetensors file in base64. Callers can "
        "then put the model into states that no text reaches.",
    )  # fmt: skip
    enable_return_routed_experts: bool = option(
        False, "Returns with each answer of a model with experts which experts of each layer its tokens were routed "
        "to: routed_experts, an array in base64.", affects_output=True,
    )  # fmt: skip
    return_sampling_mask: bool = option(
        False, "Returns with each token of /inference/v1/generate which tokens it was sampled from: sampling_mask, for "
        "requests with a temperature and a top_k of at most 2,048.", affects_output=True,
    )  # fmt: skip
    skip_tokenizer_init: bool = skip_tokenizer_option()
    logits_processors: tuple[str, ...] = option(
        (), "Fully qualified name of a class derived from quire.logits_processor.LogitsProcessor, applied to every "
        "sequence for which it creates a processor. Takes several words.", affects_output=True, following=ANY_WORD,
    )  # fmt: skip
    logits_processor_pattern: str | None = option(
        None, "Regular expression for the names of such classes that requests may use in logits_processors; it must "
        "match the whole name. A class is imported when it is first used. If not set, none are allowed.",
    )  # fmt: skip
    seed: int | None = seed_option()
