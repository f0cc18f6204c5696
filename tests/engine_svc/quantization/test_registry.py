"""Which method a name selects, and the errors for unknown names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine_svc.ops.plain import PlainOps
from engine_svc.quantization.base import ModelForm
from engine_svc.quantization.int8 import Int8
from engine_svc.quantization.registry import METHODS, create_method
from quire.errors import StartupError
from quire.options.base import fields_of
from quire.options.engine import EngineOptions
from quire.options.quantizations import QUANTIZATION_ALIASES, REFUSED_CHECKPOINTS, REFUSED_QUANTIZATIONS

FORM = ModelForm(PlainOps(), torch.float32)


def test_names_stand_for_methods() -> None:
    assert {each for names in QUANTIZATION_ALIASES.values() for each in names} <= METHODS.keys()
    assert METHODS.keys().isdisjoint({*QUANTIZATION_ALIASES, *REFUSED_QUANTIZATIONS})
    assert isinstance(create_method("tpu_int8", None, FORM), Int8)


@pytest.mark.parametrize("name", REFUSED_CHECKPOINTS)
def test_checkpoints_that_no_kernel_reads(name: str) -> None:
    with pytest.raises(StartupError, match=rf"quantized by {name} are not supported\. .* Use "):
        create_method(None, {"quant_method": name}, FORM)


def test_an_unknown_method() -> None:
    with pytest.raises(StartupError, match=r"quantized by mystery are not supported\. Supported are .*awq.*bfloat16"):
        create_method(None, {"quant_method": "mystery"}, FORM)


def test_a_checkpoint_of_another_method() -> None:
    with pytest.raises(StartupError, match=r"--quantization gptq: .*already quantized, by awq\. Leave it out"):
        create_method("gptq", {"quant_method": "awq"}, FORM)


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "quark", "global_quant_config": "x"},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": None}},
    ],
)
def test_settings_of_another_kind(settings: dict[str, Any]) -> None:
    with pytest.raises(StartupError, match=f"has an invalid value for {settings['quant_method']}"):
        create_method(None, settings, FORM)


def test_a_method_that_only_reads() -> None:
    with pytest.raises(StartupError, match="--quantization awq is for checkpoints that are already quantized"):
        create_method("awq", None, FORM)


def test_the_option_takes_what_there_is() -> None:
    (field,) = [field for field in fields_of(EngineOptions) if field.name == "quantization"]
    assert set(field.metadata["choices"]) == {*METHODS, *QUANTIZATION_ALIASES}
    (refused,) = {(*field.metadata["refused"],)}
    assert set(refused) == REFUSED_QUANTIZATIONS.keys()
