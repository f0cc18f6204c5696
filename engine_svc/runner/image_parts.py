"""Batches with images whose tokens attend in both directions: the queries of text and of images attend apart.

Each run of text, and each image, counts as a sequence of its own that ends with it: backends need not know of images.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engine_svc.attention.base import AttentionMetadata, OutputRows, Prepared, QueryPart
from engine_svc.transfer import to_device_together


class ImageParts:
    """Prepares the attention of a batch whose images are whole."""

    def __init__(self, prepare: Callable[[AttentionMetadata], Prepared], both_ways: npt.NDArray[np.int64]) -> None:
        """
        Args:
            prepare: of the attention backend.
            both_ways: the batch's rows of images.
        """
        self._prepare, self._both_ways = prepare, both_ways

    def prepare(self, metadata: AttentionMetadata) -> Prepared:
        """Prepares layers in which all rows of the batch attend."""
        return self._divided(metadata, self._is_image(metadata))

    def prepare_outputs(self, metadata: AttentionMetadata, outputs: OutputRows) -> Prepared:
        """Prepares a layer in which only the output rows attend.

        Args:
            metadata: of all rows.
        """
        lens = np.array(outputs.lens_host)
        rows = np.arange(lens.sum()) + np.repeat(np.cumsum(metadata.query_lens_host) - np.cumsum(lens), lens)
        return self._divided(outputs.as_queries(metadata), self._is_image(metadata)[rows])

    def _is_image(self, metadata: AttentionMetadata) -> npt.NDArray[np.bool_]:
        found = np.zeros(sum(metadata.query_lens_host), np.bool_)
        found[self._both_ways] = True
        return found

    def _divided(self, metadata: AttentionMetadata, is_image: npt.NDArray[np.bool_]) -> Prepared:
        """
        Args:
            is_image: for each query.
        """
        if not is_image.any():
            return self._prepare(metadata)
        query_start = np.concatenate(([0], np.cumsum(metadata.query_lens_host)))
        is_first = np.concatenate(([True], is_image[1:] != is_image[:-1]))
        is_first[query_start[:-1]] = True
        begins = np.flatnonzero(is_first)
        ends = np.append(begins[1:], len(is_image))
        sequences = np.searchsorted(query_start, begins, side="right") - 1
        lens = np.array(metadata.seq_lens_host)[sequences] - (query_start[sequences + 1] - ends)
        parts: list[QueryPart] = []
        for of_images in np.unique(is_image).tolist():
            own = is_image[begins] == of_images
            query_lens, seq_lens = (ends - begins)[own], lens[own]
            starts = np.concatenate(([0], np.cumsum(query_lens)))
            slots = metadata.slot_mapping if not parts else metadata.slot_mapping[:0]
            rows, there, starts_there, lens_there = to_device_together(
                [
                    np.flatnonzero(is_image == of_images), sequences[own], starts.astype(np.int32),
                    seq_lens.astype(np.int32),
                ],
                slots.device,
            )  # fmt: skip
            alone = AttentionMetadata(
                starts_there, lens_there, metadata.block_table[there], slots, query_lens.tolist(), seq_lens.tolist()
            )
            parts.append(QueryPart(rows, self._prepare(alone), of_images))
        return Prepared(metadata, parts=tuple(parts))
