"""How model families read from GGUF differ in their configuration and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_svc.gguf.facts import Facts


@dataclass(frozen=True)
class Architecture:
    """A model family; the defaults are Llama's."""

    huggingface: str  # architecture in config.json
    model_type: str
    fields: Callable[[Facts], dict[str, Any]] = lambda facts: {}  # of config.json, in addition to those of all families
    modules: Mapping[str, str] = field(default_factory=dict)  # module names that differ from the common ones
    neighbours: bool = False  # rows of queries and keys that rotate together are neighbors
    norm_offset: float = 0.0  # how much more norm weights are here than in Hugging Face's layout
    attends: bool = True  # at least some layers attend
    # Some sizes may differ between layers: the common fields have the first layer's, and `fields` those of the others.
    varies: bool = False
    tiled: bool = False  # value heads of delta nets are ordered by their index within a key head first
    # Keys of metadata with a number for each layer → the parameters of one number that layers have in their place.
    numbers: Mapping[str, str] = field(default_factory=dict)
    # Whether this is the family of a file, if several have the same name in llama.cpp; None means if no other one is.
    when: Callable[[Facts], bool] | None = None


PLAIN_MLP = {"ffn_up": "mlp.fc_in", "ffn_down": "mlp.fc_out"}  # without gates
NORMS_BEHIND = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
NORM_BETWEEN = {"post_attention_norm": "post_attention_layernorm"}
GATE_AND_UP = {"ffn_up": "mlp.gate_up_proj"}  # in one tensor


def layer_types(facts: Facts, period: int) -> list[str]:
    """Layer types by the file's pattern; without a pattern, every `period`th layer has full attention."""
    count, pattern = facts.num_layers, facts.pattern("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        slides = (pattern * count)[:count]
    else:
        slides = [bool((index + 1) % (pattern or period)) for index in range(count)]
    return ["sliding_attention" if each else "full_attention" for each in slides]


def window(facts: Facts) -> dict[str, Any]:
    """The sliding window of all layers; None for no window."""
    return {"sliding_window": facts.find("attention.sliding_window") or None}


def multipliers(facts: Facts, attention_scale: float) -> dict[str, Any]:
    """Granite's multipliers.

    Args:
        attention_scale: default if the file has none.
    """
    return {
        "attention_multiplier": facts.find("attention.scale", attention_scale),
        "embedding_multiplier": facts.find("embedding_scale", 1.0),
        "residual_multiplier": facts.find("residual_scale", 1.0),
        "logits_scaling": facts.find("logit_scale", 1.0),
    }


def experts(facts: Facts) -> dict[str, Any]:
    """The number of experts, how many are chosen, and their size, under the names of most families."""
    count = facts.need("expert_count")
    return {
        "num_experts": count, "num_local_experts": count, "n_routed_experts": count,
        "num_experts_per_tok": facts.need("expert_used_count"),
        "moe_intermediate_size": facts.find("expert_feed_forward_length") or facts.need("feed_forward_length"),
    }  # fmt: skip


def grouped_experts(facts: Facts) -> dict[str, Any]:
    """The fields of DeepSeek's experts, with groups and shared experts."""
    sparse = facts.layers_with("ffn_gate_inp.weight")
    return experts(facts) | {
        "n_shared_experts": facts.find("expert_shared_count", 0),
        "n_group": facts.find("expert_group_count", 1) or 1,
        "topk_group": facts.find("expert_group_used_count", 1) or 1,
        "norm_topk_prob": bool(facts.find("expert_weights_norm", False)),
        "routed_scaling_factor": facts.find("expert_weights_scale", 1.0) or 1.0,
        "mlp_layer_types": ["sparse" if index in sparse else "dense" for index in range(facts.num_layers)],
    }
