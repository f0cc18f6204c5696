"""Transformers' attention with keys and values rounded as an 8-bit KV cache rounds them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def register_rounding(rounded: torch.dtype, skipped: Collection[int] = ()) -> str:
    """Registers it, and returns its name for `attn_implementation`.

    Args:
        rounded: the dtype that is rounded to.
        skipped: layers that do not round.
    """

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **named: Any
    ) -> Any:
        if module.layer_idx not in skipped:
            key, value = key.to(rounded).to(key.dtype), value.to(rounded).to(value.dtype)
        return sdpa_attention_forward(module, query, key, value, mask, **named)

    ALL_ATTENTION_FUNCTIONS.register("rounding", attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register("rounding", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    return "rounding"
