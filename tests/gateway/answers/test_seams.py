"""The texts of pieces become one, however they are cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.answers.seams import JoinedTexts


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        ((" Hello, ", " world. "), "Hello, world."),
        (("", "  ", "One", "", " two "), "One two"),
        (("\u4f60\u597d\u3002", "\u4e16\u754c"), "\u4f60\u597d\u3002\u4e16\u754c"),
        (("\u4f60\u597d", "Quire", "\uff21"), "\u4f60\u597d Quire \uff21"),
        (("\uff21", "\uff22"), "\uff21\uff22"),
        (("\uc548\ub155", "a  b\n c"), "\uc548\ub155 a  b\n c"),
        ((), ""),
    ],
)
def test_joined_texts(texts: Sequence[str], whole: str) -> None:
    found, by_character = JoinedTexts(), JoinedTexts()
    assert "".join(found.add(piece, text) for piece, text in enumerate(texts)) == whole
    parts = [by_character.add(piece, character) for piece, text in enumerate(texts) for character in text]
    assert "".join(parts) == whole
