"""Checkpoints of draft heads in their published layouts, and reference implementations in plain torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

Tensors = dict[str, torch.Tensor]


@dataclass
class Reference:
    """A head in plain torch, without a cache.

    Attributes:
        features: the target's hidden states after each layer (embedding first, the last ones normalized) → features.
        layer: embedding, features → the layer's output, which is also the features of the next position.
        finish: the layer's output → the output layer's input.
    """

    target: Any
    features: Callable[[tuple[torch.Tensor, ...]], torch.Tensor]
    layer: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    finish: Callable[[torch.Tensor], torch.Tensor]
    output: Callable[[torch.Tensor], torch.Tensor]

    @torch.inference_mode()
    def guess(self, token_ids: list[int], count: int) -> list[int]:
        """The tokens that the head predicts after these."""
        states = self.target(torch.tensor([token_ids[:-1]]), output_hidden_states=True).hidden_states
        features, known = self.features(states)[0], list(token_ids)
        for _ in range(count):
            embedded = self.target.get_input_embeddings()(torch.tensor(known[1:]))
            out = self.layer(embedded[None], features[None])[0]
            known.append(int(self.output(self.finish(out[-1:])).argmax()))
            features = torch.cat([features, out[-1:]])
        return known[len(token_ids) :]


def load_target(folder: Path) -> Any:
    """Transformers' model, in float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def randomize(module: Any) -> None:
    """Replaces all weights."""
    for name, parameter in module.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)


def _runner(config: Any, layer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A decoder layer over whole sequences."""
    config._attn_implementation = "eager"
    rotary = LlamaRotaryEmbedding(config)

    def run(hidden: torch.Tensor) -> torch.Tensor:
        count = hidden.shape[1]
        positions = torch.arange(count)[None]
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        out = layer(hidden, attention_mask=mask, position_ids=positions, position_embeddings=rotary(hidden, positions))
        return out[0] if isinstance(out, tuple) else out

    return run


def make_eagle(folder: Path, target_folder: Path) -> Reference:
    """An EAGLE head with a copy of the embedding, as in published checkpoints."""
    torch.manual_seed(3)
    target = load_target(target_folder)
    config, size = target.config, target.config.hidden_size
    layer: Any = LlamaDecoderLayer(config, 0)
    layer.input_layernorm = torch.nn.Identity()
    fc = torch.nn.Linear(2 * size, size)
    randomize(layer)
    randomize(fc)
    tensors = {f"layers.0.{name}": tensor for name, tensor in layer.state_dict().items()}
    tensors |= {f"fc.{name}": tensor for name, tensor in fc.state_dict().items()}
    tensors["embed_tokens.weight"] = target.get_input_embeddings().weight.detach().clone()
    save_head(folder, tensors, config.to_dict() | {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]})
    run = _runner(config, layer)
    return Reference(
        target, lambda states: states[-1], lambda embedded, features: run(fc(torch.cat([embedded, features], -1))),
        lambda out: out, target.lm_head,
    )  # fmt: skip


def make_eagle3(
    folder: Path, target_folder: Path, draft_vocab_size: int | None = 60, layers: tuple[int, int, int] | None = None,
    norm_before_residual: bool = False,
) -> Reference:  # fmt: skip
    """An EAGLE-3 head for the tokens with odd ids, or for all tokens."""
    torch.manual_seed(4)
    target = load_target(target_folder)
    config, size = target.config, target.config.hidden_size
    tapped = layers or (2, config.num_hidden_layers // 2, config.num_hidden_layers - 3)
    layer: Any = LlamaDecoderLayer(config, 0)
    for name in ("q_proj", "k_proj", "v_proj"):
        old = getattr(layer.self_attn, name)
        setattr(layer.self_attn, name, torch.nn.Linear(2 * size, old.out_features, bias=False))
    layer.hidden_norm, norm = LlamaRMSNorm(size, config.rms_norm_eps), LlamaRMSNorm(size, config.rms_norm_eps)
    fc = torch.nn.Linear(3 * size, size, bias=False)
    rows = draft_vocab_size or config.vocab_size
    head = torch.nn.Linear(size, rows, bias=False)
    for module in (layer, norm, fc, head):
        randomize(module)
    targets = torch.arange(rows) * 2 + 1 if draft_vocab_size else torch.arange(rows)
    tensors = {f"midlayer.{name}": tensor for name, tensor in layer.state_dict().items()}
    tensors |= {"fc.weight": fc.weight, "norm.weight": norm.weight, "lm_head.weight": head.weight}
    if draft_vocab_size:
        tensors |= {"d2t": targets - torch.arange(rows), "t2d": torch.zeros(config.vocab_size, dtype=torch.bool)}
    extra = {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": rows,
             "norm_before_residual": norm_before_residual}  # fmt: skip
    if layers:
        extra["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(layers)}
    save_head(folder, tensors, config.to_dict() | extra)
    normed = layer.hidden_norm

    def run(embedded: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        pair = torch.cat([layer.input_layernorm(embedded), normed(features)], -1)
        attend = _runner(config, _attention_of(layer))
        residual = (normed(features) if norm_before_residual else features) + attend(pair)
        return residual + layer.mlp(layer.post_attention_layernorm(residual))

    def spread(hidden: torch.Tensor) -> torch.Tensor:
        return torch.full((len(hidden), config.vocab_size), -torch.inf).index_copy(1, targets, head(hidden))

    def features(states: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return fc(torch.cat([states[index] for index in sorted(tapped)], -1))

    return Reference(target, features, run, norm, spread)


def _attention_of(layer: Any) -> Callable[..., torch.Tensor]:
    def attend(hidden: torch.Tensor, **inputs: Any) -> torch.Tensor:
        inputs.pop("position_ids")
        attended: torch.Tensor = layer.self_attn(hidden, **inputs)[0]
        return attended

    return attend


def add_copied_multi_token_layer(folder: Path) -> None:
    """Puts a layer for multi-token prediction into a checkpoint of Qwen3.5 with images: a copy of its last layer."""
    torch.manual_seed(7)
    tensors = load_file(folder / "model.safetensors")
    language = "model.language_model."
    size = len(tensors[f"{language}norm.weight"])
    layer = max(name.partition(".layers.")[2].partition(".")[0] for name in tensors if name.startswith(language))
    own = f"{language}layers.{layer}."
    found = {f"mtp.layers.0.{name.removeprefix(own)}": each for name, each in tensors.items() if name.startswith(own)}
    names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    found |= {f"mtp.{name}.weight": tensors[f"{language}norm.weight"] for name in names}
    found["mtp.fc.weight"] = torch.randn(size, 2 * size) * 0.2
    save_head(folder, tensors | found, json.loads((folder / "config.json").read_text()))


def save_head(folder: Path, tensors: Tensors, config: dict[str, Any]) -> None:
    """Writes a checkpoint's files."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config, default=str))
