"""DeepSeek V2 (DeepSeek-AI 2024) and V3 (2025): compressed attention, and mixtures of experts in groups.

V3.1, R1 and Kimi K2 are V3 with other numbers. V3.2 and GLM 5 choose the tokens that they attend to beyond a certain
length; up to that length, they are V3. In GLM 5, several layers may share a choice. DeepSeek-OCR's text model is V2
without compressed attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, MoeConfig, base_config, by_common_names, rope_parameters
from engine_svc.models.latent_config import IndexerConfig, LatentConfig

# What families that have adopted the mixtures call their fields.
_NAMES = {
    "num_dense_layers": "first_k_dense_replace", "num_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts", "route_scale": "routed_scaling_factor",
    "router_scaling_factor": "routed_scaling_factor",
}  # fmt: skip
ROUTER_RENAMES = ((r"\.router\.gate\.", ".gate."),)  # how some of them name the router in checkpoints


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The first layers are dense."""
    if config["architectures"][0] == "DeepseekV2ForCausalLM" and config.get("kv_lora_rank") is None:
        bias = bool(config.get("attention_bias"))
        return base_config(config, moe=mixtures(config), qkv_bias=bias, output_bias=bias)
    return compressed(config, moe=mixtures(config), indexer=indexer_of(config))


def indexer_of(config: Mapping[str, Any]) -> IndexerConfig | None:
    """The indexers' form; None if layers attend to all positions."""
    if not config.get("index_topk"):
        return None
    shared = frozenset(index for index, kind in enumerate(_indexer_types(config)) if kind in ("shared", "S"))
    interleaved = config["architectures"][0] == "GlmMoeDsaForCausalLM"
    return IndexerConfig(
        config["index_n_heads"], config["index_head_dim"], config["index_topk"], interleaved, shared_layers=shared
    )


def _indexer_types(config: Mapping[str, Any]) -> Iterable[str]:
    """Which layers share the choice of an earlier one: each layer's type, a pattern of letters, or every n-th layer."""
    if types := config.get("indexer_types") or config.get("index_topk_pattern"):
        return types
    period, first = max(config.get("index_topk_freq") or 1, 1), config.get("index_skip_topk_offset", 2) - 1
    layers = range(config["num_hidden_layers"])
    return ["shared" if max(index - first, 0) % period else "full" for index in layers]


def compressed(config: Mapping[str, Any], **family: Any) -> ModelConfig:
    """A configuration with compressed attention, for DeepSeek and families that have adopted it.

    Neighboring values are rotated with each other, unless the configuration says otherwise. Biases, if any, are on the
    projections of hidden states and on the output projection.

    Args:
        family: as for base_config.
    """
    latent = LatentConfig(
        config.get("q_lora_rank"), config["kv_lora_rank"], config["qk_nope_head_dim"], config["qk_rope_head_dim"],
        config["v_head_dim"],
    )  # fmt: skip
    bias = bool(config.get("attention_bias"))
    return base_config(
        config, head_dim=latent.rotated_dim, attention_scale=_scale(config, latent), latent=latent, qkv_bias=bias,
        output_bias=bias, rope_interleaved=bool(config.get("rope_interleave", True)), **family,
    )  # fmt: skip


def mixtures(config: Mapping[str, Any]) -> tuple[MoeConfig | None, ...]:
    """The layers' mixtures of experts, for DeepSeek and families that have adopted them."""
    config = by_common_names(config, _NAMES)
    is_v3 = config["architectures"][0] != "DeepseekV2ForCausalLM"
    grouped = is_v3 or config.get("topk_method") == "group_limited_greedy"
    moe = MoeConfig(
        # Transformers 5 uses another name for the number.
        num_experts=config.get("n_routed_experts") or config["num_local_experts"],
        experts_per_token=config["num_experts_per_tok"],
        expert_size=config["moe_intermediate_size"],
        renormalize=is_v3 and bool(config.get("norm_topk_prob", True)),
        shared_size=config["moe_intermediate_size"] * (config.get("n_shared_experts") or 0) or None,
        scoring="sigmoid" if is_v3 else "softmax",
        choice_bias=is_v3,
        num_groups=config["n_group"] if grouped else 1,
        chosen_groups=config["topk_group"] if grouped else 1,
        scale=config.get("routed_scaling_factor", 1.0),
    )
    types = config.get("mlp_layer_types") or [
        "dense" if index < config.get("first_k_dense_replace", 0) else "sparse"
        for index in range(config["num_hidden_layers"])
    ]
    return tuple(moe if each == "sparse" else None for each in types)


def _scale(config: Mapping[str, Any], latent: LatentConfig) -> float:
    """The scale of scores; with YaRN, it grows with the scaling factor of positions."""
    scale: float = (latent.plain_dim + latent.rotated_dim) ** -0.5
    parameters = rope_parameters(config)
    all_dim = parameters.get("mscale_all_dim")
    if parameters["rope_type"] == "default" or not all_dim or parameters["factor"] <= 1:
        return scale
    growth: float = 0.1 * all_dim * math.log(parameters["factor"]) + 1.0
    return scale * growth * growth
