"""Models in known shapes with random weights: `python -m benchmarks.models SHAPE DIR`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SHAPES: dict[str, dict[str, Any]] = {
    # 4 layers, 256 wide, 8k entries: small enough that the cost of everything around the model shows.
    "tiny-llama": {
        "family": "Llama", "vocab_size": 8192, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    # A hundredth of a 7B model: prompts take a while, and several workers fit on two cores.
    "small-llama": {
        "family": "Llama", "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 8192,
    },
    # Eight experts, two for each token, as in Mixtral-8x7B, but small.
    "small-mixtral": {
        "family": "Mixtral", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1024,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
        "max_position_embeddings": 4096, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    # Qwen3-0.6B, but with a vocabulary of 32k.
    "qwen3-0.6b": {
        "family": "Qwen3", "vocab_size": 32768, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 40960, "tie_word_embeddings": True,
    },
    # Gemma 4 E2B, but with a vocabulary of 32k: inputs by token id, and 20 layers that borrow keys and values.
    "gemma-4-e2b": {
        "family": "Gemma4", "vocab_size": 32768, "vocab_size_per_layer_input": 32768, "hidden_size": 1536,
        "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 1,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7, "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True, "sliding_window": 512, "final_logit_softcapping": 30.0,
        "max_position_embeddings": 131072,
    },
    "llama-3.1-8b": {
        "family": "Llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 131072,
    },
    "qwen3-30b-a3b": {
        "family": "Qwen3Moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "max_position_embeddings": 40960, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
    # Latent attention, and two experts that all tokens go through.
    "deepseek-v2-lite": {
        "family": "DeepseekV2", "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944,
        "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "first_k_dense_replace": 1, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
        "routed_scaling_factor": 1.0, "max_position_embeddings": 163840,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32, "beta_slow": 1,
            "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096,
        },
    },
    # Windows in every other layer, sinks, and experts with biases, here in 16 bits; published with those of -mxfp4.
    "gpt-oss-20b": {
        "family": "GptOss", "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 131072,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 4096,
        },
    },
    # Three layers of the gated delta rule, then one of attention, in turn: Qwen3.5-0.8B, but with a vocabulary of 32k.
    "qwen3.5-0.8b": {
        "family": "Qwen3_5", "vocab_size": 32768, "hidden_size": 1024, "intermediate_size": 3584,
        "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "max_position_embeddings": 262144,
        "tie_word_embeddings": True,
    },
    # Likewise, with heads of other sizes.
    "olmo-hybrid-7b": {
        "family": "OlmoHybrid", "vocab_size": 100352, "hidden_size": 3840, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 30, "num_key_value_heads": 30, "linear_num_key_heads": 30,
        "linear_num_value_heads": 30, "linear_key_head_dim": 96, "linear_value_head_dim": 192,
        "linear_conv_kernel_dim": 4, "linear_allow_neg_eigval": True, "max_position_embeddings": 65536,
    },
    # Codestral Mamba: states only, in 128 heads of 64 numbers, which is the configuration's default.
    "mamba2-7b": {
        "family": "Mamba2", "vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128,
        "state_size": 128, "n_groups": 8, "conv_kernel": 4, "expand": 2,
    },
}  # fmt: skip

SHAPES["gpt-oss-20b-mxfp4"] = SHAPES["gpt-oss-20b"] | {"quantization_config": {"quant_method": "mxfp4"}}
# Shapes whose bytes benchmarks/floors.py does not count.
WITHOUT_FLOORS = ("qwen3.5-0.8b", "olmo-hybrid-7b", "mamba2-7b", "gpt-oss-20b-mxfp4")


def build_config(shape: str, folder: Path) -> None:
    """Writes only the configuration, for an engine with random weights (--load-format dummy)."""
    config = _config(shape)
    config.architectures = [f"{SHAPES[shape]['family']}ForCausalLM"]
    config.dtype = "bfloat16"
    config.save_pretrained(folder)


def build_without_weights(shape: str, folder: Path) -> None:
    """Writes the configuration and a byte-level tokenizer, for a whole stack."""
    build_config(shape, folder)
    byte_tokenizer(SHAPES[shape]["vocab_size"]).save_pretrained(folder)


def build(shape: str, folder: Path) -> None:
    """Writes config, bfloat16 weights and a byte-level tokenizer; does nothing if the folder has weights already."""
    if (folder / "model.safetensors").exists():
        return
    import torch
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, f"{SHAPES[shape]['family']}ForCausalLM")(_config(shape)).to(torch.bfloat16)
    model.save_pretrained(folder)
    byte_tokenizer(SHAPES[shape]["vocab_size"]).save_pretrained(folder)


def _config(shape: str) -> Any:
    import transformers

    arguments = dict(SHAPES[shape])
    special = {"bos_token_id": None, "eos_token_id": 257, "pad_token_id": None}
    family = arguments.pop("family")
    whole = getattr(transformers, f"{family}Config")
    return getattr(transformers, f"{family}TextConfig", whole)(**arguments, **special)


def byte_tokenizer(vocab_size: int) -> Any:
    """Every byte is a token, so any text can be encoded; each id after the bytes has a text of its own."""
    import tokenizers
    import transformers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([f"<{index}>" for index in range(258, vocab_size)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=TEMPLATE
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    build(arguments.shape, arguments.folder)


if __name__ == "__main__":
    main()
