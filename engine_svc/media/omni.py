"""Encodes what models read that both see and hear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.media.audio import AudioEncoder
from engine_svc.media.base import EncodedImage, MediaEncoder
from engine_svc.media.encoder import ImageEncoder
from engine_svc.media.rotary_positions import PlacedGrid, SoundGrid
from engine_svc.media.unfit import UnfitImage
from quire.images import SOUND, Image
from quire.media import MediaKind

# Models whose tokens around the sound of a video have the positions of those around the video.
_OF_SHARED_ENDS = frozenset({"qwen2_5_omni_thinker"})


class OmniEncoder:
    """An encoder of images and videos, and one of audio, which also encodes the sound of videos.

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
        self._shares_ends = model.config.model_type in _OF_SHARED_ENDS
        self.token_ids: Sequence[int] | None = [*(self._images.token_ids or ()), *(self._audio.token_ids or ())]

    def encode(self, image: Image) -> EncodedImage:
        """See MediaEncoder.encode."""
        is_sound = _is_sound(image)
        if is_sound is None:
            return self._of(image).encode(image)
        return _joined(self._images.encode(_silent(image)), self._audio.encode(image), is_sound)

    def grids(
        self, image: Image, places: npt.NDArray[np.int64], encoded: EncodedImage | None = None
    ) -> list[PlacedGrid]:
        """See MediaEncoder.grids."""
        is_sound = _is_sound(image)
        if is_sound is None:
            return self._of(image).grids(image, places, encoded)
        count = len(is_sound)
        if len(places) != count or places[-1] - places[0] >= count or places[0] < self._shares_ends:
            raise UnfitImage(f"{count} embeddings of a video and its sound do not fit {len(places)} tokens")
        grids = self._images.grids(_silent(image), np.arange(count - is_sound.sum()))
        if any(grid.kept is not None for grid in grids):
            raise UnfitImage("a video with sound must have all of its embeddings")
        start, ends = int(places[0]) - self._shares_ends, self._shares_ends
        return [
            SoundGrid(start, each.frames, each.rows, each.columns, each.interval, is_sound=is_sound, shares_ends=ends)
            for each in grids
        ]

    def _of(self, image: Image) -> MediaEncoder:
        return self._audio if image.is_audio else self._images


def _is_sound(image: Image) -> npt.NDArray[np.bool_] | None:
    """Which tokens of a video are of its sound: [tokens]; None if it has none.

    Raises:
        UnfitImage: it does not say clearly.
    """
    given = next((each for each in image.inputs if each.name == SOUND), None)
    if given is None:
        return None
    found = np.frombuffer(given.data, np.uint8)
    if given.dtype != "bool" or len(given.shape) != 1 or found.max() > 1:
        raise UnfitImage(f"{SOUND} is {given.dtype} {list(given.shape)}; it must be bool [tokens]")
    return found.astype(np.bool_)


def _silent(video: Image) -> Image:
    return replace(video, inputs=tuple(each for each in video.inputs if each.name != SOUND))


def _joined(seen: EncodedImage, heard: EncodedImage, is_sound: npt.NDArray[np.bool_]) -> EncodedImage:
    """A video with the embeddings of its sound among its own. Nothing is added to these between layers.

    Raises:
        UnfitImage: there are more or fewer of one of them.
    """
    counts = len(seen.embeddings), len(heard.embeddings)
    if counts != ((~is_sound).sum(), is_sound.sum()):
        raise UnfitImage(f"{SOUND} does not fit {counts[0]} embeddings of a video and {counts[1]} of its sound")
    order = torch.from_numpy(np.argsort(np.argsort(is_sound, kind="stable"))).to(seen.embeddings.device)
    deep = None if seen.deep is None else torch.cat([seen.deep, seen.deep.new_zeros(counts[1], *seen.deep.shape[1:])])
    return EncodedImage(torch.cat([seen.embeddings, heard.embeddings])[order], None if deep is None else deep[order])
