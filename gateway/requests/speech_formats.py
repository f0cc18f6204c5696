"""How models are asked for the words of a recording: a conversation, and the parser of its answer, by architecture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.answers.parser import AnswerParser
from gateway.answers.transcripts import TextAfterMark, TextInQuotes
from gateway.requests.messages import PlacedPart
from quire.errors import InvalidRequest

# Names the file of the form in a message, as RFC 2392 names the parts of an e-mail.
FILE_URL = "cid:file"
Message = dict[str, Any]


@dataclass(frozen=True)
class SpeechTask:
    """What is wanted of a recording.

    Attributes:
        prompt: words of the caller; empty for none.
        language: name of the language that is spoken; empty if not known.
        to_language: name of the language to translate it to; empty for that which is spoken.
        url: of the recording.
    """

    prompt: str = ""
    language: str = ""
    to_language: str = ""
    url: str = FILE_URL

    @property
    def audio(self) -> dict[str, Any]:
        """The part of a message with the recording."""
        place = "file" if self.url == FILE_URL else "file_url"
        return PlacedPart(place, type="audio_url", audio_url={"url": self.url})


@dataclass(frozen=True)
class SpeechConversation:
    """A conversation whose answer is what was said.

    Attributes:
        continues: whether the answer continues the last message.
        parser: finds what was said in the answer; None if that is all of it.
    """

    messages: list[Message]
    continues: bool = False
    parser: type[AnswerParser] | None = None


class SpeechFormat(ABC):
    """The form in which a family of models is asked."""

    @abstractmethod
    def conversation(self, task: SpeechTask) -> SpeechConversation:
        """Returns the conversation.

        Raises:
            InvalidRequest: the models cannot do that.
        """


@dataclass(frozen=True)
class Instructed(SpeechFormat):
    """Models that are told in words what to do.

    Attributes:
        transcribe: the instruction, unless the caller has one.
        translate: the instruction to translate, with a place for the language.
        audio_first: whether the instruction comes after the recording.
        parser: see SpeechConversation.
    """

    transcribe: str = "Transcribe the speech."
    translate: str = "Translate the speech to {}."
    audio_first: bool = True
    parser: type[AnswerParser] | None = None

    def conversation(self, task: SpeechTask) -> SpeechConversation:
        words = task.prompt or self.transcribe
        if task.to_language:
            words = f"{self.translate.format(task.to_language)} {task.prompt}".strip()
        if task.language:
            words = f"{words.removesuffix('.')}. The language is {task.language}."
        text = {"type": "text", "text": words}
        content = [task.audio, text] if self.audio_first else [text, task.audio]
        return SpeechConversation([{"role": "user", "content": content}], parser=self.parser)


class Qwen3Asr(SpeechFormat):
    """Qwen3-ASR, which takes no instruction: only words to expect, and the language as the answer's beginning."""

    def conversation(self, task: SpeechTask) -> SpeechConversation:
        if task.to_language:
            raise InvalidRequest(
                "Qwen3-ASR does not translate: its models only write down what is said. Use "
                "/v1/audio/transcriptions, or another model.",
                parameter="model",
            )
        messages = [_message("system", task.prompt)] if task.prompt else []
        messages.append({"role": "user", "content": [task.audio]})
        if not task.language:
            return SpeechConversation(messages, parser=TextAfterMark)
        begun = _message("assistant", f"language {task.language}{TextAfterMark.mark}")
        return SpeechConversation([*messages, begun], continues=True)


def _message(role: str, text: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text}]}


_FLAMINGO = Instructed(
    "Transcribe the input speech.", "Translate any foreign text you hear to {}.", audio_first=False, parser=TextInQuotes
)
_FORMATS: Mapping[str, SpeechFormat] = MappingProxyType({
    "AudioFlamingo3ForConditionalGeneration": _FLAMINGO,
    "GlmAsrForConditionalGeneration": Instructed("Please transcribe this audio into text"),
    "MusicFlamingoForConditionalGeneration": _FLAMINGO,
    "Qwen2AudioForConditionalGeneration": Instructed(),
    "Qwen3ASRForConditionalGeneration": Qwen3Asr(),
})  # fmt: skip
_OTHERS = Instructed()


def speech_format(architecture: str) -> SpeechFormat:
    """Returns the form in which models of the architecture are asked."""
    return _FORMATS.get(architecture, _OTHERS)
