"""An image, a video or an audio as it is prepared for a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt


@dataclass(frozen=True)
class Processed:
    """An image, a video or an audio for the model.

    Attributes:
        text: takes the placeholder's place in the prompt.
        num_tokens: number of image, video or audio tokens in the text, apart from separators.
        inputs: by name, those of the image or audio encoder, with pixels as bytes.
        pixel_scale, pixel_shift: see quire.v1.Image.
        seconds: length of an audio.
        number_marks: what stands around its number among the images of a prompt, before the text; empty without one.
    """

    text: str
    num_tokens: int
    inputs: Mapping[str, npt.NDArray[Any]]
    pixel_scale: tuple[float, ...]
    pixel_shift: tuple[float, ...]
    seconds: float = 0.0
    number_marks: tuple[str, ...] = ()
