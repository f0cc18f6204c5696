"""Tiny versions of all of Transformers' causal language models run as docs/models.md says, and match that library."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from engine_svc.models.registry import ARCHITECTURES
from tests.support.model_zoo.configurations import MODEL_TYPES, NATIVE
from tests.support.model_zoo.names import NAMES
from tests.support.model_zoo.page import PAGE, outcomes_of, page
from tests.support.model_zoo.walk import walk
from tests.support.remote_code import FAMILIES as REMOTE
from tests.support.tiny_mixtures import MIXTURES
from tests.support.tiny_models import FAMILIES, HYBRIDS

_TEXT = PAGE.read_text(encoding="utf-8")
_OUTCOMES = outcomes_of(_TEXT)


def test_the_page_has_all_types() -> None:
    assert set(NAMES) <= set(MODEL_TYPES.values()) | NATIVE
    assert set(_OUTCOMES) == set(MODEL_TYPES)
    native = {name for name in MODEL_TYPES if MODEL_TYPES[name] in NATIVE}
    assert {name for name, outcome in _OUTCOMES.items() if outcome.way == "native"} == native, "make models"
    assert page(_OUTCOMES) == _TEXT, "make models"


def test_all_native_ones_are_compared_with_transformers() -> None:
    """Tests of families, mixtures and hybrids do so; others for DeepSeek V4, Jais, Llama Nemotron, and other names.

    What is only in remote code is compared with other families.
    """
    compared = set()
    for name, _ in (FAMILIES | MIXTURES | HYBRIDS).values():
        config_class = getattr(transformers, f"{name}Config")
        compared.add(transformers.AutoModelForCausalLM._model_mapping[config_class].__name__)
    others = {
        "BaichuanForCausalLM", "BailingMoeV3ForCausalLM", "ChatGLMForConditionalGeneration", "DeciLMForCausalLM",
        "DeepseekV4ForCausalLM", "InternLM3ForCausalLM", "JAISLMHeadModel", "MPTForCausalLM", "MiMoForCausalLM",
        "MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM", "PhiMoEForCausalLM", "RWForCausalLM", "SolarForCausalLM",
        "Step3p5ForCausalLM", "VoxtralRealtimeForConditionalGeneration", "WhisperForConditionalGeneration",
    }  # fmt: skip
    compared |= {family.architecture for family in REMOTE.values()}
    assert set(ARCHITECTURES) - others <= compared


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [name for name in MODEL_TYPES if MODEL_TYPES[name] not in NATIVE])
def test_models_run_as_the_page_says(model_type: str, tmp_path: Path) -> None:
    assert walk(model_type, tmp_path) == _OUTCOMES[model_type]
