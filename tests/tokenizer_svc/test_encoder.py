"""Long texts are encoded in pieces to the same tokens, off the event loop, and refused early if too long."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors, trainers

from quire.block_hash import block_keys
from quire.errors import ContextTooLong, Overloaded
from quire.tokenizer.files import TokenizerFiles
from tests.tokenizer_svc.conftest import CORPUS, SPECIAL
from tokenizer_svc import encoder as encoder_module
from tokenizer_svc.encoder import PIECE_CHARS, EncodeOptions, Encoder
from tokenizer_svc.pieces import text_pieces
from tokenizer_svc.text import TextCodec

# How model families split texts, from their tokenizer.json.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
    )
)  # fmt: skip
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEMO = r"\p{L}+|\d|\n+|[^\S\n]|[^\s\p{L}\d]+(?: [^\s\p{L}\d]+)*"
KNOWN: dict[str, tuple[Sequence[str], normalizers.Normalizer | None]] = {
    "gpt2": ((), None), "llama3": ([LLAMA3], None), "qwen": ([QWEN], normalizers.NFC()), "o200k": ([O200K], None),
    "deepseek": ([r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK], None), "demo": ([DEMO], None),
}  # fmt: skip
ALPHABET = [
    "a",
    "b",
    "The",
    "don't",
    "I'll",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    ".",
    "-",
    " - ",
    "!?",
    "'",
    "1",
    "2345",
    "é",
]
ALPHABET += ["e\u0301", "你", "🎉", "\u00a0", "<s>", "</s>", "x y", "a b c ", "/"]


def trained(patterns: Sequence[str], normalizer: normalizers.Normalizer | None = None) -> TextCodec:
    """A byte-level tokenizer that splits texts by these patterns, or by GPT-2's rules if there are none."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not patterns)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, spell]) if splits else spell
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([*CORPUS, "".join(ALPHABET)], trainer)
    around = [("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=around)
    return TextCodec(TokenizerFiles(tokenizer, json.loads(tokenizer.to_str()), {}))


@pytest.fixture(scope="module", params=KNOWN)
def cutting(request: pytest.FixtureRequest) -> TextCodec:
    patterns, normalizer = KNOWN[request.param]
    return trained(patterns, normalizer)


@given(parts=st.lists(st.sampled_from(ALPHABET), max_size=80), size=st.integers(1, 30), special=st.booleans())
@settings(max_examples=200, deadline=None)
def test_pieces_have_the_tokens_of_the_whole(cutting: TextCodec, parts: list[str], size: int, special: bool) -> None:
    text = "".join(parts)
    assert cutting.pieces.can_cut
    pieces = [token for piece in cutting.encode_pieces(text, special, size) for token in piece]
    assert [pieces] == cutting.encode([text], special)


@given(parts=st.lists(st.sampled_from(ALPHABET), max_size=80), size=st.integers(1, 30), special=st.booleans())
@settings(max_examples=30, deadline=None)
def test_offsets_of_pieces_are_those_of_the_whole(
    cutting: TextCodec, parts: list[str], size: int, special: bool
) -> None:
    text = "".join(parts)
    places = [place for piece in cutting.offsets(text, special, size) for place in piece]
    encoding = cutting._tokenizer.encode(text, add_special_tokens=special)
    assert list(zip(places[::2], places[1::2], strict=True)) == encoding.offsets


async def test_offsets_lead_back_to_the_text(byte_codec: TextCodec) -> None:
    text = "The quick brown fox, " * (PIECE_CHARS // 20)
    (encoded,) = await Encoder(byte_codec).encode([text], EncodeOptions(with_offsets=True))
    assert len(encoded.offsets) == 2 * len(encoded.token_ids)
    places = zip(encoded.offsets[::2], encoded.offsets[1::2], strict=True)
    assert "".join(text[start:end] for start, end in places) == text


@given(parts=st.lists(st.sampled_from(ALPHABET), max_size=80))
@settings(max_examples=30, deadline=None)
def test_no_text_has_fewer_tokens_than_is_said(cutting: TextCodec, codec: TextCodec, parts: list[str]) -> None:
    text = "".join(parts)
    for each in (cutting, codec):
        assert each.pieces.least_tokens(text) <= len(each.encode([text], False)[0])


def test_composed_characters_count_as_what_they_come_from() -> None:
    codec = trained([QWEN], normalizers.NFC())
    text = "\u1100\u1161\u11a8" * 500 + "\u03b1\u0313\u0300\u0345" * 500
    assert 0 < codec.pieces.least_tokens(text) <= len(codec.encode([text], False)[0])


def test_a_text_without_words_is_one_piece(cutting: TextCodec) -> None:
    assert list(cutting.pieces.cut("x" * 5000, 100)) == ["x" * 5000]
    assert len(list(cutting.pieces.cut("two words " * 500, 100))) > 40


@pytest.mark.parametrize(
    "patterns",
    [[r"\w+ \w+|\s+"], [r"\p{N}"], [LLAMA3, r"(?<=a) "], [r"\s+(?=\S*x)|\s+"]],
)  # fmt: skip
def test_rules_that_nobody_knows_are_never_cut(patterns: list[str]) -> None:
    codec = trained(patterns)
    assert not codec.pieces.can_cut
    text = "some words " * 50
    assert [[*ids] for ids in codec.encode_pieces(text, True, 10)] == codec.encode([text], True)


def test_tokens_with_spaces_of_their_own_are_not_cut(byte_codec: TextCodec) -> None:
    assert not byte_codec.pieces.can_cut  # because of the added token "added word"
    assert byte_codec.pieces.max_chars_per_token >= len("added word")


def test_tokens_that_take_any_space_leave_nothing_to_say() -> None:
    tokenizer = trained([])._tokenizer
    tokenizer.add_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    assert text_pieces(tokenizer, json.loads(tokenizer.to_str())).max_chars_per_token == 0


class Watched(TextCodec):
    """Records the length and the thread of each encoding."""

    def __init__(self, codec: TextCodec) -> None:
        self.__dict__.update(codec.__dict__)
        self.lengths: list[int] = []
        self.threads: set[int] = set()

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        self.lengths.append(sum(map(len, texts)))
        self.threads.add(threading.get_ident())
        return super().encode(texts, add_special_tokens)


@pytest.fixture
def watched() -> Watched:
    return Watched(trained([LLAMA3]))


async def test_long_texts_are_encoded_piece_by_piece_beside_the_event_loop(watched: Watched) -> None:
    texts = ["long text of words " * 20_000, "short", "and another one " * 1000, "x" * (PIECE_CHARS + 1)]
    options = EncodeOptions(True, block_size=16, cache_salt="s")
    found = await Encoder(watched).encode(texts, options)
    assert threading.get_ident() not in watched.threads
    assert max(watched.lengths) <= PIECE_CHARS + 30
    expected = TextCodec.encode(watched, texts, True)
    assert [list(each.token_ids) for each in found] == expected
    assert [list(each.block_keys) for each in found] == [block_keys(ids, 16, "s") for ids in expected]


async def test_many_texts_are_encoded_a_few_at_a_time(watched: Watched) -> None:
    texts = ["some words " * 400] * 100
    found = await Encoder(watched).encode(texts, EncodeOptions())
    assert len(watched.lengths) >= 7
    assert [list(each.token_ids) for each in found] == TextCodec.encode(watched, texts, False)


async def test_what_cannot_fit_is_not_encoded(watched: Watched) -> None:
    longest = watched.pieces.max_chars_per_token
    with pytest.raises(ContextTooLong, match="maximum context length is 100 tokens"):
        await Encoder(watched).encode(["x" * (PIECE_CHARS + 100 * longest)], EncodeOptions(max_tokens=100))
    assert not watched.lengths


async def test_a_text_that_proves_too_long_is_encoded_no_further(watched: Watched) -> None:
    text = "text of words " * 100_000
    limit = watched.pieces.least_tokens(text) + 10
    assert limit < len(TextCodec.encode(watched, [text], False)[0])
    with pytest.raises(ContextTooLong, match=f"maximum context length is {limit} tokens.*more than"):
        await Encoder(watched).encode([text], EncodeOptions(max_tokens=limit))
    assert sum(watched.lengths) < len(text) // 2
    with pytest.raises(ContextTooLong, match="has 3:"):
        await Encoder(watched).encode(["a b c"], EncodeOptions(max_tokens=2))


@pytest.mark.slow
async def test_short_texts_take_their_turn_between_the_pieces_of_long_ones(watched: Watched) -> None:
    encoder = Encoder(watched)
    long = asyncio.create_task(encoder.encode(["text of words " * 200_000], EncodeOptions()))
    await asyncio.sleep(0)
    await encoder.encode(["text of words " * 200], EncodeOptions())
    assert not long.done()
    await long


async def test_too_many_texts(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "_MAX_WAITING", 3)
    encoder = Encoder(watched)
    texts = [encoder.encode(["text of words " * 1000], EncodeOptions()) for _ in range(20)]
    results = await asyncio.gather(*texts, return_exceptions=True)
    assert sum(isinstance(result, Overloaded) for result in results) == 15
    await encoder.encode(["text of words " * 1000], EncodeOptions())


def test_the_demo_models_tokenizer_can_be_cut() -> None:
    folder = Path(__file__).parents[2] / "demo_model" / "quire-demo"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert text_pieces(tokenizer, json.loads((folder / "tokenizer.json").read_text())).can_cut
