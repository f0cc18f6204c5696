"""Encoding, decoding and incremental detokenization, compared with Transformers."""

from __future__ import annotations

import random

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer_svc.conftest import CORPUS
from tokenizer_svc.text import TextCodec

TEXTS = [
    *CORPUS[:4],
    " leading space",
    "trailing space ",
    "",
    "<|im_start|>user\nhi<|im_end|>",
    "a\u0301 👩\u200d👩\u200d👧",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_encode_as_transformers(
    codec: TextCodec, reference: transformers.PreTrainedTokenizerBase, text: str, add_special_tokens: bool
) -> None:
    expected = reference(text, add_special_tokens=add_special_tokens)["input_ids"]
    assert codec.encode([text], add_special_tokens) == [expected]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("skip", [True, False])
def test_decode_as_transformers(
    codec: TextCodec, reference: transformers.PreTrainedTokenizerBase, text: str, skip: bool
) -> None:
    (token_ids,) = codec.encode([text], add_special_tokens=True)
    assert codec.decode(token_ids, skip) == reference.decode(token_ids, skip_special_tokens=skip)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("skip", [True, False])
def test_increments_add_up_to_the_whole(codec: TextCodec, text: str, skip: bool) -> None:
    (token_ids,) = codec.encode([text], add_special_tokens=True)
    sequence = codec.open_sequence(skip_special_tokens=skip)
    pieces = [sequence.add([token_id], is_last=False).text for token_id in token_ids]
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    pieces.append(sequence.add([], is_last=True).text)
    assert "".join(pieces) == codec.decode(token_ids, skip)


def test_any_byte_tokens_add_up_to_the_whole(byte_codec: TextCodec) -> None:
    """Random ids produce broken characters of every kind."""
    generator = random.Random(0)
    for _ in range(300):
        token_ids = [generator.randrange(byte_codec.vocab_size) for _ in range(generator.randrange(1, 30))]
        sequence = byte_codec.open_sequence()
        pieces = [sequence.add([token_id], is_last=False).text for token_id in token_ids]
        pieces.append(sequence.add([], is_last=True).text)
        assert "".join(pieces) == byte_codec.decode(token_ids, False)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30), st.data())
def test_cuts_do_not_matter(byte_codec: TextCodec, text: str, data: st.DataObject) -> None:
    (token_ids,) = byte_codec.encode([text], add_special_tokens=False)
    sequence, rest, pieces = byte_codec.open_sequence(), list(token_ids), []
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(sequence.add(rest[:size], is_last=size == len(rest)).text)
        del rest[:size]
    assert "".join(pieces) == text


def test_a_continuation_keeps_its_first_space(codec: TextCodec) -> None:
    (output,) = codec.encode(["The quick brown fox jumps"], add_special_tokens=False)
    prompt, tail = output[: len(output) // 2], output[len(output) // 2 :]
    sequence = codec.open_sequence(context=prompt[-6:])
    assert codec.decode(prompt, False) + sequence.add(tail, is_last=True).text == codec.decode(output, False)


def test_a_character_in_three_tokens_comes_whole(byte_codec: TextCodec) -> None:
    token_ids = [byte_codec.token_id(character) for character in "ä½ł"]  # 你 spelled byte by byte
    sequence = byte_codec.open_sequence()
    assert [sequence.add([token_id], False).text for token_id in token_ids if token_id is not None] == ["", "", "你"]


def test_an_unfinished_character_shows_at_the_end_only(byte_codec: TextCodec) -> None:
    token_id = byte_codec.token_id("ä")
    assert token_id is not None
    sequence = byte_codec.open_sequence()
    assert sequence.add([token_id], is_last=False).text == ""
    assert sequence.add([], is_last=True).text == "\N{REPLACEMENT CHARACTER}"


def test_ids_past_the_vocabulary_have_no_text(codec: TextCodec) -> None:
    (token_ids,) = codec.encode(["The quick"], add_special_tokens=False)
    padded = [token_ids[0], codec.vocab_size, *token_ids[1:], 2**32 - 1]
    assert codec.decode(padded, False) == codec.decode(token_ids, False)
    assert codec.open_sequence().add(padded, is_last=True).text == codec.decode(token_ids, False)
    assert codec.token_bytes(codec.vocab_size) == b""


def test_token_bytes_make_up_the_text(codec: TextCodec, kind: str) -> None:
    text = "Grüße 🎉" if kind in ("byte_level", "byte_fallback") else "The quick"
    (token_ids,) = codec.encode([text], add_special_tokens=False)
    joined = b"".join(codec.token_bytes(token_id) for token_id in token_ids).decode()
    assert joined.replace(" ", "") == text.replace(" ", "")


def test_special_tokens_are_skipped_on_demand(byte_codec: TextCodec) -> None:
    (token_ids,) = byte_codec.encode(["hello<|im_end|>"], add_special_tokens=False)
    assert byte_codec.open_sequence(skip_special_tokens=True).add(token_ids, True).text == "hello"
    assert byte_codec.open_sequence().add(token_ids, True).text == "hello<|im_end|>"


def test_special_tokens_that_are_kept_stay_where_others_are_skipped(codec: TextCodec) -> None:
    (token_ids,) = codec.encode(["<|im_start|>The<|im_end|> quick"], add_special_tokens=False)
    dropped = codec.token_id("<|im_end|>")
    expected = codec.decode([token_id for token_id in token_ids if token_id != dropped], False)
    sequence = codec.open_sequence(skip_special_tokens=True, kept_special_tokens=["<|im_start|>", "<|no token|>"])
    assert sequence.add(token_ids, True).text == expected


@pytest.mark.parametrize("cut", range(7))
def test_added_tokens_that_follow_each_other_have_no_space_between_them_on_demand(codec: TextCodec, cut: int) -> None:
    """As in vLLM. Other spaces stay, and a sequence that continues elsewhere gives the same text."""
    (word,) = codec.encode(["hello"], add_special_tokens=False)
    opened, closed = codec.token_id("<s>"), codec.token_id("</s>")
    assert opened is not None
    assert closed is not None
    token_ids = [opened, closed, *word, closed, opened, opened]
    texts = {}
    for joins in (False, True):
        sequence = codec.open_sequence(join_special_tokens=joins, history=token_ids[:cut])
        texts[joins] = [sequence.add([token_id], is_last=False).text for token_id in token_ids[cut:]]
        texts[joins].append(sequence.add([], is_last=True).text)
    behind_another = {1, len(word) + 3, len(word) + 4}
    for number, (spaced, joined) in enumerate(zip(texts[False], texts[True], strict=True), cut):
        assert joined == (spaced.removeprefix(" ") if number in behind_another else spaced)
