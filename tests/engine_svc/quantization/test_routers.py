"""Routers that are quantized in a checkpoint, as in Intel's AutoRound models and some of GPTQModel's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_svc.ops.plain import PlainOps
from engine_svc.quantization.auto_round import AutoRound
from engine_svc.quantization.base import ModelForm, QuantizationMethod
from engine_svc.quantization.gptq import Gptq
from engine_svc.quantization.source import HeldTensor, Tensors
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.quantization.checks import check
from tests.support.quantized import Matrix, gptq, quantized_model

FORM = ModelForm(PlainOps(), torch.float64)
SETTINGS = {"quant_method": "gptq", "bits": 4, "group_size": 16}
GATE = "model.layers.3.mlp.gate"


def adapted(method: QuantizationMethod, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    def all_tensors() -> Tensors:
        return ((name, HeldTensor(tensor)) for name, tensor in tensors.items())

    return {name: source[...] for name, source in method.adapted(all_tensors)}


def of_module(matrix: Matrix, module: str, without: str = "") -> dict[str, torch.Tensor]:
    return {f"{module}.{name}": tensor for name, tensor in matrix.tensors.items() if name != without}


@pytest.mark.parametrize("method", [
    Gptq.of_checkpoint(SETTINGS, FORM), Gptq.of_checkpoint(SETTINGS | {"desc_act": True}, FORM),
    AutoRound.of_checkpoint(SETTINGS | {"quant_method": "auto-round"}, FORM),
])  # fmt: skip
def test_a_router_becomes_plain_and_other_tensors_stay(method: QuantizationMethod) -> None:
    matrix = gptq(torch.randn(8, 64), shuffled=False)
    others = of_module(matrix, "model.layers.3.mlp.gate_proj") | {"model.layers.4.mlp.gate.weight": torch.ones(8, 64)}
    found = adapted(method, of_module(matrix, GATE) | others)
    assert found.keys() == {f"{GATE}.weight", *others}
    assert torch.equal(found[f"{GATE}.weight"], matrix.meant)


def test_a_router_has_its_own_settings() -> None:
    matrix = gptq(torch.randn(8, 64), bits=8)
    settings = SETTINGS | {"quant_method": "auto-round", "extra_config": {GATE: {"bits": 8}}}
    found = adapted(AutoRound.of_checkpoint(settings, FORM), of_module(matrix, GATE))
    assert torch.equal(found[f"{GATE}.weight"], matrix.meant)


@pytest.mark.parametrize(("matrix", "without", "message"), [
    (gptq(torch.randn(8, 64)), "scales", f"{GATE} lacks 'scales'"),
    (gptq(torch.randn(8, 64), bits=8), "", f"{GATE}: "),
])  # fmt: skip
def test_a_router_in_another_form_is_refused(matrix: Matrix, without: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        adapted(Gptq.of_checkpoint(SETTINGS, FORM), of_module(matrix, GATE, without))


def test_a_model_whose_routers_are_quantized(model_folder: ModelFolder, tmp_path: Path) -> None:
    def convert(weight: torch.Tensor) -> Matrix:
        return gptq(weight)

    model = quantized_model(model_folder("qwen3-moe", num_experts=8), tmp_path, convert, SETTINGS)
    packed, plain = (load_file(folder / "model.safetensors") for folder in (model.packed, model.plain))
    gates: dict[str, Any] = {name: tensor for name, tensor in plain.items() if name.endswith(".mlp.gate.weight")}
    assert gates
    for name, weight in gates.items():
        matrix = gptq(weight)
        del packed[name]
        packed |= of_module(matrix, name.removesuffix(".weight"))
        plain[name] = matrix.meant.to(weight.dtype)
    save_file(packed, model.packed / "model.safetensors", {"format": "pt"})
    save_file(plain, model.plain / "model.safetensors", {"format": "pt"})
    check(model)
