"""The embeddings of images by Transformers, in the form in which requests bring them."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from PIL.Image import Image

from tests.support.vision_models.reference import load_model, reference_processor


def saved(tensor: object) -> bytes:
    """What torch.save writes."""
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def embeddings_of(folder: Path, image: Image) -> dict[str, torch.Tensor]:
    """The tensors that stand for an image, by name: those of vLLM's form."""
    processor = reference_processor(folder)
    names = ("pixel_values", "image_grid_thw")
    given = processor(text=[processor.image_token], images=[image], return_tensors="pt")
    inputs = {name: given[name] for name in names if name in given}
    with torch.inference_mode():
        found = load_model(folder, torch.float32).model.get_image_features(**inputs)
    deep = getattr(found, "deepstack_features", None) or []
    parts = [torch.cat([*each]) for each in (found.pooler_output, *deep)]
    return {"image_embeds": torch.cat(parts, 1).clone()} | {name: inputs[name] for name in names[1:] if name in inputs}
