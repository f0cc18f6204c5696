"""Checks the inputs of an image before they are encoded.

An encoder was made for what its image processor returns. Given anything else it may raise, or worse: a few kilobytes
can make it allocate any amount of memory, and on a GPU an index that is out of range ends the process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from quire.images import PIXELS, PLACES, TILE_SHAPES, VIDEO_PIXELS, Image, ImageInput

GRID = "image_grid_thw"  # patches by time, row and column
SECONDS = "second_per_grid_ts"  # from one patch of a video to the next one in time
MASK = "pixel_attention_mask"
KEPT = "num_kept"  # of the embeddings of a video
_MOST_SECONDS = 1e5
# Inputs beside pixels and their mask: int64, of one image.
_SHAPES: Mapping[str, tuple[int, ...]] = {GRID: (1, 3), "image_sizes": (1, 2), "batch_num_images": (1,)}
_CHANNELS_DIMENSION = -3
# Encoders of tiles of one size; others take images of many.
_OF_ONE_SIZE = frozenset({"clip_vision_model", "llama4_vision_model", "siglip_vision_model"})

# Encoders of patches that come with their places.
_OF_PLACED_PATCHES = frozenset({"gemma4_vision"})
# Encoders of tiles of any shape, whose patches come together, tile by tile.
_OF_SHAPED_TILES = frozenset({"siglip2_vision_model"})
_COLORS = 3

# Models that treat videos in another way than images, and so take their pixels by another name.
_OF_VIDEOS = frozenset({"llava_onevision"})
# See InputChecks.is_apart_in_time.
_APART_IN_TIME = frozenset(
    {"glm46v", "glm4v", "glm4v_moe", "glm_ocr", "lfm3_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}
)

INPUTS = frozenset({PIXELS, PLACES, TILE_SHAPES, VIDEO_PIXELS, MASK, *_SHAPES})


class UnfitImage(ValueError):
    """An image does not fit the encoder or its place in the prompt; the message is for the caller."""


class InputChecks:
    """What the image encoder of a model was made for.

    Attributes:
        is_apart_in_time: whether prompts have other tokens between those of a video's frames, which the model reads as
            images of their own.
    """

    def __init__(self, config: Any, merge_size: int, *, reads_videos: bool = True) -> None:
        """
        Args:
            config: of the model.
            merge_size: see ImageEncoder.
        """
        vision = config.vision_config
        self._merge_size = merge_size
        self._takes_videos = config.model_type in _OF_VIDEOS
        self._reads_videos = reads_videos
        self.is_apart_in_time = config.model_type in _APART_IN_TIME
        self._channels = self._patch_values = 0  # of encoders that take patches instead of pixels in rows and columns
        if merge_size:
            self._is_flat = hasattr(vision, "in_channels")  # whether a patch is a row of values
            self._channels = vision.in_channels if self._is_flat else getattr(vision, "num_channels", _COLORS)
            self._frames = getattr(vision, "temporal_patch_size", 1)
            self._side_of_patch = vision.patch_size
            self._patch_values = self._channels * vision.patch_size**2  # of one frame
        self._side: int | None = vision.image_size if vision.model_type in _OF_ONE_SIZE else None
        # Of encoders that take patches with their places: patches along each side of an embedding, most along a side of
        # an image, and values of a patch.
        self._pooled = self._most_along = self._placed_values = 0
        if vision.model_type in _OF_PLACED_PATCHES:
            self._pooled, self._most_along = vision.pooling_kernel_size, vision.position_embedding_size
            self._placed_values = _COLORS * vision.patch_size**2
        # Of encoders of tiles of any shape: patches along each side of an embedding, and values of a patch.
        self._tile_unit = self._tile_values = 0
        if vision.model_type in _OF_SHAPED_TILES:
            self._tile_unit = getattr(config, "downsample_factor", 1)
            self._channels, self._tile_values = vision.num_channels, vision.num_channels * vision.patch_size**2

    def check(self, inputs: Mapping[str, ImageInput], image: Image) -> None:
        """
        Args:
            inputs: those that the encoder takes.

        Raises:
            UnfitImage: they are not those of an image.
        """
        if (video := inputs.get(VIDEO_PIXELS)) is not None:
            self._check_video(video, inputs, image)
            return
        if (pixels := inputs.get(PIXELS)) is None:
            raise UnfitImage(f"it has no {PIXELS}")
        for name, each in inputs.items():
            if not math.prod(each.shape):
                raise UnfitImage(f"{name} has an empty dimension: {list(each.shape)}")
            wanted = _SHAPES.get(name)
            if wanted and (each.shape != wanted or each.dtype != "int64"):
                raise _wrong_shape(each, f"int64 {list(wanted)}")
        if self._patch_values:
            self._check_patches(pixels, image)
        elif self._tile_values:
            self._check_shaped(pixels, inputs, image)
        elif self._pooled:
            self._check_placed(pixels, inputs.get(PLACES), image)
        else:
            self._check_tiles(pixels, inputs.get(MASK), image)

    def _check_patches(self, pixels: ImageInput, image: Image) -> None:
        frames, rows, columns = self.grid(image)
        count = frames * rows * columns * self._merge_size**2
        wanted: list[tuple[int, ...]] = [(count, self._patch_values * number) for number in (1, self._frames)]
        if not self._is_flat:
            wanted = [(count, self._channels, self._side_of_patch, self._side_of_patch)]
        if pixels.shape not in wanted:
            raise _wrong_shape(pixels, f"{' or '.join(str([*shape]) for shape in wanted)}, as {GRID} says")
        if frames > 1 and not self._reads_videos:
            raise UnfitImage(f"{GRID} has {frames} frames, but the model reads only still images")
        _check_channels(image, self._channels)

    @property
    def channels_last(self) -> bool:
        """Whether the encoder takes patches whose values are those of each pixel, not of each channel."""
        return self._pooled > 0 or self._tile_values > 0

    def _check_shaped(self, pixels: ImageInput, inputs: Mapping[str, ImageInput], image: Image) -> None:
        """Checks patches [patches, values] of tiles of any shape."""
        shapes = inputs.get(TILE_SHAPES)
        if shapes is None or shapes.dtype != "int64" or len(shapes.shape) != 2 or shapes.shape[-1] != 2:
            raise UnfitImage(f"it needs {TILE_SHAPES}, int64 [tiles, 2]")
        if MASK in inputs:
            raise UnfitImage(f"it has {MASK}, but patches are sent without padding")
        given = np.frombuffer(shapes.data, "<i8").reshape(shapes.shape).tolist()
        if any(side < 1 or side % self._tile_unit for tile in given for side in tile):
            raise UnfitImage(f"{TILE_SHAPES} must have positive multiples of {self._tile_unit}")
        if any(tile != given[0] for tile in given[1:-1]):
            raise UnfitImage(f"{TILE_SHAPES} must be the same for all tiles but the last one")
        wanted = (sum(map(math.prod, given)), self._tile_values)
        if pixels.shape != wanted:
            raise _wrong_shape(pixels, f"{list(wanted)}, as {TILE_SHAPES} says")
        _check_channels(image, self._channels)

    def _check_placed(self, pixels: ImageInput, places: ImageInput | None, image: Image) -> None:
        """Checks patches [images, patches, values], whose places must be those of whole images, row by row."""
        if places is None or places.dtype != "int64" or len(places.shape) != 3 or places.shape[-1] != 2:
            raise UnfitImage(f"it needs {PLACES}, int64 [images, patches, 2]")
        if pixels.shape != (*places.shape[:2], self._placed_values):
            raise _wrong_shape(pixels, f"{[*places.shape[:2], self._placed_values]}, as {PLACES} says")
        given = np.frombuffer(places.data, "<i8").reshape(places.shape)
        columns, rows = (given[0, -1] + 1).tolist()
        fits = min(columns, rows) > 0 and not (columns % self._pooled or rows % self._pooled)
        fits = fits and max(columns, rows) <= self._most_along and columns * rows == places.shape[1]
        if not fits or (given != np.indices((rows, columns))[::-1].reshape(2, -1).T).any():
            raise UnfitImage(
                f"{PLACES} must have column and row of each patch of whole images of the same size, row by row, up to "
                f"{self._most_along} patches along each side, in multiples of {self._pooled}"
            )
        _check_channels(image, _COLORS)

    def _check_video(self, pixels: ImageInput, inputs: Mapping[str, ImageInput], image: Image) -> None:
        if not self._takes_videos or len(inputs) > 1:
            raise UnfitImage(f"{VIDEO_PIXELS} is not what the encoder takes, or not alone")
        side = self._side or 0
        if len(pixels.shape) != 5 or pixels.shape[0] != 1 or pixels.shape[-2:] != (side, side) or not pixels.shape[1]:
            raise _wrong_shape(pixels, f"[1, frames, channels, {side}, {side}]")
        _check_channels(image, pixels.shape[_CHANNELS_DIMENSION])

    def _check_tiles(self, pixels: ImageInput, mask: ImageInput | None, image: Image) -> None:
        if len(pixels.shape) < -_CHANNELS_DIMENSION:
            raise _wrong_shape(pixels, "[…, channels, rows, columns]")
        if self._side and pixels.shape[-2:] != (self._side, self._side):
            raise _wrong_shape(pixels, f"[…, {self._side}, {self._side}]")
        _check_channels(image, pixels.shape[_CHANNELS_DIMENSION])
        if mask is not None and mask.shape != (*pixels.shape[:_CHANNELS_DIMENSION], *pixels.shape[-2:]):
            raise _wrong_shape(mask, f"that of {PIXELS} {list(pixels.shape)} without channels")

    def has_one_frame(self, pixels: ImageInput) -> bool:
        """Whether these are patches of a still image, for an encoder of patches with several frames."""
        return bool(self._patch_values) and pixels.shape[-1] == self._patch_values

    def grid(self, image: Image) -> tuple[int, int, int]:
        """Frames, rows and columns of the embeddings of an image whose tokens have three positions.

        Raises:
            UnfitImage: the image has no such grid.
        """
        given = next((each for each in image.inputs if each.name == GRID), None)
        if given is None or (given.dtype, given.shape) != ("int64", _SHAPES[GRID]):
            raise UnfitImage(f"it needs {GRID}, int64 {list(_SHAPES[GRID])}")
        frames, rows, columns = np.frombuffer(given.data, "<i8").tolist()
        if min(frames, rows, columns) < 1 or rows % self._merge_size or columns % self._merge_size:
            raise UnfitImage(
                f"{GRID} is {[frames, rows, columns]}; rows and columns must be positive multiples of "
                f"{self._merge_size}"
            )
        return frames, rows // self._merge_size, columns // self._merge_size

    def num_kept(self, image: Image) -> int:
        """How many of an image's embeddings the prompt has, if not all of them; else 0.

        Raises:
            UnfitImage: it is not a number of embeddings from those of a frame on.
        """
        given = next((each for each in image.inputs if each.name == KEPT), None)
        if given is None:
            return 0
        if self.is_apart_in_time:
            raise UnfitImage(f"{KEPT} is for models whose prompts have all of a video's embeddings together")
        frames, rows, columns = self.grid(image)
        least, most = rows * columns, frames * rows * columns
        if (given.dtype, given.shape) != ("int64", (1,)) or not least <= (kept := _integer(given)) <= most:
            raise UnfitImage(f"{KEPT} must be int64 [1], from {least} to {most}")
        return kept

    def seconds(self, image: Image) -> float:
        """The seconds from one patch of a video to the next one in time.

        Raises:
            UnfitImage: the video does not have them.
        """
        given = next((each for each in image.inputs if each.name == SECONDS), None)
        if given is None or (given.dtype, given.shape) != ("float32", (1,)):
            raise UnfitImage(f"it needs {SECONDS}, float32 [1]")
        (found,) = np.frombuffer(given.data, "<f4").tolist()
        if not 0 < found <= _MOST_SECONDS:
            raise UnfitImage(f"{SECONDS} is {found}; it must be positive, and at most {_MOST_SECONDS:g}")
        return float(found)


def _integer(given: ImageInput) -> int:
    return int(np.frombuffer(given.data, "<i8")[0])


def _wrong_shape(given: ImageInput, wanted: str) -> UnfitImage:
    return UnfitImage(f"{given.name} is {given.dtype} {list(given.shape)}, but the encoder takes {wanted}")


def _check_channels(image: Image, channels: int) -> None:
    scales, shifts = len(image.pixel_scale), len(image.pixel_shift)
    if not scales == shifts == channels:
        raise UnfitImage(f"it has {scales} scales and {shifts} shifts for pixels with {channels} color channels")
