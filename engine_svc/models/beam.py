"""Beam (Reflection AI 2026): biased gates on attention, sums of depth-scaled layers, experts as in DeepSeek V3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig, Temperature, base_config, local_rotation, sliding_windows
from quire.errors import StartupError

_FULL, _SLIDING = "full_attention", "sliding_attention"
_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8, "head_dim": 128, "sliding_window": 512, "first_k_dense_replace": 3, "n_group": 8,
    "topk_group": 4, "routed_scaling_factor": 2.5, "final_logit_softcapping": 30.0,
}  # fmt: skip
_RENAMES = (
    (r"\.self_attn\.gate_proj\.", ".self_attn.g_proj."), (r"\.self_attn\.gate_bias$", ".self_attn.g_proj.bias"),
)  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Every sixth layer and the last one have no window; they do not rotate, but scale queries by their positions.

    Raises:
        StartupError: layers with a window do not rotate, or those without one do.
    """
    given = {**_DEFAULTS, **config}
    count, bias = given["num_hidden_layers"], bool(given.get("attention_bias"))
    if not given.get("layer_types"):
        kinds = [_SLIDING if (index + 1) % 6 and index < count - 1 else _FULL for index in range(count)]
        given["layer_types"] = kinds
    rotations = given.get("rope_parameters") or {_SLIDING: {"rope_type": "default"}}
    if rotations.get(_FULL) is not None or rotations.get(_SLIDING) is None:
        raise StartupError(
            f"config.json: rope_parameters is {dict(rotations)}; expected settings for {_SLIDING}, and null for "
            f"{_FULL}."
        )
    windows = sliding_windows(given, 6)
    return base_config(
        {**given, "rope_parameters": local_rotation(given, 10000.0)}, qkv_bias=bias, output_bias=bias, qk_norm="head",
        sliding_windows=windows, no_rope_layers=frozenset(at for at in range(count) if windows[at] is None),
        temperature=Temperature(2048, 0.1, is_power=True), attention_gates="values, head biases",
        norm_placement="around, growing", moe=deepseek.mixtures(given), renames=_RENAMES,
        logits_softcap=given["final_logit_softcapping"],
    )  # fmt: skip
