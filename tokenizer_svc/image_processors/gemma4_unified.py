"""The image processor of Gemma 4's 12B model, which has no encoder: patches are merged beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers.image_processing_utils import BatchFeature
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil


class ImageProcessor(Gemma4ImageProcessorPil):
    """What Transformers' Gemma4UnifiedImageProcessor does with torchvision.

    Cutting an image into patches and merging squares of these is the same as cutting it into larger patches.
    """

    def _preprocess(
        self, images: Sequence[Any], *, patch_size: int, pooling_kernel_size: int, **settings: Any
    ) -> BatchFeature:
        return super()._preprocess(
            images, patch_size=patch_size * pooling_kernel_size, pooling_kernel_size=1, **settings
        )
