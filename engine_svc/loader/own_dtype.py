"""The dtype that a model is computed in: the chosen one, or its own.

The own one of a model whose configuration names none, such as gpt-oss, is that of its weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engine_svc.config_formats.registry import read_model_config
from engine_svc.loader.formats.safetensors_files import opened
from quire.errors import StartupError
from quire.options.model_form import DTYPES, ModelFormOptions
from quire.registry import registry

TORCH_DTYPES = registry("--dtype", DTYPES, {
    "float32": torch.float32, "float": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
    "half": torch.float16,
})  # fmt: skip
_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}  # as safetensors names dtypes → as config.json does


def read_config_to_load(folder: Path, form: ModelFormOptions) -> dict[str, Any]:
    """Reads a model's configuration. If it names no dtype, it gets the one that most weights in `folder` have.

    Weights of other types, which are quantized, do not count; nor do those that are not in safetensors files.

    Raises:
        StartupError: the configuration or a file of weights cannot be read.
    """
    config = read_model_config(folder, form)
    if _names_dtype(config) or _names_dtype(config.get("text_config") or {}) or not folder.is_dir():
        return config
    sizes: Counter[str] = Counter()
    for file in folder.glob("*.safetensors"):
        with opened(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118  (no mapping)
                tensor = tensors.get_slice(name)
                if name.endswith(".weight") and (dtype := _NAMES.get(tensor.get_dtype())):
                    sizes[dtype] += math.prod(tensor.get_shape())
    return {**config, "dtype": sizes.most_common(1)[0][0]} if sizes else config


def compute_dtype(own: object, chosen: str) -> torch.dtype:
    """The dtype for --dtype.

    Args:
        own: the model's own.

    Raises:
        StartupError: the model's own dtype is not one that it can be computed in.
    """
    if chosen == "auto" and (not isinstance(own, str) or own not in TORCH_DTYPES):
        raise StartupError(f"The model's dtype is {own!r}; choose one of {', '.join(TORCH_DTYPES)} with --dtype.")
    return TORCH_DTYPES[str(own) if chosen == "auto" else chosen]


def _names_dtype(config: Mapping[str, Any]) -> bool:
    return bool(config.get("dtype") or config.get("torch_dtype"))
