"""Images of Gemma 4's 12B model. Expectations are what Transformers 5.23 makes of them with torchvision 0.28."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from tokenizer_svc.image_processors.gemma4_unified import ImageProcessor

AS_BYTES = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}


@pytest.mark.parametrize(
    ("size", "settings", "grid"),
    [
        ((640, 480), {}, (19, 14)),
        ((48, 48), {}, (16, 16)),
        ((3000, 20), {}, (204, 1)),
        ((20, 6000), {}, (1, 280)),
        ((1000, 700), {"max_soft_tokens": 70}, (10, 7)),
        ((1000, 700), {"max_soft_tokens": 1120}, (40, 28)),
    ],
)
def test_patches(size: tuple[int, int], settings: dict[str, Any], grid: tuple[int, int]) -> None:
    """Of 48 x 48 pixels, row by row, each with its column and row; they show their own part of the image."""
    row, column = np.mgrid[: size[1], : size[0]]
    shown = np.stack([column * 255 / max(1, size[0] - 1), row * 255 / max(1, size[1] - 1), 0 * row], -1)
    found = ImageProcessor(**settings)(Image.fromarray(shown.astype(np.uint8)), **AS_BYTES)
    columns, rows = grid
    count = columns * rows
    assert found["num_soft_tokens_per_image"].tolist() == [count]
    places = found["image_position_ids"][0]
    assert places[:count].tolist() == [[column, row] for row in range(rows) for column in range(columns)]
    assert (places[count:] == -1).all()
    means = found["pixel_values"][0, :count].reshape(count, 48 * 48, 3).mean(1)
    expected = 255 * (places[:count] + 0.5) / grid
    assert np.abs(means[:, :2] - expected).max() < 4
