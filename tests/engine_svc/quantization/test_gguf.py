"""GGUF blocks are decoded bit for bit as the package `gguf` does."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from engine_svc.ops.base import Ops
from engine_svc.ops.plain import PlainOps
from engine_svc.ops.weights import CodedWeight
from engine_svc.quantization.base import ModelForm, Place
from engine_svc.quantization.gguf import BlockLayer, Gguf
from engine_svc.quantization.gguf_blocks import FORMS, block_size
from engine_svc.quantization.registry import create_method
from engine_svc.quantization.unquantized import PlainLayer
from quire.errors import StartupError
from quire.gguf.types import PLAIN, READ


def test_all_types_that_are_read() -> None:
    assert {*READ} == {*FORMS} | {each.name for each in PLAIN}


def any_blocks(name: str, *shape: int) -> np.ndarray:
    """Makes random bit patterns, including scales that are NaN."""
    return np.random.default_rng(0).integers(0, 256, (*shape[:-1], shape[-1] * block_size(name)[1]), np.uint8)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shape", [(1, 1), (64, 5), (3, 16, 2)])
@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
def test_values_are_those_of_the_package(name: str, shape: tuple[int, ...]) -> None:
    blocks = any_blocks(name, *shape)
    weight = BlockLayer(name).weight({"weight": torch.from_numpy(blocks)})
    assert isinstance(weight, CodedWeight)
    assert int(weight.codes.max()) < len(weight.grid.values)
    expected = torch.from_numpy(gguf.dequantize(blocks, gguf.GGMLQuantizationType[name]))
    torch.testing.assert_close(weight.wide(torch.float32), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"])
def test_what_the_package_quantizes_comes_back(name: str) -> None:
    values = torch.randn(16, 256, generator=torch.Generator().manual_seed(0))
    packed = torch.from_numpy(gguf.quantize(values.numpy(), gguf.GGMLQuantizationType[name]))
    found = BlockLayer(name).weight({"weight": packed})
    assert isinstance(found, CodedWeight)
    assert (found.wide(torch.float32) - values).norm() / values.norm() < (0.01 if name == "Q8_0" else 0.15)


def test_large_matrices_are_unpacked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = torch.from_numpy(any_blocks("Q4_K", 37, 2))
    whole = BlockLayer("Q4_K").weight({"weight": blocks})
    monkeypatch.setattr("engine_svc.quantization.gguf._CHUNK_BYTES", 1000)
    parts = BlockLayer("Q4_K").weight({"weight": blocks})
    assert isinstance(whole, CodedWeight) and isinstance(parts, CodedWeight)
    assert parts.offset is not None and whole.offset is not None
    assert torch.equal(parts.codes, whole.codes)
    assert torch.equal(parts.scale.nan_to_num(), whole.scale.nan_to_num())
    assert torch.equal(parts.offset.nan_to_num(), whole.offset.nan_to_num())


def test_each_matrix_has_its_own_type() -> None:
    form = ModelForm(ops(), torch.bfloat16)
    method = create_method(None, {"quant_method": "gguf", "types": {"model.layers.0.mlp.down_proj": "Q6_K"}}, form)
    assert isinstance(method, Gguf)
    names = "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.down_proj"
    assert method.layer(Place("linear", names)) == BlockLayer("Q6_K")
    assert method.layer(Place("linear", names[:1])) == PlainLayer(torch.bfloat16)


def test_only_files_have_types() -> None:
    with pytest.raises(StartupError, match=r"not a \.gguf file"):
        create_method(None, {"quant_method": "gguf"}, ModelForm(ops(), torch.bfloat16))


def ops() -> Ops:
    return PlainOps()
