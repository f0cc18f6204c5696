"""How Whisper is asked for the words of a recording: by the special tokens that its answer begins with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.answers.transcripts import TextWithoutTimes
from gateway.requests.languages import WHISPER_LANGUAGES
from gateway.requests.speech_formats import SpeechConversation, SpeechFormat, SpeechTask
from quire.errors import InvalidRequest

ARCHITECTURE = "WhisperForConditionalGeneration"
ENGLISH = "en"

_MARK = "<|"  # begins special tokens
_PREVIOUS, _START, _NO_TIMES = "<|startofprev|>", "<|startoftranscript|>", "<|notimestamps|>"


def language_token(code: str) -> str:
    """Returns the token that stands for a language."""
    return f"<|{code}|>"


@dataclass(frozen=True)
class Whisper(SpeechFormat):
    """A Whisper model: of many languages, from which it translates to English, or of English only.

    Attributes:
        language_tokens: code of each language that it knows → id of its token; empty for models of English only.
    """

    language_tokens: Mapping[str, int]

    languages = WHISPER_LANGUAGES
    knows_times = True

    def conversation(self, task: SpeechTask) -> SpeechConversation:
        self._check(task)
        if self.language_tokens and not task.language:
            languages = {token_id: code for code, token_id in self.language_tokens.items()}
            return SpeechConversation(_messages(task, _START), is_whole=True, languages=languages)
        text = f"{_PREVIOUS} {task.prompt}" if task.prompt else ""
        text += _START
        if self.language_tokens:
            text += language_token(task.language.lower()) + ("<|translate|>" if task.to_language else "<|transcribe|>")
        if task.has_times:
            return SpeechConversation(_messages(task, text), is_whole=True)
        return SpeechConversation(_messages(task, text + _NO_TIMES), is_whole=True, parser=TextWithoutTimes)

    def _check(self, task: SpeechTask) -> None:
        if _MARK in task.prompt:
            raise InvalidRequest(
                f"prompt contains {_MARK!r}, which begins special tokens: they are not allowed. Leave them out.",
                parameter="prompt",
            )
        self.name("to_language", task.to_language)
        self.name("language", task.language)
        if not self.language_tokens:
            _check_english(task)
        elif task.language and task.language.lower() not in self.language_tokens:
            raise InvalidRequest(
                f"language is {task.language!r}, which this model does not know; it knows "
                f"{', '.join(self.language_tokens)}.",
                parameter="language",
            )
        if task.to_language and task.to_language.lower() != ENGLISH:
            raise InvalidRequest(
                f"to_language is {task.to_language!r}, but Whisper translates to English only: leave it out, or name a "
                "model that takes instructions.",
                parameter="to_language",
            )


def _check_english(task: SpeechTask) -> None:
    if task.to_language:
        raise InvalidRequest(
            "This model knows English only, so it does not translate. Use /v1/audio/transcriptions, or a Whisper model "
            "of many languages.",
            parameter="model",
        )
    if task.language and task.language.lower() != ENGLISH:
        raise InvalidRequest(
            f"language is {task.language!r}, but this model knows English only: leave it out, or name a Whisper model "
            "of many languages.",
            parameter="language",
        )


def _messages(task: SpeechTask, text: str) -> list[dict[str, object]]:
    return [{"role": "user", "content": [task.audio, {"type": "text", "text": text}]}]
