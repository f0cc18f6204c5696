"""`/v1/audio/transcriptions` and `/v1/audio/translations`, whose requests are forms."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.protocol.common import Usage
from gateway.protocol.fields import Flag, RequestFields


class TranscriptionRequest(RequestFields, kw_only=True, forbid_unknown_fields=True):
    """A recording of speech to write down: a file, or the URL of one."""

    file: bytes = b""
    file_url: str | None = None
    model: str | None = None
    language: str | None = None  # code of the language that is spoken
    prompt: str | None = None
    # verbose_json, srt and vtt tell when the words are spoken; only models that know it write them.
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    stream: Flag = False
    stream_include_usage: Flag = False
    stream_continuous_usage_stats: Flag = False
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    max_completion_tokens: int | None = None  # for each piece of a recording that is longer than the model takes


class TranslationRequest(TranscriptionRequest, kw_only=True):
    """A recording of speech to write down in another language."""

    to_language: str = "en"


class Duration(msgspec.Struct):
    """The length of a recording, rounded up."""

    seconds: int
    type: str = "duration"


class Transcription(msgspec.Struct):
    """What was said."""

    text: str
    usage: Duration


class Translation(msgspec.Struct):
    """What was said, in the other language."""

    text: str


class VerboseSegment(msgspec.Struct):
    """Some words, and when they are spoken, in seconds."""

    id: int
    seek: int  # where the piece of the recording that has the words begins, in hundredths of a second
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float


class VerboseTranscription(msgspec.Struct):
    """What was said, or a translation of it, and when."""

    task: str
    language: str
    duration: float
    text: str
    segments: list[VerboseSegment]
    usage: Duration


class SpeechDelta(msgspec.Struct):
    """The text that a chunk adds."""

    content: str


class SpeechChoice(msgspec.Struct):
    """What a chunk adds; the last one has the reasons of the end."""

    delta: SpeechDelta
    finish_reason: str | UnsetType = UNSET
    stop_reason: str | int | UnsetType | None = UNSET


class SpeechChunk(msgspec.Struct):
    """A chunk of a stream as vLLM sends it, and an event as OpenAI's clients expect it, who read `type` and `delta` or,
    at the end, the whole `text`."""

    id: str
    object: str
    created: int
    model: str
    choices: list[SpeechChoice]
    usage: Usage | UnsetType = UNSET
    type: Literal["transcript.text.delta", "transcript.text.done"] | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
