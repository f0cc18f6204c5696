"""Stop strings give the same result however tokens and frames split the text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.reasoning import ReasoningMarks
from quire.v1 import tokenizer_pb2
from tokenizer_svc.sequence import Step
from tokenizer_svc.session import DetokenizeSession
from tokenizer_svc.stop_strings import Match, StopMatcher
from tokenizer_svc.text import TextCodec


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The result by definition: the first position, character by character, at which a stop string ends the text."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def run(pieces: list[str], stops: list[str], include: bool) -> tuple[str, str | None]:
    matcher, shown = StopMatcher(stops, include), ""
    for piece in pieces:
        found = matcher.add(piece)
        if isinstance(found, Match):
            return shown + found.text, found.stop_string
        shown += found
    return shown + matcher.finish(), None


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.text("ab", max_size=4), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.booleans(),
)
def test_against_the_definition(pieces: list[str], stops: list[str], include: bool) -> None:
    assert run(pieces, stops, include) == expected("".join(pieces), stops, include)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_nothing_is_shown_that_a_match_takes_back(pieces: list[str], stops: list[str]) -> None:
    matcher, shown = StopMatcher(stops, include_stop_string=False), ""
    for piece in pieces:
        found = matcher.add(piece)
        if isinstance(found, Match):
            break
        shown += found
    assert not any(stop in shown for stop in stops)


def test_text_flows_when_no_stop_string_begins() -> None:
    matcher = StopMatcher(["STOP"], include_stop_string=False)
    assert matcher.add("hello S") == "hello "
    assert matcher.add("o") == "So"


def steps(codec: TextCodec, text: str, size: int, **options: object) -> tuple[str, Step]:
    """Feeds a text's tokens in frames of `size`; returns all text and the last step."""
    (token_ids,) = codec.encode([text], add_special_tokens=False)
    sequence = codec.open_sequence(**options)  # type: ignore[arg-type]  # the caller gives names and types
    shown, step = "", Step("")
    for start in range(0, len(token_ids), size):
        step = sequence.add(token_ids[start : start + size], is_last=start + size >= len(token_ids))
        shown += step.text
        if step.stop_string is not None:
            break
    return shown, step


def test_across_tokens_and_frames(byte_codec: TextCodec) -> None:
    text = "The quick brown fox. END of it"
    for size in (1, 2, 3, 100):
        shown, step = steps(byte_codec, text, size, stop_strings=["x. EN"])
        assert (shown, step.stop_string) == ("The quick brown fo", "x. EN")
        shown, step = steps(byte_codec, text, size, stop_strings=["x. EN"], include_stop_string=True)
        assert (shown, step.stop_string) == ("The quick brown fox. EN", "x. EN")


def test_tokens_used_ends_with_the_match(byte_codec: TextCodec) -> None:
    (token_ids,) = byte_codec.encode(["one. two. three."], add_special_tokens=False)
    step = byte_codec.open_sequence(stop_strings=["."]).add(token_ids, is_last=True)
    assert byte_codec.decode(token_ids[: step.tokens_used], False).count(".") == 1


def test_in_a_character_of_several_tokens(byte_codec: TextCodec) -> None:
    assert steps(byte_codec, "go 🚀 on", 1, stop_strings=["🚀"])[0] == "go "


def test_min_tokens_keeps_stop_strings_off(byte_codec: TextCodec) -> None:
    (first,) = byte_codec.encode(["a.b"], add_special_tokens=False)
    shown, step = steps(byte_codec, "a.b.c", 1, stop_strings=["."], min_tokens=len(first))
    assert (shown, step.stop_string) == ("a.b", ".")


def test_held_text_is_released_at_the_end(byte_codec: TextCodec) -> None:
    shown, step = steps(byte_codec, "ends with EN", 1, stop_strings=["END"])
    assert (shown, step.stop_string) == ("ends with EN", None)


def test_a_match_at_the_very_end_counts(byte_codec: TextCodec) -> None:
    assert steps(byte_codec, "ends with END", 100, stop_strings=["END"])[1].stop_string == "END"


def test_thinking_is_not_searched(byte_codec: TextCodec) -> None:
    """The line breaks after the thinking are not searched either, or the answer would end before it begins."""
    start, end, blank = byte_codec.encode(["<think>", "</think>", "\n"], add_special_tokens=False)
    marks = ReasoningMarks(tuple(start), tuple(end), True, True, tuple(blank))
    text = "well\n\nhm. </think>\n\nso\n\n it is."
    for size in (1, 4, 100):
        shown, step = steps(byte_codec, text, size, stop_strings=["\n\n", "."], reasoning=marks)
        assert (shown, step.stop_string) == ("well\n\nhm. </think>\n\nso", "\n\n")
        shown, step = steps(byte_codec, "well. hm", size, stop_strings=["."], reasoning=marks)
        assert (shown, step.stop_string) == ("well. hm", None)
        closed = ReasoningMarks(tuple(start), tuple(end), is_optional=True)
        assert steps(byte_codec, "well. hm", size, stop_strings=["."], reasoning=closed)[0] == "well"


def test_marks_that_cannot_be_are_refused(byte_codec: TextCodec) -> None:
    frame = tokenizer_pb2.DetokenizeSessionRequest()
    frame.opens.add(stream_id=1, reasoning={"start_token_ids": [1]})
    frame.tokens.add(stream_id=1, token_ids=[1])
    (delta,) = DetokenizeSession(byte_codec).answer(frame).deltas
    assert "reasoning.end_token_ids has 0 tokens" in delta.error
