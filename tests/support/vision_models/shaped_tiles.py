"""LFM2-VL's tiles, which Transformers fills up to the largest one that there may be, and Quire does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quire.images import PIXELS, TILE_SHAPES
from tokenizer_svc.processed import Processed


def check_shaped_tiles(found: Processed, expected: Mapping[str, Any]) -> None:
    """Compares the patches of an image's tiles with those that Transformers prepares.

    Args:
        expected: pixel_values [tiles, patches, values], normalized, pixel_attention_mask [tiles, patches] and
            spatial_shapes [tiles, 2].
    """
    assert set(found.inputs) == {PIXELS, TILE_SHAPES}
    assert set(expected) == {PIXELS, TILE_SHAPES, "pixel_attention_mask"}
    pixels, shapes, mask = (np.asarray(expected[name]) for name in (PIXELS, TILE_SHAPES, "pixel_attention_mask"))
    own, own_shapes = found.inputs[PIXELS], found.inputs[TILE_SHAPES]
    assert (own.dtype, own_shapes.dtype) == (np.uint8, np.int64)
    assert np.array_equal(own_shapes, shapes)
    assert np.array_equal(mask.sum(1), own_shapes.prod(1))
    scale, shift = (np.array(each, np.float32) for each in (found.pixel_scale, found.pixel_shift))
    normalized = (own.reshape(len(own), -1, 3) * scale + shift).reshape(own.shape)
    assert np.allclose(normalized, pixels[mask.astype(bool)], rtol=1e-6, atol=1e-6)
