"""Parameters other than matrices, such as vectors, of whose rows every rank holds some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.fused_experts import Flat
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.layers.split import Part


def rows_parameter(
    parts: Sequence[Part] | Mapping[str, Part],
    shape: Sequence[int],
    context: LayerContext,
    change: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.float,
    dtype: torch.dtype = torch.float32,
    *,
    is_flat: bool = False,
) -> LoadedParameter:
    """A parameter made from this rank's rows of a checkpoint tensor; never quantized.

    Args:
        parts: this rank's rows in ranges that stand below each other in the checkpoint. They have names if a checkpoint
            may have a tensor for each; then the parameter's last dimension is that of the rows.
        shape: of the parameter.
        change: converts the rows to the parameter.
        is_flat: the checkpoint tensor is flattened first, as it may have more dimensions.
    """
    named: Mapping[str, Part] = parts if isinstance(parts, Mapping) else {}
    together = tuple(parts.values() if isinstance(parts, Mapping) else parts)
    parameter = LoadedParameter(shape, dtype, context.device, tuple(named) or ("",))

    def load(source: TensorSlice, name: str) -> None:
        wanted = (named[name],) if name else together
        source = Flat(source) if is_flat else source
        found, total = source.get_shape(), sum(part.total for part in wanted)
        if not found or found[0] != total:
            raise ValueError(f"shape {list(found)} in the checkpoint does not begin with {total}")
        rows, below = [], 0
        for part in wanted:
            rows.append(source[below + part.first : below + part.first + part.count])
            below += part.total
        changed, target = change(torch.cat(rows)), parameter.data
        if name:
            before = list(named).index(name)
            first = sum(part.count for part in together[:before])
            target = target[..., first : first + named[name].count]
        if changed.shape != target.shape:
            raise ValueError(f"shape {list(found)} in the checkpoint does not fit {list(target.shape)}")
        target.copy_(changed)
        parameter.missing -= {name} if name else parameter.missing

    parameter.loader = load
    return parameter
