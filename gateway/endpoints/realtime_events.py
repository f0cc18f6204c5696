"""What `/v1/realtime` tells, in the form of vLLM's clients, or in that of OpenAI's."""

from __future__ import annotations

import time
import uuid
from typing import Protocol

import msgspec

from gateway.protocol.common import Usage
from gateway.protocol.openai_realtime import (
    AudioCommitted,
    ItemCompleted,
    ItemDelta,
    ItemUsage,
    LiveAudioSettings,
    LiveSessionState,
    SessionFailed,
    SessionFailure,
    SessionUpdated,
)
from gateway.protocol.realtime import RealtimeError, SessionCreated, TranscriptionDelta, TranscriptionDone


class RealtimeEvents(Protocol):
    """A form of a connection's events."""

    commits_end: bool  # whether a commit that does not say so ends the transcript

    def updated(self, settings: LiveAudioSettings) -> msgspec.Struct | None:
        """The settings of the session have changed to these."""

    def committed(self) -> msgspec.Struct | None:
        """The audio of a transcript has come to its end."""

    def delta(self, text: str) -> msgspec.Struct:
        """A transcript goes on."""

    def done(self, text: str, usage: Usage) -> msgspec.Struct:
        """A transcript has ended; the next one follows."""

    def error(self, message: str, code: str, parameter: str | None, event_id: str | None) -> msgspec.Struct:
        """Something went wrong, with the event of that id if there is one."""


def session_created(session_id: str, settings: LiveAudioSettings) -> SessionCreated:
    """The first event of a connection, for clients of both."""
    return SessionCreated(session_id, int(time.time()), _event_id(), LiveSessionState(session_id, settings))


class VllmEvents:
    """As vLLM's clients expect them."""

    commits_end = False

    def updated(self, settings: LiveAudioSettings) -> None:
        """Nothing is told."""

    def committed(self) -> None:
        """Nothing is told."""

    def delta(self, text: str) -> TranscriptionDelta:
        return TranscriptionDelta(text)

    def done(self, text: str, usage: Usage) -> TranscriptionDone:
        return TranscriptionDone(text, usage)

    def error(self, message: str, code: str, parameter: str | None, event_id: str | None) -> RealtimeError:
        return RealtimeError(message, code, parameter)


class OpenAIEvents:
    """As OpenAI's clients expect them: each transcript is that of an item, which a commit ends."""

    commits_end = True

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._num_committed = self._num_done = 0

    def updated(self, settings: LiveAudioSettings) -> SessionUpdated:
        return SessionUpdated(_event_id(), LiveSessionState(self._session_id, settings))

    def committed(self) -> AudioCommitted:
        number = self._num_committed
        self._num_committed += 1
        return AudioCommitted(_event_id(), self._item(number), self._item(number - 1) if number else None)

    def delta(self, text: str) -> ItemDelta:
        return ItemDelta(_event_id(), self._item(self._num_done), text)

    def done(self, text: str, usage: Usage) -> ItemCompleted:
        item = self._item(self._num_done)
        self._num_done += 1
        written = usage.completion_tokens
        return ItemCompleted(_event_id(), item, text, ItemUsage(usage.prompt_tokens, written, usage.total_tokens))

    def error(self, message: str, code: str, parameter: str | None, event_id: str | None) -> SessionFailed:
        return SessionFailed(_event_id(), SessionFailure(message, code, code, parameter, event_id))

    def _item(self, number: int) -> str:
        return f"item_{self._session_id.removeprefix('sess-')}_{number}"


def _event_id() -> str:
    return f"event_{uuid.uuid4().hex}"
