"""Which parameter, and which part of it, a checkpoint's tensor is."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Module in the checkpoint → (ours, part of its parameters).
_PARTS = {
    "q_proj": ("qkv_proj", "q"), "k_proj": ("qkv_proj", "k"), "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", "gate"), "up_proj": ("gate_up_proj", "up"),
}  # fmt: skip
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)\.(\w+)")
# Mixtral's names are those of Llama's first code.
_EXPERT_PARTS = {
    "gate_proj": ("gate_up", "gate"), "up_proj": ("gate_up", "up"), "down_proj": ("down", "down"),
    "w1": ("gate_up", "gate"), "w3": ("gate_up", "up"), "w2": ("down", "down"),
}  # fmt: skip


def parameter_name(name: str, module_names: Mapping[str, str]) -> tuple[str, str]:
    """(name of the parameter, which part of it).

    Args:
        module_names: see ModelConfig.
    """
    if module_names:
        name = ".".join(module_names.get(module, module) for module in name.split("."))
    name = (
        name.removeprefix("model.")
        .replace(".block_sparse_moe.", ".mlp.")
        .replace(".shared_experts.", ".shared_expert.")
    )
    expert = _EXPERT.fullmatch(name)
    if expert and expert[3] in _EXPERT_PARTS:
        parameter, part = _EXPERT_PARTS[expert[3]]
        return f"{expert[1]}.{parameter}.{expert[4]}", f"{expert[2]}.{part}"
    path, _, kind = name.rpartition(".")
    parent, _, module = path.rpartition(".")
    module, part = _PARTS.get(module, (module, ""))
    return ".".join(filter(None, (parent, module, kind))), part
