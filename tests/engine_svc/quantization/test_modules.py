"""Which matrices the module lists of checkpoints refer to."""

from __future__ import annotations

import pytest

from engine_svc.layers.module_names import names_in_checkpoints
from engine_svc.loader.names import parameter_name
from engine_svc.quantization.base import Place
from engine_svc.quantization.modules import modules


@pytest.mark.parametrize(
    ("listed", "is_meant"),
    [
        ("model.layers.1.mixer.in_proj", True),
        ("model.language_model.layers.1.mixer.in_proj", True),
        ("language_model.model.layers.1.mixer", True),
        ("backbone.layers.1.mixer.in_proj", True),
        ("model.backbone.layers.1", True),
        ("backbone.layers.*.mixer.*", True),
        ("re:language_model.*in_proj$", True),
        ("thinker.model.layers.1.mixer", True),
        ("layers.1.mixer", True),
        ("model.layers.11.mixer.in_proj", False),
        ("model.layers.1.mixer.in", False),
        ("vision_tower.layers.1.mixer.in_proj", False),
    ],
)
def test_modules_by_all_names_that_checkpoints_have_for_them(listed: str, is_meant: bool) -> None:
    names = names_in_checkpoints("layers.1.mixer.in_proj", "", {"backbone": "model"})
    assert names[0] == "model.layers.1.mixer.in_proj"
    assert modules([listed]).have(Place("linear", names)) is is_meant


RENAMES = (
    (r"\.embedding\.word_embeddings\.", ".embed_tokens."), (r"^transformer\.encoder\.", "model."),
    (r"\.moe\.(?:experts\.)?(\d+)\.", r".mlp.experts.\1."), (r"\.moe\.(gate_proj|up_proj)\.", r".mlp.experts.\1."),
    (r"\.self_attn\.(linear_gate|gate_proj)\.", ".self_attn.g_proj."), (r"(^|\.)own\.", ".lost."),
)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "part", "listed"),
    [
        ("layers.1.self_attn.g_proj", "", "model.layers.1.self_attn.linear_gate"),
        ("layers.1.self_attn.g_proj", "", "transformer.encoder.layers.1.self_attn.gate_proj"),
        ("layers.1.mlp.experts", "gate", "model.layers.1.moe.0.gate_proj"),
        ("layers.1.mlp.experts", "gate", "transformer.encoder.layers.1.moe.experts.0.gate_proj"),
        ("embed_tokens", "", "transformer.encoder.embedding.word_embeddings"),
    ],
)
def test_modules_by_the_names_that_a_family_changes(path: str, part: str, listed: str) -> None:
    names = names_in_checkpoints(path, part, {}, RENAMES)
    assert modules([listed]).have(Place("linear", names))
    assert not modules([listed]).have(Place("linear", names_in_checkpoints(path, part, {})))
    (changed,) = {parameter_name(f"{name}.weight", {}, RENAMES) for name in names if name == listed}
    assert changed == parameter_name(f"{names[0]}.weight", {}, RENAMES)


@pytest.mark.parametrize("listed", ["lm_head", "language_model.lm_head", "thinker.lm_head", "re:.*lm_head"])
def test_a_head_may_be_inside_of_a_language_model(listed: str) -> None:
    assert modules([listed]).have(Place("head", names_in_checkpoints("lm_head", "", {})))


@pytest.mark.parametrize(
    "listed", ["mtp", "mtp*", "mtp.layers.0*", "model.mtp.*", "language_model.mtp.layers.0.mixer.*"]
)
def test_layers_for_multi_token_prediction_may_be_beside_the_model(listed: str) -> None:
    names = names_in_checkpoints("mtp.layers.0.mixer.qkv_proj", "q", {})
    assert modules([listed]).have(Place("linear", names))
