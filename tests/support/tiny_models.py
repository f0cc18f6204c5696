"""Tiny random models of each family, and reference results by Transformers."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.kept_models import kept_model
from tests.support.tiny_mixtures import COMPRESSED, GEMMA3N, GEMMA4, MIXTURES

VOCAB_SIZE = 160
_LOADING = threading.Lock()
# Transformers 5.23 has it as a part of Mistral 3 alone.
transformers.AutoModelForCausalLM.register(transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True)

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": 0,
    # Weights so spread out that the likeliest token never depends on rounding.
    "initializer_range": 0.3,
}  # fmt: skip

_LATENT: dict[str, Any] = COMPRESSED | {
    "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}  # fmt: skip

_FALCON: dict[str, Any] = {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 96}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek-v2": ("DeepseekV2", _LATENT | {"topk_method": "greedy"}),
    "deepseek-v2-plain": (
        "DeepseekV2",
        _LATENT
        | {
            "topk_method": "group_limited_greedy",
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 2.5,
            "q_lora_rank": None,
            "first_k_dense_replace": 0,
        },
    ),
    "deepseek-v3": ("DeepseekV3", _LATENT),
    "deepseek-v3-bias": ("DeepseekV3", _LATENT | {"attention_bias": True}),
    "deepseek-v3-halves": ("DeepseekV3", _LATENT | {"rope_interleave": False}),
    "apertus": ("Apertus", {"attention_bias": True}),
    "arcee": ("Arcee", {"mlp_bias": True}),
    "bloom": ("Bloom", {}),
    "bloom-6-heads": ("Bloom", {"hidden_size": 96, "num_attention_heads": 6}),
    "codegen": ("CodeGen", {"rotary_dim": 8, "n_inner": 96}),
    "cohere": ("Cohere", {"logit_scale": 0.3}),
    "cohere-norms": ("Cohere", {"use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False}),
    "cohere2": ("Cohere2", {"sliding_window": 16, "num_hidden_layers": 4}),
    "cwm": ("Cwm", {"head_dim": 16, "sliding_window": 16, "num_hidden_layers": 5, "bos_token_id": 1}),
    "ernie": ("Ernie4_5", {"head_dim": 16, "use_bias": True}),
    "exaone4": ("Exaone4", {"sliding_window": 16, "num_hidden_layers": 4}),
    "exaone4-full": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "falcon": ("Falcon", {"ffn_hidden_size": 96}),
    "falcon-11b": ("Falcon", _FALCON | {"num_ln_in_parallel_attn": 1, "tie_word_embeddings": False}),
    "falcon-40b": ("Falcon", _FALCON),
    "falcon-heads": ("Falcon", {"multi_query": False, "parallel_attn": False, "bias": True}),
    "falcon-rw": ("Falcon", {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}),
    "gemma": ("Gemma", {"head_dim": 32}),
    "glm": ("Glm", {"head_dim": 16}),
    "glm4": ("Glm4", {"head_dim": 32, "attention_bias": False}),
    "gpt-j": ("GPTJ", {"rotary_dim": 8, "n_inner": 96}),
    "gpt-neo": ("GPTNeo", {"window_size": 16, "attention_types": [[["global", "local", "local"], 1]]}),
    "gpt-neox": ("GPTNeoX", {}),
    "gpt-neox-in-turn": ("GPTNeoX", {"use_parallel_residual": False, "rotary_pct": 0.5, "attention_bias": False}),
    "gpt": ("OpenAIGPT", {"n_positions": 256}),
    "gpt2": ("GPT2", {"n_positions": 256}),
    "gpt2-unscaled": ("GPT2", {"n_positions": 256, "n_inner": 96, "scale_attn_weights": False}),
    "gpt-bigcode": ("GPTBigCode", {"n_positions": 256}),
    "gpt-bigcode-heads": ("GPTBigCode", {"n_positions": 256, "multi_query": False}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.0625,
            "logits_scaling": 6.0,
        },
    ),
    "granite-swa": (
        "GraniteSWA",
        {
            "sliding_window": 16,
            "num_hidden_layers": 6,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.25,
            "layer_rope_theta": [50000.0, 10000.0, 0, 10000.0, 0, 10000.0],
        },
    ),
    "helium": ("Helium", {"head_dim": 16}),
    "hunyuan": (
        "HunYuanDenseV1",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0},
            "head_dim": 16,
        },
    ),
    "internlm3": ("InternLM3", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "olmo3": ("Olmo3", {"sliding_window": 16, "num_hidden_layers": 4}),
    "seed-oss": ("SeedOss", {"head_dim": 16, "attention_out_bias": True}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 24}),
    "gemma4": ("Gemma4Text", GEMMA4),
    "gemma4-unified": (
        "Gemma4UnifiedText",
        {name: value for name, value in GEMMA4.items() if name != "hidden_size_per_layer_input"},
    ),
    "gemma4-small": (
        "Gemma4Text",
        GEMMA4
        | {
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "num_key_value_heads": 1,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCAB_SIZE,
        },
    ),
    "gemma3n": ("Gemma3nText", GEMMA3N),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 32,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
            "query_pre_attn_scalar": 24,
        },
    ),
    "mpt": ("Mpt", {"max_seq_len": 256}),
    "mpt-clipped": (
        "Mpt",
        {
            "max_seq_len": 256,
            "num_attention_heads": 3,
            "hidden_size": 48,
            "attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.3},
        },
    ),
    "olmo2": ("Olmo2", {}),
    "olmo": ("Olmo", {"clip_qkv": 1.5}),
    "opt": ("OPT", {"ffn_dim": 96}),
    "opt-projected": (
        "OPT",
        {
            "ffn_dim": 96,
            "word_embed_proj_dim": 32,
            "do_layer_norm_before": False,
            "enable_bias": False,
            "initializer_range": 0.1,
        },
    ),
    "opt-without-biases": (
        "OPT",
        {
            "ffn_dim": 96,
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
            "activation_function": "gelu",
        },
    ),
    "phi": ("Phi", {"partial_rotary_factor": 0.5}),
    "phi3": ("Phi3", {"sliding_window": 16}),
    "phi3-partial": ("Phi3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}}),
    "hyperclovax": (
        "HyperCLOVAX",
        {"residual_multiplier": 0.6, "embedding_multiplier": 3.0, "logits_scaling": 0.5, "rms_norm_eps": 1e-3},
    ),
    "hyperclovax-plain": (
        "HyperCLOVAX",
        {
            "residual_multiplier": 0.6,
            "use_post_norm": False,
            "attention_multiplier": 0.3,
            "tie_word_embeddings": True,
        },
    ),
    "jais2": ("Jais2", {}),
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama-untied": ("Llama", {"tie_word_embeddings": False, "num_key_value_heads": 4, "attention_bias": True}),
    "llama-mlp-bias": ("Llama", {"tie_word_embeddings": True, "mlp_bias": True, "head_dim": 32}),
    "minicpm3": ("MiniCPM3", COMPRESSED | {"dim_model_base": 32}),
    "ministral": (
        "Ministral",
        {
            "sliding_window": 16,
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "ministral3": (
        "Ministral3",
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 16.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.3,
            },
        },
    ),
    "mistral": ("Mistral", {"sliding_window": 16, "head_dim": 16}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "nanochat": ("NanoChat", {}),
    "nemotron": ("Nemotron", {"attention_bias": True, "head_dim": 32}),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "head_dim": 32,
            "mlp_only_layers": [0],
        },
    ),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "stablelm": ("StableLm", {"use_qkv_bias": True}),
    "stablelm-12b": ("StableLm", {"qk_layernorm": True, "use_parallel_residual": True}),
    "starcoder2": ("Starcoder2", {"sliding_window": 16}),
    "vaultgemma": ("VaultGemma", {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 24}),
    "xglm": ("XGLM", {"ffn_dim": 96, "initializer_range": 0.1}),
    "youtu": ("Youtu", COMPRESSED),
    "youtu-bias": ("Youtu", COMPRESSED | {"attention_bias": True, "tie_word_embeddings": False}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
}

_MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 12, "mamba_n_groups": 2, "mamba_chunk_size": 16,
}  # fmt: skip
_DELTA_NET: dict[str, Any] = {
    "num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 12, "linear_value_head_dim": 20,
}  # fmt: skip
_NEMOTRON: dict[str, Any] = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
    "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 12, "n_groups": 2, "chunk_size": 16, "head_dim": 16,
    "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48, "routed_scaling_factor": 1.5,
    "time_step_min": 1e-9,  # Transformers 5.23 limits time steps by it, which the models' own code and vLLM do not
}  # fmt: skip
_MULTIPLIED: dict[str, Any] = {
    "mamba_d_ssm": 128, "embedding_multiplier": 2.0, "lm_head_multiplier": 0.5, "key_multiplier": 0.6,
    "attention_in_multiplier": 0.8, "attention_out_multiplier": 0.7, "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.4, "mlp_multipliers": [0.9, 0.6], "ssm_multipliers": [0.7, 1.1, 0.9, 1.2, 0.8],
}  # fmt: skip
_CONVOLUTIONS: dict[str, Any] = {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 16}
_LFM3: dict[str, Any] = {
    "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
    "num_hidden_layers": 4,
    "head_dim": 32,
    "sliding_window": 16,
}
# Transformers writes the three convolutions of such layers as if they were of one size.
_APART: dict[str, Any] = {"linear_num_key_heads": 4, "linear_value_head_dim": 12}
_GRANITE: dict[str, Any] = {
    "shared_intermediate_size": 48, "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
    "attention_multiplier": 0.3,
}  # fmt: skip
# Families in which some or all layers keep states.
HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "jamba": (
        "Jamba",
        {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
         "expert_layer_offset": 1, "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 8},
    ),
    "bamba": ("Bamba", _MAMBA2 | {"attn_layer_indices": [1]}),
    "bamba-plain": ("Bamba", _MAMBA2 | {"attn_layer_indices": [0], "mamba_n_groups": 1, "mamba_conv_bias": False,
                                        "mamba_proj_bias": True}),
    "granite-hybrid": ("GraniteMoeHybrid", _MAMBA2 | _GRANITE | {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_local_experts": 4,
    }),
    "granite-hybrid-dense": ("GraniteMoeHybrid", _MAMBA2 | _GRANITE | {
        "layer_types": ["full_attention", "linear_attention", "linear_attention"], "num_local_experts": 0,
        "position_embedding_type": "rope",
    }),
    "qwen3-next": ("Qwen3Next", _DELTA_NET | {
        "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
        "mlp_only_layers": [1],
    }),
    "qwen3.5": ("Qwen3_5Text", _DELTA_NET),
    "qwen3.5-moe": ("Qwen3_5MoeText", _DELTA_NET | {
        "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    }),
    "lfm2": ("Lfm2", _CONVOLUTIONS),
    "lfm2-bias": ("Lfm2", _CONVOLUTIONS | {
        "conv_bias": True, "block_auto_adjust_ff_dim": False, "conv_L_cache": 4, "tie_word_embeddings": False,
    }),
    "lfm2-moe": ("Lfm2Moe", _CONVOLUTIONS | {
        "num_dense_layers": 1, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "routed_scaling_factor": 1.5,
    }),
    "lfm3": ("Lfm3", _LFM3),
    "lfm3-plain": ("Lfm3", _LFM3 | {
        "use_sandwich_norm": False, "use_attention_gate": False, "attention_bias": True, "conv_bias": True,
    }),
    "nemotron-h": ("NemotronH", _NEMOTRON),
    "nemotron-h-latent": ("NemotronH", _NEMOTRON | {
        "moe_latent_size": 24, "mlp_bias": True, "use_bias": True, "n_groups": 1,
    }),
    "falcon-h1": ("FalconH1", _MAMBA2 | _MULTIPLIED),
    "falcon-h1-norms": ("FalconH1", _MAMBA2 | _MULTIPLIED | {
        "mamba_rms_norm": True, "mamba_norm_before_gate": True, "attention_bias": True, "projectors_bias": True,
        "tie_word_embeddings": True,
    }),
    "minimax": ("MiniMax", {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_local_experts": 4,
        "num_experts_per_tok": 2, "block_size": 16, "linear_attn_alpha_factor": 1.5, "linear_attn_beta_factor": 0.8,
        "full_attn_alpha_factor": 1.2, "mlp_beta_factor": 0.7, "sliding_window": None,
        "initializer_range": 0.2,  # with more, Transformers in float32 is not what it is in float64
    }),
    "olmo-hybrid": ("OlmoHybrid", _DELTA_NET | _APART | {"rope_parameters": None}),
    "olmo-hybrid-rope": ("OlmoHybrid", _DELTA_NET | _APART | {
        "linear_allow_neg_eigval": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }),
    "kimi-linear": ("KimiLinear", {
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 24, "v_head_dim": 16, "num_key_value_heads": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_head_dim": 16,
        "linear_num_heads": 4, "num_local_experts": 8, "n_group": 4, "topk_group": 2, "q_lora_rank": None,
        "moe_intermediate_size": 32, "num_experts_per_tok": 2, "initializer_range": 0.15,
    }),
    "ling-3": ("BailingHybrid", {
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 24, "v_head_dim": 16, "num_key_value_heads": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "head_dim": 16,
        "num_local_experts": 8, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1, "pad_token_id": None, "eos_token_id": 2, "initializer_range": 0.15,
    }),
    "recurrent-gemma": ("RecurrentGemma", {"lru_width": 64, "attention_window_size": 16, "num_hidden_layers": 4}),
    "mamba": ("Mamba", {"state_size": 8}),
    "falcon-mamba": ("FalconMamba", {"state_size": 8}),
    "mamba2": ("Mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 12, "n_groups": 2, "chunk_size": 16}),
}  # fmt: skip

# Families that run Transformers' own code.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "biogpt": ("BioGpt", {}),  # learned positions
    "diffllama": ("DiffLlama", {}),  # whose layers attend twice
}  # fmt: skip

ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
}  # fmt: skip


LONGROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0 + index / 16 for index in range(8)],
    "long_factor": [1.0 + index / 2 for index in range(8)], "factor": 8.0, "original_max_position_embeddings": 32,
}  # fmt: skip


def make_model(folder: Path, family: str, *, max_shard_size: str = "1GB", **changes: Any) -> Path:
    """Saves a float32 model, which `load_reference` finds loaded; the same family and changes give the same weights."""
    name, config = (FAMILIES | MIXTURES | HYBRIDS | OTHERS)[family]
    torch.manual_seed(0)
    config_class = getattr(transformers, f"{name}Config")
    # Some of Transformers' configurations add to what they are given.
    given = copy.deepcopy(_SHAPE | config | changes)
    model = transformers.AutoModelForCausalLM.from_config(config_class(**given), experts_implementation="eager").eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias") or "norm" in parameter_name:
            torch.nn.init.normal_(parameter, mean=float("norm" in parameter_name), std=0.2)
        elif parameter_name.endswith(("scale", "alpha_p", "alpha_n")):
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
        elif not parameter.any():  # what training begins with zeros, such as sinks
            torch.nn.init.normal_(parameter, std=0.2)
    for name, buffer in model.named_buffers():
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            torch.nn.init.normal_(buffer, std=0.2)
        elif name.endswith("layer_scalar"):
            torch.nn.init.normal_(buffer, mean=1.0, std=0.2)
        elif name.endswith(("act_fn.beta", "act_fn.eps")):  # of xIELU, far from their usual values
            torch.nn.init.uniform_(buffer, *((0.3, 0.8) if name.endswith("beta") else (-0.5, -0.1)))
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    kept_model(folder, lambda: model, repr({}))
    return folder


def reference_tokens(folder: Path, prompts: list[list[int]], num_tokens: int, **options: Any) -> list[list[int]]:
    """The likeliest continuation of each prompt by Transformers."""
    model = load_reference(folder, **options)
    outputs = []
    for prompt in prompts:
        inputs = torch.tensor([prompt])
        with torch.inference_mode():
            output = model.generate(
                inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=num_tokens, do_sample=False
            )
        outputs.append(output[0, len(prompt) :].tolist())
    return outputs


def check_greedy(folder: Path, prompts: list[list[int]], found: list[list[int]], num_tokens: int) -> None:
    """Fails unless the answers have `num_tokens` tokens and equal those of `reference_tokens`.

    Takes one pass for each answer, not one for each token: an answer is right if each of its tokens is the one that
    Transformers considers likeliest after those before it.
    """
    model = load_reference(folder)
    for prompt, answer in zip(prompts, found, strict=True):
        assert len(answer) == num_tokens
        assert answer == logits_of(model, prompt, answer).argmax(-1).tolist()


def logits_of(model: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Those that Transformers' model has for each token of the answer: [tokens, vocabulary]."""
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :]
    return found


def reference_logprobs(folder: Path, token_ids: list[int]) -> torch.Tensor:
    """Log-probabilities [tokens, vocabulary] by Transformers, in float64."""
    model = kept_model(folder, lambda: copy.deepcopy(load_reference(folder)).double(), "float64")
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].log_softmax(-1)


def load_reference(folder: Path, **options: Any) -> Any:
    """Transformers' model; nobody may change it."""
    return kept_model(folder, lambda: _load(folder, **options), repr(options))


def _load(folder: Path, **options: Any) -> Any:
    # Transformers takes the tying of weights away from all models meanwhile: of two threads, the second would put
    # back what the first had left. Experts one by one: the grouped product has no float64.
    with _LOADING:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, experts_implementation="eager", **options
        ).eval()
