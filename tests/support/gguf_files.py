"""Tiny models written as GGUF with the package `gguf`, as llama.cpp's converter does it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

Type = gguf.GGMLQuantizationType
KindOf = Callable[[str], str]  # name of a matrix in GGUF → its type's name

# model_type → llama.cpp's name, whether rows of queries and keys are put side by side, and what norms get added.
_FAMILIES: dict[str, tuple[gguf.MODEL_ARCH, bool, float]] = {
    "llama": (gguf.MODEL_ARCH.LLAMA, True, 0.0),
    "mixtral": (gguf.MODEL_ARCH.LLAMA, True, 0.0),
    "qwen2": (gguf.MODEL_ARCH.QWEN2, False, 0.0),
    "qwen2_moe": (gguf.MODEL_ARCH.QWEN2MOE, False, 0.0),
    "qwen3": (gguf.MODEL_ARCH.QWEN3, False, 0.0),
    "qwen3_moe": (gguf.MODEL_ARCH.QWEN3MOE, False, 0.0),
    "gemma": (gguf.MODEL_ARCH.GEMMA, False, 1.0),
    "gemma2": (gguf.MODEL_ARCH.GEMMA2, False, 1.0),
    "gemma3_text": (gguf.MODEL_ARCH.GEMMA3, False, 1.0),
    "gpt_oss": (gguf.MODEL_ARCH.GPT_OSS, False, 0.0),
    "phi3": (gguf.MODEL_ARCH.PHI3, False, 0.0),
    "olmo2": (gguf.MODEL_ARCH.OLMO2, False, 0.0),
    "granite": (gguf.MODEL_ARCH.GRANITE, True, 0.0),
    "cohere": (gguf.MODEL_ARCH.COMMAND_R, False, 0.0),
    "cohere2": (gguf.MODEL_ARCH.COHERE2, False, 0.0),
    "glm4": (gguf.MODEL_ARCH.GLM4, False, 0.0),
    "smollm3": (gguf.MODEL_ARCH.SMOLLM3, True, 0.0),
    "seed_oss": (gguf.MODEL_ARCH.SEED_OSS, False, 0.0),
}
_EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
            "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}  # fmt: skip
# Of types that the package cannot quantize to: where numbers of 16 bits stand in a block, and the most they are times.
_HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
_LARGEST = {"Q2_K": 15 * 3, "Q3_K": 32 * 4, "Q4_K": 63 * 15, "Q5_K": 63 * 31, "Q6_K": 128 * 32, "IQ4_NL": 127,
            "IQ4_XS": 127 * 32}  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A model in GGUF, and one in Hugging Face's layout that has what its weights stand for."""

    file: Path
    reference: Path


def write_gguf(
    folder: Path, target: Path, kind_of: KindOf = lambda name: "F32", extra: Mapping[str, Any] | None = None,
    tensors_in_a_part: int = 0,
) -> Written:  # fmt: skip
    """
    Args:
        folder: of a model in Hugging Face's layout.
        target: a folder for both.
        extra: further metadata.
        tensors_in_a_part: of several files; 0: there is one.
    """
    config = json.loads((folder / "config.json").read_text())
    arch, neighbours, offset = _FAMILIES[config["model_type"]]
    target.mkdir(parents=True, exist_ok=True)
    file = target / "model.gguf"
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch], split_max_tensors=tensors_in_a_part)
    _add_metadata(writer, config, extra or {})
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    meant: dict[str, torch.Tensor] = {}
    stacks: dict[str, dict[int, tuple[str, np.ndarray]]] = {}
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in _tensors(folder):
        values = tensor.float().numpy()
        parts = name.split(".")
        if "experts" in parts:
            index = int(parts[parts.index("experts") + 1])
            stacks.setdefault(f"blk.{parts[2]}.{_EXPERTS[parts[-2]]}.{parts[-1]}", {})[index] = (name, values)
            continue
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if name.endswith("sinks"):
            theirs = f"{theirs}.weight"
        assert theirs is not None, name
        if name.endswith("norm.weight"):
            values = values + np.float32(offset)
        count = heads.get(parts[-2], 0) if neighbours else 0
        if name.endswith("shared_expert_gate.weight"):
            values = values.reshape(-1)
        kind = kind_of(theirs) if values.ndim == 2 and "ffn_gate_inp" not in theirs else "F32"
        packed, stands_for = _packed(_side_by_side(values, count), kind, len(meant))
        writer.add_tensor(theirs, packed, raw_dtype=Type[kind])
        meant[name] = torch.from_numpy(_halves(stands_for, count) - offset * name.endswith("norm.weight")).view(
            tensor.shape
        )
    for theirs, stack in stacks.items():
        experts = [stack[index] for index in range(len(stack))]
        kind = kind_of(theirs) if theirs.endswith("weight") else "F32"
        found = [_packed(values, kind, 1000 * index + len(meant)) for index, (_, values) in enumerate(experts)]
        writer.add_tensor(theirs, np.stack([packed for packed, _ in found]), raw_dtype=Type[kind])
        meant |= {name: torch.from_numpy(each) for (name, _), (_, each) in zip(experts, found, strict=True)}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reference = target / "reference"
    reference.mkdir()
    (reference / "config.json").write_text(json.dumps(config))
    save_file(
        {name: values.contiguous() for name, values in meant.items()}, reference / "model.safetensors", {"format": "pt"}
    )
    return Written(min(target.glob("*.gguf")), reference)


def _tensors(folder: Path) -> list[tuple[str, torch.Tensor]]:
    """Experts one by one."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if "experts.gate_up_proj" not in name and not re.search(r"experts\.down_proj(_bias)?$", name):
            found[name] = tensor
            continue
        # gpt-oss: gate's and up's outputs take turns, and stand behind the inputs.
        stem, _, kind = name.removesuffix("_bias").rpartition(".")
        parts = {"gate_proj": tensor[..., ::2], "up_proj": tensor[..., 1::2]} if kind[0] == "g" else {kind: tensor}
        for part, values in parts.items():
            for index, each in enumerate(values):
                end = "bias" if name.endswith("_bias") else "weight"
                found[f"{stem}.{index}.{part}.{end}"] = each.mT.contiguous() if end == "weight" else each.contiguous()
    return sorted(found.items())


def _side_by_side(values: np.ndarray, heads: int) -> np.ndarray:
    if not heads:
        return values
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _halves(values: np.ndarray, heads: int) -> np.ndarray:
    if not heads:
        return values
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _packed(values: np.ndarray, kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """As the file has them, and what they stand for: of types that cannot be quantized to, something else as large."""
    if kind in _HALVES:
        packed = random_blocks(values.shape, kind, float(np.abs(values).max()), seed)
    else:
        packed = gguf.quantize(np.ascontiguousarray(values), Type[kind])
    return packed, np.ascontiguousarray(gguf.dequantize(packed, Type[kind]).astype(np.float32))


def random_blocks(shape: tuple[int, ...], kind: str, largest: float, seed: int = 0) -> np.ndarray:
    """Blocks of any bits, but for scales that keep their values below about `largest`."""
    values, size = gguf.GGML_QUANT_SIZES[Type[kind]]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (*shape[:-1], shape[-1] // values, size), dtype=np.uint8)
    for first in _HALVES[kind]:
        scales = generator.uniform(0.5, 1.0, blocks.shape[:-1]) * largest / _LARGEST[kind]
        blocks[..., first : first + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def _add_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    get = config.get
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    head_dim = get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    if config["model_type"] == "gpt_oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if get("layer_norm_eps"):
        writer.add_layer_norm_eps(config["layer_norm_eps"])
    else:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = get("rope_parameters") or {}
    if "sliding_attention" in rope:
        writer.add_float32(f"{writer.arch}.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_dimension_count(int(head_dim * (rope.get("partial_rotary_factor") or 1)))
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    if rope.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope.get("rope_type") == "llama3":
        inverse, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](
            transformers.LlamaConfig(**config), torch.device("cpu")
        )
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / inverse).numpy())
    for name, add in {
        "num_experts": writer.add_expert_count,
        "num_local_experts": writer.add_expert_count,
        "num_experts_per_tok": writer.add_expert_used_count,
        "moe_intermediate_size": writer.add_expert_feed_forward_length,
        "shared_expert_intermediate_size": writer.add_expert_shared_feed_forward_length,
        "attn_logit_softcapping": writer.add_attn_logit_softcapping,
        "final_logit_softcapping": writer.add_final_logit_softcapping,
        "sliding_window": writer.add_sliding_window,
        "logit_scale": writer.add_logit_scale,
        "attention_multiplier": writer.add_attention_scale,
        "embedding_multiplier": writer.add_embedding_scale,
        "residual_multiplier": writer.add_residual_scale,
        "logits_scaling": writer.add_logit_scale,
    }.items():
        if get(name) is not None:
            add(config[name])
    if "tokenizer.ggml.model" not in extra:
        writer.add_tokenizer_model("no_vocab")
    add_all(writer, extra)


def add_all(writer: gguf.GGUFWriter, metadata: Mapping[str, Any]) -> None:
    for name, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))


def write_metadata(file: Path, metadata: Mapping[str, Any], architecture: str = "llama") -> Path:
    """A file without tensors."""
    writer = gguf.GGUFWriter(file, architecture)
    add_all(writer, metadata)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


def tokenizer_metadata(tokenizer: tokenizers.Tokenizer, rules: str) -> dict[str, Any]:
    """Of a byte-level tokenizer.

    Args:
        rules: tokenizer.ggml.pre.
    """
    described = json.loads(tokenizer.to_str())
    added = {token["id"]: 3 if token["special"] else 4 for token in described["added_tokens"]}
    count = tokenizer.get_vocab_size()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rules,
        "tokenizer.ggml.tokens": [tokenizer.id_to_token(index) for index in range(count)],
        "tokenizer.ggml.token_type": [added.get(index, 1) for index in range(count)],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in described["model"]["merges"]],
    }
