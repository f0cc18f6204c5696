"""A tiny DeepSeek V4: Transformers' model, and its files as published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4DecoderLayer,
    DeepseekV4HyperHead,
    DeepseekV4RMSNorm,
)

from tests.support.heads import Reference
from tests.support.tiny_models import VOCAB_SIZE

_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
TEXT: dict[str, Any] = {
    "hidden_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4, "head_dim": 32,
    "q_lora_rank": 24, "num_experts_per_tok": 2, "n_routed_experts": 6, "n_shared_experts": 1,
    "routed_scaling_factor": 1.5, "vocab_size": VOCAB_SIZE, "max_position_embeddings": 512,
    "layer_types": [_HEAVY, "sliding_attention", _SPARSE, _HEAVY, _SPARSE],
    "compress_rates": {_SPARSE: 4, _HEAVY: 16}, "sliding_window": 16, "swiglu_limit": 0.3,
    "mlp_layer_types": ["hash_moe", "moe", "moe", "moe", "hash_moe"], "hc_mult": 3, "hc_sinkhorn_iters": 5,
    "partial_rotary_factor": 0.25, "o_groups": 2, "o_lora_rank": 16, "index_n_heads": 16, "index_head_dim": 16,
    "index_topk": 6, "rms_norm_eps": 1e-5, "hc_eps": 1e-6, "rope_parameters": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
    },
}  # fmt: skip

# What published fields can express: these rates, and experts chosen by tables in the first layers.
PUBLISHED: dict[str, Any] = {
    "compress_rates": {_SPARSE: 4, _HEAVY: 128},
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe", "moe"],
}


def make_deepseek_v4(folder: Path, **changes: Any) -> Any:
    """Writes the files to a folder, and returns Transformers' model."""
    torch.manual_seed(0)
    config = transformers.DeepseekV4Config(**json.loads(json.dumps(TEXT | changes)))
    config._attn_implementation = "eager"
    model: Any = transformers.DeepseekV4ForCausalLM(config).eval()
    biases = [each for name, each in model.named_buffers() if name.endswith("e_score_correction_bias")]
    with torch.no_grad():
        for tensor in [*model.parameters(), *biases]:
            torch.nn.init.normal_(tensor, std=0.2)
        for name, tensor in model.named_buffers():
            if name.endswith("tid2eid"):
                tensor.copy_(torch.rand(len(tensor), config.n_routed_experts).topk(tensor.shape[1]).indices)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    return model


def add_multi_token_layer(folder: Path, model: Any) -> Reference:
    """Puts a layer for multi-token prediction into published files; it reads streams, and collapses its own."""
    torch.manual_seed(5)
    size, count = TEXT["hidden_size"], TEXT["hc_mult"]
    config = transformers.DeepseekV4Config(
        **json.loads(json.dumps(TEXT | {"num_hidden_layers": 1, "layer_types": ["sliding_attention"],
                                        "mlp_layer_types": ["moe"]}))
    )  # fmt: skip
    config._attn_implementation = "eager"
    layer: Any = DeepseekV4DecoderLayer(config, 0)
    collapse: Any = DeepseekV4HyperHead(config)
    norms = {name: DeepseekV4RMSNorm(size, config.rms_norm_eps) for name in ("enorm", "hnorm", "norm")}
    joints = {name: torch.nn.Linear(size, size, bias=False) for name in ("e_proj", "h_proj")}
    own: dict[str, torch.Tensor] = {}
    for name, module in {"": layer, "hc_head": collapse, **norms, **joints}.items():
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        own |= {f"{name}.{each}".lstrip("."): tensor for each, tensor in module.state_dict().items()}
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in _own_names(own, config.n_routed_experts).items():
        tensors[f"mtp.0.{name}"] = tensor.detach().contiguous()
    save_file(tensors, folder / "model.safetensors")
    streams: list[torch.Tensor] = []
    model.model.hc_head.register_forward_pre_hook(lambda _, inputs: streams.append(inputs[0]))

    def run(embedded: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        apart = joints["h_proj"](norms["hnorm"](features.unflatten(-1, (count, size))))
        hidden = apart + joints["e_proj"](norms["enorm"](embedded))[:, :, None]
        positions = torch.arange(hidden.shape[1])
        distances = positions[:, None] - positions
        mask = torch.where((distances < 0) | (distances >= config.sliding_window), -torch.inf, 0.0)[None, None]
        rotation = {"main": model.model.rotary_emb(embedded, positions[None], "main")}
        found: torch.Tensor = layer(
            hidden, attention_mask=mask, position_embeddings=rotation, position_ids=positions[None]
        )
        return found.flatten(2)

    def finish(hidden: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = norms["norm"](collapse(hidden.unflatten(-1, (count, size))[None]))[0]
        return found

    return Reference(model, lambda _: streams[-1].flatten(2), run, finish, model.lm_head)


def _own_names(tensors: dict[str, torch.Tensor], experts: int) -> dict[str, torch.Tensor]:
    """The published names of a layer's tensors."""
    gate_up, down = tensors.pop("mlp.experts.gate_up_proj"), tensors.pop("mlp.experts.down_proj")
    for index in range(experts):
        gate, up = gate_up[index].chunk(2)
        tensors |= {f"ffn.experts.{index}.{name}.weight": each
                    for name, each in (("w1", gate), ("w2", down[index]), ("w3", up))}  # fmt: skip
    for ours, theirs in (
        (r"^self_attn\.", "attn."), (r"^mlp\.", "ffn."), (r"\.q_a_proj\.", ".wq_a."), (r"\.q_a_norm\.", ".q_norm."),
        (r"\.q_b_proj\.", ".wq_b."), (r"\.kv_proj\.", ".wkv."), (r"\.o_a_proj\.", ".wo_a."),
        (r"\.o_b_proj\.", ".wo_b."), (r"\.sinks$", ".attn_sink"), (r"^input_layernorm\.", "attn_norm."),
        (r"^post_attention_layernorm\.", "ffn_norm."), (r"^(attn|ffn)_hc\.", r"hc_\1_"),
        (r"^hc_head\.hc_", "hc_head_"), (r"\.e_score_correction_bias$", ".bias"),
        (r"\.gate_proj\.", ".w1."), (r"\.down_proj\.", ".w2."), (r"\.up_proj\.", ".w3."),
    ):  # fmt: skip
        tensors = {re.sub(ours, theirs, name): tensor for name, tensor in tensors.items()}
    return tensors


def publish(folder: Path) -> None:
    """Changes the files that Transformers has written to the form in which DeepSeek publishes its own."""
    tensors = load_file(folder / "model.safetensors")
    save_file({_published(name): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    ratios = {"sliding_attention": 0, _SPARSE: 4, _HEAVY: 128}
    written = json.loads((folder / "config.json").read_text())
    rotation, types = written.pop("rope_parameters")["compress"], written.pop("layer_types")
    tabled = written.pop("mlp_layer_types").count("hash_moe")
    written |= {
        "compress_ratios": [*(ratios[kind] for kind in types), 0], "num_hash_layers": tabled,
        "rope_scaling": {"type": rotation.pop("rope_type")} | {
            name: value for name, value in rotation.items()
            if name not in ("attention_factor", "rope_theta", "partial_rotary_factor")
        },
    }  # fmt: skip
    del written["partial_rotary_factor"], written["compress_rates"]
    (folder / "config.json").write_text(json.dumps(written))


def _published(name: str) -> str:
    name = name.removeprefix("model.").replace(".attn.norm.", ".attn.kv_norm.")
    return re.sub(r"^embed_tokens\.", "embed.", re.sub(r"^hc_head\.hc_", "hc_head_", name))
