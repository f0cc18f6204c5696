"""Images, videos and audio of pooled sequences: encoded in the step that computes them, and placed in its batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch

from engine_svc.media.base import EncodedImage, MediaEncoder
from engine_svc.media.unfit import UnfitImage
from engine_svc.pooling.inputs import FlatBatch
from engine_svc.pooling_plan import PooledSequence
from engine_svc.runner.given_rows import put_together
from engine_svc.runner.placed_images import PlacedImages, place_images
from quire.media import MediaKind

logger = logging.getLogger(__name__)


class StepImages:
    """The images of a step's sequences. For models that read text only, every method is a no-op."""

    def __init__(
        self, encoder: MediaEncoder | None, max_model_len: int, device: torch.device, *, both_ways: bool, is_alone: bool
    ) -> None:
        """
        Args:
            encoder: None for models that read text only.
            both_ways: see ModelFacts.whole_image_tokens.
            is_alone: there is no other rank, which would compute a sequence that fails here.
        """
        self._encoder, self._device, self._both_ways = encoder, device, both_ways
        self._is_alone = is_alone
        self._max_model_len = max_model_len

    @property
    def kinds(self) -> frozenset[MediaKind]:
        """What sequences may have besides text."""
        return frozenset() if self._encoder is None else self._encoder.kinds

    def place(self, sequences: Sequence[PooledSequence]) -> list[PlacedImages | str | None]:
        """Encodes the images of each sequence, one that several have only once, and finds their places.

        Returns:
            For each sequence its images, if it has any, or why they cannot be had, worded for the caller.
        """
        encoder, encoded = self._encoder, dict[bytes, EncodedImage]()
        if encoder is None:
            return [None] * len(sequences)
        return [self._placed(encoder, each, encoded) if each.images else None for each in sequences]

    def _placed(
        self, encoder: MediaEncoder, sequence: PooledSequence, encoded: dict[bytes, EncodedImage]
    ) -> PlacedImages | str:
        """
        Args:
            encoded: what has been encoded in this step, by digest; gets what this sequence has.
        """
        try:
            for image in sequence.images:
                if image.digest not in encoded:
                    encoded[image.digest] = encoder.encode(image)
            own = [encoded[image.digest] for image in sequence.images]
            return place_images(encoder, sequence.token_ids, sequence.images, own, self._max_model_len)
        except UnfitImage as error:
            return f"an image does not fit the model or its place: {error}"
        except Exception as error:  # whatever an encoder raises about inputs that it was not made for
            if not self._is_alone:
                raise
            logger.exception("an image cannot be encoded")
            return f"the model cannot encode one of the images ({type(error).__name__})"

    def put(self, batch: FlatBatch, placed: Sequence[PlacedImages | None]) -> FlatBatch:
        """The batch with the images of its sequences: their embeddings, and the positions of all tokens."""
        if not any(placed):
            return batch
        positions, rows = batch.positions.copy(), []
        for start, length, each in zip(batch.starts.tolist(), batch.lengths, placed, strict=False):
            if each is None:
                continue
            if each.rotary is not None:
                own = slice(start, start + length)
                positions[own] = each.rotary.of(positions[own])[0]
            rows += [
                image.rows(0, length, start, each.rotary, both_ways=self._both_ways) for image in each.images
            ]  # fmt: skip
        given = [each for each in rows if each is not None]
        return replace(batch, positions=positions, embedded=put_together(given, self._device))
