"""Images in the prompts of sequences: encoded when a step first needs them, and put in place of their tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_svc.images.encoder import EncodedImage, ImageEncoder
from engine_svc.images.rotary_positions import RotaryPositions, rotary_positions
from engine_svc.plan import NewSequence, ScheduledSequence
from engine_svc.runner.given_rows import GivenRows
from engine_svc.sampling.isolation import blame
from quire.images import Image


@dataclass
class _Held:
    """An image that a sequence has yet to compute, or part of it."""

    image: Image
    positions: npt.NDArray[np.int64]  # of its image tokens in the sequence
    encoded: EncodedImage | None = None


class ImageRows:
    """The images of all slots, and the embeddings of the images encoded last."""

    def __init__(self, encoder: ImageEncoder | None, most_kept: int) -> None:
        """
        Args:
            encoder: None for models that read text only.
            most_kept: number of embeddings up to which those of images are kept, in case they come again.
        """
        self._encoder = encoder
        self._most_kept = most_kept
        self._held: dict[int, list[_Held]] = {}  # by slot
        self._rotary: dict[int, RotaryPositions] = {}  # by slot, in models whose tokens have three positions
        self._kept: OrderedDict[bytes, EncodedImage] = OrderedDict()  # by digest; the one used last comes last

    @property
    def are_accepted(self) -> bool:
        """Whether the model reads images."""
        return self._encoder is not None

    def add(self, sequence: NewSequence) -> None:
        """Gives a slot to a sequence, and holds the images that it has yet to compute."""
        self._held.pop(sequence.slot, None)
        self._rotary.pop(sequence.slot, None)
        if not sequence.images or self._encoder is None:
            return
        tokens = np.array(sequence.token_ids[: sequence.images[-1].end])
        is_image = tokens == self._encoder.image_token_id
        held = [
            _Held(image, np.flatnonzero(is_image[image.offset : image.end]) + image.offset) for image in sequence.images
        ]
        grids = [self._encoder.grid(each.image, int(each.positions[0])) for each in held if len(each.positions)]
        placed = [grid for grid in grids if grid is not None]
        if placed:
            self._rotary[sequence.slot] = rotary_positions(placed)
        if left := [each for each in held if each.image.end > sequence.num_computed_tokens]:
            self._held[sequence.slot] = left

    def encode(self, scheduled: Sequence[ScheduledSequence]) -> dict[int, str]:
        """Encodes the images that begin or continue in a step, and drops those that sequences have computed.

        Returns:
            slot → why its sequence fails, for those with an image that the model cannot encode.
        """
        failed: dict[int, str] = {}
        for sequence in scheduled if self._held else ():
            begin, end = sequence.num_computed_tokens, sequence.num_computed_tokens + sequence.num_new_tokens
            left = [each for each in self._held.pop(sequence.slot, ()) if each.image.end > begin]
            try:
                for each in left:
                    if each.encoded is None and each.image.offset < end:
                        each.encoded = self._encode(each)
            except Exception as error:  # whatever an encoder raises about inputs that do not fit
                failed[sequence.slot] = blame(sequence.slot, "the model cannot encode one of its images", error)
            else:
                self._held |= {sequence.slot: left} if left else {}
        return failed

    def _encode(self, held: _Held) -> EncodedImage:
        """
        Raises:
            ValueError: there is not one embedding for each of its tokens.
        """
        assert self._encoder is not None
        digest = held.image.digest
        found = self._kept.pop(digest, None)
        found = self._kept[digest] = self._encoder.encode(held.image) if found is None else found
        while len(self._kept) > 1 and sum(len(each.embeddings) for each in self._kept.values()) > self._most_kept:
            self._kept.popitem(last=False)
        if len(found.embeddings) != len(held.positions):
            raise ValueError(f"an image has {len(found.embeddings)} embeddings for {len(held.positions)} tokens")
        return found

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
        """The rows of each image in a step's batch."""
        found: list[GivenRows] = []
        start = 0
        for sequence in scheduled if self._held else ():
            begin, end = sequence.num_computed_tokens, sequence.num_computed_tokens + sequence.num_new_tokens
            for each in self._held.get(sequence.slot, ()):
                first, last = np.searchsorted(each.positions, (begin, end))
                if each.encoded is not None and last > first:
                    places, rotary = each.positions[first:last], self._rotary.get(sequence.slot)
                    embeddings, deep = (None if part is None else part[first:last] for part in each.encoded)
                    turns = None if rotary is None else rotary.of(places)
                    found.append(GivenRows(places - begin + start, embeddings, deep, turns))
            start += sequence.num_new_tokens
        return found
