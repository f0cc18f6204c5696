"""How many weights share a scale, and where a scale then is in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_svc.quantization.base import OUTPUTS, SINGLE, Axis, ParameterSpec

Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class Scales:
    """Of a matrix: one for so many outputs and so many inputs; None for as many as there are."""

    outputs: int | None = 1
    inputs: int | None = None
    is_flat: bool = False  # there is no dimension for the only group
    whole: bool = False  # each rank has those of all inputs

    @property
    def axes(self) -> Axes:
        """[outputs or blocks of them, groups]"""
        outputs = OUTPUTS if self.outputs is None else Axis("outputs", features=self.outputs)
        inputs = SINGLE if self.inputs is None else Axis("inputs", features=self.inputs, whole=self.whole)
        return (outputs,) if self.is_flat else (outputs, inputs)

    def spec(self, name: str, dtype: torch.dtype = torch.float32, default: float | None = None) -> ParameterSpec:
        """The parameter that holds them."""
        is_scalar = self.outputs is None or self.inputs is None
        return ParameterSpec(name, dtype, self.axes, is_scalar=is_scalar, default=default)

    def of_outputs(self, values: torch.Tensor, outputs: int) -> torch.Tensor:
        """[..., blocks, groups] → float32 [..., outputs, groups]."""
        values = values.float()[..., None] if self.is_flat else values.float()
        if (self.outputs or 1) > 1:
            values = values.repeat_interleave(self.outputs or 1, -2)[..., :outputs, :]
        return values.contiguous()

    def group(self, inputs: int) -> int:
        """How many of a rank's inputs share one."""
        return inputs if self.inputs is None else min(self.inputs, inputs)


# For a whole matrix, and for each output.
TENSOR, CHANNEL, FLAT_CHANNEL = Scales(outputs=None), Scales(), Scales(is_flat=True)
