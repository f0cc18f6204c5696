"""What differs between families that are read from GGUF, in their configuration and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_svc.gguf.facts import Facts


@dataclass(frozen=True)
class Architecture:
    """One family; what is not said here is as Llama has it."""

    huggingface: str  # what config.json calls it
    model_type: str
    fields: Callable[[Facts], dict[str, Any]] = lambda facts: {}  # of config.json, beside those that all have
    modules: Mapping[str, str] = field(default_factory=dict)  # in a layer or above, where they are called otherwise
    neighbours: bool = False  # rows of queries and keys stand so that the two that rotate together are neighbours
    norm_offset: float = 0.0  # what norms' weights have here and lack in Hugging Face's layout
    attends: bool = True  # in some layers at least
    tiled: bool = False  # the value heads of delta nets stand by their place beside a key head first
    # Of several with one name there, this one is meant; None: if no other.
    when: Callable[[Facts], bool] | None = None


PLAIN_MLP = {"ffn_up": "mlp.fc_in", "ffn_down": "mlp.fc_out"}  # without gates
NORMS_BEHIND = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
NORM_BETWEEN = {"post_attention_norm": "post_attention_layernorm"}
GATE_AND_UP = {"ffn_up": "mlp.gate_up_proj"}  # in one tensor


def layer_types(facts: Facts, period: int) -> list[str]:
    """By the file's pattern, or else with every `period`th layer seeing everything."""
    count, pattern = facts.num_layers, facts.pattern("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        slides = (pattern * count)[:count]
    else:
        slides = [bool((index + 1) % (pattern or period)) for index in range(count)]
    return ["sliding_attention" if each else "full_attention" for each in slides]


def window(facts: Facts) -> dict[str, Any]:
    """One on all layers, or none."""
    return {"sliding_window": facts.find("attention.sliding_window") or None}


def multipliers(facts: Facts, attention_scale: float) -> dict[str, Any]:
    """Granite's.

    Args:
        attention_scale: where the file has none.
    """
    return {
        "attention_multiplier": facts.find("attention.scale", attention_scale),
        "embedding_multiplier": facts.find("embedding_scale", 1.0),
        "residual_multiplier": facts.find("residual_scale", 1.0),
        "logits_scaling": facts.find("logit_scale", 1.0),
    }


def experts(facts: Facts) -> dict[str, Any]:
    """How many there are, how many are chosen, and how large they are, by the names that most families have."""
    count = facts.need("expert_count")
    return {
        "num_experts": count, "num_local_experts": count, "n_routed_experts": count,
        "num_experts_per_tok": facts.need("expert_used_count"),
        "moe_intermediate_size": facts.find("expert_feed_forward_length") or facts.need("feed_forward_length"),
    }  # fmt: skip


def grouped_experts(facts: Facts) -> dict[str, Any]:
    """DeepSeek's."""
    sparse = facts.layers_with("ffn_gate_inp.weight")
    return experts(facts) | {
        "n_shared_experts": facts.find("expert_shared_count", 0),
        "n_group": facts.find("expert_group_count", 1) or 1,
        "topk_group": facts.find("expert_group_used_count", 1) or 1,
        "norm_topk_prob": bool(facts.find("expert_weights_norm", False)),
        "routed_scaling_factor": facts.find("expert_weights_scale", 1.0) or 1.0,
        "mlp_layer_types": ["sparse" if index in sparse else "dense" for index in range(facts.num_layers)],
    }
