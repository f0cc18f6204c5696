"""Families whose own code is only in their checkpoints' repositories: tiny checkpoints under their names.

Each is a model of a family of Transformers that computes the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import make_model

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class RemoteFamily:
    """How to write a checkpoint of the family."""

    architecture: str
    same: str  # family of tests.support.tiny_models that computes the same
    changes: Mapping[str, Any] = field(default_factory=dict)  # to that family's configuration
    fields: Mapping[str, str] = field(default_factory=dict)  # names in that family's configuration → in this one's
    config: Mapping[str, Any] = field(default_factory=dict)  # further fields of this family's configuration
    names: tuple[tuple[str, str], ...] = ()  # regular expressions for that family's names → this one's
    groups: int = 0  # in which queries, keys or values are packed; 0 leaves them apart
    packed: str = "qkv"  # what is packed, by its first letters
    head_norm: int | None = None  # dimension of the output layer in which its weights are normalized
    absent: str = ""  # regular expression for names of tensors that checkpoints lack because they are zero


_GPT_NAMES = (
    (r"^model\.", "transformer."), (r"\.embed_tokens\.", ".wte."), (r"\.layers\.", ".h."),
    (r"^transformer\.norm\.", "transformer.ln_f."), (r"\.input_layernorm\.", ".ln_1."),
    (r"\.post_attention_layernorm\.", ".ln_2."), (r"\.self_attn\.", ".attn.attention."), (r"\.o_proj\.", ".out_proj."),
    (r"\.gate_proj\.", ".c_fc_0."), (r"\.up_proj\.", ".c_fc_1."), (r"\.down_proj\.", ".c_proj."),
)  # fmt: skip
INTERNLM_NAMES = (
    (r"\.embed_tokens\.", ".tok_embeddings."), (r"^lm_head\.", "output."), (r"\.self_attn\.qkv\.", ".attention.wqkv."),
    (r"\.self_attn\.o_proj\.", ".attention.wo."), (r"\.mlp\.", ".feed_forward."), (r"\.gate_proj\.", ".w1."),
    (r"\.up_proj\.", ".w3."), (r"\.down_proj\.", ".w2."), (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
)  # fmt: skip
_GRANITE_EXPERTS = (
    (r"\.block_sparse_moe\.", ".mlp."), (r"\.router\.layer\.", ".gate."), (r"\.shared_mlp\.", ".mlp.shared_experts."),
    (r"\.w1\.", ".gate_proj."), (r"\.w2\.", ".down_proj."), (r"\.w3\.", ".up_proj."),
)  # fmt: skip
_LING_NAMES = (
    (r"\.embed_tokens\.", ".word_embeddings."), (r"\.self_attn\.qkv\.", ".attention.query_key_value."),
    (r"\.self_attn\.o_proj\.", ".attention.dense."), (r"\.self_attn\.q_norm\.", ".attention.query_layernorm."),
    (r"\.self_attn\.k_norm\.", ".attention.key_layernorm."), (r"e_score_correction_bias", "expert_bias"),
    *_GRANITE_EXPERTS,
)  # fmt: skip
_GLM_NAMES = (
    (r"^lm_head\.", "transformer.output_layer."), (r"^model\.embed_tokens\.", "transformer.embedding.word_embeddings."),
    (r"^model\.norm\.", "transformer.encoder.final_layernorm."), (r"^model\.", "transformer.encoder."),
    (r"\.self_attn\.qkv\.", ".self_attention.query_key_value."), (r"\.self_attn\.o_proj\.", ".self_attention.dense."),
    (r"\.gate_up_proj\.", ".dense_h_to_4h."), (r"\.down_proj\.", ".dense_4h_to_h."),
)  # fmt: skip
_TELECHAT_NAMES = (
    (r"^model\.", "transformer."), (r"\.embed_tokens\.", ".word_embeddings."), (r"\.layers\.", ".h."),
    (r"^transformer\.norm\.", "transformer.ln_f."), (r"\.self_attn\.", ".self_attention."),
    (r"\.q_proj\.", ".query."), (r"\.kv\.", ".key_value."), (r"\.o_proj\.", ".dense."),
)  # fmt: skip
_QWEN_NAMES = (
    (r"^model\.", "transformer."), (r"\.embed_tokens\.", ".wte."), (r"\.layers\.", ".h."),
    (r"^transformer\.norm\.", "transformer.ln_f."), (r"\.input_layernorm\.", ".ln_1."),
    (r"\.post_attention_layernorm\.", ".ln_2."), (r"\.self_attn\.qkv\.", ".attn.c_attn."),
    (r"\.self_attn\.o_proj\.", ".attn.c_proj."), (r"\.gate_proj\.", ".w2."), (r"\.up_proj\.", ".w1."),
    (r"\.down_proj\.", ".c_proj."),
)  # fmt: skip
_TELECHAT_FIELDS = {
    "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "intermediate_size": "ffn_hidden_size",
    "rms_norm_eps": "layer_norm_epsilon", "max_position_embeddings": "training_seqlen",
}  # fmt: skip
_TELECHAT: dict[str, Any] = {"base_seqlen": 256, "hidden_act": "fastgelu", "rope_parameters": None}
_TELECHAT_ABSENT = r"\.(q|k|v|gate|up)_proj\.bias$"
_UNSCALED: dict[str, Any] = {
    "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 0.25,
}  # fmt: skip
_SCALED: dict[str, Any] = {
    "embedding_multiplier": 12.0, "logits_scaling": 2.0, "residual_multiplier": 1.4 / 3**0.5,
    "attention_multiplier": 0.25,
}  # fmt: skip
_EMBEDDING_SCALE = {"embedding_multiplier": "scale_emb"}
_SCALES = {"dim_model_base": 32, "scale_depth": 1.4}
_EXPERTS = {"num_local_experts": "num_experts"}
_UNTIED = {"tie_word_embeddings": False}
_WITH_BIAS = {"attention_bias": True, "tie_word_embeddings": False}

FAMILIES: dict[str, RemoteFamily] = {
    "aquila": RemoteFamily("AquilaForCausalLM", "llama", _UNTIED),
    "aquila-first": RemoteFamily("AquilaModel", "llama", _UNTIED),
    "baichuan-7b": RemoteFamily(
        "BaiChuanForCausalLM", "llama", _UNTIED | {"num_key_value_heads": 4}, groups=1,
        names=((r"\.qkv\.", ".W_pack."),),
    ),
    "chatglm": RemoteFamily(
        "ChatGLMModel", "glm",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}}, {
            "num_hidden_layers": "num_layers", "vocab_size": "padded_vocab_size", "head_dim": "kv_channels",
            "intermediate_size": "ffn_hidden_size", "rms_norm_eps": "layernorm_epsilon",
            "max_position_embeddings": "seq_length", "num_key_value_heads": "multi_query_group_num",
            "attention_bias": "add_qkv_bias",
        }, {
            "rope_ratio": 50, "multi_query_attention": True, "rmsnorm": True, "original_rope": True,
            "rope_parameters": None,
        }, _GLM_NAMES, groups=1,
    ),
    "deepseek-moe": RemoteFamily(
        "DeepseekForCausalLM", "granite-moe-shared", _UNSCALED | _UNTIED | {"shared_intermediate_size": 192},
        {"num_local_experts": "n_routed_experts", "intermediate_size": "moe_intermediate_size"},
        {"intermediate_size": 1, "n_shared_experts": 2, "norm_topk_prob": True}, _GRANITE_EXPERTS,
    ),
    "exaone": RemoteFamily(
        "ExaoneForCausalLM", "llama", {"tie_word_embeddings": True}, {
            "num_hidden_layers": "num_layers", "hidden_act": "activation_function",
            "rms_norm_eps": "layer_norm_epsilon",
        }, names=_GPT_NAMES,
    ),
    "llama-first": RemoteFamily("LLaMAForCausalLM", "llama", _UNTIED),
    "internlm": RemoteFamily("InternLMForCausalLM", "llama", _WITH_BIAS),
    "internlm2": RemoteFamily(
        "InternLM2ForCausalLM", "llama", _WITH_BIAS, {"attention_bias": "bias"}, names=INTERNLM_NAMES, groups=2
    ),
    "ling": RemoteFamily(
        "BailingMoeForCausalLM", "granite-moe-shared", _UNSCALED | _UNTIED | {"shared_intermediate_size": 192},
        _EXPERTS | {"intermediate_size": "moe_intermediate_size"},
        {"intermediate_size": 1, "num_shared_experts": 2, "norm_topk_prob": True, "norm_head": True}, _LING_NAMES,
        groups=1, head_norm=0,
    ),
    "ling-2": RemoteFamily(
        "BailingMoeV2ForCausalLM", "glm-moe", {}, {
            "attention_bias": "use_qkv_bias", "n_routed_experts": "num_experts",
            "n_shared_experts": "num_shared_experts",
        }, names=_LING_NAMES, groups=1,
    ),
    "minicpm": RemoteFamily("MiniCPMForCausalLM", "granite", _SCALED, _EMBEDDING_SCALE, _SCALES),
    "minicpm-moe": RemoteFamily(
        "MiniCPMForCausalLM", "granite-moe", _SCALED, _EXPERTS | _EMBEDDING_SCALE, _SCALES,
        ((r"\.block_sparse_moe\.", ".mlp."), (r"\.router\.layer\.", ".gate.")),
    ),
    "orion": RemoteFamily(
        "OrionForCausalLM", "stablelm", {
            "use_qkv_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        }, {"layer_norm_eps": "rms_norm_eps"},
    ),
    "pangu": RemoteFamily("PanguEmbeddedForCausalLM", "llama", _WITH_BIAS, {"attention_bias": "bias"}),
    # Its feed-forward layers are half as wide as its configuration says.
    "qwen": RemoteFamily(
        "QWenLMHeadModel", "qwen2", _UNTIED | {
            "num_key_value_heads": 4, "rms_norm_eps": 1e-2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        }, {
            "rms_norm_eps": "layer_norm_epsilon", "num_key_value_heads": "unused",
        }, {
            "intermediate_size": 192, "kv_channels": 16, "rotary_emb_base": 50000, "rope_parameters": None,
            "seq_length": 128, "use_dynamic_ntk": True, "use_logn_attn": True, "no_bias": True,
        }, _QWEN_NAMES, groups=1,
    ),
    "stablelm-first": RemoteFamily(
        "StableLMEpochForCausalLM", "stablelm", {
            "layer_norm_eps": 1e-2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        }, {"layer_norm_eps": "norm_eps"}, {"rope_parameters": None, "rope_pct": 0.5},
    ),
    "telechat-3": RemoteFamily("TeleChat3ForCausalLM", "llama", _UNTIED),
    "telechat": RemoteFamily(
        "TeleChatForCausalLM", "llama", _WITH_BIAS | {"mlp_bias": True}, _TELECHAT_FIELDS,
        _TELECHAT, _TELECHAT_NAMES, groups=2, packed="kv", absent=_TELECHAT_ABSENT,
    ),
    # Its base is that of a head of 16 values, for sequences that became four times as long.
    "telechat-2": RemoteFamily(
        "TeleChat2ForCausalLM", "llama",
        _WITH_BIAS | {
            "mlp_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4 * 7 ** (16 / 14)},
        }, _TELECHAT_FIELDS, _TELECHAT | {"base_seqlen": 64}, _TELECHAT_NAMES, groups=2, packed="kv",
        absent=_TELECHAT_ABSENT,
    ),
    "tele-flm": RemoteFamily(
        "TeleFLMForCausalLM", "granite", _UNSCALED | {"embedding_multiplier": 12.0, "logits_scaling": 2.0},
        {"embedding_multiplier": "input_mult", "logits_scaling": "mup_scale_factor"},
        {"use_mup": True, "output_mult": 1.0},
    ),
    "xverse": RemoteFamily("XverseForCausalLM", "llama", _UNTIED),
}  # fmt: skip


def write_family(family: RemoteFamily, to: Path) -> tuple[Path, Path]:
    """Writes a checkpoint of the family, and one that Transformers can read and that computes the same.

    Returns:
        The folders of both.
    """
    same = make_model(to / "same", family.same, **family.changes)
    config, tensors = json.loads((same / "config.json").read_text()), load_file(same / "model.safetensors")
    if family.head_norm is not None:
        head = tensors["lm_head.weight"]
        normalized = tensors | {"lm_head.weight": torch.nn.functional.normalize(head, dim=family.head_norm)}
        save_file(normalized, same / "model.safetensors", metadata={"format": "pt"})
    if family.absent:
        zero = {name: torch.zeros_like(each) for name, each in tensors.items() if re.search(family.absent, name)}
        save_file(tensors | zero, same / "model.safetensors", metadata={"format": "pt"})
        tensors = {name: each for name, each in tensors.items() if name not in zero}
    written = {family.fields.get(name, name): value for name, value in config.items()} | dict(family.config)
    written |= {"architectures": [family.architecture], "model_type": "of-remote-code"}
    written["auto_map"] = {"AutoConfig": "configuration.Config", "AutoModelForCausalLM": "modeling.Model"}
    folder = to / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(written))
    apart = _experts_apart(packed(tensors, family.groups, family.packed) if family.groups else tensors)
    named = {renamed(name, family.names): tensor.contiguous() for name, tensor in apart.items()}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    return folder, same


def packed(tensors: Tensors, groups: int, parts: str = "qkv") -> Tensors:
    """With queries, keys and values of each layer, or some of these, as one tensor, in groups of heads."""
    found = {name: tensor for name, tensor in tensors.items() if not re.search(rf"\.[{parts}]_proj\.", name)}
    first = f".{parts[0]}_proj."
    for name in tensors:
        if first in name:
            own = (tensors[name.replace(first, f".{part}_proj.")].unflatten(0, (groups, -1)) for part in parts)
            found[name.replace(first, f".{parts}.")] = torch.cat([*own], dim=1).flatten(0, 1)
    return found


def _experts_apart(tensors: Tensors) -> Tensors:
    """With Granite's experts one by one, and the shared one's gate and up apart, under Mixtral's names."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        parts = {"w2": tensor}
        if "input_linear" in name:
            parts = dict(zip(("w1", "w3"), tensor.chunk(2, dim=-2), strict=True))
        elif "output_linear" not in name:
            found[name] = tensor
            continue
        path = name.rpartition(".")[0].rpartition(".")[0]
        for part, values in parts.items():
            if values.ndim == 2:
                found[f"{path}.{part}.weight"] = values
            else:
                found |= {f"{path}.experts.{index}.{part}.weight": each for index, each in enumerate(values)}
    return found


def renamed(name: str, names: tuple[tuple[str, str], ...]) -> str:
    for pattern, other in names:
        name = re.sub(pattern, other, name)
    return name
