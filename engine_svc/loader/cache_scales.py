"""A checkpoint's scales for an 8-bit KV cache: keys and values are divided by them before they are cached."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from engine_svc.attention.base import CacheScales
from engine_svc.layers.parameter import TensorSlice
from quire.errors import StartupError

# Names by calibration tools, including scales of queries and weights, which are not used as they are not rounded here.
_ANY = re.compile(
    r"(.+\.)?(([qkv]|kv|prob|prob_output|qkv_proj_output|softmax)_(scale|zero_point)|[qkv]_proj\.output_(scale|zero_point))"
)
_USED = re.compile(r"(?:.+\.)?layers\.(\d+)\.(?:.+\.)?(?:(k|v|kv)_scale|([kv])_proj\.output_scale)")


def is_cache_scale(name: str) -> bool:
    """Whether a tensor of a checkpoint is for an 8-bit KV cache, not for weights."""
    return _ANY.fullmatch(name) is not None


def as_tensors(scales: Mapping[int, CacheScales]) -> dict[str, torch.Tensor]:
    """The layers' scales as tensors with names that `CheckpointScales` accepts."""
    found = {}
    for index, each in scales.items():
        for part, value in (("k", each.key), ("v", each.value)):
            found[f"layers.{index}.self_attn.{part}_scale"] = torch.tensor([value])
    return found


class CheckpointScales:
    """Collects the scales of all layers while tensors are read."""

    def __init__(self) -> None:
        self.by_layer: dict[int, CacheScales] = {}

    def take(self, name: str, source: TensorSlice) -> None:
        """Takes one scale; scales of anything but keys and values are ignored.

        Raises:
            StartupError: the scale is not a positive number.
        """
        found = _USED.fullmatch(name)
        if found is None:
            return
        values = source[...].float()
        if values.numel() != 1 or not 0 < values.item() < float("inf"):
            raise StartupError(
                f"{name} is {values.tolist()} in the checkpoint; the scale of a layer's KV cache must be one "
                "positive number."
            )
        scales = self.by_layer.setdefault(int(found[1]), CacheScales())
        what = found[2] or found[3]
        if "k" in what:
            scales.key = values.item()
        if "v" in what:
            scales.value = values.item()
