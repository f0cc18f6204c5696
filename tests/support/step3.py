"""A tiny Step 3.5: Transformers' model, which reads images as well, and the text model's files as published."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.step3p7.modeling_step3p7 import Step3p7DecoderLayer, Step3p7RMSNorm

from tests.support.heads import Reference
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
    model: Any = transformers.Step3p7ForConditionalGeneration(
        transformers.Step3p7Config(text_config=_known(text), vision_config=dict(_VISION))
    ).eval()
    biases = [each for name, each in model.named_buffers() if name.endswith("e_score_correction_bias")]
    for tensor in [*model.parameters(), *biases]:
        torch.nn.init.normal_(tensor, std=0.2)
    tensors = published(model)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    form = {"architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(text | form))
    return model


def _known(text: dict[str, Any]) -> dict[str, Any]:
    """What Transformers calls the fields; some it does not have."""
    names = {
        "num_attention_groups": "num_key_value_heads",
        "moe_num_experts": "n_routed_experts",
        "moe_top_k": "num_experts_per_tok",
    }
    unknown = ("yarn_only_types", "use_head_wise_attn_gate")
    found = {names.get(name, name): value for name, value in text.items() if name not in unknown}
    return copy.deepcopy(found)


def published(model: Any) -> dict[str, torch.Tensor]:
    """The text model's tensors by their published names: parts of the model's own."""
    found = {}
    for name, tensor in model.state_dict().items():
        if name.startswith(("model.language_model.", "lm_head.")):
            found |= _published(name.replace("model.language_model.", "model."), tensor)
    return found


def _published(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """A tensor of Transformers' text model as it is published."""
    if name.endswith(".experts.gate_up_proj"):
        gate, up = tensor.chunk(2, dim=1)
        path = name.replace(".mlp.experts.gate_up_proj", ".moe")
        return {f"{path}.gate_proj.weight": gate, f"{path}.up_proj.weight": up}
    for ours, theirs in (
        (".mlp.experts.down_proj", ".moe.down_proj.weight"), (".mlp.gate.weight", ".moe.gate.weight"),
        (".mlp.gate.e_score_correction_bias", ".moe.router_bias"), (".mlp.shared_experts.", ".share_expert."),
    ):  # fmt: skip
        name = name.replace(ours, theirs)
    return {name: tensor}


def add_step3_multi_token_layer(folder: Path, model: Any) -> Reference:
    """Puts a layer for multi-token prediction into the files; it reads sums before the norm, and has an output."""
    torch.manual_seed(5)
    index, size = TEXT["num_hidden_layers"], TEXT["hidden_size"]
    more = TEXT | {"num_hidden_layers": index + 1, "num_nextn_predict_layers": 0}
    config: Any = type(model.config.text_config)(**_known(more))
    config._attn_implementation = "eager"
    layer: Any = Step3p7DecoderLayer(config, index)
    norms = {name: Step3p7RMSNorm(size, config.rms_norm_eps) for name in ("enorm", "hnorm", "shared_head.norm")}
    joint, output = torch.nn.Linear(2 * size, size, bias=False), torch.nn.Linear(size, VOCAB_SIZE, bias=False)
    for module in (layer, joint, output, *norms.values()):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    own = {f"transformer.{name}": tensor for name, tensor in layer.state_dict().items()}
    own |= {"eh_proj.weight": joint.weight, "shared_head.output.weight": output.weight}
    own |= {f"{name}.weight": norm.weight for name, norm in norms.items()}
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"model.layers.{index}.{name}": tensor.detach().contiguous() for name, tensor in own.items()}
    save_file(tensors, folder / "model.safetensors")
    sums: list[torch.Tensor] = []
    text = model.model.language_model
    text.norm.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))

    def run(embedded: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        hidden = joint(torch.cat([norms["enorm"](embedded), norms["hnorm"](features)], -1))
        positions = torch.arange(hidden.shape[1])
        distances = positions[:, None] - positions
        mask = torch.where((distances < 0) | (distances >= config.sliding_window), -torch.inf, 0.0)[None, None]
        rotation = text.rotary_emb(hidden, positions[None], _SLIDING)
        found: torch.Tensor = layer(hidden, attention_mask=mask, position_embeddings=rotation)
        return found

    return Reference(model, lambda _: sums[-1], run, norms["shared_head.norm"], output)
