"""What GGUF's tensors are called in Hugging Face's layout."""

from __future__ import annotations

import re
from collections.abc import Mapping

from quire.gguf.header import StoredTensor

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_MODULES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate", "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}  # fmt: skip
# That are no module's.
_ALONE = {"attn_sinks.weight": "self_attn.sinks"}
# Tensors of all experts.
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# Part of the configuration, see rotary.py.
IGNORED = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})


def huggingface_names(tensor: StoredTensor, modules: Mapping[str, str]) -> list[str]:
    """Of a tensor, or of each expert's part of it; its own name where it is not known.

    Args:
        modules: of the family, where they differ.
    """
    name, _, kind = tensor.name.rpartition(".")
    if name in _TOP:
        return [f"{_TOP[name]}.{kind}"]
    if (layer := _LAYER.fullmatch(tensor.name)) is None:
        return [tensor.name]
    prefix = f"model.layers.{layer[1]}"
    if layer[2] in _EXPERTS:
        return [f"{prefix}.mlp.experts.{index}.{_EXPERTS[layer[2]]}.{kind}" for index in range(tensor.shape[0])]
    module = modules.get(layer[2]) or _MODULES.get(layer[2])
    found = f"{module}.{kind}" if module else _ALONE.get(f"{layer[2]}.{kind}")
    return [f"{prefix}.{found}" if found else tensor.name]
