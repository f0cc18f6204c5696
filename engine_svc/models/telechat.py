"""TeleChat 2 and 2.5 (China Telecom 2024 and 2025): Llama, with other names and some biases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, by_common_names
from quire.errors import StartupError

_NAMES = {
    "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "ffn_hidden_size": "intermediate_size",
    "layer_norm_epsilon": "rms_norm_eps", "training_seqlen": "max_position_embeddings",
}  # fmt: skip
_MODULES = {
    "transformer": "model", "word_embeddings": "embed_tokens", "h": "layers", "ln_f": "norm",
    "self_attention": "self_attn", "query": "q_proj", "dense": "o_proj",
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The last projection of each part has a bias. The activation is SiLU, whatever the configuration says.

    The rotary base is greater if sequences became longer during training. Facts are from the code beside the
    checkpoints, and from vLLM, which does not change the base.

    Raises:
        StartupError: it has an option that none of the supported models uses.
    """
    for name in ("embed_layernorm", "apply_residual_connection_post_layernorm"):
        if config.get(name):
            raise StartupError(f"config.json has {name}, which is not supported for {config['architectures'][0]}.")
    size = config["hidden_size"] // config["n_head"]
    longer = 2.0 ** math.ceil(math.log2(config["training_seqlen"] / config["base_seqlen"]) + 1) - 1
    return base_config(
        {**by_common_names(config, _NAMES), "rope_theta": 1e4 * max(longer, 1.0) ** (size / (size - 2))},
        activation="silu", output_bias=True, mlp_output_bias=True, module_names=_MODULES, key_values_name="key_value",
    )  # fmt: skip
