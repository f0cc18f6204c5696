"""Messages made of texts and images in any order, as requests and with Transformers' answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL.Image import Image

from engine_svc.requests.request import GenerationRequest
from quire.images import ImageInput
from quire.sampling import SamplingParameters
from tests.support.vision_models.prompts import request_of
from tests.support.vision_models.reference import load_model, reference_generate, reference_processor

Part = str | Image
GREEDY_DOZEN = SamplingParameters(temperature=0.0, max_tokens=12, ignore_eos=True)
_asked: dict[tuple[Any, ...], GenerationRequest] = {}
_answers: dict[tuple[Any, ...], list[int]] = {}


def ask(folder: Path, *parts: Part, sampling: SamplingParameters = GREEDY_DOZEN, **fields: Any) -> GenerationRequest:
    """The request of one user's message. The prompt of each is made once."""
    key = _key(folder, parts)
    if key not in _asked:
        _asked[key] = request_of(folder, _messages(parts), _images(parts), sampling)
    return dataclasses.replace(_asked[key], sampling=sampling, **fields)


def answer(folder: Path, *parts: Part, count: int = 12, dtype: torch.dtype = torch.float64) -> list[int]:
    """The likeliest answer to one user's message by Transformers. Each is computed once."""
    key = *_key(folder, parts), count, dtype
    if key not in _answers:
        _answers[key] = reference_generate(folder, _messages(parts), _images(parts), count, dtype)[1]
    return _answers[key]


def prompt_logprobs(folder: Path, *parts: Part) -> list[float]:
    """By Transformers, the log-probability of each token of the prompt after the first, given those before it."""
    processor = reference_processor(folder)
    text = processor.tokenizer.apply_chat_template(_messages(parts), add_generation_prompt=True, tokenize=False)
    images = _images(parts) or None
    inputs = processor(text=[text], images=images, add_special_tokens=False, return_tensors="pt").to(torch.float64)
    model = load_model(folder, torch.float64)
    with torch.inference_mode():
        found = model(**inputs).logits[0, :-1].log_softmax(-1)
    return found.gather(1, inputs["input_ids"][0, 1:, None])[:, 0].tolist()


def _key(folder: Path, parts: Sequence[Part]) -> tuple[Any, ...]:
    told = (part if isinstance(part, str) else (part.size, part.tobytes()) for part in parts)
    return (folder, *told)


def _messages(parts: Sequence[Part]) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts]
    return [{"role": "user", "content": content}]


def _images(parts: Sequence[Part]) -> list[Image]:
    return [part for part in parts if not isinstance(part, str)]


def image_input(name: str, values: npt.NDArray[Any]) -> ImageInput:
    """An input as it is sent."""
    return ImageInput(name, values.dtype.name, values.shape, values.tobytes())


def with_inputs(request: GenerationRequest, **inputs: npt.NDArray[Any] | None) -> GenerationRequest:
    """The request with some inputs of its first image replaced, added, or left out if None."""
    first, *others = request.images
    made = [image_input(name, np.asarray(values)) for name, values in inputs.items() if values is not None]
    kept = [each for each in first.inputs if each.name not in inputs]
    changed = dataclasses.replace(first, inputs=(*kept, *made))
    return dataclasses.replace(request, images=(changed, *others))


def with_image(request: GenerationRequest, **fields: Any) -> GenerationRequest:
    """The request with other fields of its first image."""
    first, *others = request.images
    return dataclasses.replace(request, images=(dataclasses.replace(first, **fields), *others))
