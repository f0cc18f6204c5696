"""Kimi K2.5's image processor: an image of any size in patches, made smaller if it has too many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL.Image import Resampling
from transformers.image_processing_backends import PilBackend
from transformers.image_processing_utils import BatchFeature
from transformers.image_utils import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD, SizeDict
from transformers.processing_utils import ImagesKwargs

from quire.images import PIXELS

Pixels = npt.NDArray[Any]  # [channels, rows, columns]

# Fields of the published checkpoint's preprocessor_config.json, which its own code reads, by Transformers' names.
_PUBLISHED = "media_proc_cfg"
_FIELDS = {
    "in_patch_limit": "max_patches", "patch_size": "patch_size", "merge_kernel_size": "merge_size",
    "image_mean": "image_mean", "image_std": "image_std",
}  # fmt: skip


class _Settings(ImagesKwargs, total=False):  # type: ignore[call-arg]  # Transformers has no types
    """Fields of preprocessor_config.json besides those of all image processors."""

    max_patches: int
    patch_size: int  # of a side, in pixels
    merge_size: int  # patches along each side of an embedding


class ImageProcessor(PilBackend):
    """What Transformers' Kimi_K25ImageProcessor does with torchvision."""

    valid_kwargs = _Settings
    model_input_names: ClassVar[list[str]] = [PIXELS, "image_grid_thw"]
    do_resize = do_rescale = do_normalize = do_convert_rgb = True
    resample = Resampling.BICUBIC
    size: ClassVar[dict[str, int]] = {"max_height": 512, "max_width": 512}  # in patches
    max_patches = 16384
    patch_size = 14
    merge_size = 2
    image_mean = IMAGENET_STANDARD_MEAN
    image_std = IMAGENET_STANDARD_STD

    @classmethod
    def from_dict(cls, image_processor_dict: Mapping[str, Any], **kwargs: Any) -> ImageProcessor:
        """An image processor with the settings of a preprocessor_config.json, Transformers' or the published one.

        Raises:
            ValueError: it has a setting that is not supported.
        """
        fields = dict(image_processor_dict)
        if (published := fields.pop(_PUBLISHED, None)) is not None:
            if published.get("fixed_output_tokens") is not None:
                raise ValueError(f"fixed_output_tokens of {_PUBLISHED} is {published['fixed_output_tokens']}, not null")
            fields |= {ours: published[theirs] for theirs, ours in _FIELDS.items() if theirs in published}
            if (side := published.get("patch_limit_on_one_side")) is not None:
                fields["size"] = {"max_height": side, "max_width": side}
        made: ImageProcessor = super().from_dict(fields, **kwargs)
        return made

    def _validate_preprocess_kwargs(self, size: SizeDict | None = None, **settings: Any) -> None:
        """See PilBackend.

        Raises:
            ValueError: the settings do not suit each other.
        """
        if size is not None and not (size.max_height and size.max_height == size.max_width):
            raise ValueError(f"size must have the same number of patches as max_height and max_width, not {size}")
        super()._validate_preprocess_kwargs(size=size, **settings)

    def _preprocess(self, images: Sequence[Pixels], *, return_tensors: str | None, **settings: Any) -> BatchFeature:
        patches, grids = [], []
        for image in images:
            image = self._fitted(image, settings) if settings["do_resize"] else image
            if settings["do_rescale"]:
                image = self.rescale(image, settings["rescale_factor"])
            if settings["do_normalize"]:
                image = self.normalize(image, settings["image_mean"], settings["image_std"])
            side = settings["patch_size"]
            channels, rows, columns = image.shape[0], image.shape[1] // side, image.shape[2] // side
            apart = image.reshape(channels, rows, side, columns, side).transpose(1, 3, 0, 2, 4)
            patches.append(apart.reshape(-1, channels, side, side))
            grids.append([1, rows, columns])
        data = {PIXELS: np.concatenate(patches), "image_grid_thw": np.array(grids)}
        return BatchFeature(data, tensor_type=return_tensors)

    def _fitted(self, image: Pixels, settings: Mapping[str, Any]) -> Pixels:
        """The image with no more patches than allowed, filled up with black at right and bottom to whole embeddings."""
        side, longest = settings["patch_size"], settings["size"].max_height * settings["patch_size"]
        height, width = image.shape[-2:]
        count = max(1, height // side) * max(1, width // side)
        scale = min(1.0, math.sqrt(settings["max_patches"] / count), longest / height, longest / width)
        height, width = (min(longest, max(1, int(given * scale))) for given in (height, width))
        smaller = self.resize(image, SizeDict(height=height, width=width), settings["resample"])
        unit = side * settings["merge_size"]
        filled = SizeDict(height=-(-height // unit) * unit, width=-(-width // unit) * unit)
        (found,) = self.pad([smaller], filled)
        return found  # type: ignore[no-any-return]  # Transformers has no types
