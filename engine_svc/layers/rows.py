"""Parameters beside the matrices: vectors and their like, of whose rows every rank holds some."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.layers.split import Part


def rows_parameter(
    parts: Sequence[Part],
    shape: Sequence[int],
    context: LayerContext,
    change: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.float,
    dtype: torch.dtype = torch.float32,
) -> LoadedParameter:
    """A parameter of some rows of a checkpoint's tensor, never quantized.

    Args:
        parts: which rows are this rank's, of ranges that stand below each other in the checkpoint.
        shape: of the parameter.
        change: makes it of these rows.
    """
    parameter = LoadedParameter(shape, dtype, context.device)
    total = sum(part.total for part in parts)

    def load(source: TensorSlice, name: str) -> None:
        found = source.get_shape()
        if not found or found[0] != total:
            raise ValueError(f"shape {list(found)} in the checkpoint does not begin with {total}")
        rows, below = [], 0
        for part in parts:
            rows.append(source[below + part.first : below + part.first + part.count])
            below += part.total
        changed = change(torch.cat(rows))
        if changed.shape != parameter.shape:
            raise ValueError(f"shape {list(found)} in the checkpoint does not fit {list(parameter.shape)}")
        parameter.copy_(changed)
        parameter.missing.discard(name)

    parameter.loader = load
    return parameter
