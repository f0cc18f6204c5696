"""When words are spoken, as marks in answers tell, and as subtitles show."""

from __future__ import annotations

import math

import pytest

from gateway.answers.deltas import TokenScore
from gateway.answers.speech_times import SpeechSegment, segments_of
from gateway.answers.subtitles import srt, vtt

SECONDS = 10.0


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("<|0.00|> One.<|2.50|><|2.50|> Two.<|4.00|>", [(0, 2.5, " One."), (2.5, 4, " Two.")]),
        ("<|1.00|> One.<|2.50|><|3.00|> Two.", [(1, 2.5, " One."), (3, 10, " Two.")]),
        (" One.<|2.50|> Two.", [(0, 2.5, " One."), (2.5, 10, " Two.")]),
        (" One.", [(0, 10, " One.")]),
        ("<|3.00|> One.<|2.00|> Two.<|11.00|> Three.<|12.00|>", [(3, 3, " One."), (3, 10, " Two."),
                                                                   (10, 10, " Three.")]),
        ("<|startoftranscript|><|en|><|0.00|> One<|nospeech|> more.<|1.00|>", [(0, 1, " One more.")]),
        ("<|0.00|> <|1.00|><|2.00|><|endoftext|>", []),
        ("<|0.00|> 1 < 2 | 3 <| 4.<|1.00|>", [(0, 1, " 1 < 2 | 3 <| 4.")]),
        ("", []),
    ],
)  # fmt: skip
def test_segments(text: str, segments: list[tuple[float, float, str]]) -> None:
    assert [(each.start, each.end, each.text) for each in segments_of(text, (), SECONDS)] == segments


def score(token_id: int, length: int, logprob: float = -1.0) -> TokenScore:
    return TokenScore((token_id, 99), (logprob, -7.0), (b"", b""), 1, length)


def test_scores_of_segments() -> None:
    """Tokens may have a part of a character, or several characters; the last one ends the answer."""
    scores = [
        score(1, 8), score(2, 2, -0.5), score(3, 1, -1.5), score(4, 8), score(5, 0, -2.0), score(6, 1, -math.inf),
        score(7, 8), score(8, 0),
    ]  # fmt: skip
    found = list(segments_of("<|0.00|> a.<|1.00|>\u00e4<|2.00|>", scores, SECONDS))
    assert [each.token_ids for each in found] == [(2, 3), (5, 6)]
    assert [each.logprob for each in found] == [-1.0, (-2.0 - 9999.0) / 2]


def test_subtitles() -> None:
    segments = [SpeechSegment(0, 61.0005, " A\n\n<b> --> c & d "), SpeechSegment(3599.9996, 36000, "E")]
    assert srt(segments) == (
        "1\n00:00:00,000 --> 00:01:01,000\nA <b> -> c & d\n\n2\n01:00:00,000 --> 10:00:00,000\nE\n\n"
    )
    assert vtt(segments) == (
        "WEBVTT\n\n00:00:00.000 --> 00:01:01.000\nA &lt;b&gt; --&gt; c &amp; d\n\n01:00:00.000 --> 10:00:00.000\nE\n\n"
    )
    assert (srt([]), vtt([])) == ("", "WEBVTT\n\n")
