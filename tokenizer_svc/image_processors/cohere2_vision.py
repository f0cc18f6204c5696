"""Command A Vision's image processor: an image in tiles, stretched to fill them, and a small copy of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy.typing as npt
from PIL.Image import Resampling
from transformers.image_processing_backends import PilBackend
from transformers.image_processing_utils import BatchFeature
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD, SizeDict
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorKwargs
from transformers.models.mllama.image_processing_pil_mllama import split_to_tiles_np

from quire.images import PIXELS
from tokenizer_svc.image_processors.tiles import grid_of_tiles

Pixels = npt.NDArray[Any]  # [channels, rows, columns]


class ImageProcessor(PilBackend):
    """What Transformers' Cohere2VisionImageProcessor does with torchvision. It ignores `min_patches` as well."""

    valid_kwargs = GotOcr2ImageProcessorKwargs
    do_resize = do_rescale = do_normalize = do_convert_rgb = True
    resample = Resampling.BICUBIC
    image_mean = OPENAI_CLIP_MEAN
    image_std = OPENAI_CLIP_STD
    size: ClassVar[dict[str, int]] = {"height": 512, "width": 512}
    crop_to_patches = True
    min_patches = 1
    max_patches = 12
    patch_size = 16  # tokens along each side of a tile, which the processor reads

    def _preprocess(self, images: Sequence[Pixels], *, return_tensors: str | None, **settings: Any) -> BatchFeature:
        tiles, counts = [], []
        for image in images:
            own = self._tiles(image, settings)
            counts.append(len(own))
            for tile in own:
                if settings["do_rescale"]:
                    tile = self.rescale(tile, settings["rescale_factor"])
                if settings["do_normalize"]:
                    tile = self.normalize(tile, settings["image_mean"], settings["image_std"])
                tiles.append(tile)
        return BatchFeature({PIXELS: tiles, "num_patches": counts}, tensor_type=return_tensors)

    def _tiles(self, image: Pixels, settings: Mapping[str, Any]) -> list[Pixels]:
        """The tiles, row by row."""
        size, resample = settings["size"], settings["resample"]
        if not settings["crop_to_patches"]:
            return [self.resize(image, size, resample) if settings["do_resize"] else image]
        height, width = image.shape[-2:]
        rows, columns = grid_of_tiles(height, width, size.height, settings["max_patches"])
        whole = self.resize(image, SizeDict(height=rows * size.height, width=columns * size.width), resample)
        tiles = list(split_to_tiles_np(whole, rows, columns))
        return tiles if len(tiles) == 1 else [*tiles, self.resize(image, size, resample)]
