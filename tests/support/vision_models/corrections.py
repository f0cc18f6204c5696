"""Where Transformers 5.23 computes something else than the models' own code, by which they were trained."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers.masking_utils import create_masks_for_generate


def correct(model: Any) -> None:
    """Makes a model compute as its own code does; changes its module of Transformers for good."""
    if change := _CHANGES.get(model.config.model_type):
        change(sys.modules[type(model).__module__])


def _share_half_heads(module: Any) -> None:
    """HunYuan's four positions share the frequencies of half a head, and both halves are rotated alike.

    So do the model's own code, and vLLM. Transformers has them share the whole head, so that the halves are rotated by
    other positions.
    """

    def recomposed(self: Any, values: torch.Tensor) -> torch.Tensor:
        """[positions, batch, tokens, head_dim / 2] → [batch, tokens, head_dim]"""
        parts = values.split(self.mrope_section, dim=-1)
        half = torch.cat([part[position] for position, part in enumerate(parts)], dim=-1)
        return torch.cat((half, half), dim=-1)

    module.HunYuanVLRotaryEmbedding.recomposition_frequencies = recomposed


def _see_images_in_windows(module: Any) -> None:
    """In Gemma 4's 12B model, tokens of images see all of these in layers with a window only.

    So they do in vLLM, in llama.cpp and in other models of Gemma 4. In Transformers they do in all layers, unless the
    cache is static.
    """

    def masks(*, block_sequence_ids: torch.Tensor | None = None, **given: Any) -> Any:
        if block_sequence_ids is None:
            return create_masks_for_generate(**given)
        return module.create_masks_for_vision_model(block_sequence_ids=block_sequence_ids, **given)

    module.create_masks_for_generate = masks


_CHANGES: Mapping[str, Callable[[Any], None]] = {
    "gemma4_unified": _see_images_in_windows, "hunyuan_vl": _share_half_heads,
}  # fmt: skip
