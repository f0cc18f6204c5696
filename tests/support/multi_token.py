"""Layers for multi-token prediction in checkpoints, as published, and their reference implementation in plain torch."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.support.heads import Reference, load_target, randomize, save_head
from tests.support.tiny_models import make_model

Tensors = dict[str, torch.Tensor]
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Published:
    """How a family publishes such layers.

    Attributes:
        family: see make_model.
        like: the model's layers that are of the same kind.
        names: of the layers, the norms of embedding and features, the projection, and the last norm, if it has one.
        changes: of the model.
        config: fields of config.json, besides the number of layers.
        renames: regular expressions for names in the layers, and their replacements.
        window: whether they have the model's window.
        layer_type: whose rotation they have, if the model has several.
        reads_sums, features_first, passes_normalized: see loader/multi_token.py and HeadForm.
        others: further tensors, which are not loaded.
    """

    family: str
    like: tuple[int, ...]
    names: tuple[str, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)
    window: bool = False
    layer_type: str | None = None
    reads_sums: bool = False
    features_first: bool = False
    passes_normalized: bool = True
    others: tuple[str, ...] = ()


def _in_layer(layer: str, output_norm: str = "final_layernorm") -> tuple[str, ...]:
    return (layer, *(f"{layer}.{each}" for each in ("enorm", "hnorm", "eh_proj", output_norm)))


_BEHIND: dict[str, Any] = {
    "names": _in_layer("model.layers.3", "shared_head.norm"), "passes_normalized": False,
    "others": ("model.layers.3.embed_tokens.weight", "model.layers.3.shared_head.head.weight"),
}  # fmt: skip
_APART = ("mtp.layers.0", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
_QWEN: dict[str, Any] = {
    "names": _APART, "config": {"mtp_num_hidden_layers": 2}, "others": ("mtp.layers.1.input_layernorm.weight",)
}  # fmt: skip
PUBLISHED = {
    "deepseek-v3": Published("deepseek-v3", (-1,), **_BEHIND),
    "ernie": Published(
        "ernie-moe", (0,),
        ("model.mtp_block.0", "model.mtp_emb_norm.0", "model.mtp_hidden_norm.0", "model.mtp_linear_proj.0"),
    ),
    "exaone4": Published("exaone4", (0,), _APART, window=True),
    "exaone-moe": Published(
        "exaone-moe", (3,), _APART, {"mlp_layer_types": ["sparse", "sparse", "sparse", "dense"]},
        {"mtp_layer_types": [_FULL], "mtp_sliding_windows": [0]},
    ),
    "exaone-moe-window": Published(
        "exaone-moe", (0,), _APART, config={"mtp_layer_types": [_SLIDING], "mtp_sliding_windows": [16]}, window=True
    ),
    "glm-ocr": Published("glm4", (-1,), **_BEHIND),
    "glm4-moe": Published("glm-moe", (-1,), **_BEHIND),
    "glm4-moe-lite": Published("glm-flash", (-1,), **_BEHIND),
    "hy-v3": Published("hy-v3", (-1,), _in_layer("model.layers.3")),
    "hy-v4": Published(
        "hy-v4", (-1,), _in_layer("model.mtp_layers.0"), {"indexer_types": ["full"] * 3},
        renames={r"\.sinks$": ".learnable_sink_param"},
    ),
    "ling-3": Published(
        "ling-3", (1,), _in_layer("model.layers.3"),
        renames={r"self_attn\.o_proj": "attention.dense", r"self_attn\.": "attention."},
    ),
    "mellum": Published("mellum", (2,), _APART, window=True, layer_type=_SLIDING),
    "mimo": Published(
        "qwen2", (-1,),
        tuple(f"model.mtp_layers.0{each}"
              for each in ("", ".token_layernorm", ".hidden_layernorm", ".input_proj", ".final_layernorm")),
        {"tie_word_embeddings": False}, {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"},
        reads_sums=True, features_first=True,
    ),
    "mimo-v2": Published(
        "mimo", (1,), _in_layer("model.mtp.layers.0"), {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"]},
        renames={"post_attention_layernorm": "pre_mlp_layernorm"}, window=True, layer_type=_SLIDING,
    ),
    "nemotron-h": Published(
        "nemotron-h", (2, 1), (*_in_layer("mtp.layers.0")[:-1], "mtp.layers.1.final_layernorm"),
        config={"mtp_hybrid_override_pattern": "*E"},
    ),
    "nemotron-h-latent": Published(
        "nemotron-h-latent", (2, 1), (*_in_layer("mtp.layers.0")[:-1], "mtp.layers.1.final_layernorm"),
        config={"mtp_layers_block_type": ["attention", "moe"]},
    ),
    "qwen3-next": Published("qwen3-next", (-1,), **_QWEN),
    "qwen3.5": Published("qwen3.5", (-1,), **_QWEN),
    "qwen3.5-moe": Published("qwen3.5-moe", (-1,), **_QWEN),
}  # fmt: skip


class _OneStream(torch.nn.Module):
    """In place of what collapses several streams."""

    def forward(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return streams.new_ones(streams.shape[:-1]), streams[:, :, 0]


def make_multi_token(folder: Path, kind: str) -> Reference:
    """Writes a model with such a layer."""
    make_model(folder, PUBLISHED[kind].family, **PUBLISHED[kind].changes)
    return add_multi_token_layer(folder, kind)


def add_multi_token_layer(folder: Path, kind: str = "deepseek-v3") -> Reference:
    """Puts such a layer into a model's files; see Reference.guess."""
    torch.manual_seed(5)
    form, target = PUBLISHED[kind], load_target(folder)
    size, decoder = target.config.hidden_size, target.get_decoder()
    own_norm = decoder.norm_f if hasattr(decoder, "norm_f") else decoder.norm
    layers = [copy.deepcopy(decoder.layers[index]) for index in form.like]
    embedding_norm, hidden_norm, output_norm = (copy.deepcopy(own_norm) for _ in range(3))
    joint = torch.nn.Linear(2 * size, size, bias=False)
    for layer in layers:
        if hasattr(layer, "attn_hc"):
            layer.attn_hc, layer.ffn_hc = _OneStream(), _OneStream()
    for module in (*layers, embedding_norm, hidden_norm, joint, output_norm):
        randomize(module)
    tensors: Tensors = {}
    for name, layer in zip((form.names[0], "mtp.layers.1"), layers, strict=False):
        tensors |= {f"{name}.{each}": own for each, own in _in_files(layer.state_dict(), form.renames).items()}
    for name, module in zip(form.names[1:], (embedding_norm, hidden_norm, joint, output_norm), strict=False):
        tensors[f"{name}.weight"] = module.weight
    tensors |= dict.fromkeys(form.others, joint.weight)
    raw = json.loads((folder / "config.json").read_text()) | {"num_nextn_predict_layers": 1} | form.config
    save_head(folder, load_file(folder / "model.safetensors") | tensors, raw)
    norm = output_norm if len(form.names) > 4 else own_norm
    run = _runner(target, layers, form)
    sums: list[torch.Tensor] = []
    if form.reads_sums:
        own_norm.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))

    def forward(embedded: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        pair = [embedding_norm(embedded), hidden_norm(features)]
        out = run(joint(torch.cat(pair[::-1] if form.features_first else pair, -1)))
        return norm(out) if form.passes_normalized else out

    return Reference(
        target, lambda states: sums[-1] if form.reads_sums else states[-1], forward,
        (lambda out: out) if form.passes_normalized else norm, target.lm_head,
    )  # fmt: skip


def _runner(target: Any, layers: list[Any], form: Published) -> Callable[[torch.Tensor], torch.Tensor]:
    """The layers over whole sequences."""
    for layer in layers:
        for module in layer.modules():
            if hasattr(module, "config"):
                module.config._attn_implementation = "eager"
    rotary = getattr(target.get_decoder(), "rotary_emb", None)
    window = target.config.sliding_window if form.window else None

    def run(hidden: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(hidden.shape[1])
        distances = positions[:, None] - positions
        hidden_ones = (distances < 0) | (distances >= (window or len(positions)))
        given = {
            "attention_mask": torch.where(hidden_ones, -torch.inf, 0.0)[None, None],
            "position_ids": positions[None],
        }
        if rotary is not None:
            kind = (form.layer_type,) if form.layer_type else ()
            given["position_embeddings"] = rotary(hidden, positions[None], *kind)
        streams = hasattr(layers[0], "attn_hc")
        hidden = hidden[:, :, None] if streams else hidden
        for layer in layers:
            out = layer(hidden, **given)
            hidden = out[0] if isinstance(out, tuple) else out
        return hidden[:, :, 0] if streams else hidden

    return run


def _in_files(tensors: Mapping[str, torch.Tensor], renames: Mapping[str, str]) -> Tensors:
    """The tensors as in published checkpoints, which have each expert's apart."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        experts, _, kind = name.rpartition(".")
        if experts.endswith("experts") and kind in ("gate_up_proj", "up_proj", "down_proj"):
            for index, each in enumerate(tensor):
                parts = (
                    zip(("gate_proj", "up_proj"), each.chunk(2), strict=True)
                    if kind == "gate_up_proj"
                    else [(kind, each)]
                )
                found |= {f"{experts}.{index}.{part}.weight": matrix for part, matrix in parts}
        else:
            found[name] = tensor
    for ours, theirs in renames.items():
        found = {re.sub(ours, theirs, name): tensor for name, tensor in found.items()}
    return found
