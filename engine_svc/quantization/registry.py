"""Which method a model's weights are held by, loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engine_svc.ops.base import Ops
from engine_svc.quantization.base import QuantizationMethod
from engine_svc.quantization.unquantized import Unquantized
from quire.errors import StartupError
from quire.options.model_form import QUANTIZATIONS
from quire.registry import load_entry, registry

# Loaded by name: what others need is not imported.
METHODS = registry("--quantization", QUANTIZATIONS, {"int8": "engine_svc.quantization.int8:Int8"})
# Pairs of quant_method and model_type whose weights Transformers turns into --dtype's while it loads them.
DEQUANTIZED = (("mxfp4", "gpt_oss"),)


def check_checkpoint(folder: Path, config: Mapping[str, Any]) -> None:
    """Whether a checkpoint's weights can be read, by its `quantization_config`.

    Raises:
        StartupError: they are quantized in a way that is not supported.
    """
    method = (config.get("quantization_config") or {}).get("quant_method", "")
    if method and (method, config.get("model_type")) not in DEQUANTIZED:
        supported = ", ".join(f"{model.replace('_', '-')} in {name}" for name, model in DEQUANTIZED)
        raise StartupError(
            f"{folder} holds weights quantized by {method}, which is not supported; use the model's bfloat16 "
            f"checkpoint, with --quantization {QUANTIZATIONS[0]} if it must be smaller. ({supported} is supported.)"
        )


def create_method(name: str | None, ops: Ops, dtype: torch.dtype) -> QuantizationMethod:
    """The method for a rank.

    Args:
        name: of METHODS; None leaves the weights as they are.
    """
    if name is None:
        return Unquantized(ops, dtype)
    method: QuantizationMethod = load_entry("--quantization", METHODS, name)(ops, dtype)
    return method
