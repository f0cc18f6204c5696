"""Checkpoints of NVIDIA's, AMD's and Meta's tools, whose layouts are generated here from their definitions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_svc.ops.plain import PlainOps
from engine_svc.quantization.base import ModelForm, Place
from engine_svc.quantization.modelopt import ModelOpt
from engine_svc.quantization.quark import Quark
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.quantization.checks import check
from tests.support.quantized import Matrix, quantized_model
from tests.support.quantized_floats import float4, float8

FORM = ModelForm(PlainOps(), torch.float32)
IGNORED = ["lm_head", "model.layers.*.mlp.gate"]
FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
Convert = Callable[[torch.Tensor], Matrix]


def by_tensor(weight: torch.Tensor) -> Matrix:
    return float8(weight, inputs="input_scale")


def by_output(weight: torch.Tensor) -> Matrix:
    return float8(weight, (1, weight.shape[1]))


def nvfp4(weight: torch.Tensor) -> Matrix:
    found = float4(weight, 16, "weight", factor="weight_scale_2")
    return Matrix({**found.tensors, "input_scale": torch.tensor(0.5)}, found.meant)


def mxfp4(weight: torch.Tensor) -> Matrix:
    return float4(weight, 32, "weight")


MODELS: dict[str, tuple[str, Convert, dict[str, Any]]] = {
    "modelopt": ("llama", by_tensor, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": IGNORED}),
    "modelopt experts": ("qwen3-moe", by_tensor, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": IGNORED}),
    "modelopt in four bits": (
        "mixtral", nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*moe.gate"]},
    ),
    "fbgemm": ("llama-untied", by_output, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}),
    "quark": (
        "llama", by_tensor, {"quant_method": "quark", "global_quant_config": {"weight": FP8}, "exclude": ["lm_head"]},
    ),
    "quark in four bits": (
        "qwen3-moe", mxfp4,
        {"quant_method": "quark", "global_quant_config": {"weight": FP4}, "exclude": ["lm_head", "re:.*mlp.gate$"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(model_folder: ModelFolder, tmp_path: Path, name: str) -> None:
    family, convert, settings = MODELS[name]
    check(quantized_model(model_folder(family), tmp_path, convert, settings))


def test_modelopts_own_file(model_folder: ModelFolder, tmp_path: Path) -> None:
    """The settings are in ModelOpt's own file beside a config.json without any, and include KV cache quantization."""
    model = quantized_model(model_folder("llama"), tmp_path, by_tensor, {})
    config = json.loads((model.packed / "config.json").read_text())
    del config["quantization_config"]
    (model.packed / "config.json").write_text(json.dumps(config))
    said = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (model.packed / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": said}))
    check(model)


def test_modelopts_layers_of_different_forms() -> None:
    layers = {
        "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"},
        "model.layers.0.mlp.down_proj": {"quant_algo": "NVFP4"},
    }
    method = ModelOpt.of_checkpoint({"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}, FORM)

    def layer(name: str) -> str:
        return repr(method.layer(Place("linear", (f"model.layers.0.mlp.{name}",))))

    assert layer("up_proj").startswith("Float8Layer")
    assert layer("down_proj").startswith("Float4Layer")
    assert layer("gate_proj").startswith("PlainLayer")


def test_quarks_layers_of_different_forms() -> None:
    said = {
        "global_quant_config": {"weight": FP8}, "layer_quant_config": {"*down_proj": {"weight": FP4}},
        "exclude": ["lm_head", "*gate"],
    }  # fmt: skip
    method = Quark.of_checkpoint(said, FORM)

    def layer(name: str) -> str:
        return repr(method.layer(Place("linear", (name,))))

    assert layer("model.layers.0.mlp.down_proj").startswith("Float4Layer")
    assert layer("model.layers.0.mlp.gate_proj").startswith("Float8Layer")
    assert layer("model.layers.0.mlp.gate").startswith("PlainLayer")


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        (ModelOpt, {"quant_algo": "W4A8_AWQ"}, "quant_algo is 'W4A8_AWQ'; supported: FP8"),
        (ModelOpt, {}, "quant_algo is None"),
        (ModelOpt, {"quant_algo": "FP8", "ignore": "lm_head"}, "ignore is 'lm_head'"),
        (Quark, {"global_quant_config": {"weight": {"dtype": "int4"}}}, "dtype is 'int4'"),
        (Quark, {"global_quant_config": {"weight": FP8 | {"qscheme": "per_group"}}}, "qscheme is 'per_group'"),
        (Quark, {"global_quant_config": {"weight": FP4 | {"group_size": 16}}}, "group_size is 16"),
        (Quark, {"global_quant_config": {"weight": FP8}, "exclude": ["re:("]}, "is not a valid pattern"),
    ],
)
def test_wrong_settings(method: type[ModelOpt | Quark], settings: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        method.of_checkpoint(settings, FORM)
