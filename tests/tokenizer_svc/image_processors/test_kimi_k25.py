"""Kimi K2.5's patches are those of Transformers' own image processor, which needs torchvision.

Facts about it were computed with Transformers 5.23 and torchvision 0.28.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.vision_models import random_image
from tokenizer_svc.image_processors.kimi_k25 import ImageProcessor

AS_BYTES = {"do_rescale": False, "do_normalize": False}
# Width, height, settings; rows and columns of patches.
GRIDS: list[tuple[int, int, dict[str, Any], tuple[int, int]]] = [
    (1, 1, {}, (2, 2)),
    (28, 28, {}, (2, 2)),
    (10, 600, {}, (44, 2)),
    (640, 480, {}, (36, 46)),
    (1920, 1080, {}, (78, 138)),
    (3000, 2000, {}, (106, 158)),
    (8000, 300, {}, (20, 512)),
    (640, 480, {"max_patches": 64}, (8, 10)),
    (640, 480, {"size": {"max_height": 8, "max_width": 8}}, (6, 8)),
    (640, 480, {"patch_size": 7, "merge_size": 3, "max_patches": 50}, (9, 9)),
]
SMALL: dict[str, Any] = {"patch_size": 7, "max_patches": 60, "size": {"max_height": 12, "max_width": 12}}
# Patch, and some of its values, of an image of 90 x 60 pixels with these settings.
VALUES = [
    (0, [243, 252, 34, 232, 255]), (1, [253, 225, 37, 227, 242]), (7, [15, 140, 145, 93, 56]),
    (20, [124, 99, 190, 182, 167]), (95, [0, 0, 0, 0, 0]),
]  # fmt: skip
CHOSEN = ([0, 1, 2, 0, 0], [0, 0, 3, 0, 6], [0, 0, 3, 6, 0])
# As in https://huggingface.co/moonshotai/Kimi-K2.5/blob/main/preprocessor_config.json, with other numbers.
PUBLISHED: dict[str, Any] = {
    "in_patch_limit": 1000, "patch_size": 7, "image_mean": [0.25] * 3, "image_std": [0.75] * 3, "merge_kernel_size": 3,
    "fixed_output_tokens": None, "patch_limit_on_one_side": 100, "in_patch_limit_each_frame": 4096,
    "in_patch_limit_video": None, "sample_fps": 2.0, "max_num_frames_each_video": None,
    "temporal_merge_kernel_size": 4, "timestamp_mode": "hh:mm:ss.fff",
}  # fmt: skip


def prepared(image: Image.Image, **settings: Any) -> Any:
    return ImageProcessor()([image], return_tensors="np", **settings)


@pytest.mark.parametrize(("width", "height", "settings", "grid"), GRIDS)
def test_grids(width: int, height: int, settings: dict[str, Any], grid: tuple[int, int]) -> None:
    found = prepared(Image.new("RGB", (width, height)), **AS_BYTES, **settings)
    rows, columns = grid
    assert found["image_grid_thw"].tolist() == [[1, rows, columns]]
    side = settings.get("patch_size", 14)
    assert found["pixel_values"].shape == (rows * columns, 3, side, side)


def test_pixels() -> None:
    """Those at right and bottom that fill up the image are black before they are normalized."""
    image = random_image(90, 60, 1)
    found = prepared(image, **SMALL, **AS_BYTES)["pixel_values"]
    assert (found.shape, found.dtype) == ((96, 3, 7, 7), np.uint8)
    normalized = prepared(image, **SMALL)["pixel_values"]
    for patch, values in VALUES:
        assert np.abs(found[patch][CHOSEN].astype(int) - values).max() <= 5, patch
        assert normalized[patch][CHOSEN] == pytest.approx(np.array(values) / 127.5 - 1, abs=0.04)


def test_settings_of_the_published_checkpoint() -> None:
    found = ImageProcessor.from_dict({"media_proc_cfg": PUBLISHED, "auto_map": {}})
    assert (found.max_patches, found.patch_size, found.merge_size) == (1000, 7, 3)
    assert (dict(found.size), [*found.image_mean], [*found.image_std]) == (
        {"max_height": 100, "max_width": 100}, [0.25] * 3, [0.75] * 3,
    )  # fmt: skip
    with pytest.raises(ValueError, match="fixed_output_tokens of media_proc_cfg is 64"):
        ImageProcessor.from_dict({"media_proc_cfg": PUBLISHED | {"fixed_output_tokens": 64}})


def test_a_size_with_two_limits() -> None:
    with pytest.raises(ValueError, match="same number of patches"):
        prepared(Image.new("RGB", (60, 40)), size={"max_height": 8, "max_width": 9})
