"""GPTQ checkpoints, whose layout is generated here from its definition."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_svc.ops.plain import PlainOps
from engine_svc.ops.weights import CodedWeight
from engine_svc.quantization.base import ModelForm, Place
from engine_svc.quantization.gptq import Gptq
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.quantization.checks import check, load
from tests.support.quantized import Matrix, Quantized, gptq, quantized_model

SETTINGS: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": False}
FORM = ModelForm(PlainOps(), torch.float32)
LINEAR = Place("linear", ("model.layers.1.mlp.gate_proj", "model.layers.1.mlp.gate_up_proj"))
HEAD = Place("head", ("lm_head",))


def converter(**options: Any) -> Callable[[torch.Tensor], Matrix]:
    return lambda weight: gptq(weight, **options)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("less", [0, 1])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_weights_are_those_that_codes_stand_for(bits: int, less: int, shuffled: bool) -> None:
    matrix = gptq(torch.randn(64, 96), bits, 32, less=less, shuffled=shuffled)
    settings = {"bits": bits, "group_size": 32, "desc_act": shuffled, "checkpoint_format": ("gptq_v2", "gptq")[less]}
    weight = Gptq.of_checkpoint(settings, FORM).layer(LINEAR).weight(matrix.tensors)
    assert isinstance(weight, CodedWeight)
    assert weight.grid.bits == (8 if bits == 8 else 4)
    assert torch.equal(weight.wide(torch.float64), matrix.meant)


def test_symmetric_weights_need_no_offset() -> None:
    matrix = gptq(torch.randn(64, 64), symmetric=True)
    weight = Gptq.of_checkpoint(SETTINGS, FORM).layer(LINEAR).weight(matrix.tensors)
    assert isinstance(weight, CodedWeight)
    assert weight.offset is None
    assert torch.equal(weight.wide(torch.float64), matrix.meant)


def test_one_group_of_all_inputs() -> None:
    matrix = gptq(torch.randn(64, 96), group=96)
    layer = Gptq.of_checkpoint(SETTINGS | {"group_size": -1, "desc_act": True}, FORM).layer(LINEAR)
    weight = layer.weight(matrix.tensors)
    assert not isinstance(weight, torch.Tensor)
    assert torch.equal(weight.wide(torch.float64), matrix.meant)


def test_inputs_of_no_group_are_refused() -> None:
    tensors = {**gptq(torch.randn(8, 64)).tensors, "g_idx": torch.full((64,), 4)}
    layer = Gptq.of_checkpoint(SETTINGS | {"desc_act": True}, FORM).layer(LINEAR)
    with pytest.raises(ValueError, match="g_idx names groups 4 to 4, but there are 4 groups"):
        layer.weight(tensors)


def test_rules_by_module() -> None:
    dynamic = {r"-:.*\.0\.mlp": {}, r".*\.mlp": {"bits": 8, "group_size": 32}, r"+:.*\.2\.": {"desc_act": True}}
    method = Gptq.of_checkpoint(SETTINGS | {"dynamic": dynamic}, FORM)

    def layer(name: str) -> str:
        return repr(method.layer(Place("linear", (name,))))

    assert layer("model.layers.0.mlp.down_proj").startswith("PlainLayer")
    assert layer("model.layers.1.mlp.down_proj") == "GptqLayer(bits=8, group=32, less=1)"
    assert layer("model.layers.2.self_attn.o_proj").startswith("OrderedGptqLayer(bits=4, group=16, less=1")
    assert layer("model.layers.3.self_attn.o_proj") == "GptqLayer(bits=4, group=16, less=1)"


@pytest.mark.parametrize(
    ("settings", "place", "is_quantized"),
    [
        ({}, LINEAR, True),
        ({}, HEAD, False),
        ({"lm_head": True}, HEAD, True),
        ({}, Place("router", ("model.layers.1.mlp.gate",)), False),
        ({"modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.gate_proj"]]}, LINEAR, True),
        ({"modules_in_block_to_quantize": [["self_attn.q_proj"]]}, LINEAR, False),
        ({"modules_to_not_convert": ["gate_proj"]}, LINEAR, False),
        ({"modules_to_not_convert": None}, LINEAR, True),
    ],
)
def test_which_modules_are_quantized(settings: dict[str, Any], place: Place, is_quantized: bool) -> None:
    method = Gptq.of_checkpoint(SETTINGS | settings, FORM)
    assert repr(method.layer(place)).startswith("Gptq") == is_quantized


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bits": 5}, "bits is 5; supported: 2, 3, 4, 8"),
        ({"bits": "4"}, "bits is '4'"),
        ({"group_size": 0}, "group_size is 0; expected a number of inputs"),
        ({"checkpoint_format": "bitblas"}, "checkpoint_format is 'bitblas'; supported: gptq, gptq_v2"),
        ({"desc_act": "yes"}, "desc_act is 'yes'"),
        ({"dynamic": {"(": {}}}, "dynamic has '\\(', which is not a valid pattern"),
        ({"dynamic": {"x": 3}}, "dynamic has 3 for 'x'"),
        ({"dynamic": {"x": {"bits": 7}}}, "bits is 7"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head'; expected a list"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        Gptq.of_checkpoint(SETTINGS | settings, FORM)


@pytest.mark.parametrize(
    ("family", "bits", "options", "settings"),
    [
        ("llama", 4, {"shuffled": True}, {"desc_act": True}),
        ("qwen3", 8, {"less": 0, "symmetric": True}, {"checkpoint_format": "gptq_v2", "sym": True}),
        ("falcon-40b", 4, {"shuffled": True}, {"desc_act": True}),  # one tensor of several groups of heads
        ("phi3", 4, {"shuffled": True, "group": 32}, {"desc_act": True, "group_size": 32}),
        ("qwen3-moe", 4, {"shuffled": True}, {"desc_act": True}),
        ("mixtral", 3, {"group": 32}, {"group_size": 32}),
        ("deepseek-v3", 4, {}, {}),
    ],
)
def test_models(
    model_folder: ModelFolder, tmp_path: Path, family: str, bits: int, options: dict[str, Any], settings: dict[str, Any]
) -> None:
    settings = SETTINGS | {"bits": bits} | settings
    check(quantized_model(model_folder(family), tmp_path, converter(bits=bits, **options), settings))


@pytest.mark.parametrize(("bits", "shuffled"), [(4, False), (4, True), (8, True)])
def test_matrices_with_inputs_first(model_folder: ModelFolder, tmp_path: Path, bits: int, shuffled: bool) -> None:
    """GPTQ transposes Conv1D weights before quantizing them, so their codes have the usual layout."""

    def turned(weight: torch.Tensor) -> Matrix:
        matrix = gptq(weight.t(), bits, shuffled=shuffled)
        return Matrix(matrix.tensors, matrix.meant.t())

    settings = SETTINGS | {"bits": bits, "desc_act": shuffled}
    check(quantized_model(model_folder("gpt2"), tmp_path, turned, settings, skipped=["wte", "wpe"]))


def test_a_quantized_head_and_rules(model_folder: ModelFolder, tmp_path: Path) -> None:
    """Rules give a layer's matrices different forms; AutoGPTQ's all-zero biases are ignored."""
    dynamic = {r"-:.*\.1\.self_attn\.q_proj": {}, r".*\.gate_proj": {"bits": 8}}
    model = quantized_model(
        model_folder("llama-untied", attention_bias=False), tmp_path, converter(),
        SETTINGS | {"dynamic": dynamic, "lm_head": True}, skipped=["layers.1.self_attn.q_proj"], head=True,
        more={"gate_proj": converter(bits=8)},
    )  # fmt: skip
    change(model, {"model.layers.0.mlp.down_proj.bias": torch.zeros(64)})
    check(model)


@pytest.fixture(scope="module")
def quantized(model_folder: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    return quantized_model(model_folder("llama"), tmp_path_factory.mktemp("gptq"), converter(), SETTINGS)


def change(model: Quantized, tensors: dict[str, torch.Tensor | None]) -> None:
    path = model.packed / "model.safetensors"
    changed = {**load_file(path), **tensors}
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, path)


LAYER = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({f"{LAYER}.qweight": torch.zeros(6, 64).int()}, rf"{LAYER}\.qweight: shape \[6, 64\].*expected \[12, 64\]"),
        ({f"{LAYER}.qzeros": torch.zeros(6, 8)}, rf"{LAYER}\.qzeros: type float32.*expected int32"),
        (
            {f"{LAYER}.scales": torch.zeros(3, 64)},
            rf"safetensors: {LAYER}\.scales: shape \[3, 64\].*expected \[6, 64\]",
        ),
        ({f"{LAYER}.scales": None}, r"lacks layers\.0\.mlp\.down_proj\.scales"),
        ({f"{LAYER}.weight": torch.zeros(64, 96)}, rf"no parameter for the checkpoint's {LAYER}\.weight"),
        ({f"{LAYER}.bias": torch.ones(64)}, rf"no parameter for the checkpoint's {LAYER}\.bias"),
    ],
)
def test_wrong_tensors(quantized: Quantized, tmp_path: Path, tensors: dict[str, Any], words: str) -> None:
    folder = Path(shutil.copytree(quantized.packed, tmp_path / "model"))
    change(Quantized(folder, folder), tensors)
    with pytest.raises(StartupError, match=words):
        load(folder)


@pytest.mark.parametrize("name", ["gptq", "gptq_marlin", "gptqmodel", "ipex"])
def test_names_that_lead_here(quantized: Quantized, name: str) -> None:
    load(quantized.packed, quantization=name)


@pytest.mark.slow
def test_two_ranks(model_folder: ModelFolder, tmp_path: Path) -> None:
    """With activation order, each rank has inputs of every group."""
    settings = SETTINGS | {"desc_act": True}
    model = quantized_model(model_folder("llama"), tmp_path, converter(shuffled=True), settings)
    check(model, tensor_parallel_size=2, cpu_threads=1)
