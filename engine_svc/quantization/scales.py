"""How many weights share a scale, and the resulting shape of scales in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_svc.quantization.base import OUTPUTS, SINGLE, Axis, ParameterSpec

Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class Scales:
    """The scales of a matrix: one for each block of `outputs` and `inputs`. None means all outputs or inputs."""

    outputs: int | None = 1
    inputs: int | None = None
    is_flat: bool = False  # without a dimension for groups, of which there is one
    whole: bool = False  # each rank has the scales of all inputs

    @property
    def axes(self) -> Axes:
        """The axes [outputs or blocks of outputs, groups]."""
        outputs = OUTPUTS if self.outputs is None else Axis("outputs", features=self.outputs)
        inputs = SINGLE if self.inputs is None else Axis("inputs", features=self.inputs, whole=self.whole)
        return (outputs,) if self.is_flat else (outputs, inputs)

    def spec(self, name: str, dtype: torch.dtype = torch.float32, default: float | None = None) -> ParameterSpec:
        """The parameter that holds the scales."""
        is_scalar = self.outputs is None or self.inputs is None
        return ParameterSpec(name, dtype, self.axes, is_scalar=is_scalar, default=default)

    def of_outputs(self, values: torch.Tensor, outputs: int) -> torch.Tensor:
        """[..., blocks, groups] → float32 [..., outputs, groups]."""
        values = values.float()[..., None] if self.is_flat else values.float()
        if (self.outputs or 1) > 1:
            values = values.repeat_interleave(self.outputs or 1, -2)[..., :outputs, :]
        return values.contiguous()

    def group(self, inputs: int) -> int:
        """How many of a rank's `inputs` inputs share a scale."""
        return inputs if self.inputs is None else min(self.inputs, inputs)


# One scale for a whole matrix; one for each output, twice.
TENSOR, CHANNEL, FLAT_CHANNEL = Scales(outputs=None), Scales(), Scales(is_flat=True)
