"""Conversion of prompt embeddings to and from protobuf."""

from __future__ import annotations

from quire.prompt_embeds import PromptEmbeds
from quire.v1 import common_pb2


def to_prompt_embeds(generation: common_pb2.Generation) -> PromptEmbeds | None:
    """The unchecked embeddings of a request; None for a prompt of token ids."""
    if not generation.HasField("prompt_embeds"):
        return None
    message = generation.prompt_embeds
    return PromptEmbeds(message.dtype, message.hidden_size, message.data)


def from_prompt_embeds(embeds: PromptEmbeds | None) -> common_pb2.PromptEmbeds | None:
    """The message for embeddings; None for None."""
    if embeds is None:
        return None
    return common_pb2.PromptEmbeds(dtype=embeds.dtype, hidden_size=embeds.hidden_size, data=embeds.data)


def num_prompt_tokens(generation: common_pb2.Generation) -> int:
    """Number of prompt tokens, in whichever form the prompt comes."""
    embeds = to_prompt_embeds(generation)
    return len(generation.prompt_token_ids) if embeds is None else embeds.num_tokens
