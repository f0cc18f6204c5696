"""MiniCPM-OCR's image processor: MiniCPM-V 4.6's, with four times as many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers.image_processing_utils import BatchFeature
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import (
    MiniCPMV4_6ImageProcessorPil,
    MiniCPMV4_6ImageProcessorPilKwargs,
)


class _Settings(MiniCPMV4_6ImageProcessorPilKwargs, total=False):  # type: ignore[call-arg]  # Transformers has no types
    small_image_upsize: str


class ImageProcessor(MiniCPMV4_6ImageProcessorPil):
    """What Transformers' MiniCPMOcrImageProcessor does with torchvision, by its default setting."""

    valid_kwargs = _Settings
    downsample_mode = "4x"
    small_image_upsize = "always"

    def _preprocess(self, images: Sequence[Any], *, small_image_upsize: str, **settings: Any) -> BatchFeature:
        """
        Raises:
            ValueError: small images are to be enlarged by what OpenCV finds in them, or not at all.
        """
        if small_image_upsize != "always":
            raise ValueError(
                f"small_image_upsize is {small_image_upsize!r}; set it to 'always' (--mm-processor-kwargs)"
            )
        return super()._preprocess(images, **settings)
