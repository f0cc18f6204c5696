"""Formats what was said in a recording, and when."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.answers.collecting import CollectedChoice
from gateway.answers.seams import JoinedTexts
from gateway.answers.speech_times import SpeechSegment, segments_of
from gateway.answers.subtitles import srt, vtt
from gateway.protocol.transcription import Duration, VerboseSegment, VerboseTranscription
from gateway.services.tokenizer import AudioPiece

SUBTITLES = {"srt": (srt, "text/plain"), "vtt": (vtt, "text/vtt")}  # with their content types
_FRAMES = 100  # per second
_DIGITS = 3  # of seconds


@dataclass(frozen=True)
class TimedTranscript:
    """The words of a recording's pieces.

    Attributes:
        choices: what was said in each piece.
    """

    pieces: Sequence[AudioPiece]
    choices: Sequence[CollectedChoice]

    def segments(self) -> list[tuple[int, SpeechSegment]]:
        """Returns the number of a piece, and some of its words, with their times in the recording."""
        return [
            (index, _moved(segment, piece.start_seconds))
            for index, (piece, choice) in enumerate(zip(self.pieces, self.choices, strict=False))
            for segment in segments_of(choice.content, choice.scores, piece.seconds)
        ]

    def subtitles(self, form: str) -> str:
        """Returns the words as subtitles."""
        write, _ = SUBTITLES[form]
        return write(segment for _, segment in self.segments())

    def verbose(self, task: str, language: str, temperature: float) -> VerboseTranscription:
        """Returns the words as JSON."""
        texts, segments = JoinedTexts(), self.segments()
        seconds = self.pieces[-1].end_seconds
        return VerboseTranscription(
            task, language, seconds,
            "".join(texts.add(index, segment.text) for index, segment in segments),
            [
                _verbose(number, segment, round(self.pieces[index].start_seconds * _FRAMES), temperature)
                for number, (index, segment) in enumerate(segments)
            ],
            Duration(math.ceil(seconds)),
        )  # fmt: skip


def _moved(segment: SpeechSegment, seconds: float) -> SpeechSegment:
    return replace(
        segment, start=round(segment.start + seconds, _DIGITS), end=round(segment.end + seconds, _DIGITS)
    )  # fmt: skip


def _verbose(number: int, segment: SpeechSegment, seek: int, temperature: float) -> VerboseSegment:
    raw = segment.text.encode()
    return VerboseSegment(
        number, seek, segment.start, segment.end, segment.text, list(segment.token_ids), temperature, segment.logprob,
        len(raw) / len(zlib.compress(raw)),
    )  # fmt: skip
