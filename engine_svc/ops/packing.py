"""What the C++ kernels of products want their operands to be like."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from engine_svc.ops.base import ExpertsProduct

_PANEL = 64  # outputs that are packed together, as in matrix.h


def padded(outputs: int) -> int:
    """Outputs of a packed matrix."""
    return -(-outputs // _PANEL) * _PANEL


def padded_bias(values: torch.Tensor | None, outputs: int) -> torch.Tensor | None:
    """A bias as float32 [padded outputs]."""
    return None if values is None else F.pad(values.float(), (0, padded(outputs) - outputs))


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Where its data is; None for none."""
    return None if tensor is None else tensor.data_ptr()


def experts_product(
    kernel: Callable[..., None], down: torch.Size, operands: tuple[torch.Tensor, ...]
) -> ExpertsProduct:
    """A product with all experts' weights in one call.

    Args:
        down: [experts, hidden_size, features inside an expert]
        operands: what the kernel takes of the packed weights.
    """
    count, size, inner = down

    def product(hidden: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        output = torch.empty_like(hidden)
        # The kernel reads a token's choices behind the last token's.
        weights, expert_ids = weights.contiguous(), expert_ids.contiguous()
        kernel(
            hidden.data_ptr(), hidden.shape[0], hidden.stride(0), expert_ids.data_ptr(), weights.data_ptr(),
            weights.shape[1], count, *(operand.data_ptr() for operand in operands), output.data_ptr(), size,
            inner, torch.get_num_threads(),
        )  # fmt: skip
        return output

    return product
