"""The forms in which encoders take images, apart from patches in a grid (see input_checks.py), and their checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine_svc.media.unfit import UnfitImage, check_channels, integer, wrong_shape
from quire.images import LOCAL_PIXELS, PIXELS, PLACES, TILE_SHAPES, Image, ImageInput

MASK, MASK_OF_ARIA = "pixel_attention_mask", "pixel_mask"
FINE = "tile_fine_mask"  # whether an image has four times as many embeddings
NUM_TILES = "num_local_patches"
TILE_SIZES = "target_sizes"  # rows and columns of the patches of each tile, where patches stand in one row
COLORS = 3
_CHANNELS_DIMENSION = -3
# Encoders of tiles of one size; others take images of many.
_OF_ONE_SIZE = frozenset({
    "clip_vision_model", "got_ocr2_vision", "llama4_vision_model", "ovis2_vision", "siglip_vision_model",
})  # fmt: skip
# Pixels along the sides of views: embeddings along these, and patches along each side of an embedding.
_EMBEDDINGS_OF_VIEWS = (12, 16)
_PATCHES_OF_EMBEDDING = 4


class InputForm(Protocol):
    """A form in which an encoder takes images.

    Attributes:
        channels_last: whether patches' values are those of each pixel, not of each channel.
    """

    channels_last: bool

    def check(self, pixels: ImageInput, inputs: Mapping[str, ImageInput], image: Image) -> None:
        """
        Args:
            inputs: those that the encoder takes, the pixels among them.

        Raises:
            UnfitImage: they are not those of an image.
        """
        ...


@dataclass(frozen=True)
class Tiles:
    """Tiles […, channels, rows, columns], and maybe which of their pixels are padding."""

    sides: tuple[int, ...] = ()  # in pixels; empty if tiles may have any size
    channels_last = False

    def check(self, pixels: ImageInput, inputs: Mapping[str, ImageInput], image: Image) -> None:
        """See InputForm.check."""
        if len(pixels.shape) < -_CHANNELS_DIMENSION:
            raise wrong_shape(pixels, "[…, channels, rows, columns]")
        if self.sides and pixels.shape[-2:] not in [(side, side) for side in self.sides]:
            raise wrong_shape(pixels, " or ".join(f"[…, {side}, {side}]" for side in self.sides))
        check_channels(image, pixels.shape[_CHANNELS_DIMENSION])
        mask = inputs.get(MASK, inputs.get(MASK_OF_ARIA))
        if mask is not None and mask.shape != (*pixels.shape[:_CHANNELS_DIMENSION], *pixels.shape[-2:]):
            raise wrong_shape(mask, f"that of {PIXELS} {list(pixels.shape)} without channels")


@dataclass(frozen=True)
class MaskedTiles:
    """Tiles [1, tiles, channels, rows, columns] with a mask of tiles, all of which there must be (Granite Docling)."""

    side: int
    has_fine_route: bool
    channels_last = False

    def check(self, pixels: ImageInput, inputs: Mapping[str, ImageInput], image: Image) -> None:
        """See InputForm.check."""
        Tiles((self.side,)).check(pixels, {}, image)
        wanted, mask, fine = pixels.shape[:-3], inputs.get(MASK), inputs.get(FINE)
        if len(wanted) != 2 or wanted[0] != 1 or pixels.shape[-3] != COLORS:
            raise wrong_shape(pixels, f"[1, tiles, {COLORS}, {self.side}, {self.side}]")
        if mask is None or not _is_all_true(mask, wanted):
            raise UnfitImage(f"it needs {MASK}, bool {list(wanted)}, all of it true")
        if fine is not None and not (self.has_fine_route and _is_all_true(fine, (1,))):
            raise UnfitImage(f"{FINE} must be bool [1] and true, and is for models with a fine route only")


@dataclass(frozen=True)
class ShapedTiles:
    """Patches [patches, values] of tiles of any shape, tile by tile (SigLIP 2)."""

    unit: int  # patches along each side of an embedding
    channels: int
    side_of_patch: int
    channels_last = True

    def check(self, pixels: ImageInput, inputs: Mapping[str, ImageInput], image: Image) -> None:
        """See InputForm.check."""
        if MASK in inputs:
            raise UnfitImage(f"it has {MASK}, but patches are sent without padding")
        shapes = _tile_sizes(inputs, TILE_SHAPES, (self.unit, self.unit))
        if (shapes[:-1] != shapes[0]).any():
            raise UnfitImage(f"{TILE_SHAPES} must be the same for all tiles but the last one")
        wanted = (_area(shapes), self.channels * self.side_of_patch**2)
        if pixels.shape != wanted:
            raise wrong_shape(pixels, f"{list(wanted)}, as {TILE_SHAPES} says")
        check_channels(image, self.channels)


@dataclass(frozen=True)
class TilesInARow:
    """Patches [1, channels, side, pixels] of tiles of any size, which stand in one row (MiniCPM-V)."""

    unit: tuple[int, int]  # rows and columns of the patches of an embedding
    channels: int
    side_of_patch: int
    channels_last = False

    def check(self, pixels: ImageInput, inputs: Mapping[str, ImageInput], image: Image) -> None:
        """See InputForm.check."""
        count = _area(_tile_sizes(inputs, TILE_SIZES, self.unit))
        wanted = (1, self.channels, self.side_of_patch, count * self.side_of_patch)
        if pixels.shape != wanted:
            raise wrong_shape(pixels, f"{list(wanted)}, as {TILE_SIZES} says")
        check_channels(image, self.channels)


@dataclass(frozen=True)
class Views:
    """A small copy of an image [1, channels, side, side], and maybe tiles of it, as many as wanted (DeepSeek-OCR)."""

    channels: int
    sides: tuple[int, ...]  # in pixels
    channels_last = False

    def check(self, pixels: ImageInput, inputs: Mapping[str, ImageInput], image: Image) -> None:
        """See InputForm.check."""
        tiles, count = inputs.get(LOCAL_PIXELS), inputs.get(NUM_TILES)
        for view in [pixels] if tiles is None else [pixels, tiles]:
            fits = len(view.shape) == 4 and (view is tiles or view.shape[0] == 1)
            if not fits or view.shape[1:] not in [(self.channels, side, side) for side in self.sides]:
                number = "tiles" if view is tiles else 1
                raise wrong_shape(view, f"[{number}, {self.channels}, side, side] with {self.sides} pixels")
        if count is None or integer(count) != (0 if tiles is None else tiles.shape[0]):
            raise UnfitImage(f"it needs {NUM_TILES}, int64 [1], which is how many tiles {LOCAL_PIXELS} has")
        check_channels(image, self.channels)


@dataclass(frozen=True)
class PlacedPatches:
    """Patches [images, patches, values] with their places, those of whole images, row by row (Gemma 4)."""

    pooled: int  # patches along each side of an embedding
    most_along: int  # patches along a side of an image
    side_of_patch: int
    channels_last = True

    def check(self, pixels: ImageInput, inputs: Mapping[str, ImageInput], image: Image) -> None:
        """See InputForm.check."""
        places, values = inputs.get(PLACES), COLORS * self.side_of_patch**2
        if places is None or places.dtype != "int64" or len(places.shape) != 3 or places.shape[-1] != 2:
            raise UnfitImage(f"it needs {PLACES}, int64 [images, patches, 2]")
        if pixels.shape != (*places.shape[:2], values):
            raise wrong_shape(pixels, f"{[*places.shape[:2], values]}, as {PLACES} says")
        given = np.frombuffer(places.data, "<i8").reshape(places.shape)
        columns, rows = (given[0, -1] + 1).tolist()
        fits = min(columns, rows) > 0 and not (columns % self.pooled or rows % self.pooled)
        fits = fits and max(columns, rows) <= self.most_along and columns * rows == places.shape[1]
        if not fits or (given != np.indices((rows, columns))[::-1].reshape(2, -1).T).any():
            raise UnfitImage(
                f"{PLACES} must have column and row of each patch of whole images of the same size, row by row, up to "
                f"{self.most_along} patches along each side, in multiples of {self.pooled}"
            )
        check_channels(image, COLORS)


def form_of(config: Any) -> InputForm:
    """The form in which a model's encoder takes images, unless it takes patches in a grid.

    Args:
        config: of the model.
    """
    vision = config.vision_config
    match vision.model_type:
        case "gemma4_vision":
            return PlacedPatches(vision.pooling_kernel_size, vision.position_embedding_size, vision.patch_size)
        case "gemma4_unified_vision":  # without an encoder: patches are merged beforehand
            return PlacedPatches(1, vision.mm_posemb_size, vision.model_patch_size)
        case "siglip2_vision_model":
            return ShapedTiles(getattr(config, "downsample_factor", 1), vision.num_channels, vision.patch_size)
        case "minicpmv4_6_vision" | "minicpm_ocr_vision":
            return TilesInARow(_merged(config), vision.num_channels, vision.patch_size)
        case "deepseek_ocr2_vision":
            side = _PATCHES_OF_EMBEDDING * vision.sam_config.patch_size
            return Views(vision.sam_config.num_channels, tuple(count * side for count in _EMBEDDINGS_OF_VIEWS))
        case "granite_docling_vision":
            return MaskedTiles(vision.image_size, bool(vision.use_fine_route))
    if config.model_type == "aria":  # whose projector knows these numbers of patches
        return Tiles(tuple(math.isqrt(count) * vision.patch_size for count in config.projector_patch_to_query_dict))
    return Tiles((vision.image_size,) if vision.model_type in _OF_ONE_SIZE else ())


def _merged(config: Any) -> tuple[int, int]:
    """Rows and columns of the patches of an embedding of MiniCPM-V, which merges them several times."""
    rows, columns = (side**config.merger_times for side in config.merge_kernel_size)
    if config.downsample_mode == "4x":  # windows are not merged
        return rows, columns
    window_rows, window_columns = config.vision_config.window_kernel_size
    return rows * window_rows, columns * window_columns


def _tile_sizes(inputs: Mapping[str, ImageInput], name: str, unit: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Rows and columns of the patches of each tile: int64 [tiles, 2].

    Args:
        unit: rows and columns of the patches of an embedding.

    Raises:
        UnfitImage: there is no such input, or a tile does not have whole embeddings.
    """
    given = inputs.get(name)
    if given is None or given.dtype != "int64" or len(given.shape) != 2 or given.shape[-1] != 2:
        raise UnfitImage(f"it needs {name}, int64 [tiles, 2]")
    sizes = np.frombuffer(given.data, "<i8").reshape(given.shape)
    if (sizes < 1).any() or (sizes % unit).any():
        raise UnfitImage(f"{name} must have positive multiples of {unit[0]} rows and {unit[1]} columns")
    return sizes


def _area(sizes: npt.NDArray[np.int64]) -> int:
    """Patches of all tiles."""
    return sum(map(math.prod, sizes.tolist()))  # by Python, whose integers do not overflow


def _is_all_true(given: ImageInput, shape: tuple[int, ...]) -> bool:
    return (given.dtype, given.shape) == ("bool", shape) and all(given.data)
