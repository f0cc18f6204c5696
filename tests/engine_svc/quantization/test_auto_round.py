"""AutoRound checkpoints, which are packed like those of GPTQ and AWQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_svc.ops.plain import PlainOps
from engine_svc.quantization.auto_round import AutoRound
from engine_svc.quantization.base import ModelForm, Place
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.quantization.checks import check
from tests.support.quantized import Matrix, awq, gptq, quantized_model

SETTINGS: dict[str, Any] = {
    "quant_method": "auto-round", "bits": 4, "group_size": 16, "sym": True, "data_type": "int",
    "packing_format": "auto_round:auto_gptq", "block_name_to_quantize": "model.layers",
}  # fmt: skip
FORM = ModelForm(PlainOps(), torch.float32)


@pytest.mark.parametrize(
    ("kind", "name", "form"),
    [
        ("linear", "model.layers.0.mlp.down_proj", "GptqLayer(bits=4, group=16, less=1)"),
        ("linear", "model.layers.0.self_attn.q_proj", "GptqLayer(bits=8, group=32, less=1)"),
        ("linear", "model.layers.3.mlp.down_proj", "PlainLayer"),
        ("linear", "model.layers.2.mlp.up_proj", "GptqLayer(bits=2, group=16, less=1)"),
        ("linear", "other.0.mlp.up_proj", "PlainLayer"),
        ("router", "model.layers.0.mlp.gate", "PlainLayer"),
        ("head", "lm_head", "GptqLayer(bits=8, group=16, less=1)"),
        ("embedding", "model.embed_tokens", "PlainLayer"),
    ],
)
def test_settings_by_module(kind: Any, name: str, form: str) -> None:
    modules = {
        "model.layers.0.self_attn.q_proj": {"bits": 8, "group_size": 32},
        "model.layers.3.mlp.down_proj": {"bits": 16, "data_type": "float"},
        r".*\.2\.mlp\..*": {"bits": 2}, "lm_head": {"bits": 8},
    }  # fmt: skip
    layer = AutoRound.of_checkpoint(SETTINGS | {"extra_config": modules}, FORM).layer(Place(kind, (name,)))
    assert repr(layer).startswith(form)


@pytest.mark.parametrize("packing", ["gptq", "awq"])
def test_models(model_folder: ModelFolder, tmp_path: Path, packing: str) -> None:
    def convert(weight: torch.Tensor) -> Matrix:
        return awq(weight) if packing == "awq" else gptq(weight, symmetric=True)

    kept = "model.layers.1.mlp.down_proj"
    said = {"packing_format": f"auto_round:auto_{packing}", "extra_config": {kept: {"bits": 16}}}
    check(quantized_model(model_folder("llama"), tmp_path, convert, SETTINGS | said, skipped=[kept]))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"packing_format": "auto_round:ipex"}, "packing_format is 'auto_round:ipex'"),
        ({"data_type": "mx_fp"}, "data_type is 'mx_fp'"),
        ({"bits": 5}, "bits is 5"),
        ({"packing_format": "auto_awq", "bits": 8}, "bits is 8; supported: 4"),
        ({"extra_config": ["lm_head"]}, "extra_config must map"),
        ({"extra_config": {"lm_head": {"group_size": 0}}}, "group_size is 0"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        AutoRound.of_checkpoint(SETTINGS | settings, FORM)
