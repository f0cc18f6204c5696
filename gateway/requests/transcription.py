"""Checks the form of a transcription or translation, and converts it to a chat request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import msgspec

from gateway.answers.parser import AnswerParser
from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.transcription import TranscriptionRequest, TranslationRequest
from gateway.requests.form import Part
from gateway.requests.languages import language_name
from gateway.requests.served_model import ServedModel
from gateway.requests.speech_formats import FILE_URL, SpeechTask, speech_format
from gateway.requests.wrong_field import wrong_field
from quire.compatibility.refused_fields import Refused
from quire.errors import InvalidRequest
from quire.media import MediaKind
from quire.options.nearest import nearest

T = TypeVar("T", bound=TranscriptionRequest)

_FILE, _URL = "file", "file_url"
_SHOWN = 50  # maximum characters of a name or value in messages
_FORMATS = ("json", "text")
_OTHER_FORMATS = ("verbose_json", "srt", "vtt", "diarized_json")
_NO_SPEAKERS = "Quire does not tell speakers apart"
_ONE = "Quire writes one text for a recording, by sampling"
# Fields of other servers that Quire does not support; their neutral values are texts.
_REFUSED: Mapping[str, Refused] = MappingProxyType({
    "timestamp_granularities": Refused("it needs timestamps, which this model does not give", ("segment",)),
    "chunking_strategy": Refused("a recording is read as a whole", ("auto",)),
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
    """A transcription as a chat.

    Attributes:
        parsers: find what was said in the answer.
        told_as: names of the chat's fields → those of the form's.
    """

    chat: ChatCompletionRequest
    parsers: Sequence[type[AnswerParser]]
    told_as: Mapping[str, str]


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
        return msgspec.convert({**texts, _FILE: content}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise wrong_field(error) from None


def transcribing(body: TranscriptionRequest, model: ServedModel) -> Transcribing:
    """Converts a transcription or translation to a chat.

    Raises:
        InvalidRequest: the model reads no audio, does not translate, or a language is not known.
    """
    if MediaKind.AUDIO not in model.media:
        raise InvalidRequest(
            f"The model {model.served_model_names[0]!r} reads no audio. Name one that does.",
            parameter="model",
        )
    task = SpeechTask(
        body.prompt or "",
        language_name("language", body.language) if body.language else "",
        language_name("to_language", body.to_language) if isinstance(body, TranslationRequest) else "",
        body.file_url or FILE_URL,
    )
    asked = speech_format(model.architecture).conversation(task)
    chat = ChatCompletionRequest(
        messages=asked.messages, add_generation_prompt=not asked.continues, continue_final_message=asked.continues,
        **{name: getattr(body, name) for name in _COPIED},
    )  # fmt: skip
    told_as = {"messages": _URL if body.file_url else _FILE, "max_tokens": "max_completion_tokens"}
    return Transcribing(chat, (asked.parser,) if asked.parser else (), told_as)


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
    if form in _FORMATS:
        return
    why = "needs timestamps, which this model does not give" if form in _OTHER_FORMATS else "is not known"
    raise InvalidRequest(
        f"response_format {form[:_SHOWN]!r} {why}; it must be {' or '.join(_FORMATS)}.", parameter="response_format"
    )
