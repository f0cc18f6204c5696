"""Gemma 4, whose layers differ in the size and number of their heads, and some in how wide they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine_svc.gguf.architecture import NORMS_BEHIND, Architecture, layer_types
from engine_svc.gguf.facts import Facts
from engine_svc.gguf.rotary import proportional_rotation
from quire.errors import StartupError

_WHOLE, _LOCAL = "full_attention", "sliding_attention"
_MODULES = NORMS_BEHIND | {
    "per_layer_token_embd": "embed_tokens_per_layer", "per_layer_model_proj": "per_layer_model_projection",
    "per_layer_proj_norm": "per_layer_projection_norm", "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm",
    "layer_output_scale.weight": "layer_scalar", "ffn_gate_inp": "router.proj", "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale", "ffn_gate_exps": "experts.{}.gate_proj",
    "ffn_up_exps": "experts.{}.up_proj", "ffn_down_exps": "experts.{}.down_proj",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2", "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
}  # fmt: skip
# Sizes that files have separately, but that are always the same: values are as large as keys, and rotate as a whole.
_SAME = (
    ("attention.value_length", "attention.key_length"), ("attention.value_length_swa", "attention.key_length_swa"),
    ("rope.dimension_count", "attention.key_length"), ("rope.dimension_count_swa", "attention.key_length_swa"),
)  # fmt: skip


def _gemma4(facts: Facts) -> dict[str, Any]:
    """
    Raises:
        StartupError: the metadata contradict each other, or describe layers that Gemma 4 does not have.
    """
    for key, other in _SAME:
        if facts.find(key, facts.need(other)) != facts.need(other):
            raise _unlike(facts, f"{key} is {facts.find(key)}, but {other} is {facts.need(other)}; they must be equal")
    kinds = layer_types(facts, 6)
    own = facts.num_layers - _borrowing(facts, kinds)
    whole = {"head_dim": facts.need("attention.key_length"), "num_key_value_heads": _kv_heads(facts, kinds, _WHOLE)}
    local = {"rope_type": "default", "rope_theta": float(facts.find("rope.freq_base_swa", 10000.0))}
    return {
        "layer_types": kinds, "sliding_window": facts.need("attention.sliding_window"),
        "head_dim": facts.need("attention.key_length_swa"), "num_key_value_heads": _kv_heads(facts, kinds, _LOCAL),
        "per_layer_config": {str(layer): whole for layer, kind in enumerate(kinds) if kind == _WHOLE},
        "num_kv_shared_layers": len(kinds) - own, "use_double_wide_mlp": _is_double(facts, own),
        "attention_k_eq_v": not facts.has(f"blk.{kinds.index(_WHOLE)}.attn_v.weight"),
        "final_logit_softcapping": facts.find("final_logit_softcapping"),
        "rope_parameters": {_WHOLE: proportional_rotation(facts), _LOCAL: local},
        **_token_inputs(facts), **_experts(facts),
    }  # fmt: skip


def _unlike(facts: Facts, message: str) -> StartupError:
    """
    Args:
        message: begins with a key, without the architecture's name.
    """
    return StartupError(f"{facts.model.files[0]}: {facts.architecture}.{message}. Use the model's safetensors.")


def _borrowing(facts: Facts, kinds: Sequence[str]) -> int:
    """How many layers at the end attend to the keys and values of an earlier layer of their kind."""
    if kinds[-1:] != [_WHOLE]:
        raise _unlike(facts, "attention.sliding_window_pattern gives the last layer a window, which it never has")
    count: int = facts.find("attention.shared_kv_layers", 0) or 0
    own = len(kinds) - count
    if not 0 < own <= len(kinds) or not {*kinds[own:]} <= {*kinds[:own]}:
        raise _unlike(
            facts,
            f"attention.shared_kv_layers is {count} of {len(kinds)} layers; expected that an earlier layer of the same "
            "kind, with or without a window, has keys and values for each of them",
        )
    return count


def _kv_heads(facts: Facts, kinds: Sequence[str], kind: str) -> int:
    counts = facts.by_layer("attention.head_count_kv")
    found = {count for count, other in zip(counts, kinds, strict=True) if other == kind} or {counts[0]}
    if len(found) > 1:
        raise _unlike(facts, f"attention.head_count_kv differs between layers with {kind} ({sorted(found)})")
    return found.pop()


def _is_double(facts: Facts, own: int) -> bool:
    """Whether layers that borrow keys and values are twice as wide as the others."""
    widths = facts.by_layer("feed_forward_length")
    borrowing = len(widths) - own
    for times in (1, 2):
        if widths == [widths[0]] * own + [widths[0] * times] * borrowing:
            return times == 2
    raise _unlike(
        facts,
        f"feed_forward_length is {widths}; expected one length, or twice that in the last {borrowing} layers, which "
        "borrow keys and values",
    )


def _token_inputs(facts: Facts) -> dict[str, Any]:
    tensors = facts.model.tensors
    table = tensors.get("per_layer_token_embd.weight", tensors["token_embd.weight"])
    size = facts.find("embedding_length_per_layer_input", 0) or 0
    return {"hidden_size_per_layer_input": size, "vocab_size_per_layer_input": table.shape[0]}


def _experts(facts: Facts) -> dict[str, Any]:
    if not facts.find("expert_count", 0):
        return {}
    return {
        "enable_moe_block": True, "num_experts": facts.need("expert_count"),
        "top_k_experts": facts.need("expert_used_count"),
        "moe_intermediate_size": facts.need("expert_feed_forward_length"),
    }  # fmt: skip


# By llama.cpp's architecture names. Files of the 12B model (Unified) are no different from those of the others.
GEMMA4: Mapping[str, Architecture] = {
    "gemma4": Architecture("Gemma4ForCausalLM", "gemma4_text", _gemma4, _MODULES, varies=True),
}
