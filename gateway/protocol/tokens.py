"""`/tokenize`, `/detokenize` and `/v1/models`."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.protocol.fields import Flag, RequestFields


class TokenizeRequest(RequestFields, kw_only=True):
    """A text to tokenize, or a conversation to render by the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None  # default: true for a prompt, false for messages
    return_token_strs: bool | None = None
    add_generation_prompt: Flag = True
    continue_final_message: Flag = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    tools: list[dict[str, Any]] | None = None
    # For conversations with images, videos and audio.
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None


class TokenizeResponse(msgspec.Struct):
    """Token ids, and their strings if requested."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: list[int]


class DetokenizeResponse(msgspec.Struct):
    """The text of the token ids."""

    prompt: str


class ModelCapabilities(msgspec.Struct):
    """What a model can do, under the names that Mistral's clients know."""

    completion_chat: bool
    function_calling: bool  # its calls are parsed
    vision: bool  # reads images
    audio: bool  # hears audio


class ModelCard(msgspec.Struct):
    """A served model, with what the clients of OpenAI and Mistral need."""

    id: str
    max_model_len: int
    created: int
    root: str
    capabilities: ModelCapabilities
    max_context_length: int  # max_model_len, under Mistral's name
    object: str = "model"
    owned_by: str = "quire"
    type: str = "base"  # which Mistral's clients read an answer by
    parent: str | None = None
    permission: list[dict[str, Any]] = []


class ModelList(msgspec.Struct):
    """All served models."""

    data: list[ModelCard]
    object: str = "list"
