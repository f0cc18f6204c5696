"""LongCat Flash (Meituan 2025): pairs of layers with compressed attention, and a mixture of experts beside each pair,
some of whose experts return their inputs. Checkpoints have each pair as one layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig, MoeConfig
from quire.errors import StartupError

_DEFAULTS: dict[str, Any] = {
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 512, "zero_expert_num": 256, "expert_ffn_hidden_size": 2048, "moe_topk": 12,
    "routed_scaling_factor": 6.0, "rms_norm_eps": 1e-5, "mla_scale_q_lora": True, "mla_scale_kv_lora": True,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """What is derived from compressed vectors is scaled as if these were as long as hidden states.

    Raises:
        StartupError: experts without weights do something else than to return their inputs.
    """
    given = _DEFAULTS | {name: value for name, value in config.items() if value is not None}
    if (kind := given.get("zero_expert_type", "identity")) != "identity":
        raise StartupError(f"config.json: zero_expert_type is {kind!r}; expected identity.")
    pairs, size, experts = given["num_layers"], given["hidden_size"], given["n_routed_experts"]
    moe = MoeConfig(
        experts, given["moe_topk"], given["expert_ffn_hidden_size"], bool(given.get("norm_topk_prob")),
        choice_bias=True, scale=given["routed_scaling_factor"], router_bias=bool(given.get("router_bias")),
        idle_experts=given["zero_expert_num"] or None, beside_dense=True,
    )  # fmt: skip
    found = deepseek.compressed(
        {**given, "num_hidden_layers": 2 * pairs, "intermediate_size": given["ffn_hidden_size"]},
        moe=(moe, None) * pairs, norm_placement="pairs", renames=tuple(_renames(pairs)),
        # Transformers saves weights of experts that have none.
        ignored_names=("mtp.", *(f".experts.{experts + each}." for each in range(given["zero_expert_num"]))),
    )  # fmt: skip
    assert found.latent is not None
    of_queries, of_vectors = ((size / given[f"{name}_lora_rank"]) ** 0.5 for name in ("q", "kv"))
    return replace(
        found,
        attention_scale=found.attention_scale * (of_queries if given["mla_scale_q_lora"] else 1.0),
        latent=replace(found.latent, vector_scale=of_vectors if given["mla_scale_kv_lora"] else 1.0),
    )  # fmt: skip


def _renames(pairs: int) -> Iterator[tuple[str, str]]:
    """Names in checkpoints of parts of our layers: those of a pair are numbered, and its mixture is the first one's."""
    yield r"\.router\.classifier\.", ".router."
    for pair in range(pairs):
        yield rf"\.layers\.{pair}\.mlp\.(router|experts)\.", rf".layers.{2 * pair}.shortcut.\1."
        for place in range(2):
            own, layer = rf"\.layers\.{pair}\.", f".layers.{2 * pair + place}."
            yield rf"{own}mlps\.{place}\.", f"{layer}mlp."
            yield rf"{own}(self_attn|input_layernorm|post_attention_layernorm)\.{place}\.", rf"{layer}\1."
