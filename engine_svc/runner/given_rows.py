"""Rows of a step's batch whose embeddings come with the prompt instead of from its token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.layers.embedding import EmbeddedRows, ImageExtras
from engine_svc.transfer import to_device


class GivenRows(NamedTuple):
    """The rows of one image, or of one sequence's prompt embeddings."""

    rows: npt.NDArray[np.int64]  # [rows]
    embeddings: torch.Tensor  # [rows, hidden_size], on the host or on the device
    deep: torch.Tensor | None = None  # see EncodedImage
    positions: npt.NDArray[np.int64] | None = None  # [positions, rows], for images in models whose tokens have several
    both_ways: bool = False  # an image whose tokens attend in both directions: see ModelFacts.whole_image_tokens


def put_together(given: Sequence[GivenRows], device: torch.device) -> EmbeddedRows | None:
    """All given rows of a batch, on the device; None if there are none."""
    if not given:
        return None
    there = [to_device(each.embeddings, device) if each.embeddings.is_cpu else each.embeddings for each in given]
    both_ways = [each.rows for each in given if each.both_ways]
    return EmbeddedRows(
        _rows(given, device), torch.cat(there), _extras(given, device),
        both_ways=np.concatenate(both_ways) if both_ways else None,
    )  # fmt: skip


def _rows(given: Sequence[GivenRows], device: torch.device) -> torch.Tensor:
    return to_device(np.concatenate([np.empty(0, np.int64), *(each.rows for each in given)]), device)


def _extras(given: Sequence[GivenRows], device: torch.device) -> ImageExtras | None:
    """What layers need of images beside their embeddings; None if they need nothing. Audio of a model that also sees
    needs less than its images."""
    positions = [each.positions for each in given if each.positions is not None]
    deep = [each.deep for each in given if each.deep is not None]
    if not positions and not deep:
        return None
    return ImageExtras(
        _rows([each for each in given if each.positions is not None], device),
        to_device(np.concatenate(positions, axis=1), device) if positions else None,
        _rows([each for each in given if each.deep is not None], device),
        torch.cat(deep).transpose(0, 1) if deep else None,
    )
