"""Checks the inputs of an image before they are encoded.

An encoder was made for what its image processor returns. Given anything else it may raise, or worse: a few kilobytes
can make it allocate any amount of memory, and on a GPU an index that is out of range ends the process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.images import LOCAL_PIXELS, MARKS, PIXELS, PLACES, TILE_SHAPES, VIDEO_PIXELS, Image, ImageInput

GRID = "image_grid_thw"  # patches by time, row and column
SECONDS = "second_per_grid_ts"  # from one patch of a video to the next one in time
MASK = "pixel_attention_mask"
KEPT = "num_kept"  # of the embeddings of a video
MERGE = "image_merge_sizes"  # patches along each side of an embedding, where each image has its own
FINE = "tile_fine_mask"  # whether an image has four times as many embeddings
NUM_TILES = "num_local_patches"
TILE_SIZES = "target_sizes"  # rows and columns of the patches of each tile, where patches stand in one row
_MOST_SECONDS = 1e5
_MARKS_AROUND = 2  # before and after an image; each tile may have one more
# Inputs beside pixels and their mask: int64, of one image.
_SHAPES: Mapping[str, tuple[int, ...]] = {
    GRID: (1, 3), MERGE: (1,), "image_sizes": (1, 2), "batch_num_images": (1,), NUM_TILES: (1,),
}  # fmt: skip
_CHANNELS_DIMENSION = -3
# Encoders of tiles of one size; others take images of many.
_OF_ONE_SIZE = frozenset({
    "clip_vision_model", "got_ocr2_vision", "granite_docling_vision", "llama4_vision_model", "ovis2_vision",
    "siglip_vision_model",
})  # fmt: skip
# Those of them whose masks tell which tiles there are, not which pixels.
_OF_MASKED_TILES = frozenset({"granite_docling_vision"})
# Encoders of patches that learn from each image how many make an embedding.
_OF_OWN_MERGE = frozenset({"video_llama_3_vision"})
# Encoders of patches that come with their places.
_OF_PLACED_PATCHES = frozenset({"gemma4_unified_vision", "gemma4_vision"})
# Encoders of tiles of any shape, whose patches come together, tile by tile.
_OF_SHAPED_TILES = frozenset({"siglip2_vision_model"})
# Encoders of tiles of any size, whose patches stand in one row of pixels, tile by tile.
_OF_TILES_IN_A_ROW = frozenset({"minicpmv4_6_vision"})
# Encoders of views of a few sizes, each of which is a small copy of the image or a tile: embeddings along their sides.
_OF_VIEWS: Mapping[str, tuple[int, ...]] = {"deepseek_ocr2_vision": (12, 16)}
_PATCHES_OF_VIEW = 4  # along each side of an embedding
# Encoders of patches with embeddings for the ends of rows.
_OF_ENDED_ROWS = frozenset({"hunyuan_vl_vision"})
_COLORS = 3

# Models that treat videos in another way than images, and so take their pixels by another name.
_OF_VIDEOS = frozenset({"llava_onevision"})
# See InputChecks.is_apart_in_time.
_APART_IN_TIME = frozenset(
    {"glm46v", "glm4v", "glm4v_moe", "glm_ocr", "lfm3_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}
)

INPUTS = frozenset({PIXELS, LOCAL_PIXELS, PLACES, TILE_SHAPES, TILE_SIZES, VIDEO_PIXELS, MASK, FINE, *_SHAPES})


class UnfitImage(ValueError):
    """An image does not fit the encoder or its place in the prompt; the message is for the caller."""


class InputChecks:
    """What the image encoder of a model was made for.

    Attributes:
        is_apart_in_time: whether prompts have other tokens between those of a video's frames, which the model reads as
            images of their own.
        ends_rows: whether an image has an embedding more at the end of each row, and one before and after all of them.
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
        self.ends_rows = vision.model_type in _OF_ENDED_ROWS
        self._channels = self._patch_values = 0  # of encoders that take patches instead of pixels in rows and columns
        self._has_own_merge = vision.model_type in _OF_OWN_MERGE
        if merge_size:
            # Whether a patch is a row of values.
            self._is_flat = hasattr(vision, "in_channels") or self._has_own_merge or self.ends_rows
            self._channels = getattr(vision, "in_channels", getattr(vision, "num_channels", _COLORS))
            self._frames = getattr(vision, "temporal_patch_size", 1)
            self._side_of_patch = vision.patch_size
            self._patch_values = self._channels * vision.patch_size**2  # of one frame
        self._side: int | None = vision.image_size if vision.model_type in _OF_ONE_SIZE else None
        self._masks_tiles = vision.model_type in _OF_MASKED_TILES
        self._has_fine_route = bool(getattr(vision, "use_fine_route", False))
        # Of encoders that take patches with their places: patches along each side of an embedding, most along a side of
        # an image, and values of a patch.
        self._pooled = self._most_along = self._placed_values = 0
        if vision.model_type in _OF_PLACED_PATCHES:
            # Of models without an encoder, patches are merged beforehand.
            merged = getattr(vision, "model_patch_size", None)
            self._pooled = 1 if merged else vision.pooling_kernel_size
            self._most_along = vision.mm_posemb_size if merged else vision.position_embedding_size
            self._placed_values = _COLORS * (merged or vision.patch_size) ** 2
        # Of encoders of tiles of any shape: patches along each side of an embedding, and values of a patch.
        self._tile_unit = self._tile_values = 0
        if vision.model_type in _OF_SHAPED_TILES:
            self._tile_unit = getattr(config, "downsample_factor", 1)
            self._channels, self._tile_values = vision.num_channels, vision.num_channels * vision.patch_size**2
        # Of encoders of views: pixels along their sides.
        self.sides_of_views: tuple[int, ...] = ()
        if sides := _OF_VIEWS.get(vision.model_type):
            self.sides_of_views = tuple(side * _PATCHES_OF_VIEW * vision.sam_config.patch_size for side in sides)
            self._channels = vision.sam_config.num_channels
        # Of encoders of tiles whose patches stand in one row: patches along each side of an embedding.
        self._row_unit: tuple[int, int] | None = None
        if vision.model_type in _OF_TILES_IN_A_ROW:
            self._row_unit = _merged(config)
            self._channels, self._side_of_patch = vision.num_channels, vision.patch_size

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
        elif self.sides_of_views:
            self._check_views(pixels, inputs, image)
        elif self._row_unit:
            self._check_row(pixels, inputs.get(TILE_SIZES), self._row_unit, image)
        elif self._masks_tiles:
            self._check_masked_tiles(pixels, inputs, image)
        else:
            self._check_tiles(pixels, inputs.get(MASK), image)

    def _check_patches(self, pixels: ImageInput, image: Image) -> None:
        frames, rows, columns = self.grid(image)
        count = frames * rows * columns * self._merge_of(image) ** 2
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

    def _check_views(self, pixels: ImageInput, inputs: Mapping[str, ImageInput], image: Image) -> None:
        """Checks a small copy of an image [1, channels, side, side], and its tiles, if any."""
        tiles, count = inputs.get(LOCAL_PIXELS), inputs.get(NUM_TILES)
        views = [pixels] if tiles is None else [pixels, tiles]
        for view in views:
            fits = len(view.shape) == 4 and (view is tiles or view.shape[0] == 1)
            if not fits or view.shape[1:] not in [(self._channels, side, side) for side in self.sides_of_views]:
                number = "tiles" if view is tiles else 1
                raise _wrong_shape(view, f"[{number}, {self._channels}, side, side] with {self.sides_of_views} pixels")
        if count is None or _integer(count) != (0 if tiles is None else tiles.shape[0]):
            raise UnfitImage(f"it needs {NUM_TILES}, int64 [1], which is how many tiles {LOCAL_PIXELS} has")
        _check_channels(image, self._channels)

    def _check_row(self, pixels: ImageInput, sizes: ImageInput | None, unit: tuple[int, int], image: Image) -> None:
        """Checks patches [1, channels, patch_size, pixels] of tiles of any size, in one row."""
        if sizes is None or sizes.dtype != "int64" or len(sizes.shape) != 2 or sizes.shape[-1] != 2:
            raise UnfitImage(f"it needs {TILE_SIZES}, int64 [tiles, 2]")
        given = np.frombuffer(sizes.data, "<i8").reshape(sizes.shape)
        if (given < 1).any() or (given % unit).any():
            raise UnfitImage(f"{TILE_SIZES} must have positive multiples of {unit[0]} rows and {unit[1]} columns")
        count = sum(map(math.prod, given.tolist()))  # by Python, whose integers do not overflow
        wanted = (1, self._channels, self._side_of_patch, count * self._side_of_patch)
        if pixels.shape != wanted:
            raise _wrong_shape(pixels, f"{list(wanted)}, as {TILE_SIZES} says")
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

    def _check_masked_tiles(self, pixels: ImageInput, inputs: Mapping[str, ImageInput], image: Image) -> None:
        """Checks tiles [1, tiles, channels, rows, columns], all of which there must be."""
        self._check_tiles(pixels, None, image)
        wanted, mask, fine = pixels.shape[:-3], inputs.get(MASK), inputs.get(FINE)
        if len(wanted) != 2 or wanted[0] != 1 or pixels.shape[-3] != _COLORS:
            raise _wrong_shape(pixels, f"[1, tiles, {_COLORS}, {self._side}, {self._side}]")
        if mask is None or not _is_all_true(mask, wanted):
            raise UnfitImage(f"it needs {MASK}, bool {list(wanted)}, all of it true")
        if fine is not None and not (self._has_fine_route and _is_all_true(fine, (1,))):
            raise UnfitImage(f"{FINE} must be bool [1] and true, and is for models with a fine route only")

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
        merge = self._merge_of(image)
        if min(frames, rows, columns) < 1 or rows % merge or columns % merge:
            raise UnfitImage(
                f"{GRID} is {[frames, rows, columns]}; rows and columns must be positive multiples of {merge}"
            )
        return frames, rows // merge, columns // merge

    def _merge_of(self, image: Image) -> int:
        """Patches along each side of an embedding.

        Raises:
            UnfitImage: the image must tell, and does not.
        """
        if not self._has_own_merge:
            return self._merge_size
        given = next((each for each in image.inputs if each.name == MERGE), None)
        if given is None or (given.dtype, given.shape) != ("int64", _SHAPES[MERGE]) or (found := _integer(given)) < 1:
            raise UnfitImage(f"it needs {MERGE}, int64 {list(_SHAPES[MERGE])}, at least 1")
        return found

    def num_kept(self, image: Image) -> int:
        """How many of an image's embeddings the prompt has, if not all of them; else 0.

        Raises:
            UnfitImage: it is not a number of embeddings from those of a frame on.
        """
        given = next((each for each in image.inputs if each.name == KEPT), None)
        if given is None:
            return 0
        if self.is_apart_in_time or self.ends_rows:
            raise UnfitImage(f"{KEPT} is for models whose prompts have all of a video's embeddings together")
        frames, rows, columns = self.grid(image)
        least, most = rows * columns, frames * rows * columns
        if (given.dtype, given.shape) != ("int64", (1,)) or not least <= (kept := _integer(given)) <= most:
            raise UnfitImage(f"{KEPT} must be int64 [1], from {least} to {most}")
        return kept

    def marks(self, image: Image, num_embeddings: int, num_marks: int) -> npt.NDArray[np.int64]:
        """Which mark each token of an image is, or -1 for an embedding of its pixels: int64 [tokens].

        Args:
            num_embeddings: of the image's tiles together.
            num_marks: how many kinds the encoder has.

        Raises:
            UnfitImage: there are more marks than tiles need, or not as many others as embeddings.
        """
        given = next((each for each in image.inputs if each.name == MARKS), None)
        if given is None or given.dtype != "int64" or len(given.shape) != 1:
            raise UnfitImage(f"it needs {MARKS}, int64 [tokens]")
        pixels = next(each for each in image.inputs if each.name == PIXELS)
        most = num_embeddings + pixels.shape[0] + _MARKS_AROUND
        if given.shape[0] > most:
            raise UnfitImage(f"{MARKS} has {given.shape[0]} tokens; {pixels.shape[0]} tiles have {most} at most")
        found = np.frombuffer(given.data, "<i8")
        if found.min() < -1 or found.max() >= num_marks or (found < 0).sum() != num_embeddings:
            raise UnfitImage(f"{MARKS} must be from -1 to {num_marks - 1}, and -1 for {num_embeddings} embeddings")
        return found

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


def _merged(config: Any) -> tuple[int, int]:
    """Rows and columns of the patches of an embedding of MiniCPM-V, which merges them several times."""
    rows, columns = (side**config.merger_times for side in config.merge_kernel_size)
    if config.downsample_mode == "4x":  # windows are not merged
        return rows, columns
    window_rows, window_columns = config.vision_config.window_kernel_size
    return rows * window_rows, columns * window_columns


def _is_all_true(given: ImageInput, shape: tuple[int, ...]) -> bool:
    return (given.dtype, given.shape) == ("bool", shape) and all(given.data)


def _integer(given: ImageInput) -> int:
    return int(np.frombuffer(given.data, "<i8")[0])


def _wrong_shape(given: ImageInput, wanted: str) -> UnfitImage:
    return UnfitImage(f"{given.name} is {given.dtype} {list(given.shape)}, but the encoder takes {wanted}")


def _check_channels(image: Image, channels: int) -> None:
    scales, shifts = len(image.pixel_scale), len(image.pixel_shift)
    if not scales == shifts == channels:
        raise UnfitImage(f"it has {scales} scales and {shifts} shifts for pixels with {channels} color channels")
