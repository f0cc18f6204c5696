"""Conversions of keys and values to the dtype of the cache, which torch supports in part only if it has 8 bits."""

from __future__ import annotations

import torch


def to_stored(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Converts keys or values to the dtype of the cache; 8-bit types saturate at their greatest finite value."""
    if tensor.dtype == dtype:
        return tensor
    most = torch.finfo(dtype).max
    return tensor.clamp(-most, most).to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory viewed as a dtype that torch can copy by index, which it cannot for all of its 8-bit types."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor
