"""Inputs of encoders that are not what they were made for.

An encoder was made for what its processor returns. Given anything else it may raise, or worse: a few kilobytes can make
it allocate any amount of memory, and on a GPU an index that is out of range ends the process.
"""

from __future__ import annotations

import numpy as np

from quire.images import Image, ImageInput


class UnfitImage(ValueError):
    """An image does not fit the encoder or its place in the prompt; the message is for the caller."""


def wrong_shape(given: ImageInput, wanted: str, taker: str = "encoder") -> UnfitImage:
    """The error for an input of another shape or dtype than `wanted`."""
    return UnfitImage(f"{given.name} is {given.dtype} {list(given.shape)}, but the {taker} takes {wanted}")


def check_channels(image: Image, channels: int) -> None:
    """
    Raises:
        UnfitImage: there is not a scale and a shift for each color channel.
    """
    scales, shifts = len(image.pixel_scale), len(image.pixel_shift)
    if not scales == shifts == channels:
        raise UnfitImage(f"it has {scales} scales and {shifts} shifts for pixels with {channels} color channels")


def integer(given: ImageInput) -> int:
    """The first value of an int64 input."""
    return int(np.frombuffer(given.data, "<i8")[0])
