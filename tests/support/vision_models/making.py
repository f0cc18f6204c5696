"""Writes the folders of tiny models."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import tokenizers
import torch
import transformers
from PIL import Image

from benchmarks.models import byte_tokenizer
from tests.support.vision_models.families import FAMILIES
from tests.support.vision_models.family import Family

_OTHER_IDS = ("video_token_id", "video_token_index", "audio_token_id")
# Published checkpoints have another prefix for these vision models' tensors, which Transformers drops when it loads
# them, and adds again only to a model that it has loaded.
_PREFIXED = ("clip_vision_model", "siglip2_vision_model", "siglip_vision_model")
# Endings of the names of what checkpoints have besides parameters: Gemma 4 clips and scales values.
_BUFFERS = ("std_bias", "std_scale", "put_min", "put_max", "layer_scalar")
# Names of tensors that Transformers mistakes when it saves these, such as those of the text model's layers, for which
# it takes the names of the vision model's; and what they are in published checkpoints.
_MISTAKEN: dict[str, dict[str, str]] = {
    "Kimi_K25": {
        "language_model.model.blocks.": "language_model.model.layers.",
        "model.mm_projector.": "mm_projector.",
        "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
    },
    "QianfanOCR": {"language_model.model.encoder.": "language_model.model."},
}


def make_vision_model(folder: Path, family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """Saves a model with tokenizer, chat template and image processor; the same seed gives the same weights.

    Ids of the bytes 0 to 255 come first, then those of the special tokens. Neither the end-of-sequence token nor
    image tokens are ever the likeliest ones.
    """
    kind = FAMILIES[family]
    tokenizer = _tokenizer(kind)
    config = _config(kind, tokenizer)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind.name}ForConditionalGeneration")(config)
    _spread(model)
    with torch.no_grad():
        never = [config.image_token_id, tokenizer.eos_token_id]
        never += [each for name in _OTHER_IDS if (each := getattr(config, name, None)) is not None]
        model.get_output_embeddings().weight[never] = 0.0
    if dtype != model.dtype:  # Llama 4's complex buffers would become real, even in the same dtype
        model.to(dtype)
    model.save_pretrained(folder)
    if kind.vision.get("model_type") in _PREFIXED:
        _rename(folder / "model.safetensors", "vision_tower.", "vision_tower.vision_model.")
    for mistaken, published in _MISTAKEN.get(kind.name, {}).items():
        _rename(folder / "model.safetensors", mistaken, published)
    if kind.is_flat:
        _flatten(folder / "config.json")
    tokenizer.save_pretrained(folder)
    _save_processor(folder, kind)
    (folder / "chat_template.jinja").write_text(kind.template)
    return folder


def random_image(width: int, height: int, seed: int) -> Image.Image:
    """An image whose areas have different colors, and each pixel some noise."""
    random = np.random.default_rng(seed)
    areas = Image.fromarray(random.integers(0, 256, (3, 4, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    noise = random.integers(-32, 33, (height, width, 3))
    return Image.fromarray((np.asarray(areas) + noise).clip(0, 255).astype(np.uint8))


def random_frames(width: int, height: int, count: int, seed: int) -> list[Image.Image]:
    """Frames of a video, each another image."""
    return [random_image(width, height, 1000 * seed + number) for number in range(count)]


def png_bytes(image: Image.Image) -> bytes:
    """The image as a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _tokenizer(kind: Family) -> transformers.PreTrainedTokenizerFast:
    backend = byte_tokenizer(258).backend_tokenizer
    backend.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in kind.tokens])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>" if "<s>" in kind.tokens else None,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",  # Aya Vision asks for padding
        extra_special_tokens=dict(kind.token_attributes) or list(kind.tokens),
    )


def _config(kind: Family, tokenizer: transformers.PreTrainedTokenizerFast) -> Any:
    text = {
        "vocab_size": len(tokenizer), "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
    }  # fmt: skip
    ids = {
        name: tokenizer.convert_tokens_to_ids(token if isinstance(token, str) else [*token])
        for name, token in kind.token_ids.items()
    }
    return getattr(transformers, f"{kind.name}Config")(
        text_config=text | dict(kind.text), vision_config=dict(kind.vision), **kind.config, **ids
    )


def _spread(model: torch.nn.Module) -> None:
    """Makes weights so large that the likeliest token depends on the image, and not on rounding."""
    for name, parameter in model.named_parameters():
        is_scale = parameter.dim() == 1 and name.endswith(("weight", "lambda_1", "lambda_2"))
        torch.nn.init.normal_(parameter, mean=float(is_scale), std=0.25 if parameter.dim() > 1 else 0.2)
    for name, buffer in model.named_buffers():
        if name.endswith(_BUFFERS):
            torch.nn.init.normal_(buffer.nan_to_num_(posinf=2.0, neginf=-2.0), mean=float(buffer.mean()), std=0.2)


def _rename(file: Path, old: str, new: str) -> None:
    tensors = safetensors.torch.load_file(file)
    safetensors.torch.save_file(
        {name.replace(old, new): tensor for name, tensor in tensors.items()}, file, {"format": "pt"}
    )


def _flatten(file: Path) -> None:
    """Moves the text model's fields to the top level, with the older names of those of the rotary embedding."""
    config = json.loads(file.read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    text |= {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
    }
    _write(file, text | config)


def _save_processor(folder: Path, kind: Family) -> None:
    image_processor = {**kind.image_fields, "image_processor_type": kind.image_processor}
    if in_pillow := getattr(transformers, f"{kind.image_processor}Pil", None):
        image_processor = in_pillow(**kind.image_fields).to_dict()
    fields = {**(kind.processor_fields or {}), "processor_class": kind.processor}
    if kind.is_nested:
        fields["image_processor"] = image_processor
    else:
        _write(folder / "preprocessor_config.json", image_processor | {"processor_class": kind.processor})
    if kind.feature_extractor is not None:
        extractor = getattr(transformers, f"{kind.name}AudioFeatureExtractor")(**kind.feature_extractor)
        fields["feature_extractor"] = json.loads(extractor.to_json_string())
    if kind.processor_fields is not None:
        _write(folder / "processor_config.json", fields)
    if kind.video_processor:
        _write(
            folder / "video_preprocessor_config.json",
            {**kind.video_fields, "video_processor_type": kind.video_processor},
        )


def _write(file: Path, fields: dict[str, Any]) -> None:
    file.write_text(json.dumps(fields, indent=2))
