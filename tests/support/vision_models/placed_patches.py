"""Gemma 4's patches, which Transformers fills up to the most that an image may have, and Quire does not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.images import PIXELS, PLACES
from tokenizer_svc.processed import Processed


def check_placed_patches(found: Processed, pixels: npt.NDArray[np.float32], places: npt.NDArray[np.int64]) -> None:
    """Compares the patches of an image, or of a video's frames, with those that Transformers prepares.

    Args:
        pixels: [images, patches, values], normalized.
        places: [images, patches, 2]
    """
    assert set(found.inputs) == {PIXELS, PLACES}
    own, own_places = found.inputs[PIXELS], found.inputs[PLACES]
    assert (own.dtype, own_places.dtype) == (np.uint8, np.int64)
    count = own.shape[1]
    assert count < pixels.shape[1]  # so that leaving out the rest shows
    assert np.array_equal(own_places, places[:, :count])
    assert (places[:, count:] == -1).all()
    scale, shift = (np.array(each, np.float32) for each in (found.pixel_scale, found.pixel_shift))
    normalized = (own.reshape(*own.shape[:-1], -1, 3) * scale + shift).reshape(own.shape)
    assert np.allclose(normalized, pixels[:, :count], rtol=1e-6, atol=1e-6)
