"""Normalization of pixels, which the engine applies, so that they are sent as bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Channels = tuple[float, ...]


def scale_and_shift(factor: float, mean: npt.ArrayLike, deviation: npt.ArrayLike) -> tuple[Channels, Channels]:
    """Scale and shift of each color channel that do the same as multiplying by a factor, and normalizing.

    Raises:
        ValueError: the settings are not finite numbers.
    """
    below = np.asarray(deviation, np.float64)
    with np.errstate(all="ignore"):
        scale, shift = _as_floats(factor / below), _as_floats(-np.asarray(mean, np.float64) / below)
    if not np.isfinite([scale, shift]).all():
        raise ValueError("rescale_factor, image_mean and image_std must be finite, and image_std not 0")
    return scale, shift


def _as_floats(values: npt.NDArray[np.float64]) -> Channels:
    """Rounded to float32, as they are on the wire, so that an image's digest is the same before and after."""
    return tuple(np.broadcast_to(values, 3).astype(np.float32).tolist())
