"""What the other services say, in the gateway's terms."""

from __future__ import annotations

from gateway.requests.generation_request import TokenizedPrompt
from gateway.requests.served_model import ServedModel
from quire.rpc.sampling import to_sampling
from quire.v1 import common_pb2, tokenizer_pb2


def to_served_model(info: common_pb2.ModelInfo) -> ServedModel:
    """A model as its workers tell of it."""
    return ServedModel(
        tuple(info.served_model_names), info.model, info.max_model_len, info.vocab_size, info.block_size,
        info.max_logprobs, to_sampling(info.default_sampling),
    )  # fmt: skip


def to_prompt(sequence: tokenizer_pb2.TokenSequence) -> TokenizedPrompt:
    """A prompt as it comes from the tokenizer service."""
    return TokenizedPrompt(tuple(sequence.token_ids), tuple(sequence.block_keys))
