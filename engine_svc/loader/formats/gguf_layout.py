"""Undoes the layout changes of llama.cpp's converter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from engine_svc.gguf.architecture import Architecture
from engine_svc.gguf.facts import Facts
from engine_svc.gguf.names import keys_within
from engine_svc.gguf.rotary import head_size
from quire.gguf.header import StoredTensor

if TYPE_CHECKING:
    import torch

_CONVOLUTIONS = ("ssm_conv1d", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v", "shortconv.conv")


def widened(values: torch.Tensor, stored: StoredTensor) -> torch.Tensor:
    """Dequantizes to float32 in the tensor's shape.

    Args:
        values: numbers, or the bytes of blocks.
    """
    import torch

    from engine_svc.ops.weights import wide
    from engine_svc.quantization.gguf import BlockLayer

    if values.is_floating_point():
        return values.float()
    weight = BlockLayer(stored.type.name).weight({"weight": values.flatten(0, -2)})
    return wide(weight, torch.float32).view(stored.shape)


def keys_and_values(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Joins the matrices that compute each head's keys and values from the cached latent vector.

    Args:
        keys: [heads, rank, key size]
        values: [heads, value size, rank]

    Returns:
        [heads * (key size + value size), rank]
    """
    import torch

    return torch.cat([keys.transpose(1, 2), values], dim=1).flatten(0, 1)


class HuggingFaceLayout:
    """Converts one model's tensors to Hugging Face's layout."""

    def __init__(self, architecture: Architecture, facts: Facts) -> None:
        self._architecture, self._facts = architecture, facts
        self._tiled: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        if architecture.tiled:
            self._tiled = {
                "attn_qkv": self._untile_last, "ssm_conv1d": self._untile_last, "attn_gate": self._untile,
                "ssm_alpha": self._untile, "ssm_beta": self._untile, "ssm_a": self._untile, "ssm_dt": self._untile,
                "ssm_out": lambda values: self._untile(values.t()).t(),
            }  # fmt: skip

    @functools.cached_property
    def _heads(self) -> int:
        return int(self._facts.need("attention.head_count"))

    @functools.cached_property
    def _kv_heads(self) -> int:
        return int(self._facts.find("attention.head_count_kv") or self._heads)

    def parts(self, stored: StoredTensor, values: torch.Tensor) -> list[torch.Tensor]:
        """The converted tensor, or one tensor for each of its names; see `huggingface_names`.

        Args:
            values: numbers, or the bytes of each row's blocks.

        Raises:
            ValueError: the tensor cannot be split.
        """
        keys = keys_within(stored.name, self._architecture)
        pairs = zip(keys, self._split(keys, values), strict=True)
        return [converted for key, part in pairs for converted in self._of_experts(key, part)]

    def _split(self, keys: Sequence[str], values: torch.Tensor) -> Sequence[torch.Tensor]:
        """Splits a tensor into those that it contains; see `keys_within`."""
        match keys:
            case ["attn_q", "attn_k", "attn_v"]:
                return self._queries_keys_values(values)
            case ["ssm_beta", "ssm_alpha"]:
                return self._strengths_and_steps(values)
            case ["ffn_gate_exps", "ffn_up_exps"]:
                return self._gates_and_ups(values)
        return [values] * len(keys)

    def _of_experts(self, key: str, values: torch.Tensor) -> list[torch.Tensor]:
        """The converted tensor, or that of each expert."""
        return list(values) if key.endswith("_exps") else [self._whole(key, values)]

    def _queries_keys_values(self, values: torch.Tensor) -> Sequence[torch.Tensor]:
        size = head_size(self._facts)
        sizes = [count * size for count in (self._heads, self._kv_heads, self._kv_heads)]
        if len(values) != sum(sizes):
            raise ValueError(f"it has {len(values)} rows; expected {sum(sizes)}, queries, keys and values of {sizes}")
        return values.split(sizes)

    def _strengths_and_steps(self, values: torch.Tensor) -> Sequence[torch.Tensor]:
        """Splits a delta net's strengths and steps, which alternate: for each key head, those of its value heads."""
        pairs = values.unflatten(0, (self._facts.need("ssm.group_count"), 2, -1))
        return [each.flatten(0, 1) for each in pairs.unbind(1)]

    def _gates_and_ups(self, values: torch.Tensor) -> Sequence[torch.Tensor]:
        """Splits each expert's rows in halves: its gate comes first."""
        if values.dim() != 3 or values.shape[1] % 2:
            raise ValueError("expected experts with an even number of rows, of gate and up")
        return values.chunk(2, dim=1)

    def _whole(self, key: str, values: torch.Tensor) -> torch.Tensor:
        values = self._tiled[key](values) if key in self._tiled else values
        if self._architecture.neighbours and key in ("attn_q", "attn_k"):
            heads = self._heads if key == "attn_q" else self._kv_heads
            pairs = values.unflatten(0, (heads, values.shape[0] // heads // 2, 2))
            return pairs.transpose(1, 2).flatten(0, 2)
        if key == "ssm_a":  # the states' decay rate; checkpoints have its logarithm
            rates = values.float().neg().log()
            return rates.flatten() if rates.shape[-1] == 1 else rates
        if key in ("ssm_d", "ssm_norm"):  # has an extra dimension of 1, or one for groups
            return values.flatten()
        if key in _CONVOLUTIONS and values.dim() > 1:  # Kimi's already have dimensions of 1
            return values.reshape(-1, 1, values.shape[-1])
        if key == "ffn_gate_inp_shexp" and values.dim() == 1:
            return values[None]
        offset = self._architecture.norm_offset
        return values.float() - offset if offset and key.endswith("norm") else values

    def _untile(self, values: torch.Tensor) -> torch.Tensor:
        """Groups rows of value heads by key head. They are stored as the first of every key head, then the second, …"""
        key_heads, heads = self._facts.need("ssm.group_count"), self._facts.need("ssm.time_step_rank")
        apart = values.unflatten(0, (heads // key_heads, key_heads, -1))
        return apart.transpose(0, 1).flatten(0, 2)

    def _untile_last(self, values: torch.Tensor) -> torch.Tensor:
        """Like `_untile`, for the rows after those of queries and keys."""
        import torch

        others = 2 * self._facts.need("ssm.group_count") * self._facts.need("ssm.state_size")
        return torch.cat([values[:others], self._untile(values[others:])])
