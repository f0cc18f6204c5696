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
    """What requests get that leave it open, and how much they may ask for."""

    group: ClassVar[str] = "ModelConfig"

    generation_config: str = option(
        "auto",
        "Where sampling defaults come from: auto (the model's generation_config.json), vllm (neutral) or a folder. Its "
        "max_new_tokens is also the most that any request gets.",
    )  # fmt: skip
    override_generation_config: dict[str, Any] = option(
        {},
        "Sampling defaults that win over the generation config, as JSON; null takes one away.",
        schema=GenerationOverrides,
    )
    max_logprobs: int = option(
        20, "Most alternatives that logprobs may ask for; -1 allows as many as the vocabulary has.", minimum=-1
    )
    logprobs_mode: str = option(
        "raw_logprobs", "What is told as a token's log-probability: that (logprobs) or its logit (logits), as the "
        "model gave it (raw), or as it is drawn from (processed): biases, penalties, forbidden tokens, temperature "
        "and truncation included. Penalties and bad words count in outputs only, not in prompts.",
        choices=("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"), affects_output=True,
    )  # fmt: skip
    enable_prompt_embeds: bool = option(
        False, "Takes prompts as embeddings: prompt_embeds of completions, a safetensors file in base64. Whoever sends "
        "them reaches states of the model that no text does.",
    )  # fmt: skip
    skip_tokenizer_init: bool = skip_tokenizer_option()
    logits_processors: tuple[str, ...] = option(
        (), "Fully qualified name of a class derived from quire.logits_processor.LogitsProcessor, applied to every "
        "sequence for which it makes a processor. Takes several words.", affects_output=True, following=ANY_WORD,
    )  # fmt: skip
    logits_processor_pattern: str | None = option(
        None, "Regular expression of the names of such classes that requests may ask for in logits_processors; it has "
        "to match the whole name. They are imported when they are first asked for. None allows none.",
    )  # fmt: skip
    seed: int | None = seed_option()
