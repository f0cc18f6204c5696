"""LFM2-VL's image processor: patches of a whole image, or of equal tiles of a large one and of a small copy of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL.Image import Resampling
from transformers.image_processing_backends import PilBackend
from transformers.image_processing_utils import BatchFeature
from transformers.image_utils import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD, SizeDict
from transformers.models.siglip2.image_processing_pil_siglip2 import convert_image_to_patches, pad_along_first_dim
from transformers.processing_utils import ImagesKwargs

from quire.images import PIXELS, TILE_SHAPES

Pixels = npt.NDArray[Any]  # [channels, rows, columns]


class _Settings(ImagesKwargs, total=False):  # type: ignore[call-arg]  # Transformers has no types
    """Fields of preprocessor_config.json besides those of all image processors."""

    downsample_factor: int  # patches along each side of an embedding
    do_image_splitting: bool
    min_tiles: int
    max_tiles: int
    use_thumbnail: bool
    min_image_tokens: int  # of an image that is not split, and of a thumbnail
    max_image_tokens: int
    encoder_patch_size: int
    tile_size: int  # of a side, in pixels
    max_pixels_tolerance: float  # images that exceed the most tokens by this factor are split
    return_row_col_info: bool  # which Transformers' processor needs to write the prompt


class ImageProcessor(PilBackend):
    """What Transformers' Lfm2VlImageProcessor does with torchvision."""

    valid_kwargs = _Settings
    model_input_names: ClassVar[list[str]] = [PIXELS, "pixel_attention_mask", TILE_SHAPES]
    downsample_factor = 2
    do_image_splitting = True
    min_tiles = 2
    max_tiles = 10
    use_thumbnail = True
    min_image_tokens = 64
    max_image_tokens = 256
    encoder_patch_size = 16
    tile_size = 512
    max_pixels_tolerance = 2.0
    return_row_col_info = False
    do_resize = do_rescale = do_normalize = do_pad = True
    size: ClassVar[dict[str, int]] = {"height": 512, "width": 512}
    resample = Resampling.BILINEAR
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD

    def _preprocess(self, images: Sequence[Pixels], *, return_tensors: str | None, **settings: Any) -> BatchFeature:
        """
        Raises:
            ValueError: the settings do not suit each other.
        """
        if not settings["do_pad"]:
            raise ValueError("do_pad is False, but the encoder needs to know which patches are padding")
        if settings["do_image_splitting"] and settings["min_tiles"] > settings["max_tiles"]:
            raise ValueError(f"min_tiles is {settings['min_tiles']}, more than max_tiles {settings['max_tiles']}")
        made = [self._tiles(image, settings) for image in images]
        side = settings["encoder_patch_size"]
        tiles = [self._numbers(tile, settings) for tiles, *_ in made for tile in tiles]
        patches = [convert_image_to_patches(tile, side) for tile in tiles]
        count = max(_most_patches(settings), *map(len, patches))  # images of extreme proportions exceed the limit
        padded, masks = zip(*(pad_along_first_dim(each, count) for each in patches), strict=True)
        data: dict[str, Any] = {
            PIXELS: np.stack(padded), "pixel_attention_mask": np.stack(masks),
            TILE_SHAPES: np.array([[rows // side, columns // side] for _, rows, columns in (t.shape for t in tiles)]),
        }  # fmt: skip
        if settings["return_row_col_info"]:
            names = ("image_rows", "image_cols", "image_sizes")
            data |= {name: [each[place] for each in made] for place, name in enumerate(names, 1)}
        return BatchFeature(data, tensor_type=return_tensors)

    def _tiles(self, image: Pixels, settings: dict[str, Any]) -> tuple[list[Pixels], int, int, tuple[int, int]]:
        """The tiles, how many rows and columns they are, and the size of the image as a whole or of its thumbnail."""
        height, width = image.shape[-2:]
        resample, side = settings["resample"], settings["tile_size"]
        whole = _fitting_size(height, width, settings)
        least, most = settings["min_tiles"], settings["max_tiles"]
        is_split = settings["do_image_splitting"] and most > 1 and _is_large(height, width, settings)
        if not is_split:
            return [self.resize(image, SizeDict(height=whole[0], width=whole[1]), resample)], 1, 1, whole
        rows, columns = _grid(height, width, least, most, side)
        large = self.resize(image, SizeDict(height=rows * side, width=columns * side), resample)
        apart = large.reshape(len(large), rows, side, columns, side).transpose(1, 3, 0, 2, 4)
        tiles = [*apart.reshape(-1, len(large), side, side)]
        if len(tiles) == 1:
            return tiles, 1, 1, (side, side)
        if settings["use_thumbnail"]:
            tiles.append(self.resize(image, SizeDict(height=whole[0], width=whole[1]), resample))
        return tiles, rows, columns, whole

    def _numbers(self, tile: Pixels, settings: dict[str, Any]) -> Pixels:
        if settings["do_rescale"]:
            tile = self.rescale(tile, settings["rescale_factor"])
        if settings["do_normalize"]:
            tile = self.normalize(tile, settings["image_mean"], settings["image_std"])
        return tile


def _most_patches(settings: dict[str, Any]) -> int:
    """The most patches of a tile, or of an image that is not split."""
    of_a_tile = (settings["tile_size"] // settings["encoder_patch_size"]) ** 2 if settings["do_image_splitting"] else 0
    return int(max(settings["max_image_tokens"] * settings["downsample_factor"] ** 2, of_a_tile))


def _area(num_tokens: int, settings: dict[str, Any]) -> int:
    """Pixels of an image with so many tokens."""
    return int(num_tokens * (settings["encoder_patch_size"] * settings["downsample_factor"]) ** 2)


def _fitting_size(height: int, width: int, settings: dict[str, Any]) -> tuple[int, int]:
    """Height and width that have whole embeddings, keep the proportions, and have a number of tokens in the limits."""
    unit = settings["encoder_patch_size"] * settings["downsample_factor"]
    rows, columns = (max(1, round(side / unit)) for side in (height, width))
    least, most = (_area(settings[name], settings) for name in ("min_image_tokens", "max_image_tokens"))
    area = rows * columns * unit**2
    if area > most:
        scale = math.sqrt(height * width / most)
        rows, columns = (max(1, math.floor(side / scale / unit)) for side in (height, width))
    elif area < least:
        scale = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(side * scale / unit) for side in (height, width))
    return rows * unit, columns * unit


def _is_large(height: int, width: int, settings: dict[str, Any]) -> bool:
    """Whether the image has too many pixels for a single tile."""
    patch = settings["encoder_patch_size"]
    unit = patch * settings["downsample_factor"]
    area = math.prod(max(patch, round(side / unit) * unit) for side in (height, width))
    return bool(area > _area(settings["max_image_tokens"], settings) * settings["max_pixels_tolerance"])


def _grid(height: int, width: int, least: int, most: int, side: int) -> tuple[int, int]:
    """Rows and columns of the tiles whose proportions are closest to the image's.

    Of grids that are equally close, a later one is taken if the image fills more than half of it.
    """
    best, closest = (1, 1), math.inf
    for columns, rows in _grids(least, most):
        distance = abs(width / height - columns / rows)
        if distance < closest or (distance == closest and width * height > 0.5 * side**2 * columns * rows):
            best, closest = (rows, columns), distance
    return best


@functools.lru_cache(maxsize=256)
def _grids(least: int, most: int) -> tuple[tuple[int, int], ...]:
    """Columns and rows of all grids with so many tiles, the smallest ones first.

    Those with the same number of tiles are in the order of a set with these insertions, as in Transformers: where the
    image lies between two of them, it decides.
    """
    found = {
        (columns, rows)
        for longest in range(least, most + 1)
        for columns in range(1, longest + 1)
        for rows in range(1, longest + 1)
        if least <= columns * rows <= most
    }
    return tuple(sorted(found, key=math.prod))
