"""MiniMax M3 (2026), its language model: an indexer for each key-value head, and experts as in gpt-oss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, MoeConfig, base_config, by_common_names
from engine_svc.models.latent_config import BlockIndexerConfig
from engine_svc.ops.base import ClampedSwish
from quire.errors import StartupError

_FULL, _SPARSE = "full_attention", "minimax_m3_sparse"
_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4, "head_dim": 128, "rotary_dim": 64, "dense_intermediate_size": 12288,
    "shared_intermediate_size": 3072, "routed_scaling_factor": 2.0, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
    "index_n_heads": 4, "index_head_dim": 128, "index_block_size": 128, "index_topk_blocks": 16,
    "index_local_blocks": 1,
}  # fmt: skip
# What published configurations have in `sparse_attention_config`.
_PUBLISHED = {
    "sparse_num_index_heads": "index_n_heads", "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size", "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}  # fmt: skip
_RENAMES = ((r"\.self_attn\.index_(q|k)_(proj|norm)\.", r".self_attn.indexer.\1_\2."),)


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """By default, layers attend to everything, and all of them have experts.

    Raises:
        StartupError: a layer attends in another way.
    """
    count, published = config["num_hidden_layers"], config.get("sparse_attention_config") or {}
    given = {**_DEFAULTS, **config, **by_common_names(published, _PUBLISHED)}
    kinds = config.get("layer_types") or [
        _SPARSE if is_sparse else _FULL for is_sparse in published.get("sparse_attention_freq") or [0] * count
    ]
    if unknown := {*kinds} - {_FULL, _SPARSE}:
        raise StartupError(f"config.json: layer_types has {unknown.pop()!r}; expected {_FULL} or {_SPARSE}.")
    parts = config.get("mlp_layer_types") or [
        "sparse" if is_sparse else "dense" for is_sparse in config.get("moe_layer_freq") or [1] * count
    ]
    activation = ClampedSwish(given["swiglu_alpha"], given["swiglu_limit"])
    moe = MoeConfig(
        given.get("num_local_experts") or given["num_experts"], given["num_experts_per_tok"],
        given["intermediate_size"], renormalize=True, shared_size=given["shared_intermediate_size"],
        scoring="sigmoid", choice_bias=True, scale=given["routed_scaling_factor"], activation=activation,
        shared_activation=activation,
    )  # fmt: skip
    indexer = BlockIndexerConfig(
        given["index_n_heads"], given["index_head_dim"], given["index_block_size"], given["index_topk_blocks"],
        given["index_local_blocks"], frozenset(index for index, kind in enumerate(kinds) if kind == _FULL),
    )  # fmt: skip
    rotation = {"partial_rotary_factor": given["rotary_dim"] / given["head_dim"]}
    return base_config(
        {**given, **rotation, "intermediate_size": given["dense_intermediate_size"]}, qk_norm="head", norm_offset=1.0,
        activation=activation, moe=tuple(moe if part == "sparse" else None for part in parts),
        indexer=indexer if _SPARSE in kinds else None, renames=_RENAMES, ignored_names=("mtp.",),
    )  # fmt: skip
