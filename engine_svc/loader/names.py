"""Which parameter, and which part of it, a checkpoint's tensor is."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine_svc.layers.module_names import EXPERT_PARTS, PARTS

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)\.(\w+)")


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
    if expert and expert[3] in EXPERT_PARTS:
        parameter, part = EXPERT_PARTS[expert[3]]
        return f"{expert[1]}.{parameter}.{expert[4]}", f"{expert[2]}.{part}"
    path, _, kind = name.rpartition(".")
    parent, _, module = path.rpartition(".")
    module, part = PARTS.get(module, (module, ""))
    return ".".join(filter(None, (parent, module, kind))), part
