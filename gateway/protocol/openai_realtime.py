"""Events of `/v1/realtime` in the form of OpenAI's clients: what a session may ask for, and what is told."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class LiveFormat(msgspec.Struct, forbid_unknown_fields=True):
    """Of the audio that the client sends: samples of 16 bits, of one channel."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[16_000, 24_000] = 24_000  # samples a second


class LiveTranscription(msgspec.Struct, forbid_unknown_fields=True):
    """Names the model, and what it is told about the audio."""

    model: str | None = None  # by default, the one before
    language: str | None = None
    prompt: str | None = None


class LiveInput(msgspec.Struct, forbid_unknown_fields=True):
    """The audio, and what becomes of it. What is absent stays as it is."""

    format: LiveFormat | None = None
    transcription: LiveTranscription | None = None
    turn_detection: None = None
    noise_reduction: None = None


class LiveAudioSettings(msgspec.Struct, forbid_unknown_fields=True):
    """There is no audio in answers, so there are settings of the client's only."""

    input: LiveInput = msgspec.field(default_factory=LiveInput)


class LiveSession(msgspec.Struct, forbid_unknown_fields=True):
    """What `session.update` asks for."""

    type: Literal["transcription"]
    audio: LiveAudioSettings = msgspec.field(default_factory=LiveAudioSettings)
    include: Annotated[list[str], msgspec.Meta(max_length=0)] | None = None


class LiveSessionState(msgspec.Struct):
    """The settings of a session, as the server tells them."""

    id: str
    audio: LiveAudioSettings
    type: str = "transcription"
    object: str = "realtime.transcription_session"


class SessionUpdated(msgspec.Struct, tag="session.updated"):
    """Answers `session.update`."""

    event_id: str
    session: LiveSessionState


class AudioCommitted(msgspec.Struct, tag="input_audio_buffer.committed"):
    """Names the item that the audio before a commit becomes."""

    event_id: str
    item_id: str
    previous_item_id: str | None


class ItemDelta(msgspec.Struct, tag="conversation.item.input_audio_transcription.delta"):
    """Text that goes on with the transcript of an item."""

    event_id: str
    item_id: str
    delta: str
    content_index: int = 0


class ItemUsage(msgspec.Struct, tag="tokens"):
    """Tokens of a transcript."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class ItemCompleted(msgspec.Struct, tag="conversation.item.input_audio_transcription.completed"):
    """The whole transcript of an item."""

    event_id: str
    item_id: str
    transcript: str
    usage: ItemUsage
    content_index: int = 0


class SessionFailure(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    code: str
    param: str | None
    event_id: str | None  # of the client's event, if it gave one


class SessionFailed(msgspec.Struct, tag="error"):
    """Tells it; the connection stays open, unless it is said to be closed."""

    event_id: str
    error: SessionFailure
