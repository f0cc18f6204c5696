"""Chooses the quantization method of a model; methods are imported on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine_svc.quantization.base import ModelForm, QuantizationMethod
from engine_svc.quantization.unquantized import Unquantized
from quire.errors import StartupError
from quire.options.model_form import QUANTIZATIONS
from quire.options.quantizations import QUANTIZATION_ALIASES, REFUSED_CHECKPOINTS
from quire.registry import load_entry, registry

# Classes are named by strings, so that only the dependencies of the chosen one are imported.
METHODS = registry("--quantization", QUANTIZATIONS, {
    "int8": "engine_svc.quantization.int8:Int8", "int4": "engine_svc.quantization.int4:Int4",
    "experts_int8": "engine_svc.quantization.experts_int8:ExpertsInt8", "fp8": "engine_svc.quantization.fp8:Fp8",
    "compressed-tensors": "engine_svc.quantization.compressed_tensors:CompressedTensors",
    "modelopt": "engine_svc.quantization.modelopt:ModelOpt", "quark": "engine_svc.quantization.quark:Quark",
    "fbgemm_fp8": "engine_svc.quantization.fbgemm_fp8:FbgemmFp8", "mxfp4": "engine_svc.quantization.mxfp4:Mxfp4",
    "awq": "engine_svc.quantization.awq:Awq", "gptq": "engine_svc.quantization.gptq:Gptq",
    "gguf": "engine_svc.quantization.gguf:Gguf",
    "bitsandbytes": "engine_svc.quantization.bitsandbytes:BitsAndBytes",
    "torchao": "engine_svc.quantization.torchao:TorchAo", "hqq": "engine_svc.quantization.hqq:Hqq",
    "auto-round": "engine_svc.quantization.auto_round:AutoRound",
})  # fmt: skip
# (quant_method, model_type) whose weights Transformers dequantizes to --dtype while it loads them.
DEQUANTIZED = (("mxfp4", "gpt_oss"),)


def settings_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The quantization settings in config.json; None if the weights are not quantized.

    Some have the form of experts beside the others (DeepSeek V4).
    """
    found = config.get("quantization_config")
    if not isinstance(found, Mapping) or not found.get("quant_method"):
        return None
    return {"expert_dtype": config["expert_dtype"], **found} if config.get("expert_dtype") else found


def check_dequantized(config: Mapping[str, Any]) -> None:
    """
    Raises:
        StartupError: Transformers would run the model, but does not dequantize its weights while loading.
    """
    settings = settings_of(config)
    if settings and (settings["quant_method"], config.get("model_type")) not in DEQUANTIZED:
        raise StartupError(
            f"The checkpoint's weights are quantized by {settings['quant_method']}, which is not supported for "
            "models that run with the Transformers library's code. Use the model's bfloat16 checkpoint."
        )


def create_method(name: str | None, settings: Mapping[str, Any] | None, form: ModelForm) -> QuantizationMethod:
    """Creates the method for a rank.

    Args:
        name: the value of --quantization. None means the checkpoint's method.
        settings: of the checkpoint; None if it is not quantized.

    Raises:
        StartupError: there is no such method, or the checkpoint has another one.
    """
    if settings is None:
        return Unquantized(form.dtype) if name is None else _method(name).on_load(name, form)
    own = str(settings["quant_method"]).lower()
    if own in REFUSED_CHECKPOINTS:
        raise StartupError(f"Weights quantized by {own} are not supported. {REFUSED_CHECKPOINTS[own]}")
    if name is not None and set(_names(name)).isdisjoint(_names(own)):
        raise StartupError(
            f"--quantization {name}: the checkpoint's weights are already quantized, by {own}. Leave it out."
        )
    try:
        return _method(own).of_checkpoint(settings, form)
    except (AttributeError, TypeError) as error:
        raise StartupError(f"quantization_config has an invalid value for {own}: {error}.") from error


def _names(name: str) -> Sequence[str]:
    """The names of the methods that `name` stands for."""
    return QUANTIZATION_ALIASES.get(name, (name,))


def _method(name: str) -> type[QuantizationMethod]:
    known = _names(name)[0]
    if known not in METHODS:
        raise StartupError(
            f"Weights quantized by {name} are not supported. Supported are "
            f"{', '.join((*METHODS, *QUANTIZATION_ALIASES))}; or use the model's bfloat16 checkpoint, with "
            "--quantization int8 if it must be smaller."
        )
    method: type[QuantizationMethod] = load_entry("--quantization", METHODS, known)
    return method
