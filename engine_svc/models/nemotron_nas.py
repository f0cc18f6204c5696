"""Llama Nemotron Super and Ultra (NVIDIA 2025): Llama, each layer of which a search has pruned in its own way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from engine_svc.models import llama
from engine_svc.models.config import LayerHeads, ModelConfig
from engine_svc.models.pruned_config import WHOLE, Pruned
from quire.errors import StartupError

_MODULES = {"linear_attn": "linear", "linear_mlp": "linear"}
# What the description of a layer's part may say; the rest must be off.
_KNOWN = {
    "attention": {"n_heads_in_group", "no_op", "replace_with_linear"},
    "ffn": {"ffn_mult", "gated", "hidden_act", "intermediate_size", "no_op", "replace_with_linear"},
}
_ROUNDED_TO = 256  # sizes of feed-forward layers that are given as multiples of hidden_size


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """
    Raises:
        StartupError: layers have other parts, or other activations.
    """
    blocks = [
        {part: _checked(layer, part, block[part], config) for part in _KNOWN}
        for layer, block in enumerate(config["block_configs"])
    ]  # fmt: skip
    left = [Pruned(_left(block["attention"]), _left(block["ffn"])) for block in blocks]
    attending = [layer for layer, parts in enumerate(left) if parts.attention == "whole"]
    sizes = {
        layer: _size(blocks[layer]["ffn"], config["hidden_size"])
        for layer, parts in enumerate(left) if parts.feed_forward == "whole"
    }  # fmt: skip
    heads = config["num_attention_heads"]
    numbers = {layer: heads // blocks[layer]["attention"]["n_heads_in_group"] for layer in attending}
    most = {
        "num_hidden_layers": len(blocks), "intermediate_size": max(sizes.values(), default=1),
        "num_key_value_heads": max(numbers.values(), default=heads),
    }  # fmt: skip
    found = llama.config_of({**config, **most})
    own = {layer: LayerHeads(number, found.head_dim, heads) for layer, number in numbers.items()}
    return dataclasses.replace(
        found, own_sizes=sizes, own_heads=own, attending=frozenset(attending), module_names=_MODULES,
        pruned={layer: parts for layer, parts in enumerate(left) if parts != WHOLE},
    )  # fmt: skip


def _checked(layer: int, part: str, block: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The description of a layer's part.

    Raises:
        StartupError: it has what is not supported.
    """
    wrong = {name: value for name, value in block.items() if value and name not in _KNOWN[part]}
    if not block.get("gated", True):
        wrong["gated"] = False
    if block.get("hidden_act") not in (None, config.get("hidden_act", "silu")):
        wrong["hidden_act"] = block["hidden_act"]
    if wrong:
        told = ", ".join(f"{name} {value!r}" for name, value in wrong.items())
        raise StartupError(f"config.json: the {part} of layer {layer} has {told}, which is not supported.")
    return block


def _left(block: Mapping[str, Any]) -> Literal["whole", "matrix", "none"]:
    if block.get("no_op"):
        return "none"
    return "matrix" if block.get("replace_with_linear") else "whole"


def _size(block: Mapping[str, Any], hidden_size: int) -> int:
    multiple: float | None = block.get("ffn_mult")
    if multiple is None:
        size: int = block["intermediate_size"]
        return size
    return -(-int(2 * multiple * hidden_size / 3) // _ROUNDED_TO) * _ROUNDED_TO
