"""Tiny random vision-language models of many families, and reference results by Transformers."""

from tests.support.vision_models.families import FAMILIES
from tests.support.vision_models.making import make_vision_model, png_bytes, random_frames, random_image
from tests.support.vision_models.reference import reference_generate, reference_processor

__all__ = [
    "FAMILIES",
    "make_vision_model",
    "png_bytes",
    "random_frames",
    "random_image",
    "reference_generate",
    "reference_processor",
]
