"""Bad words as token sequences: bare, and with a leading space where that tokenizes differently."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.endpoints.bad_words import bad_word_runs
from gateway.services.tokenizer import Tokenizer
from quire.errors import InvalidRequest
from quire.v1 import tokenizer_pb2

# Some words have the space in their first token, one tokenizes to nothing, and one is very long.
VOCABULARY = {
    "cat": [1], " cat": [2], "dog": [3, 4], " dog": [5, 4], "long": [6] * 256, " long": [9, *[6] * 256],
    "ant": [7, 8], " ant": [10], "bee": [11], " bee": [12, 11], " ": [12], "  ": [13], "": [], "longer": [6] * 257,
    " longer": [6] * 258, "nothing": [], " nothing": [12],
}  # fmt: skip


class FakeTokenizer:
    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[tokenizer_pb2.TokenSequence]:
        assert not add_special_tokens
        return [tokenizer_pb2.TokenSequence(token_ids=VOCABULARY[text]) for text in texts]


async def runs(*words: str) -> list[Any]:
    return await bad_word_runs(cast("Tokenizer", FakeTokenizer()), words)


async def test_runs() -> None:
    assert await runs() == []
    assert await runs("cat", "dog", "ant") == [(1,), (2,), (3, 4), (5, 4), (7, 8), (10,)]
    assert await runs("bee") == [(11,)]  # ' bee' ends with the same token
    assert await runs(" cat", "  cat", "cat") == [(1,), (2,)]
    assert await runs(" ", "long") == [(12,), (13,), (6,) * 256]


@pytest.mark.parametrize(("word", "count"), [("nothing", "0"), ("longer", "257")])
async def test_a_word_of_too_few_or_too_many_tokens(word: str, count: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{word}', which has {count} tokens") as refused:
        await runs("cat", word)
    assert refused.value.parameter == "bad_words"
