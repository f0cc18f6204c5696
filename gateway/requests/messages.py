"""Converts OpenAI messages to the form that chat templates expect."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.media.kinds import DATA_URLS, NOUNS
from gateway.requests.documents import file_document
from quire.bounds import MAX_MESSAGES
from quire.errors import InvalidRequest
from quire.images import EMBEDS, GRID
from quire.media import MediaKind

logger = logging.getLogger(__name__)

# Type of a content part that is text → key of the text. Clients that speak several APIs mix the parts of all.
TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_THINKING, _FILE = "thinking", "file"
# Type of a content part, and the key of its URL → what it is.
_URLS = {"image_url": MediaKind.IMAGE, "video_url": MediaKind.VIDEO, "audio_url": MediaKind.AUDIO}
_OTHER_NAMES = {"input_image": "image_url"}  # another type of such a part → the type
_AUDIO = "input_audio"  # a part with the audio itself, as OpenAI's clients send it
_TENSORS = (EMBEDS, GRID)  # of a part with the embeddings of an image
_FORMAT = re.compile(r"[\w.+-]{1,50}", re.ASCII)


@dataclass(frozen=True)
class MediaUrl:
    """An image, a video or an audio that a message names.

    Attributes:
        place: where it is in the request, for error messages.
        tensors: of an image that comes as embeddings, by name, in base64. It has no URL.
    """

    url: str
    place: str
    kind: MediaKind
    tensors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TemplateMessages:
    """Messages in the form that chat templates expect, as JSON, and their images, videos and audio in order."""

    json: bytes
    media: tuple[MediaUrl, ...]


class PlacedPart(dict[str, Any]):
    """A content part of a request that was converted to a chat.

    Attributes:
        place: where it is in the request, for error messages.
    """

    def __init__(self, place: str, **fields: Any) -> None:
        super().__init__(fields)
        self.place = place


def media_kinds(messages: Sequence[Mapping[str, Any]]) -> set[MediaKind]:
    """The kinds of media in messages, which need not be valid."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict))
    return {kind for part in parts if (kind := _kind(_type(part))) is not None}


def template_messages(messages: Sequence[Mapping[str, Any]]) -> TemplateMessages:
    """Converts messages: content parts become text, image, video and audio parts, and tool call arguments are
    parsed.

    Everything else passes through unchanged.

    Raises:
        InvalidRequest: a message has no role, content that is neither text, image, video nor audio, or reasoning that
            is not text; or they are nested too deeply.
    """
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise InvalidRequest(f"messages must have 1 to {MAX_MESSAGES} entries.", parameter="messages")
    media: list[MediaUrl] = []
    found = [_message(message, f"messages[{index}]", media) for index, message in enumerate(messages)]
    try:
        return TemplateMessages(msgspec.json.encode(found), tuple(media))
    except RecursionError:
        raise InvalidRequest("messages are nested too deeply.", parameter="messages") from None


def texts_of(message: Mapping[str, Any]) -> list[str]:
    """Returns the texts of a message's content; raises as `template_messages`."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [_part(part, f"content[{index}]", []) for index, part in _said(message)]
        return [part["text"] for part in parts if "text" in part]
    return [content] if isinstance(content, str) else []


def _message(message: Mapping[str, Any], place: str, media: list[MediaUrl]) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{place}.role must be a string such as 'user'.", parameter="messages")
    # Null means the same as nothing; templates that ask whether there is such a field think otherwise.
    converted = {name: value for name, value in message.items() if value is not None or name == "content"}
    content = message.get("content")
    if isinstance(content, list):
        converted["content"] = [_part(part, f"{place}.content[{index}]", media) for index, part in _said(message)]
    elif content is None and not message.get("tool_calls"):  # with tool calls, templates accept missing content
        converted["content"] = ""
    elif content is not None and not isinstance(content, str):
        raise InvalidRequest(f"{place}.content must be a string or a list of parts.", parameter="messages")
    if (reasoning := _reasoning(message, place)) is not None:
        # Templates read one or the other.
        converted["reasoning"] = converted["reasoning_content"] = converted["thinking"] = reasoning
    if not message.get("tool_calls"):
        converted.pop("tool_calls", None)  # an empty list, which some templates take for calls
    else:
        converted["tool_calls"] = _tool_calls(message["tool_calls"], f"{place}.tool_calls")
    return converted


def _said(message: Mapping[str, Any]) -> list[tuple[int, Any]]:
    """Returns the parts of a content that are no reasoning, with their indexes."""
    return [each for each in enumerate(message["content"]) if not _is_reasoning(message, each[1])]


def _is_reasoning(message: Mapping[str, Any], part: Any) -> bool:
    return message.get("role") == "assistant" and isinstance(part, dict) and part.get("type") == _THINKING


def _reasoning(message: Mapping[str, Any], place: str) -> str | None:
    """Returns the model's reasoning, from the current field, its older name, or parts of the content."""
    for name in ("reasoning", "reasoning_content"):
        if (reasoning := message.get(name)) is not None:
            if not isinstance(reasoning, str):
                raise InvalidRequest(f"{place}.{name} must be a string.", parameter="messages")
            return reasoning
    content = message.get("content")
    parts = list(enumerate(content)) if isinstance(content, list) else []
    thoughts = [_thought(part, f"{place}.content[{index}]") for index, part in parts if _is_reasoning(message, part)]
    return "".join(thoughts) if thoughts else None


def _thought(part: Mapping[str, Any], place: str) -> str:
    """Returns the text of a part, or of its own parts, as Mistral's clients send them."""
    given = part.get(_THINKING)
    pieces = given if isinstance(given, list) else [given]
    texts = [each.get("text") if isinstance(each, dict) else each for each in pieces]
    found = [each for each in texts if isinstance(each, str)]
    if len(found) < len(texts):
        raise InvalidRequest(
            f"{place} has thinking that is neither a string nor a list of text parts.", parameter="messages"
        )
    return "".join(found)


def _part(part: Any, place: str, media: list[MediaUrl]) -> dict[str, str]:
    """Converts a content part; appends an image, a video or an audio to `media`."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    place = part.place if isinstance(part, PlacedPart) else place
    name = _type(part)
    if name == EMBEDS:
        media.append(MediaUrl("", place, MediaKind.IMAGE, _tensors(part.get(name), place)))
        return {"type": MediaKind.IMAGE.value}
    if (kind := _kind(name)) is not None:
        url = _audio(part.get(name), place) if name == _AUDIO else _url(part.get(name), str(name), place)
        media.append(MediaUrl(url, place, kind))
        return {"type": kind.value}
    return {"type": "text", "text": _text(part, name, place)}


def _text(part: Any, name: Any, place: str) -> str:
    """Returns the text of a content part."""
    if name == _THINKING:
        return _thought(part, place)
    if name == _FILE:
        return file_document(part.get(_FILE), f"{place}.{_FILE}", "messages")
    given = part.get(TEXTS[name]) if isinstance(name, str) and name in TEXTS else None
    if isinstance(given, str):
        return given
    named = ", ".join((*TEXTS, _THINKING, _FILE, *_URLS, *_OTHER_NAMES, _AUDIO))
    raise InvalidRequest(
        f"{place} is of type {str(name)[:50]!r}; supported are {named} and {EMBEDS}.", parameter="messages"
    )


def _type(part: Any) -> Any:
    name = part.get("type") if isinstance(part, dict) else None
    return _OTHER_NAMES.get(name, name) if isinstance(name, str) else name


def _kind(name: object) -> MediaKind | None:
    """What a part of this type is, if it is no text."""
    if name == EMBEDS:
        return MediaKind.IMAGE
    return MediaKind.AUDIO if name == _AUDIO else _URLS.get(name) if isinstance(name, str) else None


def _url(given: Any, name: str, place: str) -> str:
    """Returns the URL of a part, which is an object or the URL itself."""
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str):
        kind = _URLS[name]
        raise InvalidRequest(
            f'{place} needs the URL of {NOUNS[kind]}, as in {{"type": "{name}", "{name}": {{"url": '
            f'"{DATA_URLS[kind]}…"}}}}.', parameter="messages",
        )  # fmt: skip
    return url


def _tensors(given: Any, place: str) -> Mapping[str, str]:
    """Returns the tensors of an image that comes as embeddings: an object of them, or the embeddings alone."""
    tensors = given if isinstance(given, dict) else {EMBEDS: given}
    if unknown := [name for name in tensors if name not in _TENSORS]:
        raise InvalidRequest(
            f"{place} has the tensor {unknown[0][:50]!r}; supported are {' and '.join(_TENSORS)}. Leave it "
            "out, or send the image.", parameter="messages",
        )  # fmt: skip
    if EMBEDS not in tensors or not all(isinstance(each, str) for each in tensors.values()):
        raise InvalidRequest(
            f'{place} needs tensors that torch.save wrote, in base64, as in {{"type": "{EMBEDS}", "{EMBEDS}": "…"}} or '
            f'{{"type": "{EMBEDS}", "{EMBEDS}": {{"{EMBEDS}": "…", "{GRID}": "…"}}}}. A uuid cannot stand for them.',
            parameter="messages",
        )
    return tensors


def _audio(given: Any, place: str) -> str:
    """Returns the audio of a part as a data: URL."""
    data, form = (given.get("data"), given.get("format")) if isinstance(given, dict) else (None, None)
    if not isinstance(data, str) or not isinstance(form, str) or not _FORMAT.fullmatch(form):
        raise InvalidRequest(
            f'{place} needs an audio in base64 and its format, as in {{"type": "{_AUDIO}", "{_AUDIO}": {{"data": "…", '
            '"format": "wav"}}.', parameter="messages",
        )  # fmt: skip
    return f"data:audio/{form};base64,{data}"


def _tool_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    """Parses the arguments of tool calls: clients send a JSON string; templates expect the object."""
    try:
        return [_tool_call(call, f"{place}[{index}]") for index, call in enumerate(calls)]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise InvalidRequest(
            f"{place} must be a list of calls whose function has a name and JSON arguments ({error}).",
            parameter="messages",
        ) from error


def _tool_call(call: Mapping[str, Any], place: str) -> dict[str, Any]:
    function = dict(call["function"])
    if not isinstance(function.get("name"), str):
        raise TypeError("no name")
    return {**call, "function": function | {"arguments": _arguments(function.get("arguments"), place)}}


def _arguments(given: Any, place: str) -> dict[str, Any]:
    """Returns the arguments of a call; none if a model wrote what is no JSON object, such as a call that was cut off.

    Clients send the conversation again and again: if that were refused, it could not go on.
    """
    if not given:  # a function without parameters
        return {}
    arguments = given
    with suppress(msgspec.DecodeError, RecursionError):
        arguments = msgspec.json.decode(given) if isinstance(given, str) else given
    if isinstance(arguments, dict):
        return arguments
    logger.info("the arguments of %s are not a JSON object; the model reads a call without arguments", place)
    return {}
