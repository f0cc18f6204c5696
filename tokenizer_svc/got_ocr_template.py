"""The chat template of GOT-OCR 2, which comes without one: it renders what the model's processor writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quire.tokenizer.configuration import fields_of

_CLASS = "GotOcr2Processor"
_FILES = ("processor_config.json", "preprocessor_config.json")

# Without a text beside it, an image is to be written down.
_TEMPLATE = (
    "{% if messages and messages[0]['role'] != 'system' %}<|im_start|>system\n"
    "You should follow the instructions carefully and explain your answers in detail.<|im_end|>{% endif %}"
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<img><imgpad></img>\n{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}"
    "{% if message['content'] | rejectattr('type', 'equalto', 'image') | list == [] %}{{ ' OCR: ' }}{% endif %}"
    "{% endif %}"
    "<|im_end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def got_ocr_templates(folder: Path | None) -> Mapping[str, str]:
    """Name → template, for GOT-OCR 2; empty for any other model.

    Args:
        folder: with the model's files, if there is one.
    """
    classes = [fields_of(folder / name).get("processor_class") for name in _FILES] if folder else []
    return {"default": _TEMPLATE} if _CLASS in classes else {}
