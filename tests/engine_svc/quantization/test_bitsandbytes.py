"""Checkpoints made by bitsandbytes, and weights quantized in the same way while loading."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_svc.ops.grids import FP4, NF4
from engine_svc.ops.plain import PlainOps
from engine_svc.ops.weights import CodedWeight, Grid
from engine_svc.quantization.base import ModelForm, Place
from engine_svc.quantization.bitsandbytes import BitsAndBytes
from engine_svc.quantization.source import HeldTensor, Tensors
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.quantization.checks import check, load
from tests.support.quantized import Convert, Matrix, Quantized, quantized_model

FORM = ModelForm(PlainOps(), torch.float32)
LINEAR = Place("linear", ("model.layers.1.mlp.down_proj",))
HEAD = Place("head", ("lm_head",))
FOUR: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
EIGHT: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_8bit": True, "_load_in_4bit": False}


@functools.cache
def reference() -> ModuleType:
    """Imports bitsandbytes only in processes that run these tests, not in all that collect them: it takes seconds."""
    import bitsandbytes.functional

    return bitsandbytes.functional


def four_bits(kind: str, *, nested: bool = False, block: int = 64, storage: torch.dtype = torch.uint8) -> Convert:
    def convert(weight: torch.Tensor) -> Matrix:
        codes, state = reference().quantize_4bit(
            weight.contiguous(), blocksize=block, quant_type=kind, compress_statistics=nested, quant_storage=storage
        )
        beside = {f"weight.{name}": value.contiguous() for name, value in state.as_dict(packed=True).items()}
        return Matrix({"weight": codes, **beside}, meant(codes.view(torch.uint8), state))

    return convert


def meant(codes: torch.Tensor, state: Any) -> torch.Tensor:
    """Dequantizes by definition. The library's CPU code assumes rows of whole blocks and is compared only for those."""
    absmax = state.absmax
    if state.nested:
        absmax = reference().dequantize_blockwise(absmax, state.state2) + state.offset
    places = torch.stack((codes.flatten() >> 4, codes.flatten() & 15), -1).flatten().long()
    found = (state.code[places].unflatten(0, (-1, state.blocksize)) * absmax[:, None]).view(state.shape)
    if state.shape[1] % state.blocksize == 0:
        torch.testing.assert_close(found, reference().dequantize_4bit(codes, state))
    return found


def eight_bits(weight: torch.Tensor) -> Matrix:
    values, greatest, _ = reference().int8_vectorwise_quant(weight.half())
    tensors = {"weight": values, "SCB": greatest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return Matrix(tensors, values.float() * greatest[:, None] / 127)


def eight_bits_of_floats(weight: torch.Tensor) -> Matrix:
    """Computes int8 weights by definition, because the library's function takes at most 16 bits."""
    greatest = weight.abs().amax(1, keepdim=True)
    return Matrix({"weight": weight}, (weight * (127 / greatest)).round() * greatest / 127)


def adapted(method: BitsAndBytes, tensors: dict[str, torch.Tensor], module: str = "x") -> dict[str, torch.Tensor]:
    def all_of_them() -> Tensors:
        return iter([(f"{module}.{name}", HeldTensor(tensor)) for name, tensor in tensors.items()])

    return {name.removeprefix(f"{module}."): source[...] for name, source in method.adapted(all_of_them)}


@pytest.mark.parametrize(("grid", "kind"), [(NF4, "nf4"), (FP4, "fp4")])
def test_grids(grid: Grid, kind: str) -> None:
    assert torch.equal(torch.tensor(grid.values), reference().get_4bit_type(kind, device="cpu"))


@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("kind", "inputs", "block", "group"), [
    ("nf4", 128, 64, 64), ("fp4", 128, 64, 64), ("nf4", 96, 64, 32), ("nf4", 256, 128, 64),
])  # fmt: skip
def test_codes_of_four_bits(kind: str, inputs: int, block: int, group: int, nested: bool, storage: torch.dtype) -> None:
    """Rows of 96 inputs do not consist of whole blocks of 64, so blocks begin within rows."""
    matrix = four_bits(kind, nested=nested, block=block, storage=storage)(torch.randn(64, inputs))
    method = BitsAndBytes.of_checkpoint(FOUR | {"bnb_4bit_quant_type": kind}, FORM)
    weight = method.layer(LINEAR).weight(adapted(method, dict(matrix.tensors)))
    assert isinstance(weight, CodedWeight)
    assert weight.group == group
    torch.testing.assert_close(weight.wide(torch.float32), matrix.meant)


def test_bytes() -> None:
    matrix = eight_bits(torch.randn(64, 96))
    method = BitsAndBytes.of_checkpoint(EIGHT, FORM)
    weight = method.layer(LINEAR).weight(matrix.tensors)
    assert isinstance(weight, CodedWeight)
    torch.testing.assert_close(weight.wide(torch.float32), matrix.meant)


@pytest.mark.parametrize("settings", [FOUR, EIGHT])
def test_a_router_is_plain(settings: dict[str, Any]) -> None:
    """Older checkpoints have quantized routers, which are dequantized."""
    matrix = (four_bits("nf4", nested=True) if settings is FOUR else eight_bits)(torch.randn(4, 128))
    found = adapted(BitsAndBytes.of_checkpoint(settings, FORM), dict(matrix.tensors), "model.layers.0.mlp.gate")
    assert found.keys() == {"weight"}
    torch.testing.assert_close(found["weight"], matrix.meant)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bits_on_load_are_the_librarys(kind: str) -> None:
    weight = torch.randn(64, 128)
    method = BitsAndBytes.on_load("bitsandbytes", ModelForm(PlainOps(), torch.float32, {"bnb_4bit_quant_type": kind}))
    found = method.layer(LINEAR).weight({"weight": weight})
    assert isinstance(found, CodedWeight)
    torch.testing.assert_close(found.wide(torch.float32), four_bits(kind)(weight).meant)


def test_eight_bits_on_load_are_the_librarys() -> None:
    weight = torch.randn(64, 96).half()
    method = BitsAndBytes.on_load("bitsandbytes", ModelForm(PlainOps(), torch.float16, EIGHT))
    found = method.layer(LINEAR).weight({"weight": weight})
    assert isinstance(found, CodedWeight)
    torch.testing.assert_close(found.wide(torch.float32), eight_bits(weight).meant)


def test_rows_that_are_no_multiple_of_a_block_on_load() -> None:
    weight = torch.randn(8, 100)
    found = BitsAndBytes.on_load("bitsandbytes", FORM).layer(LINEAR).weight({"weight": weight})
    assert isinstance(found, CodedWeight)
    last = four_bits("nf4")(torch.nn.functional.pad(weight[:, 64:], (0, 28))).meant[:, :36]
    torch.testing.assert_close(found.wide(torch.float32)[:, 64:], last)


@pytest.mark.parametrize(
    ("settings", "place", "is_quantized"),
    [
        ({}, LINEAR, True),
        ({}, HEAD, False),
        ({"llm_int8_skip_modules": ["lm_head"]}, HEAD, False),
        ({"llm_int8_skip_modules": []}, HEAD, True),
        ({"llm_int8_skip_modules": ["model.layers.1.mlp"]}, LINEAR, False),
        ({}, Place("embedding", ("model.embed_tokens",)), False),
    ],
)
def test_which_modules_are_quantized(settings: dict[str, Any], place: Place, is_quantized: bool) -> None:
    layer = BitsAndBytes.of_checkpoint(FOUR | settings, FORM).layer(place)
    assert repr(layer).startswith("CodesLayer") == is_quantized


@pytest.mark.parametrize(
    ("family", "settings", "convert"),
    [
        ("llama", FOUR, four_bits("nf4", nested=True)),
        ("phi3", FOUR | {"bnb_4bit_quant_type": "fp4"}, four_bits("fp4")),
        ("mixtral", FOUR, four_bits("nf4")),
        ("qwen3", EIGHT, eight_bits),
    ],
)
def test_models(
    model_folder: ModelFolder, tmp_path: Path, family: str, settings: dict[str, Any], convert: Convert
) -> None:
    check(quantized_model(model_folder(family), tmp_path, convert, settings))


def test_a_quantized_head(model_folder: ModelFolder, tmp_path: Path) -> None:
    settings = FOUR | {"llm_int8_skip_modules": ["layers.1"]}
    original = model_folder("llama-untied", attention_bias=False)
    check(quantized_model(original, tmp_path, four_bits("nf4"), settings, skipped=["layers.1."], head=True))


@pytest.mark.parametrize(
    ("wanted", "convert"),
    [
        ({}, four_bits("nf4")),
        ({"bnb_4bit_quant_type": "fp4"}, four_bits("fp4")),
        ({"load_in_8bit": True}, eight_bits_of_floats),
    ],
)
def test_models_on_load(model_folder: ModelFolder, tmp_path: Path, wanted: dict[str, Any], convert: Convert) -> None:
    original = model_folder("llama", intermediate_size=128)
    model = quantized_model(original, tmp_path, convert, FOUR)
    overrides = {"quantization_config": {"quant_method": "bitsandbytes", **wanted}} if wanted else {}
    names = {"quantization": "bitsandbytes", "load_format": "bitsandbytes"}
    check(Quantized(original, model.plain), hf_overrides=overrides, **names)


def test_the_load_format_alone_is_refused(model_folder: ModelFolder) -> None:
    with pytest.raises(StartupError, match="--load-format bitsandbytes needs --quantization bitsandbytes"):
        load(model_folder("llama"), load_format="bitsandbytes")


@pytest.fixture(scope="module")
def quantized(model_folder: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    folder = tmp_path_factory.mktemp("bitsandbytes")
    return quantized_model(model_folder("llama"), folder, four_bits("nf4", nested=True), FOUR)


def test_the_load_format_with_such_a_checkpoint(quantized: Quantized) -> None:
    load(quantized.packed, load_format="bitsandbytes", quantization="bitsandbytes")


WEIGHT = "model.layers.0.mlp.down_proj.weight"
STATE = f"{WEIGHT}.quant_state.bitsandbytes__nf4"


def state(**fields: Any) -> torch.Tensor:
    said = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [64, 96], **fields}
    return torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({STATE: torch.tensor([1], dtype=torch.uint8)}, r"bitsandbytes__nf4 does not describe a matrix of codes"),
        ({STATE: state(blocksize=0)}, r"does not describe a matrix of codes: ValueError: a size is less than 1"),
        ({STATE: state(quant_type="fp4")}, r"down_proj\.weight has codes of fp4, but the configuration says otherwise"),
        ({STATE: state(shape=[64, 64])}, r"down_proj\.weight: 3072 bytes are not codes of 64 times 64 weights"),
        ({STATE: state(blocksize=48)}, r"weight\.absmax: blocks of 48 values do not fit rows of 96"),
        ({STATE: state(blocksize=32)}, r"weight\.absmax: 96 blocks of 32 are not 64 times 96 values"),
        ({f"{WEIGHT}.nested_absmax": torch.ones(0)}, r"weight\.absmax: .*size"),
        ({STATE: None}, r"down_proj\.weight: shape \[3072, 1\]"),
    ],
)
def test_wrong_tensors(quantized: Quantized, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    folder = Path(shutil.copytree(quantized.packed, tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors") | changes
    save_file({name: each for name, each in tensors.items() if each is not None}, folder / "model.safetensors")
    with pytest.raises(StartupError, match=words):
        load(folder)


@pytest.mark.slow
def test_two_ranks(model_folder: ModelFolder, tmp_path: Path) -> None:
    """Rows of 128 inputs give each rank a whole block, and rows of 64 give it half a block."""
    original = model_folder("llama", intermediate_size=128)
    check(quantized_model(original, tmp_path, four_bits("nf4"), FOUR), tensor_parallel_size=2, cpu_threads=1)
