"""A sequence that continues in another session gives the same text, wherever the first session was cut off."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.v1 import tokenizer_pb2
from tokenizer_svc import text as text_module
from tokenizer_svc.session import DetokenizeSession
from tokenizer_svc.text import TextCodec

TEXTS = [
    "The quick brown fox jumps over the lazy dog. ENDING? END of it",
    "go 🚀🎉 你好世界 größe STOP after 🚀 it",
    "<|im_start|>user\nhi, a sentence<|im_end|> and another<|im_end|><|im_end|> one",
    " aabaabaac aabaac",
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"skip_special_tokens": True},
    {"skip_special_tokens": True, "kept_special_tokens": ["<|im_end|>"]},
    {"stop_strings": ["END of"]},
    {"stop_strings": ["END of"], "include_stop_string": True},
    {"stop_strings": ["aabaac", "🚀 it", "quick brown fox jumps"]},
    {"stop_strings": ["user\nhi, a sentence and another one"], "skip_special_tokens": True},
    {"stop_strings": ["o", "a", "END"], "min_tokens": 12},
    {"stop_strings": ["o"], "min_tokens": 1000},
    {"stop_strings": ["lazy dog. ENDING? END"], "min_tokens": 20, "include_stop_string": True},
]


class Tape:
    """Records the text of a sequence, token by token."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        self.texts = [*texts]
        self.stop: tuple[str, int] | None = None

    def open(self, session: DetokenizeSession, token_ids: Sequence[int], options: dict[str, Any], history: int) -> Tape:
        """Opens the sequence with its first `history` tokens as already answered."""
        frame = tokenizer_pb2.DetokenizeSessionRequest()
        frame.opens.add(stream_id=1, history_token_ids=token_ids[:history], **options)
        assert not session.answer(frame).deltas
        return self

    def feed(self, session: DetokenizeSession, token_ids: Sequence[int], first: int, last: int) -> Tape:
        """Feeds the tokens from `first` up to `last`."""
        frame = tokenizer_pb2.DetokenizeSessionRequest()
        for position in range(first, last):
            is_last = position == len(token_ids) - 1
            frame.tokens.add(stream_id=1, token_ids=[token_ids[position]], is_last=is_last)
        for delta in session.answer(frame).deltas:
            if self.stop:
                break
            assert not delta.error
            self.texts.append(delta.text)
            if delta.HasField("stop_string"):
                self.stop = delta.stop_string, len(self.texts)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tape) and (self.texts, self.stop) == (other.texts, other.stop)

    def __repr__(self) -> str:
        return f"{self.texts} {self.stop}"


def check_cuts(codec: TextCodec, token_ids: Sequence[int], options: dict[str, Any], cuts: Iterable[int]) -> None:
    session = DetokenizeSession(codec)
    whole = Tape().open(session, token_ids, options, 0).feed(session, token_ids, 0, len(token_ids))
    session, fed = DetokenizeSession(codec), 0
    begun = Tape().open(session, token_ids, options, 0)
    for cut in sorted(cuts):
        if cut < len(whole.texts):  # has not ended before
            begun.feed(session, token_ids, fed, cut)
            fed, other = cut, DetokenizeSession(codec)
            tape = Tape(begun.texts).open(other, token_ids, options, cut)
            assert tape.feed(other, token_ids, cut, len(token_ids)) == whole, cut


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("replayed", [1, 64])
def test_every_cut(codec: TextCodec, text: str, replayed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "_REPLAYED_TOKENS", replayed)
    (token_ids,) = codec.encode([text], add_special_tokens=False)
    for number, options in enumerate(OPTIONS):
        context = (7, 8, 9) if (number + replayed) % 2 else ()  # each once for all options
        check_cuts(codec, token_ids, options | {"prompt_tail_token_ids": context}, range(len(token_ids)))


@pytest.mark.parametrize("is_open", [True, False])
def test_every_cut_through_thinking(codec: TextCodec, is_open: bool) -> None:
    start, end, blank, text = codec.encode(["<think>", "</think>", "\n", TEXTS[0]], add_special_tokens=False)
    marks = {"start_token_ids": start, "end_token_ids": end, "blank_token_ids": blank, "is_optional": True}
    options = {"stop_strings": ["o", "\n"], "reasoning": marks | {"is_open": is_open}}
    for token_ids in (text + end + blank + text, start + blank + text + end + blank + text, text):
        check_cuts(codec, token_ids, options, range(len(token_ids)))


def test_long_histories(codec: TextCodec) -> None:
    """Histories longer than the replayed part, with long runs of tokens that have no text."""
    (filler,) = codec.encode(["The quick brown fox jumps over the lazy dog. "], add_special_tokens=False)
    (special,) = codec.encode(["<|im_end|>" * 300], add_special_tokens=False)
    (end,) = codec.encode(["then it doesn't jump any more"], add_special_tokens=False)
    stop = ["zzz", "doesn't jump any", "y dog. " + "then it doesn't jump any more."]
    for token_ids in (filler * 30 + special + end, special + filler + special + end, filler * 30 + end):
        for skip in (True, False):
            options = {"stop_strings": stop, "skip_special_tokens": skip, "min_tokens": len(token_ids) - 4}
            cuts = [1, 63, 64, 65, 300, 310, *range(len(token_ids) - len(end) - 2, len(token_ids))]
            check_cuts(codec, token_ids, options, cuts)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32), st.integers(1, 200), st.booleans(), st.lists(st.text("ea \ufffd", min_size=1, max_size=4))
)
def test_any_tokens(codec: TextCodec, seed: int, size: int, skip: bool, stops: list[str]) -> None:
    """Random ids produce broken characters of every kind."""
    generator = random.Random(seed)
    token_ids = [generator.randrange(codec.vocab_size + 2) for _ in range(size)]
    options = {"skip_special_tokens": skip, "stop_strings": stops[:4], "min_tokens": generator.choice([0, size // 2])}
    check_cuts(codec, token_ids, options, [generator.randrange(size) for _ in range(4)])


def test_a_sequence_that_cannot_be_detokenized_ends_alone(
    byte_codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = type(byte_codec).token_bytes

    def token_bytes(codec: TextCodec, token_id: int) -> bytes:
        if token_id == 66:
            raise ZeroDivisionError
        return find(codec, token_id)

    monkeypatch.setattr(TextCodec, "token_bytes", token_bytes)
    session, frame = DetokenizeSession(byte_codec), tokenizer_pb2.DetokenizeSessionRequest()
    for stream_id in (1, 2):
        frame.opens.add(stream_id=stream_id)
        frame.tokens.add(stream_id=stream_id, token_ids=[70], lookup_token_ids=[65 + stream_id % 2])
    bad, good = session.answer(frame).deltas
    assert "cannot be detokenized" in bad.error
    assert good.text and not good.error
    assert session.num_streams == 1


def test_too_many_kept_tokens_are_refused(byte_codec: TextCodec) -> None:
    frame = tokenizer_pb2.DetokenizeSessionRequest()
    frame.opens.add(stream_id=1, skip_special_tokens=True, kept_special_tokens=["<|im_end|>"] * 65)
    frame.tokens.add(stream_id=1, token_ids=[1])
    (delta,) = DetokenizeSession(byte_codec).answer(frame).deltas
    assert delta.error == "kept_special_tokens may have at most 64 entries."
