"""Tiny models written as GGUF with the package `gguf`, as llama.cpp's converter does it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.support.gguf_families import FAMILIES, Family, Piece, side_by_side

Type = gguf.GGMLQuantizationType
KindOf = Callable[[str], str]  # name of a matrix in GGUF → its type's name

_EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
            "gate_up_proj": "ffn_gate_up_exps",
            "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}  # fmt: skip
# Tensors of all experts.
_FUSED = re.compile(
    r"(.+\.(?:mlp|feed_forward|block_sparse_moe))\.(?:experts\.)?(gate_up|down|input|output)_(?:proj(?:_bias)?|linear\.weight)"
)
# The same, with outputs first, of which llama.cpp keeps gates and ups together.
_TOGETHER = re.compile(r"(model\.layers\.\d+\.experts)\.(gate_up_proj|down_proj)")
_NUMBER = ".act_fn."
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
# Numbers of config.json → what files call them.
_KEYS = {
    "num_experts": "expert_count", "num_local_experts": "expert_count", "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
    "sliding_window": "attention.sliding_window", "logit_scale": "logit_scale",
    "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
}  # fmt: skip
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
    """A model in GGUF, and one in Hugging Face's layout with the dequantized weights."""

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
    config = _config(folder)
    family = FAMILIES[config["model_type"]]
    target.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(target / "model.gguf", family.name, split_max_tensors=tensors_in_a_part)
    add_all(writer, {f"{writer.arch}.{key}": each for key, each in _metadata(config, family).items()})
    add_all(writer, {"tokenizer.ggml.model": "no_vocab"} | dict(extra or {}))
    if (factors := _rotary_factors(config)) is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    names = gguf.get_tensor_name_map(family.arch, config["num_hidden_layers"])
    meant = {name: tensor.float().numpy().copy() for name, tensor in load_file(folder / "model.safetensors").items()}
    stacks: dict[str, list[np.ndarray]] = {}
    count = 0
    add_all(writer, _numbers(meant))
    tensors = {name: values for name, values in meant.items() if _NUMBER not in name}
    for name, view in _views(tensors, takes_turns=config["model_type"] == "gpt_oss"):
        for theirs, piece in _pieces(name, view, family, config, names):
            kind = kind_of(theirs) if _may_be_packed(theirs, piece, view) else "F32"
            packed, kind = _write(view, piece, kind, count)
            if theirs.endswith(("_exps.weight", "_exps.bias")):
                stacks.setdefault(f"{theirs} {kind}", []).append(packed)
            else:
                writer.add_tensor(theirs, packed, raw_dtype=Type[kind])
            count += 1
    for key, stack in stacks.items():
        theirs, _, kind = key.partition(" ")
        writer.add_tensor(theirs, np.stack(stack), raw_dtype=Type[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reference = target / "reference"
    reference.mkdir()
    (reference / "config.json").write_bytes((folder / "config.json").read_bytes())
    # Numbers would become vectors of one without the shape.
    both = {name: torch.from_numpy(np.ascontiguousarray(values)).view(values.shape) for name, values in meant.items()}
    save_file(both, reference / "model.safetensors", {"format": "pt"})
    return Written(min(target.glob("*.gguf")), reference)


def _numbers(meant: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """Numbers that xIELU learns, of all layers in one list, which files have in their metadata."""
    found: dict[str, list[float]] = {}
    for name in sorted((name for name in meant if _NUMBER in name), key=lambda name: int(name.split(".")[2])):
        found.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(float(meant[name].item()))
    return found


def _config(folder: Path) -> dict[str, Any]:
    """The configuration, with fields under the names that most families use."""
    found = transformers.AutoConfig.from_pretrained(folder)
    own = json.loads((folder / "config.json").read_text())
    fields = own | {name: getattr(found, name) for name in found.attribute_map}
    kinds = getattr(found, "layers_block_type", None)
    if "layer_types" not in fields and kinds:
        fields["layer_types"] = kinds
    fields.setdefault("max_position_embeddings", 256)
    fields.setdefault("num_hidden_layers", len(fields.get("layer_types") or ()))
    heads, kind = fields["num_attention_heads"], own["model_type"]
    if kind in ("bloom", "gpt_neox", "mpt"):
        fields["num_key_value_heads"] = heads
    if kind == "falcon":
        has_many = found.new_decoder_architecture or not found.multi_query
        fields["num_key_value_heads"] = found.num_kv_heads if has_many else 1
    if kind in ("bloom", "mpt", "falcon"):
        fields["intermediate_size"] = 4 * fields["hidden_size"]
    return fields


def _views(meant: Mapping[str, np.ndarray], takes_turns: bool) -> Iterator[tuple[str, np.ndarray]]:
    """(name, view of the values), experts one by one; writing to a view changes `meant`.

    Args:
        takes_turns: whether experts' gates and ups are interleaved in one tensor.
    """
    for name in sorted(meant):
        values = meant[name]
        if together := _TOGETHER.fullmatch(name):
            yield from ((f"{together[1]}.{index}.{together[2]}.weight", each) for index, each in enumerate(values))
            continue
        found = _FUSED.fullmatch(name)
        if found is None:
            yield name, values
            continue
        is_bias = name.endswith("bias")
        # Others than Granite's have inputs first.
        experts = values if is_bias or found[2] in ("input", "output") else values.swapaxes(1, 2)
        half = experts.shape[1] // 2
        first, second = (slice(0, None, 2), slice(1, None, 2)) if takes_turns else (slice(half), slice(half, None))
        parts = {"down_proj": experts}
        if found[2] in ("gate_up", "input"):
            parts = {"gate_proj": experts[:, first], "up_proj": experts[:, second]}
        for part, all_of_them in parts.items():
            for index, each in enumerate(all_of_them):
                yield f"{found[1]}.experts.{index}.{part}.{'bias' if is_bias else 'weight'}", each


def _pieces(
    name: str, view: np.ndarray, family: Family, config: Mapping[str, Any], names: gguf.TensorNameMap
) -> Iterator[tuple[str, Piece]]:
    parts = name.split(".")
    if "experts" in parts:
        yield f"blk.{parts[2]}.{_EXPERTS[parts[-2]]}.{parts[-1]}", Piece()
        return
    found = side_by_side(name, view.shape, config) if family.neighbours else None
    found = family.pieces(name, view.shape, config) or found or [Piece()]
    for piece in found:
        renamed = name
        for pattern, other in family.renames:
            renamed = re.sub(pattern, other, renamed)
        if piece.module:
            renamed = f"model.layers.{parts[2]}.{piece.module}.{parts[-1]}"
        theirs = names.get_name(renamed, try_suffixes=(".weight", ".bias", ".scale"))
        assert theirs is not None, renamed
        if family.offset and name.endswith("norm.weight") and "linear_attn" not in name:
            piece = replace(piece, offset=family.offset)
        yield f"{theirs}.weight" if name.endswith(("sinks", "layer_scalar")) else theirs, piece


def _may_be_packed(theirs: str, piece: Piece, view: np.ndarray) -> bool:
    """Whether it is a matrix; llama.cpp leaves routers and filters as they are."""
    shape = piece.shape or view.shape
    return len(shape) > 1 and view.ndim == 2 and not re.search(r"ffn_gate_inp|conv|ssm_[ad]$|norm|exp_probs", theirs)


def _write(view: np.ndarray, piece: Piece, kind: str, seed: int) -> tuple[np.ndarray, str]:
    """The data written to the file, and its type: F16 if rows cannot be divided into blocks.

    Replaces the values in `view` with what the written data stands for.
    """
    rows = slice(None) if piece.rows is None else piece.rows
    place: Any = rows if piece.columns is None else np.ix_(np.arange(len(view)), piece.columns)
    values = view[place]
    if piece.is_rate:
        return -np.exp(values).reshape(piece.shape or values.shape), "F32"
    changed = (values * np.float32(piece.factor) + np.float32(piece.offset)).reshape(piece.shape or values.shape)
    changed = changed.swapaxes(-1, -2) if piece.swapped else changed
    if changed.shape[-1] % gguf.GGML_QUANT_SIZES[Type[kind]][0]:
        kind = "F16"
    packed, stands_for = _packed(changed, kind, seed)
    stands_for = stands_for.swapaxes(-1, -2) if piece.swapped else stands_for
    view[place] = (stands_for.reshape(values.shape) - np.float32(piece.offset)) / np.float32(piece.factor)
    return packed, kind


def _packed(values: np.ndarray, kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Packed data and what it stands for; random data of the same magnitude for types that cannot be quantized to."""
    if kind in _HALVES:
        packed = random_blocks(values.shape, kind, float(np.abs(values).max()), seed)
    else:
        packed = gguf.quantize(np.ascontiguousarray(values), Type[kind])
    return packed, np.ascontiguousarray(gguf.dequantize(packed, Type[kind]).astype(np.float32))


def random_blocks(shape: tuple[int, ...], kind: str, largest: float, seed: int = 0) -> np.ndarray:
    """Blocks of random bits, with scales that keep values below about `largest`."""
    values, size = gguf.GGML_QUANT_SIZES[Type[kind]]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (*shape[:-1], shape[-1] // values, size), dtype=np.uint8)
    for first in _HALVES[kind]:
        scales = generator.uniform(0.5, 1.0, blocks.shape[:-1]) * largest / _LARGEST[kind]
        blocks[..., first : first + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def _metadata(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Under the architecture's name; what is about rotation included."""
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    epsilon = next(config[name] for name in _EPSILONS if config.get(name))
    found = {
        "context_length": config["max_position_embeddings"], "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"], "feed_forward_length": config.get("intermediate_size") or 0,
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"], "attention.key_length": size,
        "attention.value_length": size, "vocab_size": config["vocab_size"],
        "attention.layer_norm_rms_epsilon" if config.get("rms_norm_eps") else "attention.layer_norm_epsilon": epsilon,
    }  # fmt: skip
    if config["model_type"] in ("gpt_oss", "minimax_m2"):
        found["expert_feed_forward_length"] = config["intermediate_size"]
    rope = config.get("rope_parameters") or {}
    if "sliding_attention" in rope:
        found["rope.freq_base_swa"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    rotated = config.get("rotary_dim") or int(size * (rope.get("partial_rotary_factor") or 1))
    found |= {"rope.dimension_count": rotated, "rope.freq_base": rope.get("rope_theta") or 10000.0}
    if rope.get("rope_type") in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope.get("rope_type") == "yarn":
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        found |= {f"rope.scaling.yarn_{name}": rope[name] for name in ("beta_fast", "beta_slow") if rope.get(name)}
    found |= {key: config[name] for name, key in _KEYS.items() if config.get(name) is not None}
    return found | family.metadata(config)


def _rotary_factors(config: Mapping[str, Any]) -> np.ndarray | None:
    """The factors by which Llama 3 divides frequencies, and those by which nothing rotates in a part of Gemma 4's."""
    rope = config.get("rope_parameters") or {}
    if (whole := rope.get("full_attention") or {}).get("rope_type") == "proportional":
        half = config["per_layer_config"][str(config["num_hidden_layers"] - 1)]["head_dim"] // 2
        return np.where(np.arange(half) < int(whole["partial_rotary_factor"] * half), 1, 1e30).astype(np.float32)
    if rope.get("rope_type") != "llama3":
        return None
    inverse, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](
        transformers.LlamaConfig(**config), torch.device("cpu")
    )
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, size, 2).float() / size)
    factors: np.ndarray = (plain / inverse).numpy()
    return factors


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
