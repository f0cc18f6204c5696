"""torchao's checkpoints, and weights quantized in the same way, generated from its definitions.

The library itself is not among the tests' packages, because Transformers would import it in every process. What is
generated here was compared with the output of torchao 0.18.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_svc.ops.plain import PlainOps
from engine_svc.ops.weights import CodedWeight
from engine_svc.quantization.base import ModelForm, Place
from engine_svc.quantization.torchao import TorchAo
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.quantization.checks import check
from tests.support.quantized import (
    Convert,
    Quantized,
    quantized_model,
    torchao_bytes,
    torchao_floats,
    torchao_halves,
)

FORM = ModelForm(PlainOps(), torch.float32)
LINEAR = Place("linear", ("model.layers.1.mlp.down_proj",))


def settings(kind: str, **data: Any) -> dict[str, Any]:
    """Returns quantization settings as Transformers writes them."""
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": kind, "_version": 2, "_data": data}}}


def by_groups(size: int) -> dict[str, Any]:
    return {"_type": "PerGroup", "_version": 1, "_data": {"group_size": size}}


def grouped(weight: torch.Tensor) -> Any:
    return torchao_bytes(weight, 32)


def halves(weight: torch.Tensor) -> Any:
    return torchao_halves(weight, 32)


BYTES, FLOATS = settings("Int8WeightOnlyConfig", group_size=None), settings("Float8WeightOnlyConfig")
HALVES = settings("Int4WeightOnlyConfig", group_size=32, int4_packing_format={"_type": "Int4Packing", "_data": "PLAIN"})
FORMS: dict[str, tuple[dict[str, Any], Convert]] = {
    "int8": (BYTES, torchao_bytes),
    "int8 by groups": (settings("Int8WeightOnlyConfig", granularity=by_groups(32)), grouped),
    "int8 of inputs too": (settings("Int8DynamicActivationInt8WeightConfig"), torchao_bytes),
    "intx": (settings("IntxWeightOnlyConfig", granularity=by_groups(32)), grouped),
    "float8": (FLOATS, torchao_floats),
    "int4": (HALVES, halves),
}


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_those_that_codes_stand_for(form: str) -> None:
    said, convert = FORMS[form]
    matrix = convert(torch.randn(64, 96))
    weight = TorchAo.of_checkpoint(said, FORM).layer(LINEAR).weight(
        {name: tensor.float() if "scale" in name else tensor for name, tensor in matrix.tensors.items()}
    )  # fmt: skip
    assert isinstance(weight, CodedWeight)
    torch.testing.assert_close(weight.wide(torch.float32), matrix.meant.float())


@pytest.mark.parametrize("form", FORMS)
def test_weights_on_load(form: str) -> None:
    said, convert = FORMS[form]
    weight = torch.randn(64, 96)
    layer = TorchAo.on_load("torchao", ModelForm(PlainOps(), torch.float32, said)).layer(LINEAR)
    found = layer.weight({"weight": weight})
    assert isinstance(found, CodedWeight)
    torch.testing.assert_close(found.wide(torch.float32), convert(weight).meant.float())


def test_zero_points() -> None:
    matrix = torchao_bytes(torch.randn(64, 96))
    zero = torch.full((64, 1), 3, dtype=torch.int8)
    weight = TorchAo.of_checkpoint(BYTES, FORM).layer(LINEAR).weight({**matrix.tensors, "_weight_zero_point": zero})
    assert isinstance(weight, CodedWeight)
    torch.testing.assert_close(weight.wide(torch.float64), matrix.meant - 3 * matrix.tensors["_weight_scale"])


@pytest.mark.parametrize(("family", "form"), [("llama", "int4"), ("phi3", "int8"), ("mixtral", "float8")])
def test_models(model_folder: ModelFolder, tmp_path: Path, family: str, form: str) -> None:
    said, convert = FORMS[form]
    skipped = ["layers.1.self_attn"]
    said = {**said, "modules_to_not_convert": [*skipped, "lm_head"]}
    check(quantized_model(model_folder(family), tmp_path, convert, said, skipped=skipped))


@pytest.mark.parametrize("form", ["int8", "float8", "int4"])
def test_models_on_load(model_folder: ModelFolder, tmp_path: Path, form: str) -> None:
    """Without further settings, the result is 8-bit integers."""
    said, convert = FORMS[form]
    original = model_folder("llama")
    model = quantized_model(original, tmp_path, convert, said)
    overrides = {} if form == "int8" else {"quantization_config": said}
    check(Quantized(original, model.plain), quantization="torchao", hf_overrides=overrides)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "quant_type is None; expected a torchao configuration"),
        ({"quant_type": "int4wo"}, "quant_type is 'int4wo'; expected a torchao configuration"),
        (settings("UIntXWeightOnlyConfig"), "torchao's UIntXWeightOnlyConfig is not supported; Int8WeightOnlyConfig"),
        (
            settings("Int4WeightOnlyConfig", int4_packing_format={"_data": "TILE_PACKED_TO_4D"}),
            "int4_packing_format is 'TILE_PACKED_TO_4D'; supported: PLAIN",
        ),
        (settings("Float8WeightOnlyConfig", weight_dtype={"_data": "float8_e5m2"}), "weight_dtype is 'float8_e5m2'"),
        ({**BYTES, "include_input_output_embeddings": True}, "include_input_output_embeddings is True"),
    ],
)
def test_wrong_settings(said: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        TorchAo.of_checkpoint(said, FORM)


def test_groups_that_do_not_fit_on_load() -> None:
    layer = TorchAo.on_load("torchao", ModelForm(PlainOps(), torch.float32, HALVES)).layer(LINEAR)
    with pytest.raises(ValueError, match="100 inputs are not a multiple of the group size 32"):
        layer.weight({"weight": torch.randn(8, 100)})
