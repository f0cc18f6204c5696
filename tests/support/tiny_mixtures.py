"""Tiny random models of the families with mixtures of experts: class of Transformers' configuration, and its fields."""

from __future__ import annotations

from typing import Any

from transformers import GptOssConfig

COMPRESSED: dict[str, Any] = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 24, "v_head_dim": 16,
    "num_key_value_heads": 4,
}  # fmt: skip
_SMALL: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GROUPED: dict[str, Any] = _SMALL | {
    "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5,
}  # fmt: skip
_GRANITE: dict[str, Any] = {
    "num_local_experts": 4, "num_experts_per_tok": 2, "embedding_multiplier": 3.0, "attention_multiplier": 0.3,
    "residual_multiplier": 0.6, "logits_scaling": 2.0, "tie_word_embeddings": True,
}  # fmt: skip

_COMMAND: dict[str, Any] = {
    "num_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 32, "head_dim": 32, "sliding_window": 16,
    "num_hidden_layers": 6, "logit_scale": 0.3,
}  # fmt: skip

GEMMA4: dict[str, Any] = {
    "head_dim": 16, "global_head_dim": 32, "num_key_value_heads": 4, "num_global_key_value_heads": 1,
    "attention_k_eq_v": True, "sliding_window": 16, "num_hidden_layers": 4, "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "final_logit_softcapping": 20.0, "tie_word_embeddings": False,
}  # fmt: skip

GEMMA3N: dict[str, Any] = {
    "head_dim": 16, "sliding_window": 16, "num_hidden_layers": 6, "num_kv_shared_layers": 3, "laurel_rank": 8,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2, "altup_num_inputs": 3,
    "intermediate_size": [96, 64, 96, 96, 96, 96], "activation_sparsity_pattern": [0.8, 0.5, 0.0, 0.0, 0.8, 0.0],
    "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 120, "final_logit_softcapping": 20.0,
}  # fmt: skip

# Before Transformers 5.18, its own implementation has only this one.
_SWIGLU_LIMIT = 2.0 if hasattr(GptOssConfig(), "swiglu_limit") else 7.0

_SPARSE: dict[str, Any] = _GROUPED | {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 24, "v_head_dim": 16,
    "num_key_value_heads": 4, "index_topk": 256, "index_head_dim": 16, "index_n_heads": 16, "first_k_dense_replace": 1,
}  # fmt: skip

MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "afmoe": (
        "Afmoe", _SMALL | {
            "num_experts": 6, "num_shared_experts": 1, "route_scale": 1.5, "head_dim": 32, "sliding_window": 16,
            "num_hidden_layers": 4, "mup_enabled": True, "attention_bias": True,
        },
    ),
    "aria": (
        "AriaText", {
            "moe_num_experts": 6, "moe_topk": 3, "moe_num_shared_experts": 2, "intermediate_size": 32,
            "attention_bias": True, "mlp_bias": True,
        },
    ),
    "axk1": ("AXK1", COMPRESSED | _GROUPED),
    "axk2": ("AXK2", _SPARSE | {"gated_norm_rank": 6}),
    "cohere-moe": (
        "Cohere2Moe", _COMMAND | {
            "num_shared_experts": 2, "first_k_dense_replace": 1, "prefix_dense_intermediate_size": 80,
        },
    ),
    "cohere-moe-sums": (
        "Cohere2Moe", _COMMAND | {
            "num_shared_experts": 1, "shared_expert_combination_strategy": "sum", "expert_selection_fn": "sigmoid",
            "rms_norm_eps": 1e-5, "first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 2,
        },
    ),
    "dbrx": (
        "Dbrx", {
            "d_model": 64,  # which it also gives its experts
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 2.0, "rope_theta": 20000.0},
            "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 6, "moe_top_k": 3},
            "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        },
    ),
    "beam": (
        "Beam", _SMALL | {
            "num_experts": 8, "n_group": 4, "topk_group": 2, "head_dim": 32, "num_key_value_heads": 2,
            "num_hidden_layers": 5, "sliding_window": 16, "rms_norm_eps": 1e-2,
            "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"],
        },
    ),
    "deepseek-v3.2": ("DeepseekV32", _SPARSE),
    "gemma4-moe": (
        "Gemma4Text", GEMMA4 | {
            "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 32,
        },
    ),
    "mellum": (
        "Mellum", {
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "sliding_window": 16,
            "num_hidden_layers": 4, "head_dim": 32, "layer_types": ["sliding_attention", "full_attention"] * 2,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
    ),
    "mimo": (
        "MiMoV2Flash", _SMALL | {
            "n_routed_experts": 8, "head_dim": 32, "v_head_dim": 16, "num_key_value_heads": 1, "sliding_window": 16,
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5}
                for kind, theta in (("full_attention", 5e6), ("sliding_attention", 100.0))
            },
        },
    ),
    "dots": (
        "Dots1", _GROUPED | {
            "first_k_dense_replace": 1, "sliding_window": 16, "max_window_layers": 1, "norm_topk_prob": True,
        },
    ),
    "ernie-moe": (
        "Ernie4_5_Moe", {
            "moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 32, "moe_num_shared_experts": 2,
            "num_hidden_layers": 4, "moe_layer_interval": 2,
        },
    ),
    "exaone-moe": (
        "ExaoneMoe", _SMALL | {
            "num_experts": 8, "n_group": 4, "topk_group": 2, "num_hidden_layers": 4, "sliding_window": 16,
        },
    ),
    "flint": (
        "Flint", _SMALL | {
            "num_experts": 6, "shared_expert_intermediate_size": 48, "head_dim": 32, "num_key_value_heads": 2,
            "num_hidden_layers": 6, "sliding_window": 16, "attention_bias": True,
        },
    ),
    "flex-olmo": ("FlexOlmo", {"num_experts": 4, "num_experts_per_tok": 2}),
    "glm-5": ("GlmMoeDsa", _SPARSE),
    "glm-moe": (
        "Glm4Moe", _GROUPED | {
            "head_dim": 32, "use_qk_norm": True, "attention_bias": True, "first_k_dense_replace": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "glm-flash": (
        "Glm4MoeLite", _GROUPED | {
            "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 24, "v_head_dim": 16,
            "num_key_value_heads": 4,
        },
    ),
    "gpt-oss": (
        "GptOss", {
            "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32, "sliding_window": 16,
            "intermediate_size": 64, "swiglu_limit": _SWIGLU_LIMIT,
        },
    ),
    "granite-moe": ("GraniteMoe", _GRANITE),
    "granite-moe-shared": ("GraniteMoeShared", _GRANITE | {"shared_intermediate_size": 48}),
    "granite-moe-swa": ("GraniteMoeSWA", _GRANITE | {"sliding_window": 16, "layer_rope_theta": [0, 10000.0, 10000.0]}),
    "hunyuan-moe": (
        "HunYuanMoEV1", {
            "num_experts": 4, "moe_topk": 2, "head_dim": 16,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0},
        },
    ),
    "hy-v4": (
        "HYV4", COMPRESSED | _SMALL | {
            "n_routed_experts": 6, "index_topk": 256, "index_head_dim": 16, "index_n_heads": 16, "hc_mult": 3,
            "swiglu_limit": 0.3, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
        },
    ),
    "hy-v3": (
        "HYV3", _SMALL | {
            "num_experts": 6, "num_shared_experts": 2, "head_dim": 32, "attention_bias": True, "mlp_bias": True,
        },
    ),
    "jetmoe": (
        "JetMoe", {
            "num_local_experts": 5, "num_experts_per_tok": 2, "kv_channels": 16, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-2, "tie_word_embeddings": True,
        },
    ),
    # The defaults for groups and layers differ from DeepSeek V3's.
    "kimi-k2": (
        "DeepseekV3", _SPARSE | {"n_group": 1, "topk_group": 1, "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "rope_theta": 50000.0, "original_max_position_embeddings": 64,
            "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        }},
    ),
    "kolibri": (
        "Kolibri1", _SMALL | {
            "num_experts": 8, "shared_expert_intermediate_size": 48, "head_dim": 32, "num_key_value_heads": 2,
            "num_hidden_layers": 5, "sliding_window": 16, "norm_topk_prob": True,
        },
    ),
    "laguna": (
        "Laguna", _SMALL | {
            "num_experts": 6, "shared_expert_intermediate_size": 48, "head_dim": 32, "sliding_window": 16,
            "num_hidden_layers": 4, "layer_types": ["full_attention", "sliding_attention"] * 2,
            "num_attention_heads_per_layer": [4, 8, 4, 6], "moe_routed_scaling_factor": 1.5,
            "moe_router_logit_softcapping": 2.0,
        },
    ),
    "laguna-values": ("Laguna", _SMALL | {"num_experts": 6, "gating": "per-element", "attention_bias": True}),
    "llama4": (
        "Llama4Text", {
            "num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32,
            "intermediate_size_mlp": 96, "head_dim": 16, "attention_chunk_size": 24, "interleave_moe_layer_step": 2,
            "floor_scale": 16, "no_rope_layer_interval": 2,
        },
    ),
    "longcat": (
        "LongcatFlash", COMPRESSED | {
            "num_hidden_layers": 4, "head_dim": 8, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32,
            "n_routed_experts": 5, "zero_expert_num": 3, "moe_topk": 3, "routed_scaling_factor": 1.5,
        },
    ),
    "minimax-m2": (
        "MiniMaxM2", {
            "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32, "head_dim": 32,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "minimax-m3": (
        "MiniMaxM3VLText", {
            "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32, "head_dim": 32,
            "num_key_value_heads": 2, "rotary_dim": 16, "dense_intermediate_size": 96, "shared_intermediate_size": 48,
            "swiglu_limit": 0.7, "index_n_heads": 2, "index_head_dim": 16, "index_block_size": 8,
            "index_topk_blocks": 4, "num_hidden_layers": 4, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse", "full_attention"],
            # Transformers does not derive it from rotary_dim.
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "mistral4": (
        "Mistral4", COMPRESSED | _SMALL | {
            "n_routed_experts": 6, "first_k_dense_replace": 1, "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 16,
                "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
            },
        },
    ),
    "olmoe": ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 3, "clip_qkv": 1.5}),
    "phimoe": (
        "Phimoe", {
            "num_local_experts": 4, "intermediate_size": 32, "attention_bias": True, "lm_head_bias": True,
            "router_jitter_noise": 0.2, "sliding_window": None,
        },
    ),
    "solar-open": ("SolarOpen", _GROUPED | {"head_dim": 32, "attention_bias": True}),
}  # fmt: skip
