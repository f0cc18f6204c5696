"""Attention sinks: a score of each head that takes part in each softmax but has no value."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.parameter import LoadedParameter, TensorSlice


def head_sinks(first: int, heads: int, context: LayerContext) -> LoadedParameter:
    """The sinks of a rank's heads, float32 [heads].

    Args:
        first: number of the rank's first head.
    """
    sinks = LoadedParameter((heads,), torch.float32, context.device)

    def load(source: TensorSlice, part: str) -> None:
        sinks.write(part, sinks, source, (slice(first, first + heads),))

    sinks.loader = load
    return sinks
