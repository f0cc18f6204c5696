"""Converts a benchmark's model for llama.cpp: `python benchmarks/gguf_model.py FOLDER TARGET --type BF16`.

Runs in llama.cpp's virtual environment, because it needs the packages `gguf` and `llama-cpp-python`; so it imports
nothing else of ours. It supports the dense shapes of `benchmarks.models`, Llama and Qwen3.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen3ForCausalLM": "qwen3"}
_LAYER_TENSORS = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
# Mixtures of types, which llama.cpp's own quantizer makes from a file.
_MIXTURES = {"Q4_K_M": "LLAMA_FTYPE_MOSTLY_Q4_K_M"}
_OTHER_TENSORS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def tensors(checkpoint: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names and bfloat16 values, as uint16, of a safetensors file."""
    data = np.memmap(checkpoint, np.uint8, "r")
    begin = 8 + int(data[:8].view("<u8")[0])
    for name, entry in json.loads(bytes(data[8:begin])).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is of type {entry['dtype']}; benchmarks' models have bfloat16")
        first, last = entry["data_offsets"]
        yield name, data[begin + first : begin + last].view("<u2").reshape(entry["shape"])


def gguf_name(name: str) -> str:
    """What llama.cpp calls a tensor of the checkpoint."""
    stem = name.removesuffix(".weight")
    if stem in _OTHER_TENSORS:
        return f"{_OTHER_TENSORS[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_LAYER_TENSORS[rest]}.weight"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head in the order of llama.cpp's rotation for Llama, which pairs neighbors and not halves."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def add_tensors(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any], kind: str) -> None:
    """Adds all weights: matrices as type `kind`, vectors as float32, like llama.cpp's own converter."""
    rotated = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, found in tensors(folder / "model.safetensors"):
        projection = name.removesuffix(".weight").rpartition(".")[2]
        is_permuted = config["architectures"] == ["LlamaForCausalLM"] and projection in rotated
        values = interleaved(found, rotated[projection]) if is_permuted else found
        if values.ndim == 2 and kind == "BF16":
            raw = np.ascontiguousarray(values).view(np.uint8)
            writer.add_tensor(gguf_name(name), raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
            continue
        wide = (values.astype(np.uint32) << 16).view(np.float32)
        if values.ndim == 2:
            packed = gguf.quantize(wide, gguf.GGMLQuantizationType[kind])
            writer.add_tensor(gguf_name(name), packed, raw_dtype=gguf.GGMLQuantizationType[kind])
        else:
            writer.add_tensor(gguf_name(name), wide)


def add_parameters(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Adds the model's dimensions."""
    rope = config.get("rope_parameters") or config
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, vocab_size: int) -> None:
    """Adds a tokenizer that takes the longest match at each position, which llama.cpp calls rwkv.

    Here it gives the same ids as the model's own tokenizer. (With a BPE that has 32k added tokens, which llama.cpp
    searches for one after the other, prompts would take it too long.)
    """
    described = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    texts = {entry["id"]: entry["content"].encode() for entry in described["added_tokens"]}
    texts |= {index: byte_of(character) for character, index in described["model"]["vocab"].items()}
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([repr(texts[index])[2:-1].encode() for index in range(vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab_size)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)


def byte_of(character: str) -> bytes:
    """The byte that a character of a byte-level alphabet stands for: itself; unprintable bytes are from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    code = ord(character)
    return bytes([code if code < 256 else others[code - 256]])


def write(folder: Path, target: Path, kind: str) -> None:
    """Writes the whole model with all matrices as one type."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(target, _ARCHITECTURES[config["architectures"][0]])
    add_parameters(writer, config)
    add_tokenizer(writer, folder, config["vocab_size"])
    add_tensors(writer, folder, config, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(source: Path, target: Path, mixture: str) -> None:
    """Quantizes a file with llama.cpp's library.

    Raises:
        RuntimeError: it fails.
    """
    import llama_cpp

    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, settings.nthread = getattr(llama_cpp, _MIXTURES[mixture]), os.cpu_count() or 1
    if code := llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(settings)):
        raise RuntimeError(f"llama.cpp did not quantize {source} to {mixture}: {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--type", choices=["BF16", "Q8_0", *_MIXTURES], default="BF16")
    arguments = parser.parse_args()
    target, kind = arguments.target, arguments.type
    unfinished = target.with_suffix(".unfinished")
    if kind in _MIXTURES:
        wide = target.with_suffix(".wide")
        write(arguments.folder, wide, "BF16")
        quantize(wide, unfinished, kind)
        wide.unlink()
    else:
        write(arguments.folder, unfinished, kind)
    unfinished.rename(target)


if __name__ == "__main__":
    main()
