"""Events of `/v1/realtime`: clients', and what is told in vLLM's form of OpenAI's protocol."""

from __future__ import annotations

import msgspec

from gateway.protocol.common import Usage
from gateway.protocol.openai_realtime import LiveSession, LiveSessionState


class SessionUpdate(msgspec.Struct, tag="session.update", forbid_unknown_fields=True):
    """Names the model, and what it is told about the audio: in `session`, as OpenAI's clients do, or beside it."""

    session: LiveSession | None = None
    model: str | None = None
    language: str | None = None  # code of the language that is spoken
    prompt: str | None = None
    event_id: str | None = None


class AudioAppend(msgspec.Struct, tag="input_audio_buffer.append", forbid_unknown_fields=True):
    """Brings audio."""

    audio: str  # base64 of samples of 16 bits, little-endian, of one channel
    event_id: str | None = None


class AudioCommit(msgspec.Struct, tag="input_audio_buffer.commit", forbid_unknown_fields=True):
    """Asks for the text of what has been brought."""

    final: bool | None = None  # whether that was all of it, so that the transcript is told; OpenAI's commits are final
    event_id: str | None = None


ClientEvent = SessionUpdate | AudioAppend | AudioCommit


class SessionCreated(msgspec.Struct, tag="session.created"):
    """The first event of a connection; `event_id` and `session` are for OpenAI's clients."""

    id: str
    created: int
    event_id: str
    session: LiveSessionState


class TranscriptionDelta(msgspec.Struct, tag="transcription.delta"):
    """Text that goes on with the transcript."""

    delta: str


class TranscriptionDone(msgspec.Struct, tag="transcription.done"):
    """The whole transcript, after a final commit."""

    text: str
    usage: Usage


class RealtimeError(msgspec.Struct, tag="error"):
    """What went wrong; the connection stays open, unless it is said to be closed."""

    error: str
    code: str
    param: str | None
