"""DeepSeek V4 (DeepSeek-AI 2026): compressed attention to all tokens, hyper-connections, and experts chosen by token.

Layers attend to a window of recent tokens, and most of them also to entries that stand for 4 tokens, chosen by an
indexer, or for 128. In the first layers, a table says which experts a token goes through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine_svc.attention.compressed_step import Compression
from engine_svc.models.clamped_silu import clamped_silu
from engine_svc.models.compression_config import CompressionConfig, StreamsConfig
from engine_svc.models.config import ModelConfig, MoeConfig, base_config, rope_parameters
from quire.errors import StartupError

_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_RATES = {_SPARSE: 4, _HEAVY: 128}
# Names in published checkpoints, and in those that Transformers writes, where they differ.
_RENAMES = (
    (r"\.scale$", ".weight_scale_inv"),
    (r"^embed\.", "embed_tokens."), (r"^head\.", "lm_head."), (r"^model\.hc_head\.hc_", "norm."),
    (r"(^|\.)hc_head_", r"\1norm."),
    (r"\.attn\.", ".self_attn."), (r"\.self_attn\.norm\.", ".self_attn.kv_norm."), (r"\.ffn\.", ".mlp."),
    (r"\.hc_(attn|ffn)_", r".\1_hc."),
    (r"\.attn_norm\.", ".input_layernorm."), (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.attn_sink$", ".sinks"), (r"\.wq_a\.", ".q_a_proj."), (r"\.q_norm\.", ".q_a_layernorm."),
    (r"\.wq_b\.", ".q_b_proj."), (r"\.compressor\.wkv\.", ".compressor.vectors."),
    (r"\.compressor\.wgate\.", ".compressor.weights."), (r"\.compressor\.ape$", ".compressor.position_bias"),
    (r"\.wkv\.", ".kv_proj."), (r"\.wo_a\.", ".o_a_proj."), (r"\.wo_b\.", ".o_b_proj."),
    (r"\.gate\.bias$", ".gate.e_score_correction_bias"), (r"\.gate\.tid2eid$", ".gate.table"),
)  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """
    Raises:
        StartupError: a layer has a kind of attention that is not supported.
    """
    layers = _layers(config)
    dim = config["head_dim"]
    rotated = int(dim * _rotated_part(config, dim))
    main, compressed = _rotations(config)
    compression = CompressionConfig(
        layers, config["sliding_window"], config["q_lora_rank"], dim, rotated, config["o_groups"],
        config["o_lora_rank"], config["index_n_heads"], config["index_head_dim"], config["index_topk"],
    )  # fmt: skip
    return base_config(
        {**config, "intermediate_size": config["moe_intermediate_size"], "rope_parameters": compressed},
        compression=compression,
        streams=StreamsConfig(config["hc_mult"], config["hc_sinkhorn_iters"], config["hc_eps"]),
        stream_count=config["hc_mult"],
        keeps_all_rows=True,
        compressed_layers=frozenset(index for index, each in enumerate(layers) if each is not None),
        sliding_windows=(compression.longest_span,) * len(layers),
        local_rope_parameters=main,
        rotary_dim=rotated,
        attention_sinks="all",
        norm_placement="streams",
        moe=_mixtures(config),
        renames=_RENAMES,
        ignored_names=("mtp.",),
    )


def _layers(config: Mapping[str, Any]) -> tuple[Compression | None, ...]:
    """How each layer compresses; by default, heavily in the first two, then in turn heavily and sparsely."""
    count, rates = config["num_hidden_layers"], {**_RATES, **(config.get("compress_rates") or {})}
    kinds: dict[Any, Compression | None] = {
        "sliding_attention": None, _SPARSE: Compression(rates[_SPARSE], is_sparse=True),
        _HEAVY: Compression(rates[_HEAVY], is_sparse=False),
    }  # fmt: skip
    types = config.get("layer_types")
    if types is None and (ratios := config.get("compress_ratios")) is not None:
        by_rate = {0: "sliding_attention", _RATES[_SPARSE]: _SPARSE, _RATES[_HEAVY]: _HEAVY}
        types = [by_rate.get(each, each) for each in ratios]
    if types is None:
        types = [_SPARSE if index >= 2 and index % 2 else _HEAVY for index in range(count)]
    if unknown := [kind for kind in types[:count] if kind not in kinds]:
        raise StartupError(f"config.json: {unknown[0]!r} is not a kind of attention that DeepSeek V4's layers have.")
    return tuple(kinds[kind] for kind in types[:count])


def _rotated_part(config: Mapping[str, Any], head_dim: int) -> float:
    if (size := config.get("qk_rope_head_dim")) is not None:
        return float(size) / head_dim
    return float(config.get("partial_rotary_factor") or 64 / 512)


def _rotations(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rotary settings of layers with a window alone, and of those that also compress."""
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if "main" in given:
        main, compressed = given["main"], given["compress"]
    else:
        main = {"rope_theta": config.get("rope_theta", 10000.0)}
        compressed = {**given, "rope_theta": config.get("compress_rope_theta", 160000.0)}
    found = rope_parameters({"rope_parameters": main}), rope_parameters({"rope_parameters": compressed})
    for each in found:
        each.pop("partial_rotary_factor", None)
        if each["rope_type"] == "yarn":
            each["attention_factor"] = each.get("attention_factor") or 1.0
    return found


def _mixtures(config: Mapping[str, Any]) -> tuple[MoeConfig, ...]:
    """Each layer's experts."""
    limit, count = float(config["swiglu_limit"]), config["num_hidden_layers"]
    activation = clamped_silu(limit)
    moe = MoeConfig(
        num_experts=config.get("n_routed_experts") or config["num_local_experts"],
        experts_per_token=config["num_experts_per_tok"],
        expert_size=config["moe_intermediate_size"],
        renormalize=True,
        shared_size=config["moe_intermediate_size"] * config.get("n_shared_experts", 1),
        scoring=config.get("scoring_func", "sqrtsoftplus"),
        choice_bias=True,
        scale=config["routed_scaling_factor"],
        activation=activation,
        shared_activation=activation,
    )
    by_table = replace(moe, choice_bias=False, table_tokens=config["vocab_size"])
    types = config.get("mlp_layer_types")
    tabled = config.get("num_hash_layers", 3)
    kinds = types or ["hash_moe" if index < tabled else "moe" for index in range(count)]
    return tuple(by_table if kind == "hash_moe" else moe for kind in kinds[:count])
