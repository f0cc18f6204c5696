"""Checks the form of a transcription or translation, and converts it to a chat request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

import msgspec

from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.transcription import TranscriptionRequest, TranslationRequest
from gateway.requests.form import Part
from gateway.requests.served_model import ServedModel
from gateway.requests.speech_formats import SpeechConversation, SpeechFormat, SpeechTask
from gateway.requests.whisper import ENGLISH
from gateway.requests.wrong_field import wrong_field
from quire.compatibility.refused_fields import Refused
from quire.errors import InvalidRequest
from quire.media import MediaKind
from quire.options.nearest import nearest

T = TypeVar("T", bound=TranscriptionRequest)

_FILE, _URL = "file", "file_url"
_SHOWN = 50  # maximum characters of a name or value in messages
_FORMATS = ("json", "text")
_TIMED_FORMATS = ("verbose_json", "srt", "vtt")
_NO_SPEAKERS = "Quire does not tell speakers apart"
_ONE = "Quire writes one text for a recording, by sampling"
# Fields of other servers that Quire does not support; their neutral values are texts.
_REFUSED: Mapping[str, Refused] = MappingProxyType({
    "timestamp_granularities": Refused("only segments have timestamps, and words have none", ("segment",)),
    "chunking_strategy": Refused("Quire cuts long recordings at quiet places itself", ("auto",)),
    "include": Refused("log-probabilities are not returned"),
    "known_speaker_names": Refused(_NO_SPEAKERS),
    "known_speaker_references": Refused(_NO_SPEAKERS),
    "hotwords": Refused("write the words into prompt"),
    "n": Refused(_ONE, ("1",)),
    "use_beam_search": Refused(_ONE, ("false", "False")),
    "length_penalty": Refused(_ONE, ("1", "1.0")),
    "vllm_xargs": Refused("Quire's logits processors are for chats and completions", ("{}",)),
})  # fmt: skip
_COPIED = (
    "model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "repetition_penalty",
    "presence_penalty", "max_completion_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Transcribing:
    """A transcription or translation as a chat about each piece of the recording.

    Attributes:
        body: the form, without the recording.
        form: how the model is asked.
    """

    body: TranscriptionRequest
    form: SpeechFormat
    task: SpeechTask

    @cached_property
    def asked(self) -> SpeechConversation:
        """The conversation: about the words, or first about the language if the model has to know it."""
        return self.form.conversation(self.task)

    @property
    def chat(self) -> ChatCompletionRequest:
        """The conversation as a request."""
        asked, wants_scores = self.asked, self.body.response_format == "verbose_json"
        return ChatCompletionRequest(
            messages=asked.messages, add_generation_prompt=not (asked.continues or asked.is_whole),
            continue_final_message=asked.continues, chat_template_kwargs=dict(asked.variables) or None,
            skip_special_tokens=not self.task.has_times,
            logprobs=wants_scores, top_logprobs=0 if wants_scores else None,
            **{name: getattr(self.body, name) for name in _COPIED},
        )  # fmt: skip

    @property
    def question(self) -> ChatCompletionRequest:
        """The request whose answer is a token that tells the language."""
        asked = self.asked
        return ChatCompletionRequest(
            messages=asked.messages, add_generation_prompt=not asked.is_whole, model=self.body.model, temperature=0.0,
            max_completion_tokens=1, allowed_token_ids=list(asked.languages),
        )  # fmt: skip

    @property
    def told_as(self) -> Mapping[str, str]:
        """Names of the chat's fields → those of the form's."""
        return {"messages": self.task.place, _FILE: self.task.place, "max_tokens": "max_completion_tokens"}

    @property
    def language(self) -> str:
        """Name of the text's language, in lower case. Models that are not told what is spoken know only English."""
        return self.form.name("language", self.task.to_language or self.task.language or ENGLISH).lower()

    def spoken_in(self, language: str) -> Transcribing:
        """Returns the same for a recording in this language, given by its code."""
        return replace(self, task=replace(self.task, language=language))


def transcription_of(parts: Sequence[Part], kind: type[T]) -> T:
    """Returns the fields of a form.

    Raises:
        InvalidRequest: one is missing, malformed, given twice, not known or not supported; or the file is empty or
            none.
    """
    fields = msgspec.structs.fields(kind)
    _check_names(parts, [field.name for field in fields])
    known = {field.name for field in fields} - {_FILE}
    texts = {part.name: text for part in parts if part.name in known and (text := _text(part))}
    content = _content(next((part for part in parts if part.name == _FILE), None), has_url=_URL in texts)
    _check_format(texts.get("response_format", _FORMATS[0]))
    try:
        body = msgspec.convert({**texts, _FILE: content}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_field(error) from None
    if body.stream and body.response_format in _TIMED_FORMATS:
        raise InvalidRequest(
            f"response_format {body.response_format!r} cannot be streamed: set stream to false, or response_format to "
            f"{' or '.join(_FORMATS)}.",
            parameter="response_format",
        )
    return body


def transcribing(body: TranscriptionRequest, form: SpeechFormat) -> Transcribing:
    """Converts a transcription or translation to a chat.

    Args:
        form: how the model is asked.

    Raises:
        InvalidRequest: the model does not translate, gives no times, or does not know a language.
    """
    task = SpeechTask(
        body.prompt or "",
        body.language or "",
        body.to_language if isinstance(body, TranslationRequest) else "",
        body.response_format in _TIMED_FORMATS,
        _URL if body.file_url else _FILE,
    )
    if task.has_times and not form.knows_times:
        raise InvalidRequest(
            f"response_format {body.response_format!r} needs timestamps, which this model does not give; it must be "
            f"{' or '.join(_FORMATS)}.",
            parameter="response_format",
        )
    form.conversation(task)
    return Transcribing(msgspec.structs.replace(body, file=b"", file_url=None), form, task)


def check_reads_audio(model: ServedModel) -> None:
    """
    Raises:
        InvalidRequest: the model reads no audio.
    """
    if MediaKind.AUDIO not in model.media:
        raise InvalidRequest(
            f"The model {model.served_model_names[0]!r} reads no audio. Name one that does.",
            parameter="model",
        )


def _content(file: Part | None, *, has_url: bool) -> bytes:
    """Returns what the file contains; nothing if the recording is to be fetched from a URL instead.

    Raises:
        InvalidRequest: there is neither a file nor a URL, or there are both; or the file is empty or none.
    """
    if has_url and file is None:
        return b""
    if has_url:
        raise InvalidRequest("file and file_url are both given. Send one of them.", parameter=_URL)
    if file is None or not file.is_file:
        raise InvalidRequest(
            "Expected 'file' to be a file: send the recording itself as the form's part file, with a filename (curl -F "
            "file=@speech.wav), or its address as file_url.",
            parameter=_FILE,
        )
    if not file.content:
        raise InvalidRequest("file is empty. Send the recording's content.", parameter=_FILE)
    return file.content


def _check_names(parts: Iterable[Part], known: Sequence[str]) -> None:
    seen = set()
    for part in parts:
        name = part.name.removesuffix("[]")  # as OpenAI's clients name lists
        if refused := _REFUSED.get(name):
            if (text := _text(part)) and text not in refused.neutral:
                raise InvalidRequest(f"{name} is refused: {refused.why}. Leave it out.", parameter=name)
        elif part.name not in known:
            shown = part.name[:_SHOWN]
            raise InvalidRequest(
                f"{shown!r} is not a field of this endpoint.{nearest(shown, known)} Known fields: {', '.join(known)}.",
                parameter=shown,
            )
        elif part.name in seen:
            raise InvalidRequest(f"{part.name} is given twice. Send it once.", parameter=part.name)
        seen.add(part.name)


def _text(part: Part) -> str:
    """Returns the text of a field; an empty one asks for nothing.

    Raises:
        InvalidRequest: it is a file, or not UTF-8.
    """
    if not part.is_file:
        with contextlib.suppress(UnicodeDecodeError):
            return part.content.decode()
    raise InvalidRequest(f"{part.name[:_SHOWN]} must be a text in UTF-8, and no file.", parameter=part.name[:_SHOWN])


def _check_format(form: str) -> None:
    known = (*_FORMATS, *_TIMED_FORMATS)
    if form in known:
        return
    why = f"is refused, as {_NO_SPEAKERS}" if form == "diarized_json" else "is not known"
    raise InvalidRequest(
        f"response_format {form[:_SHOWN]!r} {why}; it must be {', '.join(known[:-1])} or {known[-1]}.",
        parameter="response_format",
    )
