"""Subtitles in the formats SubRip and WebVTT."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gateway.answers.speech_times import SpeechSegment

_ARROW = "-->"  # between times, and so never in a text
_ESCAPED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def srt(segments: Iterable[SpeechSegment]) -> str:
    """Returns the segments as a SubRip file."""
    cues = (
        f"{number}\n{_time(segment.start, ',')} {_ARROW} {_time(segment.end, ',')}\n"
        f"{_line(segment.text).replace(_ARROW, '->')}\n\n"
        for number, segment in enumerate(segments, 1)
    )  # fmt: skip
    return "".join(cues)


def vtt(segments: Iterable[SpeechSegment]) -> str:
    """Returns the segments as a WebVTT file."""
    cues = (
        f"{_time(segment.start, '.')} {_ARROW} {_time(segment.end, '.')}\n"
        f"{re.sub('[&<>]', lambda found: _ESCAPED[found[0]], _line(segment.text))}\n\n"
        for segment in segments
    )  # fmt: skip
    return "WEBVTT\n\n" + "".join(cues)


def _time(seconds: float, point: str) -> str:
    """A time such as `01:02:03.004`."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{milliseconds:03}"


def _line(text: str) -> str:
    """An empty line would end the subtitle."""
    return " ".join(text.split())
