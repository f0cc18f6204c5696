"""Images in the prompts of sequences, whose embeddings are put in place of their tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.media.base import EncodedImage, MediaEncoder
from engine_svc.media.rotary_positions import RotaryPositions
from engine_svc.media.store import ImageStore
from engine_svc.media.unfit import UnfitImage
from engine_svc.plan import ImageChanges, NewSequence, ScheduledSequence
from engine_svc.runner.given_rows import GivenRows
from engine_svc.runner.placed_images import PlacedImage, place_images
from quire.media import MediaKind

logger = logging.getLogger(__name__)


class ImageRows:
    """The images of all slots. For models that read text only, every method is a no-op."""

    def __init__(
        self, encoder: MediaEncoder | None, device: torch.device, max_model_len: int = 0, *, both_ways: bool = False
    ) -> None:
        """
        Args:
            encoder: None for models that read text only.
            max_model_len: the most tokens of a sequence.
            both_ways: see ModelFacts.whole_image_tokens.
        """
        self._encoder, self._device, self._both_ways = encoder, device, both_ways
        self._max_model_len = max_model_len
        self._store = None if encoder is None else ImageStore(encoder, device)
        self._held: dict[int, list[PlacedImage]] = {}  # by slot
        # Of recordings that go on, by key: the slot of the sequence, and how many of its tokens hear what has come.
        self._recordings: dict[int, tuple[int, int]] = {}
        self._growing: dict[int, int] = {}  # key of an audio that is being encoded → key of its recording
        self._rotary: dict[int, RotaryPositions] = {}  # by slot, in models whose tokens have three positions

    @property
    def kinds(self) -> frozenset[MediaKind]:
        """What prompts may have besides text."""
        return frozenset() if self._encoder is None else self._encoder.kinds

    def exchange(self, changes: ImageChanges) -> dict[int, str]:
        """Applies the changes, and returns what has been encoded since the last call: see StepResult.encoded_images."""
        if self._store is None:
            return {}
        for key in changes.dropped:
            self._recordings.pop(key, None)
            self._growing.pop(key, None)
        self._growing |= {key: grown.key for key, grown in changes.grown.items()}
        self._store.begin(changes)
        found = self._store.take_encoded()
        for key, error in found.items():
            recording = self._growing.pop(key, None)
            if recording is not None and not error:
                self._grow(recording, self._store.take(key))
        return found

    def _grow(self, recording: int, encoded: EncodedImage) -> None:
        """Holds what comes next of a recording for its sequence."""
        slot, heard = self._recordings[recording]
        end = heard + len(encoded.embeddings)
        self._recordings[recording] = slot, end
        self._held.setdefault(slot, []).append(PlacedImage(np.arange(heard, end), encoded))

    def close(self) -> None:
        """Stops encoding images."""
        if self._store is not None:
            self._store.close()

    def add(self, sequence: NewSequence) -> str:
        """Gives a slot to a sequence, and holds the images that it has yet to compute.

        Returns:
            Why the sequence fails, if its images do not fit its tokens; else nothing.
        """
        self._held.pop(sequence.slot, None)
        self._rotary.pop(sequence.slot, None)
        if not sequence.images or self._encoder is None or self._store is None:
            return ""
        encoded = [self._store.get(key) if key else None for key in sequence.image_keys]
        try:
            placed = place_images(self._encoder, sequence.token_ids, sequence.images, encoded, self._max_model_len)
        except UnfitImage as error:
            logger.warning("slot %d: an image does not fit its prompt: %s", sequence.slot, error)
            return f"an image does not fit its prompt: {error}"
        if placed.rotary is not None:
            self._rotary[sequence.slot] = placed.rotary
        if placed.images:
            self._held[sequence.slot] = placed.images
        for key, image, each in zip(sequence.image_keys, sequence.images, encoded, strict=True):
            if image.goes_on and each is not None:
                self._recordings[key] = sequence.slot, len(each.embeddings)
        return ""

    def hold_blank(self, slot: int, num_tokens: int, hidden_size: int, dtype: torch.dtype) -> None:
        """Makes the first tokens of a slot's sequence count as an image, so that kernels for images warm up."""
        blank = torch.zeros(num_tokens, hidden_size, dtype=dtype, device=self._device)
        self._held[slot] = [PlacedImage(np.arange(num_tokens), EncodedImage(blank, None))]

    def turned(
        self, positions: npt.NDArray[np.int64], slots: Sequence[int], starts: Sequence[int]
    ) -> npt.NDArray[np.int64]:
        """The positions [tokens] that text is rotated by, and the first of the three for images.

        Args:
            positions: the tokens' places in their sequences.
            starts: the first row of each sequence, followed by the number of rows.
        """
        if not self._rotary:
            return positions
        found = positions.copy()
        for slot, start, end in zip(slots, starts[:-1], starts[1:], strict=True):
            if slot in self._rotary:
                found[start:end] = self._rotary[slot].of(positions[start:end])[0]
        return found

    def rows(self, scheduled: Sequence[ScheduledSequence]) -> list[GivenRows]:
        """The rows of each image in a step's batch. Drops images that are fully computed."""
        found: list[GivenRows] = []
        start = 0
        for sequence in scheduled if self._held else ():
            begin, end = sequence.num_computed_tokens, sequence.num_computed_tokens + sequence.num_new_tokens
            if held := [each for each in self._held.pop(sequence.slot, ()) if each.positions[-1] >= begin]:
                self._held[sequence.slot] = held
            rotary = self._rotary.get(sequence.slot)
            rows = (each.rows(begin, end, start, rotary, both_ways=self._both_ways) for each in held)
            found += [each for each in rows if each is not None]
            start += sequence.num_new_tokens
        return found
