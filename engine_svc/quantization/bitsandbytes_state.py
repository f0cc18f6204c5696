"""The quantization state in bitsandbytes' checkpoints: shapes of matrices, and the greatest values of blocks."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import torch

from engine_svc.quantization.routers import ROUTERS
from engine_svc.quantization.source import Tensors
from quire.errors import StartupError

# The parameter of greatest values has one for each run of this many inputs. Blocks have at least this length, and may
# begin within a row.
RUN = 32
_STATE = "quant_state.bitsandbytes__"


@dataclass(frozen=True)
class MatrixState:
    """The quantization state of a matrix."""

    quant_type: str
    outputs: int
    inputs: int
    block: int
    nested_block: int
    nested_offset: float
    nested_absmax: torch.Tensor | None = None
    nested_quant_map: torch.Tensor | None = None

    def codes(self, octets: torch.Tensor) -> torch.Tensor:
        """Reshapes the flat codes, stored in any dtype, to uint8 [outputs, inputs / 2] with two codes per byte.

        Raises:
            ValueError: the codes do not fit the matrix.
        """
        found = octets.contiguous().view(torch.uint8)
        if 2 * found.numel() != self.outputs * self.inputs or self.inputs % 2:
            raise ValueError(f"{found.numel()} bytes are not codes of {self.outputs} times {self.inputs} weights")
        return found.view(self.outputs, -1)

    def greatest(self, absmax: torch.Tensor) -> torch.Tensor:
        """Expands the greatest values of blocks to float32 [outputs, runs of inputs].

        Raises:
            ValueError: the values do not fit the matrix.
        """
        if math.gcd(self.inputs, self.block) % RUN:
            raise ValueError(
                f"blocks of {self.block} values do not fit rows of {self.inputs}, which is not a multiple of {RUN}"
            )
        runs = self.outputs * self.inputs // RUN
        if absmax.numel() != -(-self.outputs * self.inputs // self.block):
            raise ValueError(
                f"{absmax.numel()} blocks of {self.block} are not {self.outputs} times {self.inputs} values"
            )
        values = self._widened(absmax.flatten())
        return values.repeat_interleave(self.block // RUN)[:runs].view(self.outputs, -1)

    def _widened(self, absmax: torch.Tensor) -> torch.Tensor:
        if self.nested_absmax is None or self.nested_quant_map is None:
            return absmax.float()
        scale = self.nested_absmax.float().repeat_interleave(self.nested_block)[: len(absmax)]
        return self.nested_quant_map.float()[absmax.long()] * scale + self.nested_offset


def beside(tensors: Tensors) -> tuple[dict[str, MatrixState], dict[str, torch.Tensor]]:
    """Reads the states of all matrices, and the greatest values of quantized routers, both by module.

    Raises:
        StartupError: a state cannot be understood.
    """
    found: dict[str, dict[str, Any]] = {}
    router_scales = {}
    for name, source in tensors:
        module, _, kind = name.partition(".weight.")
        if kind.startswith(_STATE):
            found.setdefault(module, {}).update(_described(name, source[...]))
        elif kind in ("nested_absmax", "nested_quant_map"):
            found.setdefault(module, {})[kind] = source[...].clone()
        elif kind == "absmax" or name.endswith(".SCB"):
            module = module.removesuffix(".SCB")
            if module.rpartition(".")[2] in ROUTERS:
                router_scales[module] = source[...].clone()
    states = {module: MatrixState(**state) for module, state in found.items() if "quant_type" in state}
    return states, router_scales


def _described(name: str, octets: torch.Tensor) -> dict[str, Any]:
    try:
        state = json.loads(bytes(octets.tolist()))
        outputs, inputs = state["shape"]
        found: dict[str, Any] = {
            "quant_type": str(state["quant_type"]), "outputs": int(outputs), "inputs": int(inputs),
            "block": int(state["blocksize"]), "nested_block": int(state.get("nested_blocksize", 1)),
            "nested_offset": float(state.get("nested_offset", 0.0)),
        }  # fmt: skip
        if min(found[name] for name in ("outputs", "inputs", "block", "nested_block")) < 1:
            raise ValueError("a size is less than 1")
        return found
    except (ValueError, KeyError, TypeError) as error:
        raise StartupError(f"{name} does not describe a matrix of codes: {type(error).__name__}: {error}.") from error
