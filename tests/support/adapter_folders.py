"""Adapter folders like those written by the PEFT library, made up without a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

# Settings that PEFT 0.21.2 writes as null unless they are used.
_NOTHING = (
    "alora_invocation_tokens", "arrow_config", "auto_mapping", "corda_config", "eva_config", "exclude_modules",
    "kasa_config", "layer_replication", "layers_pattern", "layers_to_transform", "lora_ga_config", "megatron_config",
    "modules_to_save", "monteclora_config", "revision", "target_parameters", "trainable_token_indices", "use_bdlora",
    "velora_config",
)  # fmt: skip

Arrays = Mapping[str, npt.NDArray[Any]]


def low_rank(modules: Mapping[str, tuple[int, int]], rank: int = 4, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    """Random tensors, under PEFT's names, for linear modules of sizes (outputs, inputs)."""
    random = np.random.default_rng(seed)
    tensors = {}
    for module, (outputs, inputs) in modules.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = random.normal(size=(rank, inputs)).astype("float32")
        tensors[f"base_model.model.{module}.lora_B.weight"] = random.normal(size=(outputs, rank)).astype("float32")
    return tensors


def write_adapter(folder: Path, tensors: Arrays, rank: int = 4, **settings: Any) -> Path:
    """Writes a folder with these tensors.

    Args:
        settings: override those of the default configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = dict.fromkeys(_NOTHING) | {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0,
        "bias": "none", "fan_in_fan_out": False, "init_lora_weights": True, "inference_mode": True, "use_dora": False,
        "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}, "base_model_name_or_path": "base",
        "target_modules": ["q_proj"], "ensure_weight_tying": False, "loftq_config": {}, "lora_bias": False,
        "megatron_core": "megatron.core", "peft_version": "0.21.2", "qalora_group_size": 16, "use_qalora": False,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config | settings))
    save_file(dict(tensors), folder / "adapter_model.safetensors")
    return folder
