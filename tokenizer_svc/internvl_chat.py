"""The processor of InternVL as OpenGVLab publishes it, whose files name none: Transformers' for the other layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from quire.tokenizer.configuration import fields_of
from quire.tokenizer.files import read_tokenizer_files
from tokenizer_svc.video_settings import VideoSettings

_CHAT_MODEL = "InternVLChatModel"
_IN_TEMPLATES = "<image>"  # some templates write it for an image, as OpenGVLab's own code does; others <IMG_CONTEXT>
_TOKENS = {
    "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}  # fmt: skip
_MEAN, _DEVIATION = (*IMAGENET_DEFAULT_MEAN,), (*IMAGENET_DEFAULT_STD,)  # whatever preprocessor_config.json says


def internvl_chat_config(folder: Path) -> Mapping[str, Any] | None:
    """config.json of such a model; None for any other."""
    config = fields_of(folder / "config.json")
    return config if _CHAT_MODEL in (config.get("architectures") or ()) else None


def make_processor(processor_class: type[Any], folder: Path, config: Mapping[str, Any]) -> Any:
    """The processor of such a model.

    Args:
        processor_class: InternVLProcessor, any of whose parts may be None.
        config: from `internvl_chat_config`.

    Raises:
        ValueError: images are prepared in a way that is not supported.
        KeyError or others: a file lacks something.
    """
    files, vision = read_tokenizer_files(folder), config["vision_config"]
    most = config.get("max_dynamic_patch", 6) if config.get("dynamic_image_size") else 1  # tiles
    if config.get("pad2square") or (most > 1 and not config.get("use_thumbnail")):
        raise ValueError("config.json: only pad2square false is supported, and tiles only with use_thumbnail true")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=files.tokenizer, **files.special_tokens)
    for name, text in _TOKENS.items():
        setattr(tokenizer, name, text)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(text))
    size = {"height": vision["image_size"], "width": vision["image_size"]}
    images = GotOcr2ImageProcessorPil(
        size=size, min_patches=config.get("min_dynamic_patch", 1), max_patches=most, image_mean=_MEAN,
        image_std=_DEVIATION,
    )  # fmt: skip
    side = vision["image_size"] // vision["patch_size"] * config.get("downsample_ratio", 0.5)
    processor = processor_class(images, tokenizer, None, image_seq_length=int(side**2))
    template = files.chat_templates.get("default", "")
    processor.image_placeholder_token = _IN_TEMPLATES if _IN_TEMPLATES in template else processor.image_token
    processor.video_settings = VideoSettings(size, _MEAN, _DEVIATION)
    return processor
