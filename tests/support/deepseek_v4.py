"""A tiny DeepSeek V4: Transformers' model, and its files as published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

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
