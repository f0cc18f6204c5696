"""Prompt embeddings on the wire."""

from __future__ import annotations

import pytest

from quire.prompt_embeds import PromptEmbeds
from quire.rpc.prompt_embeds import from_prompt_embeds, num_prompt_tokens, to_prompt_embeds
from quire.v1 import common_pb2


def test_they_come_as_they_went() -> None:
    embeds = PromptEmbeds("bfloat16", 4, bytes(range(24)))
    sent = common_pb2.Generation(prompt_embeds=from_prompt_embeds(embeds))
    assert to_prompt_embeds(common_pb2.Generation.FromString(sent.SerializeToString())) == embeds
    assert num_prompt_tokens(sent) == embeds.num_tokens == 3
    assert embeds.rows(1, 2).data == bytes(range(8, 16))
    assert from_prompt_embeds(None) is None
    assert to_prompt_embeds(common_pb2.Generation(prompt_token_ids=[1])) is None
    assert num_prompt_tokens(common_pb2.Generation(prompt_token_ids=[1, 2])) == 2


@pytest.mark.parametrize(("dtype", "size"), [("float32", 0), ("float64", 4), ("", 2**32 - 1)])
def test_those_that_are_none_have_no_tokens(dtype: str, size: int) -> None:
    """A router counts prompt tokens without validating embeddings, so malformed ones have to count as 0."""
    message = common_pb2.PromptEmbeds(dtype=dtype, hidden_size=size, data=b"1234")
    assert num_prompt_tokens(common_pb2.Generation(prompt_embeds=message)) == 0


def test_a_digest_names_content_and_type() -> None:
    some = [
        PromptEmbeds("float32", 2, bytes(16)), PromptEmbeds("float32", 4, bytes(16)),
        PromptEmbeds("bfloat16", 4, bytes(16)), PromptEmbeds("bfloat16", 4, bytes(15) + b"1"),
    ]  # fmt: skip
    assert len({embeds.digest for embeds in some}) == 4
    assert PromptEmbeds("float32", 2, bytes(16)).digest == some[0].digest
