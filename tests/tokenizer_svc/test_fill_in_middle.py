"""Fill-in-the-middle prompts with the marks of each model family."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers.models import BPE

from quire.errors import InvalidRequest
from tokenizer_svc.fill_in_middle import with_hole


def knowing(*special: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(BPE())
    tokenizer.add_special_tokens(list(special))
    return tokenizer


@pytest.mark.parametrize(
    ("special", "expected"),
    [
        (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"),
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "<fim_prefix>a<fim_suffix>b<fim_middle>"),
        (("[PREFIX]", "[SUFFIX]"), "[SUFFIX]b[PREFIX]a"),
    ],
)
def test_each_family_has_its_marks(special: tuple[str, ...], expected: str) -> None:
    assert with_hole(knowing(*special), "a", "b") == expected


def test_a_model_without_them_cannot() -> None:
    with pytest.raises(InvalidRequest, match="fill-in-the-middle"):
        with_hole(knowing("<|fim_prefix|>", "<|fim_suffix|>"), "a", "b")
