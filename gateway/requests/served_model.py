"""What a request has to know of the model that it is for."""

from __future__ import annotations

from dataclasses import dataclass

from quire.sampling import SamplingParameters


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that workers serve."""

    served_model_names: tuple[str, ...]  # that it answers to; the first one is the main one
    model: str  # folder or hub name that its weights came from
    max_model_len: int  # tokens of prompt and output together
    vocab_size: int
    block_size: int  # tokens of a KV block
    max_logprobs: int  # most alternatives that a request may ask for
    # Of its generation config; max_tokens, if it is there, is also the most that a request may have.
    default_sampling: SamplingParameters
    eos_token_ids: tuple[int, ...] = ()
    prompt_embeds_size: int = 0  # values of each row of a prompt's embeddings; 0 where none are taken
