"""Renders conversations with Mistral's own package, straight to tokens.

User text can never become a control token, whatever it looks like, because texts and control tokens are joined as ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.transcription.request import TranscriptionRequest
from mistral_common.tokens.tokenizers.audio import Audio, AudioEncoder, AudioEncoding
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.image import ImageEncoder, ImageEncoding
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from quire.media import TRANSCRIPTION, MediaKind
from quire.reasoning import EFFORT, THINKING_SWITCHES
from tokenizer_svc.chat_template import TemplateRejection, too_long
from tokenizer_svc.developer_role import without_developers
from tokenizer_svc.rendered import Rendered

# What stands for an image or an audio in a message for the package, which must not look into it.
_PLACES: Mapping[str, Mapping[str, Any]] = {
    MediaKind.IMAGE: {"type": "image_url", "image_url": {"url": "image"}},
    MediaKind.AUDIO: {"type": "audio_url", "audio_url": {"url": "audio"}},
}
# Variables that may be set. Those about thinking have no effect on models without such a setting, as in templates
# without such a switch: what those think is up to their system prompts.
_KNOWN = {TRANSCRIPTION, EFFORT, *THINKING_SWITCHES}


class _ImagePlace(ImageEncoder):
    """Gives every image a single token, which is replaced once the image is prepared elsewhere."""

    def __call__(self, content: Any) -> ImageEncoding:
        return ImageEncoding([self.special_ids.img], np.empty(0))


class _AudioPlace(AudioEncoder):
    """Gives every audio a single token, and the one before it."""

    def __call__(self, content: Any) -> AudioEncoding:
        # Nobody looks at its samples. With any, it would need libsndfile.
        return AudioEncoding([self.begin_audio_token, self.audio_token], Audio.__new__(Audio))


class MistralConversations:
    """Renders like `ChatTemplates`, but without a template."""

    def __init__(self, path: str, max_chars: int) -> None:
        """
        Args:
            path: path of tekken.json.
            max_chars: maximum length of a rendered text.
        """
        self._tokenizer = MistralTokenizer.from_file(path)
        self._max_chars = max_chars
        own: Any = self._tokenizer.instruct_tokenizer
        if (images := own.image_encoder) is not None:
            own.image_encoder = _ImagePlace(images.image_config, images.special_ids)
        if (audio := own.audio_encoder) is not None:
            own.audio_encoder = _AudioPlace(audio.audio_config, audio.special_ids)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
        template: str | None,
        default_effort: str = "",
        placeholders: Mapping[str, str] = {},
        interleaves: bool = False,
        separator: str = "\n",
    ) -> Rendered:
        """See `ChatTemplates.render`. Texts stay where they are among images and audio.

        Raises:
            TemplateRejection: the conversation cannot be rendered.
        """
        if template or variables.keys() - _KNOWN:
            raise TemplateRejection(
                "chat_template and chat_template_kwargs are not supported: this server renders conversations with "
                "mistral-common (--tokenizer-mode mistral).",
                "chat_template" if template else "chat_template_kwargs",
            )
        known = [_with_places(message, placeholders) for message in without_developers(messages)]
        try:
            if TRANSCRIPTION in variables:
                tokens = self._transcription(known, variables[TRANSCRIPTION])
            else:
                request = ChatCompletionRequest.from_openai(
                    messages=known, tools=tools, continue_final_message=continue_final_message,
                    reasoning_effort=self._effort(variables, default_effort),
                )  # fmt: skip
                tokens = self._tokenizer.encode_chat_completion(request).tokens
        except TemplateRejection:
            raise
        except Exception as error:  # the package may raise anything; the conversation does not have the form it needs
            raise TemplateRejection(f"mistral-common rejects the conversation: {str(error)[:1500]}") from error
        text = self._tokenizer.decode(tokens, special_token_policy=SpecialTokenPolicy.KEEP)
        if len(text) > self._max_chars:
            raise too_long(self._max_chars)
        return Rendered(text, tuple(tokens))

    def _effort(self, variables: Mapping[str, Any], default: str) -> str | None:
        """How much to think, for models with such a setting: those of version 15 and later of tekken.json.

        What somebody has set goes to the package, which rejects what the model does not know. The default does not,
        unless the model knows it.
        """
        settings = self._tokenizer.instruct_tokenizer.tokenizer.model_settings_builder
        if settings is None or settings.reasoning_effort is None:
            return None
        known = default if default in settings.reasoning_effort.values else None
        effort: str | None = variables.get(EFFORT, known)
        return effort

    def _transcription(self, messages: list[dict[str, Any]], language: str) -> list[int]:
        """The prompt for the words of the audio that the messages have, see `quire.media`.

        Raises:
            TemplateRejection: they have something else.
        """
        if [message.get("content") for message in messages] != [[_PLACES[MediaKind.AUDIO]]]:
            raise TemplateRejection(
                f"chat_template_kwargs has {TRANSCRIPTION}, which is for conversations with nothing but an audio.",
                "chat_template_kwargs",
            )
        own: Any = self._tokenizer.instruct_tokenizer
        if own.audio_encoder.audio_config.is_streaming:
            return [*own.start(), own.audio_encoder.streaming_pad]  # the token that stands for the audio, as above
        request = TranscriptionRequest(model="", audio="audio", language=language or None)
        tokens: list[int] = self._tokenizer.encode_transcription(request).tokens
        return tokens


def _with_places(message: dict[str, Any], placeholders: Mapping[str, str]) -> dict[str, Any]:
    """A message for the package, which would fetch images from wherever a message says, including local files.

    Args:
        placeholders: by the types of parts that are prepared elsewhere.

    Raises:
        TemplateRejection: a part of the message is something else, and no text.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = []
    for part in content:
        kind = str(part.get("type") if isinstance(part, dict) else type(part).__name__)
        if kind in placeholders and kind in _PLACES:
            part = _PLACES[kind]
        elif kind not in ("text", "thinking"):
            raise TemplateRejection(
                f"messages has content of the type {kind!r}, which this model does not read, or which cannot stand "
                "here with --tokenizer-mode mistral."
            )
        parts.append(part)
    return {**message, "content": parts}
