"""The chat template of Whisper models, which come without one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from tokenizer_svc.audio_settings import DEFAULTS, read_audio_settings

_CLASS = "WhisperProcessor"

# Recordings and texts as they are, then the token from which the model writes.
_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'audio' %}AUDIO{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|startoftranscript|>{% endif %}"
).replace("AUDIO", DEFAULTS[_CLASS].audio_token)


def whisper_templates(folder: Path | None) -> Mapping[str, str]:
    """Name → template, for a Whisper model; empty for any other.

    Args:
        folder: with the model's files, if there is one.
    """
    with contextlib.suppress(Exception):  # whatever is wrong with the files, the process for audio will say so
        if folder and (settings := read_audio_settings(folder)) and settings.processor_class == _CLASS:
            return {"default": _TEMPLATE}
    return {}
