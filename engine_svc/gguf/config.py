"""Converts a GGUF file's metadata to a config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine_svc.gguf.architectures import architecture_of
from engine_svc.gguf.facts import Facts
from engine_svc.gguf.names import huggingface_names, is_widened
from engine_svc.gguf.rotary import head_size, rope_parameters
from quire.errors import StartupError
from quire.gguf.files import Gguf, read_gguf
from quire.gguf.tokens import end_token_ids
from quire.gguf.types import BF16, F16, PLAIN, READ

# Sizes that are no larger than the largest tensor's.
_SIZES = (
    "embedding_length", "feed_forward_length", "attention.key_length_swa", "embedding_length_per_layer_input",
)  # fmt: skip
_MOST = {"block_count": 1 << 12, "expert_count": 1 << 12, "context_length": 1 << 24}


def gguf_config(file: Path) -> dict[str, Any]:
    """The config.json of a GGUF file's model.

    Raises:
        StartupError: the file is broken, or its model is not supported.
    """
    model = read_gguf(file)
    facts = Facts(model)
    architecture = architecture_of(facts)
    _check(facts)
    config = {"architectures": [architecture.huggingface], "model_type": architecture.model_type, **_shape(facts)}
    return config | architecture.fields(facts) | gguf_weights(model)


def gguf_weights(model: Gguf) -> dict[str, Any]:
    """The fields of config.json that describe how the file stores its weights.

    Raises:
        StartupError: a tensor has an unsupported type.
    """
    facts = Facts(model)
    architecture = architecture_of(facts)
    types = {}
    for tensor in model.tensors.values():
        if tensor.type.name not in READ:
            raise StartupError(
                f"{tensor.file}: {tensor.name} is of type {tensor.type.name}, which is not supported; supported are "
                f"{', '.join(READ)}. Use the model's Q2_K, IQ4_XS or Q4_K_M file."
            )
        if tensor.type not in PLAIN and not is_widened(tensor.name, architecture, facts):
            for name in huggingface_names(tensor, architecture):
                types[name.removesuffix(".weight")] = tensor.type.name
    return {
        "dtype": _dtype(model),
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "quantization_config": {"quant_method": "gguf", "types": types},
    }


def _dtype(model: Gguf) -> str:
    """The dtype of the matrices; bfloat16 if any of them is quantized."""
    types = {tensor.type for tensor in model.tensors.values() if len(tensor.shape) > 1}
    if BF16 in types or not types <= {*PLAIN}:
        return "bfloat16"
    return "float16" if F16 in types else "float32"


def _check(facts: Facts) -> None:
    """
    Raises:
        StartupError: a size in the metadata is larger than plausible.
    """
    tensors = facts.model.tensors
    if "token_embd.weight" not in tensors:
        raise StartupError(f"{facts.model.files[0]} lacks the tensor token_embd.weight: it is not a language model.")
    # Matrices are allocated with the sizes in the metadata, before tensors are checked against them.
    largest = max(max(tensor.shape) for tensor in tensors.values())
    found = {key: _largest(facts, key) for key in (*_MOST, *_SIZES)}
    if architecture_of(facts).attends:
        found["attention.key_length"] = facts.need("attention.head_count") * head_size(facts)
    for key, number in found.items():
        most = _MOST.get(key, largest)
        if not isinstance(number, int) or not 0 <= number <= most:
            raise StartupError(
                f"{facts.model.files[0]}: {facts.architecture}.{key} is {number!r}; it must be at most {most}: the "
                "size of the largest tensor, or the maximum number of layers, experts or positions."
            )


def _largest(facts: Facts, key: str) -> Any:
    """A number, or the largest one of all layers; 0 if there is none."""
    found = facts.model.metadata.get(f"{facts.architecture}.{key}", 0)
    return max(found, default=0) if isinstance(found, list) else found


def _size(facts: Facts, key: str) -> Any:
    """A size of all layers; that of the first one in families whose layers differ."""
    return facts.by_layer(key)[0] if architecture_of(facts).varies else facts.find(key)


def _shape(facts: Facts) -> dict[str, Any]:
    # All norms of a model are of one kind with one epsilon, whatever name a family has for it.
    epsilon = facts.find("attention.layer_norm_rms_epsilon") or facts.find("attention.layer_norm_epsilon") or 1e-6
    return {
        "vocab_size": facts.model.tensors["token_embd.weight"].shape[0],
        "hidden_size": facts.need("embedding_length"),
        "intermediate_size": _size(facts, "feed_forward_length") or facts.find("expert_feed_forward_length") or 0,
        "num_hidden_layers": facts.num_layers,
        "max_position_embeddings": facts.need("context_length"),
        **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"), epsilon),
        "mlp_bias": facts.has("blk.0.ffn_gate.bias"),
        "bos_token_id": facts.model.number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_token_ids(facts.model),
        **(_attention(facts) if architecture_of(facts).attends else {}),
    }


def _attention(facts: Facts) -> dict[str, Any]:
    heads = facts.need("attention.head_count")
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": _size(facts, "attention.head_count_kv") or heads,
        "head_dim": head_size(facts),
        "rope_parameters": rope_parameters(facts),
        "attention_bias": any(facts.layers_with(f"{each}.bias") for each in ("attn_q", "attn_qkv")),
    }
