"""Prompts with images as the tokenizer service makes them, without its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from PIL import Image

from engine_svc.requests.request import GenerationRequest
from quire.options.multimodal import ImageProcessorOptions
from quire.sampling import SamplingParameters
from tests.support.vision_models.making import png_bytes
from tokenizer_svc.child import Message
from tokenizer_svc.image_process import make
from tokenizer_svc.images import ImagePreparer, prepared_image


def request_of(
    folder: Path,
    messages: Sequence[Mapping[str, Any]],
    images: Sequence[Image.Image],
    sampling: SamplingParameters,
    settings: Mapping[str, Any] = {},
) -> GenerationRequest:
    """The engine's request for a conversation, whose images are those of the messages' image parts."""
    answer = make(Message({"folder": str(folder)}))
    preparer = ImagePreparer(folder, ImageProcessorOptions())
    preparer.use(answer(Message()).fields)
    prepared = [prepared_image(answer(Message({"settings": dict(settings)}, png_bytes(image)))) for image in images]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    token_ids = tokenizer.encode(preparer.insert(text, prepared) if images else text, add_special_tokens=False)
    placed = tuple(preparer.place(token_ids, prepared))
    return GenerationRequest("r", token_ids, sampling, images=placed)
