"""Llama 4's images. Expectations are what Transformers 5.23 makes of the same images with torchvision 0.28."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.support.vision_models import make_vision_model, png_bytes, random_image
from tokenizer_svc.image_processor import ImageProcessor as Preparer
from tokenizer_svc.image_processors.llama4 import ImageProcessor
from tokenizer_svc.media_rejection import MediaRejection

AS_BYTES = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}


def whole(tiles: npt.NDArray[np.uint8], rows: int, columns: int) -> npt.NDArray[np.uint8]:
    """What tiles [tiles, channels, side, side] show together, as [channels, rows, columns]."""
    side = tiles.shape[-1]
    grid = tiles.reshape(rows, columns, -1, side, side).transpose(2, 0, 3, 1, 4)
    return grid.reshape(-1, rows * side, columns * side)


@pytest.mark.parametrize(
    ("settings", "size", "grid", "inner"),
    [
        ({}, (1, 1), (1, 1), (336, 336)),
        ({}, (336, 336), (1, 1), (336, 336)),
        ({}, (337, 336), (1, 2), (337, 336)),
        ({}, (640, 480), (2, 2), (640, 480)),
        ({}, (300, 2000), (6, 1), (300, 2000)),
        ({}, (4000, 3000), (3, 4), (1344, 1008)),
        ({}, (3000, 20), (1, 9), (3000, 20)),
        ({}, (20, 3000), (9, 1), (20, 3000)),
        ({"max_patches": 4}, (100, 60), (1, 1), (336, 201)),
        ({"max_patches": 4}, (1000, 300), (1, 3), (1000, 300)),
        ({"resize_to_max_canvas": True}, (1, 1), (4, 4), (1344, 1344)),
        ({"resize_to_max_canvas": True}, (72, 54), (3, 4), (1344, 1008)),
        ({"resize_to_max_canvas": True}, (85, 40), (3, 5), (1680, 790)),
        # Of this one, the original rounds the width by float32, in which it is one pixel less.
        ({"resize_to_max_canvas": True, "max_patches": 4}, (85, 40), (1, 3), (713, 336)),
        ({"size": {"height": 112, "width": 112}}, (336, 336), (3, 3), (336, 336)),
        ({"size": {"height": 112, "width": 112}}, (500, 120), (2, 5), (500, 120)),
    ],
)
def test_tiles(settings: dict[str, Any], size: tuple[int, int], grid: tuple[int, int], inner: tuple[int, int]) -> None:
    """How many rows and columns of them, and width and height of the image that they show at the top left."""
    found = ImageProcessor()(Image.new("RGB", size, (255, 255, 255)), **AS_BYTES, **settings)
    rows, columns = grid
    assert found["aspect_ratios"].tolist() == [[rows, columns]]
    tiles = found["pixel_values"]
    assert tiles.dtype == np.uint8
    count, side = rows * columns, settings.get("size", {"height": 336})["height"]
    assert tiles.shape == (count + (count > 1), 3, side, side)
    assert (tiles[count:] == 255).all()  # the small copy of the whole
    expected = np.zeros((3, rows * side, columns * side), np.uint8)
    expected[:, : inner[1], : inner[0]] = 255
    assert np.array_equal(whole(tiles[:count], rows, columns), expected)


def test_pixels() -> None:
    """Of an image whose red says the column, green the row, and blue both."""
    row, column = np.mgrid[:5, :9]
    image = Image.fromarray(np.stack([column * 28, row * 60, (row + column) * 20], -1).astype(np.uint8))
    found = ImageProcessor(size={"height": 4, "width": 4}, max_patches=2)(image, **AS_BYTES)["pixel_values"]
    reds = [[8, 41, 74, 112], [150, 183, 216, 0], [23, 80, 144, 201]]
    green = np.array([[15], [85], [155], [225]])
    blues = [
        [[10, 34, 58, 85], [33, 57, 81, 108], [57, 81, 105, 132], [80, 104, 128, 155]],
        [[112, 136, 160, 0], [135, 159, 183, 0], [159, 183, 207, 0], [182, 206, 230, 0]],
        [[22, 62, 108, 148], [45, 85, 131, 171], [69, 109, 155, 195], [92, 132, 178, 218]],
    ]
    expected = [[[red] * 4, green * np.sign(red), blue] for red, blue in zip(reds, blues, strict=True)]
    assert np.abs(found.astype(int) - np.array(expected)).max() <= 1


def test_the_prompt(tmp_path: Path) -> None:
    """Patches of each tile, and what separates tiles in a row and rows; then those of the small copy."""
    prepared = Preparer(make_vision_model(tmp_path, "llama4")).prepare(png_bytes(random_image(50, 40, 1)), {})
    tile = "<|patch|>" * 4
    row = f"{tile}<|tile_x_separator|>{tile}<|tile_y_separator|>"
    assert prepared.text == f"<|image_start|>{row}{row}<|image|>{tile}<|image_end|>"
    assert prepared.num_tokens == 20
    assert {name: each.shape for name, each in prepared.inputs.items()} == {"pixel_values": (5, 3, 28, 28)}


def test_a_tokenizer_alone_knows_which_token_is_replaced(tmp_path: Path) -> None:
    """The processor's image token stands for all of an image, and is written once."""
    folder = make_vision_model(tmp_path, "llama4")
    expected = Preparer(folder)
    (folder / "config.json").unlink()
    found = Preparer(folder)
    assert (found.placeholder, found.image_token_id) == (expected.placeholder, expected.image_token_id)
    assert found.placeholder == "<|image|>"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"do_resize": False}, "do_resize must be true"),
        ({"size": {"height": 28, "width": 56}}, "size must have the same height and width"),
        ({"size": {"shortest_edge": 28}}, "size must have the same height and width"),
        ({"max_patches": 0}, "max_patches must be at least 1, not 0"),
        ({"patches": 3}, "patches"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(MediaRejection, match=f"with mm_processor_kwargs: .*{words}"):
        Preparer(make_vision_model(tmp_path, "llama4")).check(settings)
