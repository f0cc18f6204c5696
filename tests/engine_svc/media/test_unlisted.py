"""Models that Quire has no code for: which of their images are read, and what is said of the others.

Answers are compared in `test_exactness.py`, whose families of `unlisted_families.py` are such models.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from transformers.models.janus.modeling_janus import JanusModel

from engine_svc.media import unlisted
from engine_svc.media.unlisted import image_support
from engine_svc.models.registry import image_obstacle, is_ours, takes_images, text_part
from tests.engine_svc.media.conftest import VisionFolder
from tests.support.run_engine import run_requests, running_engine, spec_of, tokens
from tests.support.vision_models.conversations import answer, ask


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What is known of a model is forgotten after each test, which may have changed its code."""
    yield
    unlisted._support.cache_clear()


def raw_config(model_type: str, **fields: Any) -> dict[str, Any]:
    config = transformers.CONFIG_MAPPING[model_type](**fields)
    architecture = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)]
    return config.to_dict() | {"architectures": [architecture.__name__]}


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("blip-2", "which token stands for images"),
        ("cohere_compass", "depend on which tokens are of images (mm_token_type_ids)"),
        ("deepseek_vl_hybrid", "takes high_res_pixel_values"),
        ("mllama", "cannot encode its images apart from its text"),
        ("paligemma", "depend on which tokens are of images (token_type_ids)"),
    ],
)
def test_what_is_not_supported_is_told(model_type: str, reason: str) -> None:
    config = raw_config(model_type)
    assert not takes_images(config)
    assert reason in image_obstacle(config)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("aria", ""), ("gemma3", "token_type_ids"), ("hyperclovax_vision_v2", ""), ("lighton_ocr", ""),
        ("qwen2_5_vl", "mm_token_type_ids"),
    ],
)  # fmt: skip
def test_models_that_are_listed_would_be_told_apart(model_type: str, reason: str) -> None:
    """Those that need code of Quire's beside that for their inputs, and others."""
    found = image_support(raw_config(model_type)).obstacle
    assert reason in found
    assert bool(found) == bool(reason)


@pytest.mark.parametrize("token_id", [0, 1])
def test_any_token_may_stand_for_images(token_id: int) -> None:
    assert image_obstacle(raw_config("janus", image_token_id=token_id)) == ""


@pytest.mark.parametrize("layer", [-1, -2])
def test_what_an_encoder_is_told(monkeypatch: pytest.MonkeyPatch, layer: int) -> None:
    """By Quire, nothing beside an image, so an encoder must not be told another value than that of its default."""

    def encode(self: Any, pixel_values: Any, vision_feature_layer: int = -1) -> None: ...

    def forward(self: Any, pixel_values: Any, **given: Any) -> None:
        self.get_image_features(pixel_values=pixel_values, vision_feature_layer=layer)
        self.language_model()

    monkeypatch.setattr(JanusModel, "get_image_features", encode)
    monkeypatch.setattr(JanusModel, "forward", forward)
    found = image_obstacle(raw_config("janus"))
    assert ("told vision_feature_layer -2" in found) == (layer == -2)


def test_what_transformers_cannot_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as encoders that are in timm."""

    def lack(*_: Any) -> None:
        raise ImportError("timm is missing")

    monkeypatch.setattr(JanusModel, "__init__", lack)
    assert image_obstacle(raw_config("janus")) == "Transformers cannot make its image encoder: timm is missing"


def test_text_models_that_treat_images_in_their_own_way() -> None:
    """Although the whole model's code tells them nothing."""
    turned = {"model_type": "llama", "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
    assert "three positions" in image_obstacle(raw_config("janus", text_config=turned))
    assert "Gemma 3's own images" in image_obstacle(raw_config("janus", text_config={"model_type": "gemma3_text"}))


def test_other_kinds_of_models_are_not_tried() -> None:
    config = raw_config("janus")
    assert image_support(config | {"architectures": ["JanusModel"]}).obstacle.startswith("for Transformers, it is")
    assert takes_images(config)
    assert not takes_images({"architectures": ["Gemma3nForConditionalGeneration"], "vision_config": {"x": 1}})
    assert image_obstacle({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}) == ""


Change = Callable[[dict[str, Any]], dict[str, Any]]
CHANGES: dict[str, tuple[Change, str]] = {
    "mask": (lambda given: given | {"attention_mask": torch.ones(1, 1, 7, 7)}, "attention_mask of its own making"),
    "masks": (lambda given: given | {"attention_mask": {}}, "attention_mask of its own making"),
    "positions": (lambda given: given | {"position_ids": torch.arange(7)[None] + 1}, "position_ids of its own"),
    "features": (lambda given: given | {"deepstack_visual_embeds": [torch.ones(1)]}, "deepstack_visual_embeds of its"),
    "switch": (lambda given: given | {"is_causal": False}, "is_causal of its own making"),
    "order": (lambda given: given | {"inputs_embeds": given["inputs_embeds"].flip(1)}, "in the places of their tokens"),
    "nothing": (lambda given: {}, "in the places of their tokens"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_code_that_does_more_with_images(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    apply, reason = CHANGES[change]
    called = unlisted._TextModel.forward
    monkeypatch.setattr(unlisted._TextModel, "forward", lambda self, **given: called(self, **apply(given)))
    assert reason in image_obstacle(raw_config("janus"))


def test_code_that_wants_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, pixel_values: Any, **__: Any) -> None:
        raise KeyError("other_features")

    monkeypatch.setattr(JanusModel, "forward", fail)
    assert image_obstacle(raw_config("janus")).endswith("in the places of their tokens: 'other_features'")


def test_text_models_are_quires_own_where_it_has_them(vision_folder: VisionFolder) -> None:
    for family, is_own in (("janus", True), ("janus_persimmon", False), ("video_llava", True)):
        config = json.loads((vision_folder(family) / "config.json").read_text())
        assert is_ours(config) is is_own, family
        assert text_part(config)["hidden_size"] == 64


def test_a_model_whose_images_are_not_read_is_served_for_text(
    vision_folder: VisionFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = vision_folder("janus")
    assert spec_of(folder).accepts_images
    monkeypatch.setattr(unlisted, "_obstacle_in_arguments", lambda _: "it is too strange")
    unlisted._support.cache_clear()
    with caplog.at_level(logging.WARNING), running_engine(folder) as engine:
        assert tokens(run_requests(engine, [ask(folder, "Only text.")])) == [answer(folder, "Only text.")]
    assert "images are refused: it is too strange" in caplog.messages
    assert not spec_of(folder).accepts_images
