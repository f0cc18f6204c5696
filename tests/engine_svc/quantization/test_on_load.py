"""Weights of 16 or 32 bits that are quantized while loading."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine_svc.ops.plain import PlainOps
from engine_svc.ops.rounding import to_float8, to_int4, to_int8
from engine_svc.ops.weights import CodedWeight, Int8Weight
from engine_svc.quantization.base import ModelForm, Place
from engine_svc.quantization.registry import create_method
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.quantization.checks import load

FORM = ModelForm(PlainOps(), torch.float32)
Rounding = Callable[[torch.Tensor], CodedWeight]


def error(found: CodedWeight, weight: torch.Tensor) -> float:
    return float((found.wide(torch.float32) - weight.float()).norm() / weight.float().norm())


@pytest.mark.parametrize(
    ("to_codes", "limit"),
    [
        (to_float8, 0.028),
        (to_int8, 0.01),
        (lambda weight: to_int4(weight, 128), 0.1),
        (lambda weight: to_int4(weight, 32), 0.085),
    ],
)
@pytest.mark.parametrize("shape", [(64, 256), (3, 40, 200), (1, 7, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_how_far_codes_are_from_weights(
    to_codes: Rounding, limit: float, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = to_codes(weight)
    assert found.shape == weight.shape
    assert found.scale.dtype == torch.float32
    assert error(found, weight) < limit


def test_four_bits_are_better_than_the_least_and_the_greatest_say() -> None:
    """A step size derived from the greatest absolute value alone gives larger errors."""
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(1))
    groups = weight.view(64, 4, 128)
    steps = groups.abs().amax(-1, keepdim=True) / 7
    simple = ((groups / steps).round().clamp(-8, 7) * steps).view(64, 512)
    assert error(to_int4(weight, 128), weight) < 0.95 * float((simple - weight).norm() / weight.norm())


def test_four_bits_keep_what_they_can_say() -> None:
    """Whole numbers from -8 to 7 are exact, with any sign and step size, and so are groups of zeros."""
    weight = torch.randint(-8, 8, (16, 64), generator=torch.Generator().manual_seed(2)).float()
    weight[:, ::16] = -8.0
    weight[3] = 0
    weight *= torch.linspace(-2, 2, 16)[:, None]
    torch.testing.assert_close(to_int4(weight, 32).wide(torch.float32), weight, atol=0, rtol=2**-8)


@pytest.mark.parametrize("to_codes", [to_float8, to_int8, lambda weight: to_int4(weight, 32)])
def test_zeros(to_codes: Rounding) -> None:
    assert not to_codes(torch.zeros(4, 64)).wide(torch.float32).any()


KINDS = ("linear", "experts", "router", "embedding", "head")


@pytest.mark.parametrize(
    ("name", "kinds", "form"),
    [
        ("int8", {"linear", "experts"}, Int8Weight),
        ("int4", {"linear", "experts"}, CodedWeight),
        ("fp8", {"linear", "experts"}, CodedWeight),
        ("experts_int8", {"experts"}, CodedWeight),
    ],
)
def test_which_matrices_become_codes(name: str, kinds: set[str], form: type) -> None:
    method = create_method(name, None, FORM)
    weights = {
        kind: method.layer(Place(kind, ("model.layers.0.mlp.x",))).weight({"weight": torch.ones(4, 64)})
        for kind in KINDS
    }  # fmt: skip
    assert {kind for kind, weight in weights.items() if isinstance(weight, form)} == kinds
    assert all(isinstance(weight, torch.Tensor) for kind, weight in weights.items() if kind not in kinds)


@pytest.mark.parametrize("name", ["int4", "fp8", "experts_int8"])
def test_models(model_folder: ModelFolder, name: str) -> None:
    """Covers models with experts, whose gate and up matrices are in one stack."""
    load(model_folder("qwen3-moe"), quantization=name)
