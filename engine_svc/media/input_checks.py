"""Checks the inputs of an image before they are encoded; see unfit.py for why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_svc.media.input_forms import COLORS, FINE, MASK, MASK_OF_ARIA, NUM_TILES, TILE_SIZES, Tiles, Views, form_of
from engine_svc.media.unfit import UnfitImage, check_channels, integer, wrong_shape
from quire.images import GRID, LOCAL_PIXELS, MARKS, PIXELS, PLACES, SOUND, TILE_SHAPES, VIDEO_PIXELS, Image, ImageInput

SECONDS = "second_per_grid_ts"  # from one patch of a video to the next one in time
KEPT = "num_kept"  # of the embeddings of a video
MERGE = "image_merge_sizes"  # patches along each side of an embedding, where each image has its own
_MOST_SECONDS = 1e5
_MARKS_AROUND = 2  # before and after an image; each tile may have one more
# Inputs beside pixels and their mask: int64, of one image.
_SHAPES: Mapping[str, tuple[int, ...]] = {
    GRID: (1, 3), MERGE: (1,), "image_sizes": (1, 2), "batch_num_images": (1,), NUM_TILES: (1,),
}  # fmt: skip
# Encoders of patches that learn from each image how many make an embedding.
_OF_OWN_MERGE = frozenset({"video_llama_3_vision"})
# Encoders of patches with embeddings for the ends of rows.
_OF_ENDED_ROWS = frozenset({"hunyuan_vl_vision"})

# Models that treat videos in another way than images, and so take their pixels by another name.
_OF_VIDEOS = frozenset({"llava_onevision"})
# See InputChecks.is_apart_in_time.
_APART_IN_TIME = frozenset(
    {"glm46v", "glm4v", "glm4v_moe", "glm_ocr", "lfm3_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}
)

INPUTS = frozenset(
    {PIXELS, LOCAL_PIXELS, PLACES, TILE_SHAPES, TILE_SIZES, VIDEO_PIXELS, MASK, MASK_OF_ARIA, FINE, *_SHAPES}
)


class InputChecks:
    """What the image encoder of a model was made for.

    Attributes:
        is_apart_in_time: whether prompts have other tokens between those of a video's frames, which the model reads as
            images of their own.
        ends_rows: whether an image has an embedding more at the end of each row, and one before and after all of them.
        has_views: see Views.
        channels_last: see InputForm.
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
        self._has_own_merge = vision.model_type in _OF_OWN_MERGE
        self._form = None if merge_size else form_of(config)  # None: patches in a grid
        self.has_views = isinstance(self._form, Views)
        self.channels_last = self._form is not None and self._form.channels_last
        self._patch_values = 0  # of one frame
        if merge_size:
            # Whether a patch is a row of values.
            self._is_flat = hasattr(vision, "in_channels") or self._has_own_merge or self.ends_rows
            self._channels = getattr(vision, "in_channels", getattr(vision, "num_channels", COLORS))
            self._frames = getattr(vision, "temporal_patch_size", 1)
            self._side_of_patch = vision.patch_size
            self._patch_values = self._channels * vision.patch_size**2

    def check(self, inputs: Mapping[str, ImageInput], image: Image) -> None:
        """
        Args:
            inputs: those that the encoder takes.

        Raises:
            UnfitImage: they are not those of an image.
        """
        if any(each.name == SOUND for each in image.inputs):
            raise UnfitImage("it is a video with sound, but this server hears nothing (--limit-mm-per-prompt)")
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
                raise wrong_shape(each, f"int64 {list(wanted)}")
        if self._form is None:
            self._check_patches(pixels, image)
        else:
            self._form.check(pixels, inputs, image)

    def _check_patches(self, pixels: ImageInput, image: Image) -> None:
        frames, rows, columns = self.grid(image)
        count = frames * rows * columns * self._merge_of(image) ** 2
        wanted: list[tuple[int, ...]] = [(count, self._patch_values * number) for number in (1, self._frames)]
        if not self._is_flat:
            wanted = [(count, self._channels, self._side_of_patch, self._side_of_patch)]
        if pixels.shape not in wanted:
            raise wrong_shape(pixels, f"{' or '.join(str([*shape]) for shape in wanted)}, as {GRID} says")
        if frames > 1 and not self._reads_videos:
            raise UnfitImage(f"{GRID} has {frames} frames, but the model reads only still images")
        check_channels(image, self._channels)

    def _check_video(self, pixels: ImageInput, inputs: Mapping[str, ImageInput], image: Image) -> None:
        if not self._takes_videos or len(inputs) > 1:
            raise UnfitImage(f"{VIDEO_PIXELS} is not what the encoder takes, or not alone")
        side = next(iter(self._form.sides), None) if isinstance(self._form, Tiles) else None
        if len(pixels.shape) != 5 or pixels.shape[0] != 1 or pixels.shape[-2:] != (side, side) or not pixels.shape[1]:
            raise wrong_shape(pixels, f"[1, frames, channels, {side}, {side}]")
        check_channels(image, pixels.shape[-3])

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
        if given is None or (given.dtype, given.shape) != ("int64", _SHAPES[MERGE]) or (found := integer(given)) < 1:
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
        if (given.dtype, given.shape) != ("int64", (1,)) or not least <= (kept := integer(given)) <= most:
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
