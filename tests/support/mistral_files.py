"""Converts a model from Hugging Face's layout to the one in which Mistral publishes its models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_PARAMS = {
    "hidden_size": "dim", "intermediate_size": "hidden_dim", "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads", "head_dim": "head_dim",
    "rms_norm_eps": "norm_eps", "vocab_size": "vocab_size", "tie_word_embeddings": "tied_embeddings",
    "sliding_window": "sliding_window", "max_position_embeddings": "max_position_embeddings",
}  # fmt: skip
_NAMES = (
    ("self_attn.q_a_proj", "attention.wq_a"), ("self_attn.q_a_layernorm", "attention.q_a_norm"),
    ("self_attn.q_b_proj", "attention.wq_b"), ("self_attn.kv_a_proj_with_mqa", "attention.wkv_a_with_mqa"),
    ("self_attn.kv_a_layernorm", "attention.kv_a_norm"), ("self_attn.kv_b_proj", "attention.wkv_b"),
    ("mlp.shared_experts.gate_proj", "shared_experts.w1"), ("mlp.shared_experts.down_proj", "shared_experts.w2"),
    ("mlp.shared_experts.up_proj", "shared_experts.w3"), ("mlp.gate.", "gate."), ("mlp.experts", "experts"),
    ("model.embed_tokens", "tok_embeddings"), ("model.norm", "norm"), ("lm_head", "output"),
    ("model.layers", "layers"), ("input_layernorm", "attention_norm"), ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attention.wq"), ("self_attn.k_proj", "attention.wk"), ("self_attn.v_proj", "attention.wv"),
    ("self_attn.o_proj", "attention.wo"), ("mlp.gate_proj", "feed_forward.w1"), ("mlp.down_proj", "feed_forward.w2"),
    ("mlp.up_proj", "feed_forward.w3"), ("block_sparse_moe.gate", "gate"), ("block_sparse_moe.experts", "experts"),
    ("ada_rms_norm.linear1", "ada_rms_norm_t_cond.0"), ("ada_rms_norm.linear2", "ada_rms_norm_t_cond.2"),
)  # fmt: skip
_WHISPER = "mm_whisper_embeddings.whisper_encoder."
_VISION_NAMES = (
    ("attention.q_proj", "attention.wq"), ("attention.k_proj", "attention.wk"), ("attention.v_proj", "attention.wv"),
    ("attention.o_proj", "attention.wo"), ("feed_forward.gate_proj", "feed_forward.w1"),
    ("feed_forward.down_proj", "feed_forward.w2"), ("feed_forward.up_proj", "feed_forward.w3"),
    ("vision_tower", "vision_encoder"),
)  # fmt: skip
_AUDIO_NAMES = (
    ("audio_tower.conv1", f"{_WHISPER}conv_layers.0"), ("audio_tower.conv2", f"{_WHISPER}conv_layers.1"),
    ("audio_tower.layer_norm", f"{_WHISPER}transformer.norm"), ("audio_tower", f"{_WHISPER}transformer"),
    ("self_attn_layer_norm", "attention_norm"), ("final_layer_norm", "ffn_norm"), ("self_attn.q_proj", "attention.wq"),
    ("self_attn.k_proj", "attention.wk"), ("self_attn.v_proj", "attention.wv"), ("self_attn.out_proj", "attention.wo"),
    ("fc1", "feed_forward.w1"), ("fc2", "feed_forward.w2"),
    ("multi_modal_projector.linear_1", "mm_whisper_embeddings.audio_language_projection.0"),
    ("multi_modal_projector.linear_2", "mm_whisper_embeddings.audio_language_projection.2"),
)  # fmt: skip
_LIVE_NAMES = (
    ("audio_tower.embedder.conv1.", f"{_WHISPER}conv_layers.0.conv."),
    ("audio_tower.embedder.conv2.", f"{_WHISPER}conv_layers.1.conv."),
    ("audio_tower.norm", f"{_WHISPER}transformer.norm"), ("self_attn.o_proj", "attention.wo"),
    ("mlp.gate_proj", "feed_forward.w1"), ("mlp.down_proj", "feed_forward.w2"), ("mlp.up_proj", "feed_forward.w3"),
    *_AUDIO_NAMES,
)  # fmt: skip
_PROJECTOR_NAMES = (
    ("multi_modal_projector.linear_1", "vision_language_adapter.w_in"),
    ("multi_modal_projector.linear_2", "vision_language_adapter.w_out"),
    ("multi_modal_projector.patch_merger", "patch_merger"), ("multi_modal_projector.norm", "pre_mm_projector_norm"),
)  # fmt: skip


def as_mistral(source: Path, folder: Path) -> Path:
    """Writes the model in `source` to `folder`, without any files of Hugging Face's layout."""
    config = json.loads((source / "config.json").read_text())
    folder.mkdir()
    write_mistral(load_file(source / "model.safetensors"), config, folder)
    params = {theirs: config[ours] for ours, theirs in _PARAMS.items() if config.get(ours) is not None}
    params["rope_theta"] = config["rope_parameters"]["rope_theta"]
    if config["model_type"] == "mistral4":
        params |= params_of_mistral4(config)
    elif "num_local_experts" in config:
        params["moe"] = {
            "num_experts": config["num_local_experts"],
            "num_experts_per_tok": config["num_experts_per_tok"],
        }
    (folder / "params.json").write_text(json.dumps(params))
    return folder


def params_of_mistral4(config: Mapping[str, Any]) -> dict[str, Any]:
    """What params.json has of compressed attention, experts and positions."""
    rope = config["rope_parameters"]
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return {name: config[name] for name in names} | {
        "moe": {
            "num_experts": config["n_routed_experts"], "num_experts_per_tok": config["num_experts_per_tok"],
            "expert_hidden_dim": config["moe_intermediate_size"], "num_shared_experts": config["n_shared_experts"],
            "first_k_dense_replace": config["first_k_dense_replace"], "routed_scale": config["routed_scaling_factor"],
            "num_expert_groups": 1, "num_expert_groups_per_tok": 1, "route_every_n": 1, "renorm_strategy": "WEIGHTS",
        },
        "yarn": {
            "factor": rope["factor"], "original_max_position_embeddings": rope["original_max_position_embeddings"],
            "beta": rope["beta_fast"], "alpha": rope["beta_slow"],
        },
        "llama_4_scaling": {
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
            "beta": rope["llama_4_scaling_beta"],
        },
    }  # fmt: skip


def _apart(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, with a matrix for each expert instead of one for all."""
    for name, tensor in tensors.items():
        for index, expert in enumerate(tensor) if ".experts." in name and tensor.dim() == 3 else ():
            start = f"{name.rpartition('.')[0]}.{index}"
            if name.endswith("gate_up_proj"):
                gate, up = (half.contiguous() for half in expert.chunk(2))
                yield f"{start}.w1.weight", gate
                yield f"{start}.w3.weight", up
            else:
                yield f"{start}.w2.weight", expert.contiguous()
        if ".experts." not in name or tensor.dim() < 3:
            yield name, tensor


def write_mistral(tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any], folder: Path) -> None:
    """Writes the weights under Mistral's names, and a params.json with only the numbers of heads."""
    heads = {"attention.wq": config["num_attention_heads"], "attention.wk": config["num_key_value_heads"]}
    hears = "audio_config" in config
    is_live = hears and config["audio_config"]["model_type"] == "voxtral_realtime_encoder"
    names_of_encoder = _LIVE_NAMES if is_live else _AUDIO_NAMES if hears else _VISION_NAMES + _PROJECTOR_NAMES
    encoder = config.get("audio_config" if is_live else "vision_config")  # whose heads are rotated
    written = {}
    for name, tensor in _apart(tensors):
        renamed, own = name.replace("language_model.model.", "model."), heads
        if "_tower." in name or "multi_modal_projector." in name:
            renamed = _renamed(name.removeprefix("model."), names_of_encoder)
            own = dict.fromkeys(heads, encoder["num_attention_heads"]) if encoder else {}
        else:
            renamed = _renamed(renamed.removeprefix("language_model."), _NAMES)
        if hears and renamed.startswith("tok_embeddings"):
            renamed = f"mm_whisper_embeddings.{renamed}"
        count = next((count for module, count in own.items() if f"{module}." in renamed), 0)
        if not renamed.endswith("embed_positions.weight"):
            written[renamed] = _interleave(tensor, count) if count else tensor
    save_file(written, folder / "consolidated.safetensors")
    params = {"n_heads": heads["attention.wq"], "n_kv_heads": heads["attention.wk"]}
    (folder / "params.json").write_text(json.dumps(params))


def _renamed(name: str, names: Sequence[tuple[str, str]]) -> str:
    for ours, theirs in names:
        name = name.replace(ours, theirs)
    return name


def _interleave(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Interleaves rows: value i of a head's first half, then value i of its second half, and so on."""
    heads = tensor.unflatten(0, (num_heads, 2, -1))
    return heads.transpose(1, 2).flatten(0, 2).contiguous()
