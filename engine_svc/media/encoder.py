"""Encodes images to embeddings of the text model, with the image encoder and projector of the Transformers library."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.media.base import EncodedImage, joined, tensor_of
from engine_svc.media.given_embeddings import GivenEmbeddings
from engine_svc.media.input_checks import INPUTS, InputChecks
from engine_svc.media.input_forms import MASK, TILE_SIZES
from engine_svc.media.pruning import most_changed
from engine_svc.media.rotary_positions import PlacedGrid
from engine_svc.media.unfit import UnfitImage
from quire.images import GRID, LOCAL_PIXELS, PIXELS, PLACES, TILE_SHAPES, VIDEO_PIXELS, Image, ImageInput
from quire.media import MediaKind

_VIDEO_IDS = ("video_token_id", "video_token_index")
_MOST_PATCHES = 16384  # of a video that are encoded at once; the rest follows, so that memory stays bounded
_MOST_PIXELS = 1024**2  # of tiles that are encoded at once: GOT-OCR's attention takes 0.8 GB for such a tile
_DIMENSIONS_OF_TILES = 4  # tiles, channels, rows, columns


class ImageEncoder:
    """The parts of a vision-language model that turn an image or a video into embeddings.

    Attributes: see MediaEncoder.
    """

    frames_per_token = 0

    def __init__(self, model: Any, kinds: frozenset[MediaKind], dtype: torch.dtype, device: torch.device) -> None:
        """
        Args:
            model: from `load_encoder`.
        """
        config = model.config
        self.kinds = kinds
        video_ids = (getattr(config, name, None) for name in _VIDEO_IDS)
        video_tokens = [each for each in video_ids if isinstance(each, int)]
        mark_ids = getattr(config, "visual_indicator_token_ids", ())
        self.token_ids: Sequence[int] | None = [config.image_token_id, *video_tokens, *mark_ids]
        self._num_marks = len(mark_ids)
        self._num_frames: int = getattr(config.vision_config, "temporal_patch_size", 1)  # in a patch
        # Positions in time for a second of video; 0 for models that count patches instead.
        self._positions_per_second: float = getattr(
            config, "position_id_per_seconds", getattr(config.vision_config, "tokens_per_second", 0)
        )
        self._model = model
        self._given = GivenEmbeddings(config, dtype, device)
        self._dtype, self._device = dtype, device
        self._names = INPUTS & {VIDEO_PIXELS, *inspect.signature(model.get_image_features).parameters}
        # Patches along each side of an embedding, for encoders of patches in a grid; else 0.
        self._merge_size: int = _merge_size(config.vision_config) if GRID in self._names else 0
        # Whether tokens of images have three positions. MiniCPM-V's do not, although Qwen's text model could.
        rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
        self._is_turned = "mrope_section" in rope and GRID in self._names
        self._num_positions = len(rope.get("mrope_section", ()))
        self._checks = InputChecks(config, self._merge_size, reads_videos=MediaKind.VIDEO in kinds)

    @torch.inference_mode()
    def encode(self, image: Image) -> EncodedImage:
        """See MediaEncoder.encode."""
        if (given := self._given.of(image)) is not None:
            self.grids(image, np.arange(len(given.embeddings)))  # they fit
            return given
        return self._encoded(image)

    def _encoded(self, image: Image) -> EncodedImage:
        given = {each.name: each for each in image.inputs if each.name in self._names}
        self._checks.check(given, image)
        moved = {name: self._moved(each, image) for name, each in given.items()}
        if VIDEO_PIXELS in moved:
            return self._of(self._model.get_video_features(**moved))
        if self._num_marks:
            return self._with_marks(moved[PIXELS], image)
        if self._checks.has_views:
            return self._with_views(moved)
        apart = _parts(moved, by_frames=self._checks.is_apart_in_time)
        parts = [self._of(self._model.get_image_features(**part)) for part in apart]
        deep = [each.deep for each in parts if each.deep is not None]
        embeddings = torch.cat([each.embeddings for each in parts])
        if self._merge_size and (count := self._checks.num_kept(image)):
            kept = most_changed(embeddings, self._checks.grid(image)[0], count)
            return EncodedImage(embeddings[kept], None, kept.cpu().numpy())
        return EncodedImage(embeddings, torch.cat(deep) if deep else None)

    def _with_marks(self, tiles: torch.Tensor, image: Image) -> EncodedImage:
        """The embeddings of tiles [tiles, channels, rows, columns], and those of the marks around and between them.

        One tile after another, because each embedding is first a distribution over a vocabulary (Ovis 2).
        """
        one, *others = tiles.split(1)
        found = [self._model.get_image_features(one)]
        count = len(joined(found[0].pooler_output)) * len(tiles)
        places = self._checks.marks(image, count, self._num_marks).copy()  # before the other tiles take time
        found += [self._model.get_image_features(tile) for tile in others]
        embeddings = torch.cat([joined(each.pooler_output) for each in found])
        known = torch.cat([found[0].visual_indicator_features, embeddings]).to(self._dtype)
        places[places < 0] = np.arange(len(embeddings)) + self._num_marks
        return EncodedImage(known[torch.from_numpy(places).to(self._device)], None)

    def _with_views(self, inputs: Mapping[str, torch.Tensor]) -> EncodedImage:
        """The embeddings of an image's tiles, of a small copy of it, and what ends them (DeepSeek-OCR).

        Each is encoded alone, as if it were a whole image, because the encoder adds a number to each pair of patches.
        """
        tiles = [*inputs[LOCAL_PIXELS].split(1)] if LOCAL_PIXELS in inputs else []
        *found, whole = (self._of(self._model.get_image_features(view)).embeddings for view in (*tiles, inputs[PIXELS]))
        return EncodedImage(torch.cat([*(each[:-1] for each in found), whole]), None)

    def _of(self, found: Any) -> EncodedImage:
        """What an encoder returned."""
        features = getattr(found, "deepstack_features", None) or ()
        # Granite 4 Vision tells with each for which layer it is, and has nothing else.
        features = [each[1] if isinstance(each[0], int) else each for each in features]
        deep = [joined(each).to(self._dtype) for each in features]
        embeddings = found.pooler_output
        if embeddings is None and deep:
            embeddings = torch.zeros_like(deep[0])
        elif embeddings is None:  # Llama 4's are projected by the whole model
            embeddings = self._model.multi_modal_projector(found.last_hidden_state)
        return EncodedImage(joined(embeddings).to(self._dtype), torch.stack(deep, 1) if deep else None)

    def grids(
        self, image: Image, places: npt.NDArray[np.int64], encoded: EncodedImage | None = None
    ) -> list[PlacedGrid]:
        """See MediaEncoder.grids."""
        if not self._is_turned:
            return []
        frames, rows, columns = self._checks.grid(image)
        if self._checks.ends_rows:
            return [self._ended_grid(rows, columns, places)]
        num_kept = self._checks.num_kept(image)
        if (num_kept or frames * rows * columns) != len(places):
            some = f", of which {num_kept} are kept," if num_kept else ""
            raise UnfitImage(
                f"a grid of {frames} x {rows} x {columns} embeddings{some} does not fit {len(places)} tokens"
            )
        interval = 1.0
        if self._positions_per_second and frames > 1:
            interval = self._positions_per_second * self._checks.seconds(image)
        kept = None
        if num_kept:
            kept = np.arange(num_kept) if encoded is None or encoded.kept is None else encoded.kept
        apart = frames if self._checks.is_apart_in_time else 1
        grids = []
        for own in places.reshape(apart, -1):
            if own[-1] - own[0] >= len(own):
                raise UnfitImage("there are other tokens between its own")
            grids.append(PlacedGrid(int(own[0]), frames // apart, rows, columns, interval, kept))
        return grids

    def _ended_grid(self, rows: int, columns: int, places: npt.NDArray[np.int64]) -> PlacedGrid:
        """The grid of an image of HunYuan: all but its first and its last token.

        Raises:
            UnfitImage: see `grids`.
        """
        size = rows * (columns + 1) + 2
        if len(places) != size or places[-1] - places[0] >= size:
            raise UnfitImage(
                f"{rows} x {columns} embeddings and the ends of rows do not fit {len(places)} tokens, or there are "
                "other tokens between its own"
            )
        return PlacedGrid(int(places[0]) + 1, 1, rows, columns + 1, num_positions=self._num_positions)

    def _moved(self, given: ImageInput, image: Image) -> torch.Tensor:
        values = tensor_of(given, self._device)
        if given.name not in (PIXELS, LOCAL_PIXELS, VIDEO_PIXELS):
            return values
        if self._checks.channels_last:
            return _normalized_patches(values, image)  # some encoders scale them before they round them
        pixels = _normalized(values, image).to(self._dtype)
        if self._checks.has_one_frame(given):
            return _repeated(pixels, len(image.pixel_scale), self._num_frames)
        return pixels


def _merge_size(vision: Any) -> int:
    """Patches along each side of an embedding."""
    names = ("spatial_merge_size", "merge_kernel_size")
    found = next(filter(None, (getattr(vision, name, None) for name in names)), 1)
    return int(found if isinstance(found, int) else found[0])


def _parts(inputs: Mapping[str, torch.Tensor], *, by_frames: bool) -> Iterator[Mapping[str, torch.Tensor]]:
    """The inputs of a video in parts of whole frames, if it has many patches: frames do not attend to each other.

    Those of tiles of several shapes in parts of the same shape, so that none is filled up to the largest one. Tiles of
    one shape, which do not attend to each other either, in parts of a few tiles.

    Args:
        by_frames: each frame has a grid of its own, as if it were an image.
    """
    if (places := inputs.get(PLACES)) is not None:
        most = max(1, _MOST_PATCHES // places.shape[1])
        for some, own in zip(inputs[PIXELS].split(most), places.split(most), strict=True):
            yield {PIXELS: some, PLACES: own}
        return
    if TILE_SHAPES in inputs:
        yield from _tiles_by_shape(inputs[PIXELS], inputs[TILE_SHAPES])
        return
    if TILE_SIZES in inputs:
        yield from _tiles_in_row(inputs[PIXELS], inputs[TILE_SIZES])
        return
    if inputs.keys() == {PIXELS} and inputs[PIXELS].dim() == _DIMENSIONS_OF_TILES:
        most = max(1, _MOST_PIXELS // math.prod(inputs[PIXELS].shape[-2:]))
        yield from ({PIXELS: some} for some in inputs[PIXELS].split(most))
        return
    grid = inputs.get(GRID)
    if grid is None or not (by_frames or len(inputs[PIXELS]) > _MOST_PATCHES):
        yield inputs
        return
    frames, rows, columns = grid[0].tolist()
    count = max(1, _MOST_PATCHES // (rows * columns))
    for first in range(0, frames, count):
        some = slice(first * rows * columns, (first + count) * rows * columns)
        own = min(count, frames - first)
        grids = [[1, rows, columns]] * own if by_frames else [[own, rows, columns]]
        yield {**inputs, PIXELS: inputs[PIXELS][some], GRID: torch.tensor(grids, device=grid.device)}


def _tiles_by_shape(patches: torch.Tensor, shapes: torch.Tensor) -> Iterator[Mapping[str, torch.Tensor]]:
    """Tiles of one shape after another as an encoder of filled-up tiles takes them: [tiles, patches, values]."""
    first = 0
    for (rows, columns), same in itertools.groupby(shapes.tolist()):
        size, own = rows * columns, torch.tensor([*same], device=shapes.device)
        tiles = patches[first : first + len(own) * size].view(len(own), size, -1)
        first += len(own) * size
        most = max(1, _MOST_PATCHES // size)
        for some, some_shapes in zip(tiles.split(most), own.split(most), strict=True):
            mask = torch.ones(some.shape[:2], dtype=torch.bool, device=some.device)
            yield {PIXELS: some, TILE_SHAPES: some_shapes, MASK: mask}


def _tiles_in_row(pixels: torch.Tensor, sizes: torch.Tensor) -> Iterator[Mapping[str, torch.Tensor]]:
    """Tiles whose patches stand in one row, [1, channels, patch_size, pixels], in parts of whole tiles."""
    patch, counts = pixels.shape[-2], sizes.prod(1).tolist()
    first = start = 0
    while first < len(counts):
        last, end = first + 1, start + counts[first]
        while last < len(counts) and end + counts[last] - start <= _MOST_PATCHES:
            end += counts[last]
            last += 1
        yield {PIXELS: pixels[..., start * patch : end * patch], TILE_SIZES: sizes[first:last]}
        first, start = last, end


def _repeated(patches: torch.Tensor, channels: int, num_frames: int) -> torch.Tensor:
    """Patches of a still image as an encoder of videos takes them: [patches, channels * frames * pixels]."""
    apart = patches.view(len(patches), channels, 1, -1)
    return apart.expand(-1, -1, num_frames, -1).reshape(len(patches), -1)


def _normalized_patches(pixels: torch.Tensor, image: Image) -> torch.Tensor:
    """Patches whose channels come last, [images, patches, pixels * channels], in float32."""
    scale, shift = (torch.tensor(each, device=pixels.device) for each in (image.pixel_scale, image.pixel_shift))
    apart = pixels.view(*pixels.shape[:-1], -1, len(scale)) * scale + shift
    return apart.view(pixels.shape)


def _normalized(pixels: torch.Tensor, image: Image) -> torch.Tensor:
    """Pixels as the encoder takes them, in float32. Channels are a dimension of their own, or lead within patches."""
    channels = len(image.pixel_scale)
    scale, shift = (torch.tensor(each, device=pixels.device) for each in (image.pixel_scale, image.pixel_shift))
    if pixels.dim() == 2:  # patches: [patches, channels * the pixels of a channel]
        patches = pixels.view(len(pixels), channels, -1) * scale[:, None] + shift[:, None]
        return patches.view(pixels.shape)
    return pixels * scale[:, None, None] + shift[:, None, None]
