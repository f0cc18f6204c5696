"""A tiny Step 3.5: Transformers' model, which reads images as well, and the text model's files as published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from tests.support.tiny_models import VOCAB_SIZE

_FULL, _SLIDING = "full_attention", "sliding_attention"
# As published: lists go on with a layer for multi-token prediction.
TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_attention_groups": 2, "head_dim": 16, "vocab_size": VOCAB_SIZE, "max_position_embeddings": 512,
    "attention_other_setting": {"attention_type": _SLIDING, "num_attention_heads": 6, "num_attention_groups": 2,
                                "head_dim": 16},
    "layer_types": [_FULL, _SLIDING, _SLIDING, _SLIDING, _FULL, _SLIDING], "sliding_window": 24,
    "rope_theta": [5e6, 1e4, 1e4, 1e4, 5e6, 1e4], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 0.5, 1.0],
    "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 64,
                     "low_freq_factor": 1.0, "high_freq_factor": 32.0},
    "yarn_only_types": [_FULL], "use_head_wise_attn_gate": True, "rms_norm_eps": 1e-5,
    "moe_layers_enum": "1,2,3,4", "moe_num_experts": 6, "moe_top_k": 2, "moe_intermediate_size": 32,
    "share_expert_dim": 48, "moe_router_scaling_factor": 3.0, "swiglu_limits": [0.0, 0.0, 0.0, 0.3, None, 0.0],
    "swiglu_limits_shared": [0.0, 0.0, 0.0, 0.2, 0.5, 0.0], "num_nextn_predict_layers": 1,
}  # fmt: skip
_VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def make_step3(folder: Path, **changes: Any) -> Any:
    """Writes the files to a folder, and returns Transformers' model."""
    torch.manual_seed(0)
    text = TEXT | changes
    # Transformers has other names for some fields, and none for others.
    known = {
        {"num_attention_groups": "num_key_value_heads", "moe_num_experts": "n_routed_experts",
         "moe_top_k": "num_experts_per_tok"}.get(name, name): value
        for name, value in text.items() if name not in ("yarn_only_types", "use_head_wise_attn_gate")
    }  # fmt: skip
    model: Any = transformers.Step3p7ForConditionalGeneration(
        transformers.Step3p7Config(text_config=json.loads(json.dumps(known)), vision_config=dict(_VISION))
    ).eval()
    biases = [each for name, each in model.named_buffers() if name.endswith("e_score_correction_bias")]
    for tensor in [*model.parameters(), *biases]:
        torch.nn.init.normal_(tensor, std=0.2)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.startswith(("model.language_model.", "lm_head.")):
            tensors |= _published(name.replace("model.language_model.", "model."), tensor)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    form = {"architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(text | form))
    return model


def _published(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """A tensor of Transformers' text model as it is published."""
    if name.endswith(".experts.gate_up_proj"):
        gate, up = tensor.chunk(2, dim=1)
        path = name.replace(".mlp.experts.gate_up_proj", ".moe")
        return {f"{path}.gate_proj.weight": gate.clone(), f"{path}.up_proj.weight": up.clone()}
    for ours, theirs in (
        (".mlp.experts.down_proj", ".moe.down_proj.weight"), (".mlp.gate.weight", ".moe.gate.weight"),
        (".mlp.gate.e_score_correction_bias", ".moe.router_bias"), (".mlp.shared_experts.", ".share_expert."),
    ):  # fmt: skip
        name = name.replace(ours, theirs)
    return {name: tensor}
