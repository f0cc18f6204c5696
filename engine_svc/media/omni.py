"""Encodes what models read that both see and hear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.media.audio import AudioEncoder
from engine_svc.media.base import EncodedImage, MediaEncoder
from engine_svc.media.encoder import ImageEncoder
from engine_svc.media.rotary_positions import PlacedGrid
from quire.images import Image
from quire.media import MediaKind


class OmniEncoder:
    """An encoder of images and videos, and one of audio.

    Attributes: see MediaEncoder.
    """

    frames_per_token = 0

    def __init__(self, model: Any, kinds: frozenset[MediaKind], dtype: torch.dtype, device: torch.device) -> None:
        """
        Args:
            model: from `load_encoder`.
        """
        self.kinds = kinds
        self._images = ImageEncoder(model, kinds - {MediaKind.AUDIO}, dtype, device)
        self._audio = AudioEncoder(model, frozenset({MediaKind.AUDIO}), dtype, device)
        self.token_ids: Sequence[int] | None = [*(self._images.token_ids or ()), *(self._audio.token_ids or ())]

    def encode(self, image: Image) -> EncodedImage:
        """See MediaEncoder.encode."""
        return self._of(image).encode(image)

    def grids(
        self, image: Image, places: npt.NDArray[np.int64], encoded: EncodedImage | None = None
    ) -> list[PlacedGrid]:
        """See MediaEncoder.grids."""
        return self._of(image).grids(image, places, encoded)

    def _of(self, image: Image) -> MediaEncoder:
        return self._audio if image.is_audio else self._images
