"""Token ids as stages hold them, and their indices in the logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.transfer import to_device

Ids = npt.NDArray[np.int64]


def checked_ids(token_ids: Sequence[int], vocab_size: int) -> Ids:
    """Converts token ids to an int64 array and checks them.

    Raises:
        ValueError: an id is outside of the vocabulary.
    """
    ids = np.array(token_ids, np.int64)
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise ValueError(f"token ids from {ids.min()} to {ids.max()} in a vocabulary of {vocab_size}")
    return ids


def places(rows: list[int], ids: list[Ids], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of logits: rows and ids, int64 [count] each, with one entry per id of each row."""
    repeated = np.repeat(rows, [len(each) for each in ids])
    return to_device(repeated, device), to_device(np.concatenate(ids), device)
