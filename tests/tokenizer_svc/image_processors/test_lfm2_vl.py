"""LFM2-VL's tiles are those of Transformers' own image processor, which needs torchvision.

Facts about it were computed with Transformers 5.23 and torchvision 0.28.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.vision_models import random_image
from tokenizer_svc.image_processors.lfm2_vl import ImageProcessor

AS_BYTES = {"do_rescale": False, "do_normalize": False}
# Width, height, settings; rows and columns of tiles, size of the whole, number of tiles, shapes of the first and last.
GRIDS: list[tuple[int, int, dict[str, Any], tuple[int, int, list[int], int, list[int], list[int]]]] = [
    (1, 1, {}, (1, 1, [256, 256], 1, [16, 16], [16, 16])),
    (28, 28, {}, (1, 1, [256, 256], 1, [16, 16], [16, 16])),
    (10, 600, {}, (1, 1, [1984, 64], 1, [124, 4], [124, 4])),
    (640, 480, {}, (1, 1, [416, 576], 1, [26, 36], [26, 36])),
    (724, 725, {}, (2, 2, [512, 480], 5, [32, 32], [32, 30])),
    (1024, 1024, {}, (2, 2, [512, 512], 5, [32, 32], [32, 32])),
    (1920, 1080, {}, (2, 4, [384, 672], 9, [32, 32], [24, 42])),
    (200, 3000, {}, (10, 1, [1952, 128], 11, [32, 32], [122, 8])),
    (4000, 3000, {}, (2, 3, [416, 576], 7, [32, 32], [26, 36])),
    (5000, 1500, {}, (1, 3, [256, 928], 4, [32, 32], [16, 58])),
    # Between two grids of four tiles.
    (1250, 2000, {"min_tiles": 4, "max_tiles": 4}, (2, 2, [640, 384], 5, [32, 32], [40, 24])),
    (2500, 1000, {"min_tiles": 4, "max_tiles": 4}, (2, 2, [320, 800], 5, [32, 32], [20, 50])),
    (1920, 1080, {"use_thumbnail": False}, (2, 4, [384, 672], 8, [32, 32], [32, 32])),
    (1920, 1080, {"do_image_splitting": False}, (1, 1, [384, 672], 1, [24, 42], [24, 42])),
    (1920, 1080, {"max_tiles": 4}, (1, 2, [384, 672], 3, [32, 32], [24, 42])),
    (
        640, 480, {"min_image_tokens": 32, "max_image_tokens": 128},
        (2, 3, [288, 416], 7, [32, 32], [18, 26]),
    ),
    (640, 480, {"max_pixels_tolerance": 0.5}, (2, 3, [416, 576], 7, [32, 32], [26, 36])),
    (1024, 1024, {"tile_size": 252, "encoder_patch_size": 14}, (3, 3, [448, 448], 10, [18, 18], [32, 32])),
]  # fmt: skip
SMALL: dict[str, Any] = {
    "encoder_patch_size": 7, "tile_size": 28, "min_image_tokens": 3, "max_image_tokens": 6, "max_tiles": 6,
    "max_pixels_tolerance": 1.0,
}  # fmt: skip
# Tile, patch, and some of the patch's values, of an image of 60 x 40 pixels with these settings.
VALUES = [
    (0, 0, [243, 255, 1, 241, 23]), (0, 1, [255, 230, 15, 255, 49]), (0, 15, [217, 217, 71, 219, 23]),
    (3, 5, [192, 106, 121, 206, 143]), (5, 15, [119, 179, 49, 118, 73]), (6, 0, [243, 246, 1, 248, 43]),
    (6, 23, [142, 226, 67, 137, 63]),
]  # fmt: skip
CHOSEN = [0, 1, 2, 3, 146]


def prepared(image: Image.Image, **settings: Any) -> Any:
    return ImageProcessor()([image], return_tensors="np", return_row_col_info=True, **settings)


@pytest.mark.parametrize(("width", "height", "settings", "expected"), GRIDS)
def test_grids(width: int, height: int, settings: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = prepared(Image.new("RGB", (width, height)), **AS_BYTES, **settings)
    shapes = found["spatial_shapes"]
    assert (
        *(found[name].tolist()[0] for name in ("image_rows", "image_cols", "image_sizes")),
        len(shapes), shapes[0].tolist(), shapes[-1].tolist(),
    ) == expected  # fmt: skip
    values = 3 * settings.get("encoder_patch_size", 16) ** 2
    assert found["pixel_values"].shape == (len(shapes), 1024, values)
    assert np.array_equal(found["pixel_attention_mask"].sum(1), shapes.prod(1))


def test_pixels() -> None:
    image = random_image(60, 40, 1)
    found = prepared(image, **SMALL, **AS_BYTES)["pixel_values"]
    assert (found.shape, found.dtype) == ((7, 24, 147), np.uint8)
    normalized = prepared(image, **SMALL)["pixel_values"]
    for tile, patch, values in VALUES:
        assert np.abs(found[tile, patch, CHOSEN].astype(int) - values).max() <= 1, (tile, patch)
        assert normalized[tile, patch, CHOSEN] == pytest.approx(np.array(values) / 127.5 - 1, abs=0.009)
    assert not found[:6, 16:].any()
    assert not normalized[:6, 16:].any()


def test_what_transformers_cannot_prepare() -> None:
    """There, such an image has more patches than its mask, and a grid of one tile more tokens than the tile."""
    found = prepared(Image.new("RGB", (10000, 10)), **AS_BYTES)
    assert found["spatial_shapes"].tolist() == [[2, 1010]]
    assert found["pixel_attention_mask"].sum() == found["pixel_values"].shape[1] == 2020
    found = prepared(Image.new("RGB", (1000, 1000)), min_tiles=1, max_tiles=2, **AS_BYTES)
    assert found["spatial_shapes"].tolist() == [[32, 32]]
    assert found["image_sizes"].tolist() == [[512, 512]]


@pytest.mark.parametrize(
    ("settings", "words"), [({"do_pad": False}, "do_pad"), ({"min_tiles": 11}, "min_tiles is 11, more than max_tiles")]
)
def test_settings_that_do_not_suit_each_other(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prepared(Image.new("RGB", (60, 40)), **settings)
