"""Transformers' own answers to prompts with images."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.models.auto.processing_auto import processor_class_from_name
from transformers.models.pixtral import image_processing_pil_pixtral
from transformers.models.smolvlm import processing_smolvlm
from transformers.utils import is_torchvision_available

from tests.support.audio_files import Samples
from tests.support.kept_models import kept_model
from tests.support.vision_models.corrections import correct
from tests.support.vision_models.video_reference import video_processor
from tokenizer_svc.image_processors import load_image_processor
from tokenizer_svc.processor_loading import video_part

_PIXTRAL = "transformers.models.pixtral"


Frames = Sequence[Image.Image]


class Places(NamedTuple):
    """Where the frames taken of a video are in it, how many it has, and how many a second."""

    indices: Sequence[int]
    total: int
    fps: float


def reference_processor(folder: Path, *, with_videos: bool = False) -> Any:
    """The folder's processor, with an image processor that uses Pillow, and no video processor unless it is wanted.

    Where Transformers has only image processors that need torchvision, it is Quire's own.

    Of models that also hear, it has the part for audio.

    AutoProcessor would do for families without videos; other classes insist on a video processor, and all of these
    need torchvision. So the parts are put together as `ProcessorMixin.from_pretrained` does it.
    """
    processor_class = _unchecked(_processor_class(folder))
    fields, _ = processor_class.get_processor_dict(folder)
    makers: dict[str, Callable[[Path], Any]] = {
        "image_processor": load_image_processor,
        "tokenizer": transformers.AutoTokenizer.from_pretrained,
        "feature_extractor": transformers.AutoFeatureExtractor.from_pretrained,
        "video_processor": video_processor if with_videos else lambda _: video_part(processor_class),
    }
    parts = [makers[name](folder) for name in processor_class.get_attributes()]
    # SmolVLM's spells out numbers of video frames with num2words, and wants it for images too.
    with mock.patch.object(processing_smolvlm, "num2words", str):
        return processor_class.from_args_and_dict(parts, fields)


def reference_generate(
    folder: Path,
    messages: Sequence[Mapping[str, Any]],
    images: Sequence[Image.Image],
    max_new_tokens: int,
    dtype: torch.dtype = torch.float64,
    *,
    nested: bool = False,
    videos: Sequence[Frames] = (),
    places: Sequence[Places] | None = None,
    settings: Mapping[str, Any] = {},
    audios: Sequence[Samples] = (),
) -> tuple[list[int], list[int]]:
    """The prompt's token ids, with all of the images' placeholders, and those of the likeliest continuation.

    The images, videos and audios are those of the messages' parts, in order; a video is taken whole and has a frame a
    second, unless `places` tells otherwise. Generation doesn't stop at end-of-sequence tokens.
    `nested` tells that several images belong together, as `processor.apply_chat_template` does. Only LLaVA-OneVision
    cares: it doesn't split them into tiles then. `settings` are for the image processor.
    """
    inputs = _inputs(
        folder, messages, images, nested=nested, videos=videos, places=places, settings=settings, audios=audios
    ).to(dtype)
    model = load_model(folder, dtype)
    with torch.inference_mode():
        output = model.generate(
            **inputs, do_sample=False, max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens, pad_token_id=0
        )
    prompt = inputs["input_ids"][0].tolist()
    return prompt, output[0, len(prompt) :].tolist()


@torch.inference_mode()
def reference_hidden(
    folder: Path, messages: Sequence[Mapping[str, Any]], images: Sequence[Image.Image]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The hidden states of a prompt's tokens, normalized, and their logits: float32 [tokens, …]."""
    model = load_model(folder, torch.float32)
    hidden = model.model(**_inputs(folder, messages, images).to(torch.float32)).last_hidden_state[0]
    return hidden, model.lm_head(hidden)


def _inputs(
    folder: Path,
    messages: Sequence[Mapping[str, Any]],
    images: Sequence[Image.Image],
    *,
    nested: bool = False,
    videos: Sequence[Frames] = (),
    places: Sequence[Places] | None = None,
    settings: Mapping[str, Any] = {},
    audios: Sequence[Samples] = (),
) -> Any:
    """What the processor makes of a conversation."""
    processor = reference_processor(folder, with_videos=bool(videos))
    text = processor.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    given = ([list(images)] if nested else list(images)) if images else None
    # GOT-OCR 2's processor insists on an image.
    prepare = processor if images or videos or audios else processor.tokenizer
    return prepare(
        text=[text], add_special_tokens=False, return_tensors="pt", **({"images": given} if given else {}), **settings,
        **_video_arguments(videos, places), **({"audio": list(audios)} if audios else {}),
    )  # fmt: skip


def load_model(folder: Path, dtype: torch.dtype) -> Any:
    """The folder's model, corrected where Transformers is wrong; nobody may change it."""
    return kept_model(folder, lambda: _load(folder, dtype), dtype)


def _load(folder: Path, dtype: torch.dtype) -> Any:
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager"
    )
    correct(model)
    return model.eval()


def _video_arguments(videos: Sequence[Frames], places: Sequence[Places] | None) -> dict[str, Any]:
    if not videos:
        return {}
    places = places or [Places(range(len(frames)), len(frames), 1.0) for frames in videos]
    facts = [
        {"total_num_frames": total, "fps": fps, "duration": total / fps, "frames_indices": [*indices]}
        for indices, total, fps in places
    ]
    stacked = [torch.from_numpy(np.stack([np.asarray(frame) for frame in frames])) for frames in videos]
    return {"videos": stacked, "video_metadata": facts, "do_sample_frames": False}


def _unchecked(processor_class: type[Any]) -> type[Any]:
    """A processor's class that does not look up the classes of its parts, which need torchvision."""
    return type(processor_class.__name__, (processor_class,), {
        "check_argument_for_proper_class": lambda self, name, argument: type(argument),
    })  # fmt: skip


def _processor_class(folder: Path) -> type[transformers.ProcessorMixin]:
    files = [folder / name for name in ("processor_config.json", "preprocessor_config.json")]
    name = next(json.loads(file.read_text())["processor_class"] for file in files if file.exists())
    return _pixtral_processor() if name == "PixtralProcessor" else processor_class_from_name(name)


def _pixtral_processor() -> type[transformers.ProcessorMixin]:
    """PixtralProcessor, whose module imports torchvision for a function that the image processor for Pillow has too."""
    name = f"{_PIXTRAL}.image_processing_pixtral"
    if is_torchvision_available() or f"{_PIXTRAL}.processing_pixtral" in sys.modules:
        return importlib.import_module(f"{_PIXTRAL}.processing_pixtral").PixtralProcessor
    sys.modules[name] = image_processing_pil_pixtral
    try:
        return importlib.import_module(f"{_PIXTRAL}.processing_pixtral").PixtralProcessor
    finally:
        del sys.modules[name]
