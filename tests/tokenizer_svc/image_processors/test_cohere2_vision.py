"""Command A Vision's images. Expectations are what Transformers 5.23 makes of them with torchvision 0.28."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.vision_models import make_vision_model, png_bytes, random_image
from tokenizer_svc.image_processor import ImageProcessor as Preparer
from tokenizer_svc.image_processors.cohere2_vision import ImageProcessor
from tokenizer_svc.media_rejection import MediaRejection

AS_BYTES = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}


def colored(width: int, height: int) -> Image.Image:
    """An image whose red goes from 0 at the left to 255 at the right, and its green from top to bottom."""
    row, column = np.mgrid[:height, :width]
    red, green = column * 255 // max(1, width - 1), row * 255 // max(1, height - 1)
    return Image.fromarray(np.stack([red, green, 0 * row], -1).astype(np.uint8))


@pytest.mark.parametrize(
    ("settings", "size", "grid"),
    [
        ({}, (512, 512), (1, 1)),
        ({}, (513, 512), (1, 2)),
        ({}, (640, 480), (1, 2)),
        ({}, (300, 2000), (4, 1)),
        ({}, (1536, 2048), (4, 3)),
        ({}, (2000, 1500), (3, 4)),
        ({}, (3000, 20), (1, 6)),
        ({}, (20, 6000), (12, 1)),
        ({"max_patches": 4}, (2000, 2000), (2, 2)),
        ({"max_patches": 1}, (1000, 300), (1, 1)),
        ({"min_patches": 4}, (100, 60), (1, 1)),  # ignored
        ({"crop_to_patches": False}, (1000, 300), (1, 1)),
        ({"size": {"height": 112, "width": 112}}, (336, 336), (3, 3)),
        ({"size": {"height": 112, "width": 112}}, (500, 120), (2, 5)),
    ],
)
def test_tiles(settings: dict[str, Any], size: tuple[int, int], grid: tuple[int, int]) -> None:
    """How many rows and columns of them; each shows its own part, and there is a small copy of the whole."""
    found = ImageProcessor()(colored(*size), **AS_BYTES, **settings)
    rows, columns = grid
    means = [((column + 0.5) / columns, (row + 0.5) / rows) for row in range(rows) for column in range(columns)]
    means += [(0.5, 0.5)] if len(means) > 1 else []
    tiles, side = found["pixel_values"], settings.get("size", {"height": 512})["height"]
    assert (tiles.dtype, tiles.shape) == (np.uint8, (len(means), 3, side, side))
    assert found["num_patches"].tolist() == [len(means)]
    assert np.abs(tiles[:, :2].mean((2, 3)) - 255 * np.array(means)).max() < 1


def test_an_image_may_be_left_as_it_is() -> None:
    image = random_image(50, 30, 1)
    found = ImageProcessor()(image, crop_to_patches=False, do_resize=False, **AS_BYTES)["pixel_values"]
    assert np.array_equal(found[0].transpose(1, 2, 0), np.asarray(image))


def test_pixels() -> None:
    """Of an image whose red says the column, green the row, and blue both."""
    row, column = np.mgrid[:5, :9]
    image = Image.fromarray(np.stack([column * 28, row * 60, (row + column) * 20], -1).astype(np.uint8))
    found = ImageProcessor(size={"height": 4, "width": 4}, max_patches=2)(image, **AS_BYTES)["pixel_values"]
    reds = [[2, 33, 64, 96], [128, 160, 191, 222], [19, 79, 145, 205]]
    green = np.array([[8], [82], [158], [232]]).repeat(4, 1)
    blues = [
        [[4, 26, 49, 72], [28, 50, 73, 96], [54, 76, 99, 122], [78, 100, 123, 146]],
        [[94, 117, 140, 162], [118, 141, 164, 186], [144, 167, 190, 212], [168, 191, 214, 236]],
        [[17, 60, 106, 149], [41, 84, 130, 173], [67, 110, 156, 199], [91, 134, 180, 223]],
    ]
    expected = [[[red] * 4, green, blue] for red, blue in zip(reds, blues, strict=True)]
    assert np.abs(found.astype(int) - np.array(expected)).max() <= 2


def test_the_prompt(tmp_path: Path) -> None:
    """Patches of each tile, and of the small copy, with a line break after each."""
    prepared = Preparer(make_vision_model(tmp_path, "cohere2_vision")).prepare(png_bytes(random_image(50, 20, 1)), {})
    tile = "<|IMG_PATCH|>" * 4 + "<|IMG_LINE_BREAK|>"
    assert prepared.text == f"<|START_OF_IMG|>{tile * 3}<|END_OF_IMG|>"
    assert prepared.num_tokens == 12
    assert {name: each.shape for name, each in prepared.inputs.items()} == {"pixel_values": (3, 3, 28, 28)}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_patches": 0}, "max_patches must be at least 1, not 0"),
        ({"size": {"shortest_edge": 28}}, ""),
        ({"patches": 3}, "patches"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(MediaRejection, match=f"with mm_processor_kwargs: .*{words}"):
        Preparer(make_vision_model(tmp_path, "cohere2_vision")).check(settings)
