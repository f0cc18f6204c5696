"""Step 3.5 Flash (StepFun 2026): layers with a window have more query heads and a rotation of their own, each head's
output has a gate, and mixtures of experts are chosen as in DeepSeek V3; the last experts are clipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine_svc.models.config import LayerHeads, ModelConfig, MoeConfig, base_config, layer_apart, rope_parameters
from engine_svc.ops.base import ClippedSilu
from quire.errors import StartupError

_FULL, _SLIDING = "full_attention", "sliding_attention"
# Checkpoints name the router and what belongs to the experts after the mixture, and the shared expert beside it.
_RENAMES = (
    (r"\.moe\.(?:experts\.)?(\d+)\.", r".mlp.experts.\1."),
    (r"\.moe\.gate\.", ".mlp.gate."),
    (r"\.moe\.router_bias$", ".mlp.gate.e_score_correction_bias"),
    (r"\.moe\.(gate_proj|up_proj|down_proj)\.", r".mlp.experts.\1."),
    (r"\.share_expert\.", ".mlp.shared_expert."),
)
# What Transformers calls some fields.
_NAMES = {
    "num_attention_groups": "num_key_value_heads", "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok", "share_expert_dims": "share_expert_dim",
    "max_seq_len": "max_position_embeddings",
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "head_dim": 128, "rms_norm_eps": 1e-5, "share_expert_dim": 1280, "moe_router_scaling_factor": 1.0,
    "n_routed_experts": 288, "num_experts_per_tok": 8, "moe_intermediate_size": 1280,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Published configurations have lists by layer, which go on with the layers for multi-token prediction.

    Raises:
        StartupError: layers of one kind differ, or attention or the choice of experts is of another kind.
    """
    given = _DEFAULTS | {_NAMES.get(name, name): value for name, value in config.items() if value is not None}
    count, head_dim = given["num_hidden_layers"], given["head_dim"]
    types = [*(given.get("layer_types") or [_FULL] * count), *(given.get("mtp_layer_types") or ())][:count]
    rotating = given.get("use_rope_layers") or [True] * count
    if (scoring := given.get("moe_router_activation", "sigmoid")) != "sigmoid":
        raise StartupError(f"config.json: moe_router_activation is {scoring!r}; expected sigmoid.")
    if not given.get("use_head_wise_attn_gate", given.get("gating", True) in (True, "per-head")):
        raise StartupError("config.json: attention without a gate for each head is not supported.")
    rotations = {kind: _rotation(given, types, kind) for kind in (_FULL, _SLIDING)}
    return base_config(
        {**given, "rope_parameters": rotations[_FULL]},
        sliding_windows=tuple(given["sliding_window"] if kind == _SLIDING else None for kind in types),
        local_heads=_local_heads(given), local_rope_parameters=rotations[_SLIDING],
        attention_gates="heads", qk_norm="head", norm_offset=1.0, moe=_mixtures(given, count),
        no_rope_layers=frozenset(index for index, rotates in enumerate(rotating) if not rotates),
        attention_scale=(given.get("query_pre_attn_scalar") or head_dim) ** -0.5, renames=_RENAMES,
    )  # fmt: skip


def multi_token_layer(config: Mapping[str, Any]) -> ModelConfig:
    """The shape of the first layer for multi-token prediction, after the model's own.

    Raises:
        StartupError: the configuration does not tell what kind of layer it is.
    """
    index = config["num_hidden_layers"]
    whole = config_of({**config, "num_hidden_layers": index + 1})
    if len(whole.sliding_windows) <= index:
        raise StartupError(f"config.json: layer_types has no entry for layer {index}, of multi-token prediction.")
    window, rotates = whole.sliding_windows[index], index not in whole.no_rope_layers
    renames = (*whole.renames, (r"\.transformer\.", "."), (r"^.*\.shared_head\.output\.", "lm_head."))
    return replace(layer_apart(whole, whole.moe[index], window, rotates=rotates), renames=renames)


def _local_heads(given: Mapping[str, Any]) -> LayerHeads:
    """Heads of layers with a window. Only the number of queries' may differ from that of others."""
    number, size = given["num_key_value_heads"], given["head_dim"]
    other = given.get("attention_other_setting") or {}
    if (other.get("num_attention_groups", number), other.get("head_dim", size)) != (number, size):
        raise StartupError(
            "config.json: attention_other_setting has other numbers than num_attention_groups and head_dim, which is "
            "not supported."
        )
    queries = given.get("num_sliding_attention_heads") or other.get("num_attention_heads")
    return LayerHeads(number, size, queries or given["num_attention_heads"])


def _rotation(given: Mapping[str, Any], types: Sequence[str], kind: str) -> dict[str, Any]:
    """Rotary settings of a kind of layers; scaled ones are for those without a window, or those that are named.

    Raises:
        StartupError: layers of the kind differ.
    """
    own = (given.get("rope_parameters") or {}).get(kind)
    if own is not None:
        return rope_parameters({"rope_parameters": own})
    found = {"rope_theta": _of_kind(given, "rope_theta", types, kind, 10000.0)}
    found["partial_rotary_factor"] = _of_kind(given, "partial_rotary_factors", types, kind, 1.0)
    scaled = given.get("yarn_only_types") or [_FULL]
    return rope_parameters({"rope_scaling": {**((given.get("rope_scaling") or {}) if kind in scaled else {}), **found}})


def _of_kind(given: Mapping[str, Any], name: str, types: Sequence[str], kind: str, default: float) -> float:
    """The value of a field for a kind of layers: a number for all, or one for each layer."""
    values = given.get(name, default)
    if not isinstance(values, Sequence):
        return float(values)
    found = {float(value) for value, each in zip(values, types, strict=False) if each == kind}
    if len(found) > 1:
        raise StartupError(f"config.json: {name} differs between layers with {kind}, which is not supported.")
    return found.pop() if found else default


def _mixtures(given: Mapping[str, Any], count: int) -> tuple[MoeConfig | None, ...]:
    """Each layer's experts. By default, the first three layers are dense.

    Raises:
        StartupError: a dense layer is clipped.
    """
    sparse, limits = _sparse(given, count), (_limits(given, "swiglu_limits"), _limits(given, "swiglu_limits_shared"))
    found: list[MoeConfig | None] = []
    for index in range(count):
        limit, shared_limit = (each[index] if index < len(each) else 0.0 for each in limits)
        if index not in sparse and shared_limit:
            raise StartupError(f"config.json: swiglu_limits_shared has {shared_limit} for layer {index}, which is "
                               "dense; that is not supported.")  # fmt: skip
        moe = MoeConfig(
            num_experts=given["n_routed_experts"], experts_per_token=given["num_experts_per_tok"],
            expert_size=given["moe_intermediate_size"], renormalize=bool(given.get("norm_expert_weight", True)),
            shared_size=given["share_expert_dim"], scoring="sigmoid",
            choice_bias=bool(given.get("use_moe_router_bias", True)), scale=given["moe_router_scaling_factor"],
            activation=ClippedSilu(limit, limit) if limit else None,
            shared_activation=ClippedSilu(shared_limit, shared_limit) if shared_limit else None,
        )  # fmt: skip
        found.append(moe if index in sparse else None)
    return tuple(found)


def _sparse(given: Mapping[str, Any], count: int) -> frozenset[int]:
    """The layers that have experts."""
    if types := given.get("mlp_layer_types"):
        return frozenset(index for index, kind in enumerate(types) if kind == "sparse")
    named = given.get("moe_layers_enum")
    if named is None:
        return frozenset(range(3, count))
    names = named.split(",") if isinstance(named, str) else named
    return frozenset(int(each) for each in names if str(each).strip())


def _limits(given: Mapping[str, Any], name: str) -> list[float]:
    """The limit of each layer's activation; 0 means that there is none."""
    return [float(each or 0.0) for each in given.get(name) or ()]
