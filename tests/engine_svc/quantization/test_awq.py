"""AWQ checkpoints, whose layout is generated here from its definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_svc.ops.plain import PlainOps
from engine_svc.ops.weights import CodedWeight
from engine_svc.quantization.awq import Awq
from engine_svc.quantization.base import ModelForm, Place
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.quantization.checks import check, load
from tests.support.quantized import awq, quantized_model

SETTINGS: dict[str, Any] = {
    "quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm",
    "modules_to_not_convert": None,
}  # fmt: skip
FORM = ModelForm(PlainOps(), torch.float32)
LINEAR = Place("linear", ("model.layers.1.mlp.down_proj",))


@pytest.mark.parametrize("group", [32, 96])
def test_weights_are_those_that_codes_stand_for(group: int) -> None:
    matrix = awq(torch.randn(64, 96), group)
    settings = SETTINGS | {"group_size": -1 if group == 96 else group, "version": "GEMM"}
    weight = Awq.of_checkpoint(settings, FORM).layer(LINEAR).weight(matrix.tensors)
    assert isinstance(weight, CodedWeight)
    assert torch.equal(weight.wide(torch.float64), matrix.meant)


@pytest.mark.parametrize(
    ("family", "skipped"), [("llama", ["layers.1.", "layers.0.self_attn.k_proj"]), ("phi3", []), ("mixtral", ["gate"])]
)
def test_models(model_folder: ModelFolder, tmp_path: Path, family: str, skipped: list[str]) -> None:
    settings = SETTINGS | {"modules_to_not_convert": [each.strip(".") for each in skipped]}
    check(quantized_model(model_folder(family), tmp_path, awq, settings, skipped=skipped))


@pytest.mark.parametrize("dtype", ["bfloat16", "half", "auto"])
@pytest.mark.parametrize("name", ["awq", "awq_marlin", "ipex"])
def test_names_that_lead_here(model_folder: ModelFolder, tmp_path: Path, name: str, dtype: str) -> None:
    model = quantized_model(model_folder("llama", dtype="float16"), tmp_path, awq, SETTINGS)
    load(model.packed, quantization=name, dtype=dtype)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bits": 8}, "bits is 8; supported: 4"),
        ({"zero_point": False}, "zero_point is False"),
        ({"version": "gemv"}, "version is 'gemv'; supported: gemm, exllama"),
        ({"group_size": "128"}, "group_size is '128'"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        Awq.of_checkpoint(SETTINGS | settings, FORM)
