"""The engine's requests with images, videos and audio, as the tokenizer service prepares them without its processes."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers

from engine_svc.requests.request import GenerationRequest
from quire.options.multimodal import ImageProcessorOptions
from quire.sampling import SamplingParameters
from tokenizer_svc.child import Answer, Message
from tokenizer_svc.media import MediaPreparer, Medium, PreparedMedium, message_of, prepared_medium
from tokenizer_svc.media_process import make


def prepare(
    folder: Path, media: Sequence[Medium], settings: Mapping[str, Any] = {}, **setup: Any
) -> tuple[MediaPreparer, list[PreparedMedium]]:
    """
    Args:
        settings: of the request, for the model's processor.
        setup: further fields of what processes are told when they start.
    """
    answer = _process(json.dumps({"folder": str(folder), **setup}))
    preparer = MediaPreparer(folder, ImageProcessorOptions(), setup.get("of_mistral"))
    preparer.use(answer(Message()).fields)
    return preparer, [prepared_medium(each.kind, answer(message_of(each, settings, {}))) for each in media]


def media_request(
    folder: Path, messages: Sequence[Mapping[str, Any]], media: Sequence[Medium], sampling: SamplingParameters,
    settings: Mapping[str, Any] = {}, **setup: Any,
) -> GenerationRequest:  # fmt: skip
    """The request for a conversation in the model's chat template, with media in the order of each kind's parts.

    Args: see `prepare`.
    """
    preparer, prepared = prepare(folder, media, settings, **setup)
    tokenizer = _tokenizer(folder)
    rendered = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    text, prepared = preparer.insert(rendered, prepared)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    return GenerationRequest("r", token_ids, sampling, images=tuple(preparer.place(token_ids, prepared)))


# Folders are written once, and reading them takes longer than preparing an image.
@functools.cache
def _process(setup: str) -> Answer:
    return make(Message(json.loads(setup)))


@functools.cache
def _tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)
