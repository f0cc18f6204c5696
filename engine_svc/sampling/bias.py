"""Logit biases, and tokens that must not end a sequence yet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine_svc.sampling.edits import LogitEdits
from engine_svc.sampling.slot import Ids, SlotState
from engine_svc.transfer import to_device


def add_bias(edits: LogitEdits, states: Sequence[SlotState]) -> None:
    """Adds the logit biases; `states` are those of the rows."""
    some = [(row, state) for row, state in enumerate(states) if len(state.bias_ids)]
    if some:
        rows, ids = _places(edits, [(row, state.bias_ids) for row, state in some])
        bias = to_device(np.concatenate([state.bias for _, state in some]), edits.device)
        edits.write(rows, ids, edits.read(rows, ids) + bias)


def suppress(edits: LogitEdits, states: Sequence[SlotState], num_tokens: Sequence[int]) -> None:
    """Makes what would end a sequence impossible where min_tokens are not reached.

    Args:
        num_tokens: tokens known of each row's sequence.
    """
    some = [(row, state.suppressed) for row, state in enumerate(states) if state.suppresses(num_tokens[row])]
    if some:
        rows, ids = _places(edits, some)
        edits.write(rows, ids, torch.full(rows.shape, -torch.inf, device=edits.device))


def _places(edits: LogitEdits, parts: list[tuple[int, Ids]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and ids, one entry for each id of each part."""
    rows = np.repeat([row for row, _ in parts], [len(ids) for _, ids in parts])
    return to_device(rows, edits.device), to_device(np.concatenate([ids for _, ids in parts]), edits.device)
