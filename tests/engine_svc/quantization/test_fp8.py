"""E4M3 weights: of checkpoints in each layout, and of any checkpoint quantized while loading."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_svc.ops.plain import PlainOps
from engine_svc.quantization.base import ModelForm, Place
from engine_svc.quantization.fp8 import Fp8
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.quantization.checks import check, load
from tests.support.quantized import Matrix, Quantized, quantized_model
from tests.support.quantized_floats import float8

FORM = ModelForm(PlainOps(), torch.float32)
SETTINGS: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCKS = SETTINGS | {"weight_block_size": [8, 16]}


def converter(**options: Any) -> Callable[[torch.Tensor], Matrix]:
    return lambda weight: float8(weight, **options)


blocks = converter(block=(8, 16), scale="weight_scale_inv")
whole = converter()


@pytest.mark.parametrize(
    ("family", "settings", "convert"),
    [
        ("deepseek-v3", BLOCKS | {"fmt": "e4m3"}, blocks),
        ("qwen3-moe", BLOCKS, blocks),
        ("llama-untied", SETTINGS, whole),
        ("mixtral", SETTINGS | {"activation_scheme": "static"}, converter(inputs="input_scale")),
        # Mistral's weights in the layout of Hugging Face.
        (
            "mistral", SETTINGS | {"weight_block_size": None},
            converter(scale="weight_scale_inv", inputs="activation_scale"),
        ),
        ("phi3", SETTINGS, whole),
        ("qwen3", SETTINGS, converter(block=(1, 1 << 20))),
    ],
)  # fmt: skip
def test_models(
    model_folder: ModelFolder, tmp_path: Path, family: str, settings: dict[str, Any],
    convert: Callable[[torch.Tensor], Matrix],
) -> None:  # fmt: skip
    check(quantized_model(model_folder(family), tmp_path, convert, settings))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe", "deepseek-v3"])
def test_blocks_over_ranks(model_folder: ModelFolder, tmp_path: Path, family: str) -> None:
    check(quantized_model(model_folder(family), tmp_path, blocks, BLOCKS), tensor_parallel_size=2)


@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers"])
def test_modules_that_are_left_as_they_are(model_folder: ModelFolder, tmp_path: Path, key: str) -> None:
    settings = BLOCKS | {key: ["lm_head", "model.layers.1.self_attn", "model.layers.2.mlp.gate_proj"]}
    skipped = ["layers.1.self_attn", "layers.2.mlp.gate_proj"]
    check(quantized_model(model_folder("llama-untied"), tmp_path, blocks, settings, skipped=skipped))


def test_blocks_that_end_within_a_matrix() -> None:
    """A weight of 40 outputs and 100 inputs does not consist of whole blocks of 16 by 64."""
    matrix = float8(torch.randn(40, 100), (16, 64), scale="weight_scale_inv")
    layer = Fp8.of_checkpoint(BLOCKS | {"weight_block_size": [16, 64]}, FORM).quantized
    missing = {"weight_scale": torch.full((3, 2), torch.nan)}
    weight = layer.weight({**matrix.tensors, **missing})
    assert not isinstance(weight, torch.Tensor)
    torch.testing.assert_close(weight.wide(torch.float64), matrix.meant, atol=1e-6, rtol=1e-6)


def test_weights_that_are_rounded_as_they_are_loaded(model_folder: ModelFolder, tmp_path: Path) -> None:
    """Each output is scaled so that its greatest absolute value becomes 448."""
    original = model_folder("llama")
    model = quantized_model(original, tmp_path, converter(block=(1, 1 << 20)), SETTINGS)
    check(Quantized(original, model.plain), quantization="fp8")


def test_a_method_that_is_also_named(model_folder: ModelFolder, tmp_path: Path) -> None:
    check(quantized_model(model_folder("llama"), tmp_path, whole, SETTINGS), quantization="fp8")


def test_another_method_is_refused(model_folder: ModelFolder, tmp_path: Path) -> None:
    model = quantized_model(model_folder("llama"), tmp_path, whole, SETTINGS)
    with pytest.raises(StartupError, match=r"--quantization int8: the checkpoint's weights are .* by fp8"):
        load(model.packed, quantization="int8")


def test_dummy_weights(model_folder: ModelFolder, tmp_path: Path) -> None:
    """Quantized checkpoints can be loaded with random weights, without reading any tensors."""
    folder = Path(shutil.copytree(model_folder("deepseek-v3"), tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    for settings in (SETTINGS, BLOCKS):
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
        load(folder, load_format="dummy")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"activation_scheme": "sometimes"}, "activation_scheme is 'sometimes'"),
        ({"fmt": "e5m2"}, "fmt is 'e5m2'"),
        ({"weight_block_size": [128]}, r"weight_block_size is \[128\]; expected \[outputs, inputs\]"),
        ({"weight_block_size": "128x128"}, "weight_block_size is '128x128'"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head'; expected a list"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        Fp8.of_checkpoint(SETTINGS | settings, FORM)


LAYER = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            {f"{LAYER}.weight_scale_inv": torch.zeros(4, 6)},
            rf"safetensors: {LAYER}\.weight_scale_inv: shape \[4, 6\] in the checkpoint, expected \[8, 6\]",
        ),
        ({f"{LAYER}.weight_scale_inv": None}, "has no weight_scale and no weight_scale_inv"),
        ({f"{LAYER}.weight": torch.zeros(64, 96)}, rf"{LAYER}\.weight: type float32 .* expected float8_e4m3fn"),
    ],
)
def test_wrong_tensors(
    model_folder: ModelFolder, tmp_path: Path, tensors: dict[str, torch.Tensor | None], words: str
) -> None:
    model = quantized_model(model_folder("llama"), tmp_path, blocks, BLOCKS)
    path = model.packed / "model.safetensors"
    changed = {**load_file(path), **tensors}
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, path)
    with pytest.raises(StartupError, match=words):
        load(model.packed)


def test_blocks_that_ranks_would_cut() -> None:
    """Half of 96 inputs is 48, which cuts a block of 64."""
    place = Place("linear", (LAYER,))
    layer = Fp8.of_checkpoint(BLOCKS | {"weight_block_size": [8, 64]}, FORM).layer(place)
    scales = next(spec for spec in layer.parameters() if spec.name == "weight_scale_inv")
    with pytest.raises(ValueError, match="groups of 64 inputs cannot be split at 48"):
        scales.axes[1].range(48, 48)
