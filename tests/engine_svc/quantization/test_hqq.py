"""HQQ checkpoints, generated from the definition of their layout, which was compared with the library's (0.2.8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_svc.ops.plain import PlainOps
from engine_svc.ops.weights import CodedWeight
from engine_svc.quantization.base import ModelForm, Place
from engine_svc.quantization.hqq import Hqq
from engine_svc.quantization.source import HeldTensor, Tensors
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.quantization.checks import check
from tests.support.quantized import Matrix, hqq, quantized_model

FORM = ModelForm(PlainOps(), torch.float32)
LINEAR, HEAD = Place("linear", ("model.layers.1.mlp.down_proj",)), Place("head", ("lm_head",))


def settings(bits: int, group: int, **more: Any) -> dict[str, Any]:
    params = {"nbits": bits, "group_size": group, "axis": 1, "channel_wise": True, "optimize": True, **more}
    return {"quant_method": "hqq", "quant_config": {"weight_quant_params": params}, "skip_modules": ["lm_head"]}


def adapted(method: Hqq, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    def all_of_them() -> Tensors:
        return iter([(f"x.{name}", HeldTensor(tensor)) for name, tensor in tensors.items()])

    return {name.removeprefix("x."): source[...] for name, source in method.adapted(all_of_them)}


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_weights_are_those_that_codes_stand_for(bits: int, group: int) -> None:
    matrix = hqq(torch.randn(100, 192), bits, group)
    method = Hqq.of_checkpoint(settings(bits, group), FORM)
    weight = method.layer(LINEAR).weight(adapted(method, dict(matrix.tensors)))
    assert isinstance(weight, CodedWeight)
    torch.testing.assert_close(weight.wide(torch.float32), matrix.meant.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "bits"), [("llama", 4), ("qwen3", 8)])
def test_models(model_folder: ModelFolder, tmp_path: Path, family: str, bits: int) -> None:
    def convert(weight: torch.Tensor) -> Matrix:
        return hqq(weight, bits, 32)

    check(quantized_model(model_folder(family), tmp_path, convert, settings(bits, 32)))


@pytest.mark.parametrize(
    ("skipped", "place", "is_quantized"),
    [(["lm_head"], HEAD, False), (None, HEAD, False), ([], HEAD, True), ([], LINEAR, True), (["mlp"], LINEAR, False)],
)
def test_which_modules_are_quantized(skipped: list[str] | None, place: Place, is_quantized: bool) -> None:
    layer = Hqq.of_checkpoint(settings(4, 64) | {"skip_modules": skipped}, FORM).layer(place)
    assert repr(layer).startswith("HqqLayer") == is_quantized


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (settings(4, 64, axis=0), "axis is 0; supported: 1"),
        (settings(5, 64), "nbits is 5"),
        (settings(4, 64, quant_zero=True), "quant_zero is True"),
        ({"quant_config": {"self_attn.q_proj": {}}}, "settings for single modules are not supported"),
    ],
)
def test_wrong_settings(said: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        Hqq.of_checkpoint(said, FORM)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"W_q": torch.zeros(8, 64, dtype=torch.uint8)},
            r"x\.W_q: shape \[16, 64\], where 64 times 64 weights have 64",
        ),
        ({"W_q": torch.zeros(32, 64)}, r"x\.W_q: shape \[64, 256\]"),
        ({"W_q": torch.zeros(32, 64, dtype=torch.int64)}, r"x\.W_q: type torch\.int64 .* expected torch\.uint8"),
        ({"scale": torch.zeros(3, 1)}, r"x\.scale: shape \[3, 1\]"),
        ({"scale": torch.tensor(1.0)}, r"x\.scale: shape \[\]"),
        ({"shape": torch.tensor([64.0, 64.0])}, r"shape is \[64\.0, 64\.0\]; expected \[outputs, inputs\]"),
        ({"shape": torch.tensor(64)}, r"shape is 64; expected \[outputs, inputs\]"),
        ({"shape": torch.tensor([64, 96])}, r"groups of 64 values do not fit rows of 96"),
    ],
)
def test_wrong_tensors(change: dict[str, torch.Tensor], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        adapted(Hqq.of_checkpoint(settings(4, 64), FORM), {**hqq(torch.randn(64, 64), 4, 64).tensors, **change})
