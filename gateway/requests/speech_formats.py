"""How models are asked for the words of a recording: a conversation, and the parser of its answer, by architecture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from gateway.answers.parser import AnswerParser
from gateway.answers.transcripts import TextAfterMark, TextInQuotes
from gateway.requests.languages import LANGUAGES, VOXTRAL_LANGUAGES, language_name
from gateway.requests.messages import PlacedPart
from quire.errors import InvalidRequest
from quire.media import TRANSCRIPTION

# Names the recording in a message, as RFC 2392 names the parts of an e-mail.
FILE_URL = "cid:file"
Message = dict[str, Any]


@dataclass(frozen=True)
class SpeechTask:
    """What is wanted of a recording.

    Attributes:
        prompt: words of the caller; empty for none.
        language: code of the language that is spoken; empty if not known.
        to_language: code of the language to translate it to; empty for that which is spoken.
        has_times: whether it is to be told when the words are spoken.
        place: field of the form with the recording.
    """

    prompt: str = ""
    language: str = ""
    to_language: str = ""
    has_times: bool = False
    place: str = "file"

    @property
    def audio(self) -> dict[str, Any]:
        """The part of a message with the recording."""
        return PlacedPart(self.place, type="audio_url", audio_url={"url": FILE_URL})


@dataclass(frozen=True)
class SpeechConversation:
    """A conversation whose answer is what was said.

    Attributes:
        continues: whether the answer continues the last message.
        is_whole: whether the messages are all of the prompt: no turn is opened after them.
        parser: finds what was said in the answer; None if that is all of it.
        variables: of the chat template.
        languages: set if the answer is a single token instead, which tells the language that is spoken: token id →
            code.
    """

    messages: list[Message]
    continues: bool = False
    is_whole: bool = False
    parser: type[AnswerParser] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    languages: Mapping[int, str] = field(default_factory=dict)


class SpeechFormat(ABC):
    """The form in which a family of models is asked.

    Attributes:
        languages: that it was trained with: code → name.
        knows_times: whether it tells when words are spoken.
        hears_live: whether it writes while it hears.
    """

    languages: ClassVar[Mapping[str, str]] = LANGUAGES
    knows_times: ClassVar[bool] = False
    hears_live: ClassVar[bool] = False

    @abstractmethod
    def conversation(self, task: SpeechTask) -> SpeechConversation:
        """Returns the conversation.

        Raises:
            InvalidRequest: the models cannot do that, or do not know a language.
        """

    def name(self, field: str, code: str) -> str:
        """Returns the name of a language; empty for none.

        Raises:
            InvalidRequest: the code is not known.
        """
        return language_name(field, code, self.languages) if code else ""


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
        language = self.name("language", task.language)
        if to_language := self.name("to_language", task.to_language):
            words = f"{self.translate.format(to_language)} {task.prompt}".strip()
        if language:
            words = f"{words.removesuffix('.')}. The language is {language}."
        text = {"type": "text", "text": words}
        content = [task.audio, text] if self.audio_first else [text, task.audio]
        return SpeechConversation([{"role": "user", "content": content}], parser=self.parser)


class Qwen3Asr(SpeechFormat):
    """Qwen3-ASR, which takes no instruction: only words to expect, and the language as the answer's beginning."""

    def conversation(self, task: SpeechTask) -> SpeechConversation:
        language = self.name("language", task.language)
        if task.to_language:
            raise InvalidRequest(
                "Qwen3-ASR does not translate: its models only write down what is said. Use "
                "/v1/audio/transcriptions, or another model.",
                parameter="model",
            )
        messages = [_message("system", task.prompt)] if task.prompt else []
        messages.append({"role": "user", "content": [task.audio]})
        if not language:
            return SpeechConversation(messages, parser=TextAfterMark)
        begun = _message("assistant", f"language {language}{TextAfterMark.mark}")
        return SpeechConversation([*messages, begun], continues=True)


class Voxtral(Instructed):
    """Voxtral, which has a mode for transcriptions, without words of the caller. For anything else, it is told so."""

    languages = VOXTRAL_LANGUAGES

    def conversation(self, task: SpeechTask) -> SpeechConversation:
        """See SpeechFormat."""
        self.name("language", task.language)
        if task.prompt or task.to_language:
            return super().conversation(task)
        return SpeechConversation(
            [{"role": "user", "content": [task.audio]}], variables={TRANSCRIPTION: task.language.lower()}
        )


class VoxtralRealtime(Voxtral):
    """Voxtral Realtime, which writes down what it hears, and can be told nothing."""

    hears_live = True

    def conversation(self, task: SpeechTask) -> SpeechConversation:
        """See SpeechFormat."""
        told = {"prompt": task.prompt, "language": task.language, "to_language": task.to_language}
        if name := next((name for name, value in told.items() if value), None):
            raise InvalidRequest(
                f"{name} is {told[name][:50]!r}, but Voxtral Realtime cannot be told anything about a recording: it "
                "writes down what is said, in the language that is spoken. Leave it out, or use another model.",
                parameter=name,
            )
        return super().conversation(task)


def _message(role: str, text: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text}]}


_FLAMINGO = Instructed(
    "Transcribe the input speech.", "Translate any foreign text you hear to {}.", audio_first=False, parser=TextInQuotes
)
_FORMATS: Mapping[str, SpeechFormat] = MappingProxyType({
    "AudioFlamingo3ForConditionalGeneration": _FLAMINGO,
    "GlmAsrForConditionalGeneration": Instructed("Please transcribe this audio into text"),
    "GraniteSpeechForConditionalGeneration": Instructed(
        "can you transcribe the speech into a written format?", "can you translate the speech to {}?"
    ),
    "MusicFlamingoForConditionalGeneration": _FLAMINGO,
    "Qwen2AudioForConditionalGeneration": Instructed(),
    "Qwen3ASRForConditionalGeneration": Qwen3Asr(),
    "VoxtralForConditionalGeneration": Voxtral(),
    "VoxtralRealtimeForConditionalGeneration": VoxtralRealtime(),
})  # fmt: skip
_OTHERS = Instructed()


def speech_format(architecture: str) -> SpeechFormat:
    """Returns the form in which models of the architecture are asked. Whisper's depends on the model's vocabulary."""
    return _FORMATS.get(architecture, _OTHERS)
