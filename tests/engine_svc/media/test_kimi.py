"""Kimi K2.5 as it is published: with its own processor's settings, and experts of 4 bits beside a plain encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.errors import StartupError
from tests.engine_svc.media.conftest import VisionFolder
from tests.support.quantized import Quantized, quantized_model
from tests.support.quantized_floats import words
from tests.support.run_engine import run_requests, running_engine, spec_of, tokens
from tests.support.vision_models import random_image
from tests.support.vision_models.conversations import answer, ask

ONE, OTHER = random_image(60, 40, 1), random_image(150, 20, 2)
QUESTIONS = (("Look: ", ONE, "What is it?"), (OTHER, ONE), ("Only text.",))
GROUP = 16
# As in https://huggingface.co/moonshotai/Kimi-K2.5, but for the sizes.
SETTINGS: dict[str, Any] = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
    "config_groups": {"group_0": {
        "targets": ["Linear"], "input_activations": None, "output_activations": None,
        "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP},
    }},
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
    "kv_cache_scheme": None,
}  # fmt: skip
MEDIA: dict[str, Any] = {
    "in_patch_limit": 60, "patch_size": 7, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "merge_kernel_size": 2,
    "fixed_output_tokens": None, "patch_limit_on_one_side": 12, "in_patch_limit_each_frame": 40,
    "in_patch_limit_video": None, "sample_fps": 2.0, "max_num_frames_each_video": None,
    "temporal_merge_kernel_size": 4, "timestamp_mode": "hh:mm:ss.fff",
}  # fmt: skip
CLASSES = {
    "AutoImageProcessor": "kimi_k25_vision_processing.KimiK25VisionProcessor",
    "AutoProcessor": "kimi_k25_processor.KimiK25Processor",
}


@pytest.fixture(scope="module")
def published(vision_folder: VisionFolder, tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    """The plain folder is in Transformers' layout."""
    kept = ("self_attn", "shared_experts", "layers.0.", "vision_tower", "mm_projector", "lm_head")
    found = quantized_model(
        vision_folder("kimi_k25"), tmp_path_factory.mktemp("kimi"), lambda weight: words(weight, 4, GROUP), {},
        skipped=kept,
    )  # fmt: skip
    config = json.loads((found.packed / "config.json").read_text())
    del config["quantization_config"]
    config["architectures"] = ["KimiK25ForConditionalGeneration"]
    config["text_config"] |= {"model_type": "kimi_k2", "quantization_config": SETTINGS}
    config["vision_config"] |= {"_attn_implementation": "flash_attention_2"}
    config["vision_config"]["model_type"] = ""
    (found.packed / "config.json").write_text(json.dumps(config))
    (found.packed / "processor_config.json").unlink()
    (found.packed / "preprocessor_config.json").write_text(json.dumps({"media_proc_cfg": MEDIA, "auto_map": CLASSES}))
    return found


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 7, "block_size": 4}], ids=["whole", "chunks"])
def test_images(published: Quantized, options: dict[str, Any]) -> None:
    asked = [ask(published.packed, *parts) for parts in QUESTIONS]
    expected = [answer(published.plain, *parts) for parts in QUESTIONS]
    with running_engine(published.packed, **options) as engine:
        assert tokens(run_requests(engine, asked)) == expected
        assert tokens(run_requests(engine, asked)) == expected


def test_text_alone(published: Quantized) -> None:
    limit = {"limit_mm_per_prompt": "image=0"}
    assert not spec_of(published.packed, **limit).accepts_images
    with running_engine(published.packed, **limit) as engine:
        assert tokens(run_requests(engine, [ask(published.packed, "Only text.")])) == [
            answer(published.plain, "Only text.")
        ]


def test_weights_of_the_encoder_in_4_bits_are_refused(vision_folder: VisionFolder, tmp_path: Path) -> None:
    kept = ("self_attn", "shared_experts", "layers.0.", "vision_tower", "lm_head")
    found = quantized_model(
        vision_folder("kimi_k25"), tmp_path, lambda weight: words(weight, 4, GROUP), SETTINGS, skipped=kept
    )
    with pytest.raises(StartupError, match=r"lacks weights of the encoder.*mm_projector"):
        spec_of(found.packed)
