"""Maps names of GGUF tensors to names in Hugging Face's layout."""

from __future__ import annotations

import re

from engine_svc.gguf.architecture import Architecture
from engine_svc.gguf.facts import Facts
from quire.gguf.header import StoredTensor

_TOP = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
# Keys include the parameter's kind if the tensor is a bare parameter; {} stands for an expert's number in tensors that
# hold all experts.
_MODULES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_sinks.weight": "self_attn.sinks",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj", "attn_k_b": "self_attn.kv_b_proj",
    "indexer.attn_q_b": "self_attn.indexer.wq_b", "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.k_norm": "self_attn.indexer.k_norm", "indexer.proj": "self_attn.indexer.weights_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate", "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj", "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate", "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj", "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ssm_in": "mixer.in_proj", "ssm_x": "mixer.x_proj", "ssm_conv1d": "mixer.conv1d", "ssm_dt.bias": "mixer.dt_bias",
    "ssm_a": "mixer.A_log", "ssm_d": "mixer.D", "ssm_norm": "mixer.norm", "ssm_out": "mixer.out_proj",
    "ssm_dt_norm": "mixer.dt_layernorm", "ssm_b_norm": "mixer.b_layernorm", "ssm_c_norm": "mixer.c_layernorm",
}  # fmt: skip
# Fused tensors and the tensors they contain; they are split unless the family has a module of this name.
_TOGETHER = {
    "attn_qkv": ("attn_q", "attn_k", "attn_v"), "ssm_ba": ("ssm_beta", "ssm_alpha"),
    "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps"),
}  # fmt: skip
# The matrices that compute keys and values from the cached latent vectors; the first name stands for both together.
KEYS_OF_VECTORS, VALUES_OF_VECTORS = "attn_k_b", "attn_v_b"
_LAYER = re.compile(r"blk\.(\d+)\.(\w+(?:\.\w+)*?)(?:\.(weight|bias))?")
# Read as part of the configuration, see rotary.py.
_FACTORS = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})


def layer_and_key(name: str) -> tuple[int, str]:
    """A tensor's layer, or -1, and its name within the layer, without the kind of parameter."""
    layer = _LAYER.fullmatch(name)
    return (int(layer[1]), layer[2]) if layer else (-1, name.rpartition(".")[0])


def keys_within(name: str, architecture: Architecture) -> tuple[str, ...]:
    """The names, within the layer, of the tensors that a tensor contains: usually its own alone."""
    _, key = layer_and_key(name)
    return (key,) if key in architecture.modules else _TOGETHER.get(key, (key,))


def huggingface_names(tensor: StoredTensor, architecture: Architecture) -> list[str]:
    """The names of a tensor, or of each of its parts: of experts, or of queries, keys and values.

    An unknown tensor keeps its own name.
    """
    known = {**_TOP, **_MODULES, **architecture.modules}
    layer = _LAYER.fullmatch(tensor.name)
    if layer is None:
        top, _, kind = tensor.name.rpartition(".")
        if top not in known:
            return [tensor.name]
        return [f"{known[top]}.{kind}" if known[top] == "lm_head" else f"model.{known[top]}.{kind}"]
    prefix, key, kind = f"model.layers.{layer[1]}", layer[2], layer[3] or "weight"
    if whole := known.get(f"{key}.{kind}") or (known.get(key) if layer[3] is None and "norm" not in key else None):
        return [f"{prefix}.{whole}"]
    modules = [known.get(each) for each in keys_within(tensor.name, architecture)]
    if None in modules:
        return [tensor.name]
    return [
        f"{prefix}.{module.format(index)}.{kind}"
        for module in modules if module is not None
        for index in range(tensor.shape[0] if "{}" in module else 1)
    ]  # fmt: skip


def is_ignored(name: str, facts: Facts) -> bool:
    """Whether a tensor is not loaded.

    These are tensors of multi-token prediction layers at the end, the second of a pair that is loaded with the first,
    those that are read as part of the configuration, and an indexer's, if it is not told how many tokens to choose.
    """
    layer, key = layer_and_key(name)
    unused = key == VALUES_OF_VECTORS or (key.startswith("indexer.") and not facts.find("attention.indexer.top_k"))
    return name in _FACTORS or layer >= facts.num_layers or unused


def is_widened(name: str, architecture: Architecture, facts: Facts) -> bool:
    """Whether a tensor must be dequantized, as Hugging Face's layout has the values in its blocks in another order."""
    _, key = layer_and_key(name)
    if key in (KEYS_OF_VECTORS, VALUES_OF_VECTORS):
        return True
    return architecture.tiled and key == "ssm_out" and facts.need("ssm.group_count") != facts.need("ssm.time_step_rank")
