"""Prompts with images as the tokenizer service makes them, without its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from PIL import Image

from engine_svc.requests.request import GenerationRequest
from quire.media import MediaKind
from quire.options.multimodal import ImageProcessorOptions
from quire.sampling import SamplingParameters
from tests.support.vision_models.making import png_bytes
from tokenizer_svc.child import Message
from tokenizer_svc.media import MediaPreparer, Medium, message_of, prepared_medium
from tokenizer_svc.media_process import make


def request_of(
    folder: Path,
    messages: Sequence[Mapping[str, Any]],
    images: Sequence[Image.Image],
    sampling: SamplingParameters,
    settings: Mapping[str, Any] = {},
    videos: Sequence[Sequence[Image.Image]] = (),
    pruning_rate: float = 0.0,
) -> GenerationRequest:
    """The engine's request for a conversation, with the images and videos of the messages' parts in their order."""
    answer = make(Message({"folder": str(folder), "video_pruning_rate": pruning_rate}))
    preparer = MediaPreparer(folder, ImageProcessorOptions())
    preparer.use(answer(Message()).fields)
    media = [Medium(MediaKind.IMAGE, (png_bytes(image),)) for image in images]
    media += [Medium(MediaKind.VIDEO, tuple(map(png_bytes, frames))) for frames in videos]
    prepared = [prepared_medium(each.kind, answer(message_of(each, settings, {}))) for each in media]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    text, prepared = preparer.insert(text, prepared)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    placed = tuple(preparer.place(token_ids, prepared))
    return GenerationRequest("r", token_ids, sampling, images=placed)
