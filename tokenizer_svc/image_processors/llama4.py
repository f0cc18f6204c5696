"""Llama 4's image processor: tiles of an image that keeps its proportions, and a small copy of the whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL.Image import Resampling
from transformers.image_processing_backends import PilBackend
from transformers.image_processing_utils import BatchFeature
from transformers.image_utils import SizeDict
from transformers.models.mllama.image_processing_pil_mllama import split_to_tiles_np
from transformers.processing_utils import ImagesKwargs

from quire.images import PIXELS
from tokenizer_svc.image_processors.tiles import grid_of_tiles

Pixels = npt.NDArray[Any]  # [channels, rows, columns]


class _Settings(ImagesKwargs, total=False):  # type: ignore[call-arg]  # Transformers has no types
    """Fields of preprocessor_config.json besides those of all image processors."""

    max_patches: int  # tiles
    resize_to_max_canvas: bool  # whether images are enlarged as far as the tiles allow


class ImageProcessor(PilBackend):
    """What Transformers' Llama4ImageProcessor does with torchvision, but pixels are not rounded to bfloat16."""

    valid_kwargs = _Settings
    do_resize = do_rescale = do_normalize = do_convert_rgb = True
    resample = Resampling.BILINEAR
    image_mean = (0.5, 0.5, 0.5)
    image_std = (0.5, 0.5, 0.5)
    size: ClassVar[dict[str, int]] = {"height": 336, "width": 336}
    max_patches = 16
    resize_to_max_canvas = False

    def _validate_preprocess_kwargs(
        self, do_resize: bool | None = None, size: SizeDict | None = None, **settings: Any
    ) -> None:
        """See PilBackend.

        Raises:
            ValueError: the settings do not suit each other.
        """
        if not do_resize:
            raise ValueError("do_resize must be true: tiles have one size")
        if size is None or not size.height or size.height != size.width:
            raise ValueError(f"size must have the same height and width, not {size}")
        super()._validate_preprocess_kwargs(do_resize=do_resize, size=size, **settings)

    def _preprocess(self, images: Sequence[Pixels], *, return_tensors: str | None, **settings: Any) -> BatchFeature:
        tiles, grids = [], []
        for image in images:
            made, grid = self._tiles(image, settings)
            if settings["do_rescale"]:
                made = self.rescale(made, settings["rescale_factor"])
            if settings["do_normalize"]:
                made = np.stack([self.normalize(tile, settings["image_mean"], settings["image_std"]) for tile in made])
            tiles.append(made)
            grids.append(grid)
        return BatchFeature(
            {PIXELS: np.concatenate(tiles), "aspect_ratios": np.array(grids)}, tensor_type=return_tensors
        )

    def _tiles(self, image: Pixels, settings: Mapping[str, Any]) -> tuple[Pixels, tuple[int, int]]:
        """The tiles [tiles, channels, side, side], row by row, and how many rows and columns they have."""
        size, resample, enlarge = settings["size"], settings["resample"], settings["resize_to_max_canvas"]
        height, width = image.shape[-2:]
        rows, columns = grid_of_tiles(height, width, size.height, settings["max_patches"], enlarge=enlarge)
        canvas = SizeDict(height=rows * size.height, width=columns * size.width)
        inner = _inner_size(image.shape[-2:], canvas, None if enlarge else size.height)
        (filled,) = self.pad([self.resize(image, inner, resample)], canvas)
        tiles = split_to_tiles_np(filled, rows, columns)
        if rows * columns > 1:
            tiles = np.concatenate([tiles, self.resize(image, size, resample)[None]])
        return tiles, (rows, columns)


def _inner_size(sides: Sequence[int], canvas: SizeDict, longest: int | None) -> SizeDict:
    """The size of an image within its tiles, which keeps its proportions.

    Args:
        sides: height and width of the image.
        longest: an image is enlarged up to this side; None for up to all of its tiles.
    """
    targets, scales = [], []
    for side, most in zip(sides, (canvas.height, canvas.width), strict=True):
        wanted = most if longest is None else max(side, longest)
        targets.append(min(wanted, most))
        # Where the tiles are the limit, the original computes in float32.
        in_float32 = longest is None or most < wanted
        scales.append(np.float32(most) / np.float32(side) if in_float32 else targets[-1] / side)
    height, width = targets
    if scales[1] < scales[0]:
        height = min(math.floor(sides[0] * scales[1]), height)
    else:
        width = min(math.floor(sides[1] * scales[0]), width)
    return SizeDict(height=max(height, 1), width=max(width, 1))
