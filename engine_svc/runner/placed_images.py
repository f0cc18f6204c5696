"""The encoded images of one sequence at their places among its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_svc.layers.rotary import POSITIONS_PER_TOKEN
from engine_svc.media.base import EncodedImage, MediaEncoder
from engine_svc.media.rotary_positions import PlacedGrid, RotaryPositions, rotary_positions
from engine_svc.media.unfit import UnfitImage
from engine_svc.runner.given_rows import GivenRows
from quire.images import Image


@dataclass(frozen=True)
class PlacedImage:
    """An encoded image in a sequence."""

    positions: npt.NDArray[np.int64]  # of its image tokens in the sequence
    encoded: EncodedImage

    def rows(
        self, begin: int, end: int, start: int, rotary: RotaryPositions | None, *, both_ways: bool
    ) -> GivenRows | None:
        """The rows of a batch for those of its tokens that are computed; None if these are none.

        Args:
            begin, end: the sequence's tokens that are computed.
            start: the batch's row of the first of them.
            rotary: the sequence's positions, in models whose tokens have several.
            both_ways: see ModelFacts.whole_image_tokens.
        """
        first, last = np.searchsorted(self.positions, (begin, end))
        if last <= first:
            return None
        places, encoded = self.positions[first:last], self.encoded
        deep = None if encoded.deep is None else encoded.deep[first:last]
        turns = None if rotary is None else rotary.of(places)
        attends = both_ways and encoded.both_ways
        return GivenRows(places - begin + start, encoded.embeddings[first:last], deep, turns, attends)


@dataclass(frozen=True)
class PlacedImages:
    """The images of a sequence that are to be computed, and its positions in models whose tokens have several."""

    images: list[PlacedImage]
    rotary: RotaryPositions | None


def place_images(
    encoder: MediaEncoder, token_ids: Sequence[int], images: Sequence[Image], encoded: Sequence[EncodedImage | None],
    max_model_len: int,
) -> PlacedImages:  # fmt: skip
    """Finds the places of images among a sequence's tokens.

    Args:
        images: at least one.
        encoded: of each image; None if all of it is computed.
        max_model_len: the most tokens of a sequence.

    Raises:
        UnfitImage: an image does not fit its tokens.
    """
    tokens, own = np.array(token_ids[: images[-1].end]), encoder.token_ids
    is_image = np.ones(len(tokens), np.bool_) if own is None else np.isin(tokens, own)
    places = [np.flatnonzero(is_image[image.offset : image.end]) + image.offset for image in images]
    grids = [
        grid for image, at, each in zip(images, places, encoded, strict=True) for grid in encoder.grids(image, at, each)
    ]
    rotary = _rotary_positions(grids, max_model_len) if grids else None
    held = [_placed(encoder, at, each) for at, each in zip(places, encoded, strict=True) if each is not None]
    return PlacedImages(held, rotary)


def _rotary_positions(grids: Sequence[PlacedGrid], max_model_len: int) -> RotaryPositions:
    """
    Raises:
        UnfitImage: the model has no such positions.
    """
    found, most = rotary_positions(grids), POSITIONS_PER_TOKEN * max_model_len
    if (last := found.greatest(max_model_len)) >= most:
        raise UnfitImage(f"with it, positions go up to {last}, but the model has {most}; send a shorter video")
    return found


def _placed(encoder: MediaEncoder, places: npt.NDArray[np.int64], encoded: EncodedImage) -> PlacedImage:
    """
    Args:
        places: of its tokens. A recording that a sequence hears as it goes on has them from the first token on.

    Raises:
        UnfitImage: there is not one embedding for each of its tokens.
    """
    if encoder.frames_per_token:
        return PlacedImage(np.arange(len(encoded.embeddings)), encoded)
    if len(encoded.embeddings) != len(places):
        raise UnfitImage(f"it has {len(encoded.embeddings)} embeddings for {len(places)} tokens")
    return PlacedImage(places, encoded)
