"""Which method a model's weights are held by, loaded when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engine_svc.ops.base import Ops
from engine_svc.quantization.base import QuantizationMethod
from quire.errors import StartupError
from quire.quantization import QUANTIZATIONS

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
        name: one of QUANTIZATIONS; None leaves the weights as they are.
    """
    module = importlib.import_module(f"engine_svc.quantization.{name or 'unquantized'}")
    method: QuantizationMethod = module.Method(ops, dtype)
    return method
