"""Whether an image encoder is loaded, and what the configuration of its model may leave out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_svc.media import encoder_model
from engine_svc.media.encoder import ImageEncoder
from engine_svc.models.registry import config_for, text_part
from engine_svc.plan import KvCacheSpec
from engine_svc.requests.request import RequestLimits
from engine_svc.requests.validation import validate
from quire.errors import InvalidRequest, StartupError
from quire.media import MediaKind
from tests.engine_svc.media.conftest import VisionFolder
from tests.support.quantized import quantized_model
from tests.support.quantized_floats import float8
from tests.support.run_engine import run_requests, running_engine, spec_of, tokens
from tests.support.vision_models import random_image
from tests.support.vision_models.conversations import answer, ask

ONE, OTHER = random_image(60, 40, 1), random_image(60, 40, 2)
IMAGES = frozenset({MediaKind.IMAGE})
# Of Llama 4, the projector is a part of the whole model.
families = pytest.mark.parametrize("family", ["llama4", "llava", "qwen2_5_vl", "qwen3_vl"])


def limits(spec: KvCacheSpec) -> RequestLimits:
    return RequestLimits(
        ("m",),
        spec.vocab_size,
        spec.max_model_len,
        5,
        "fcfs",
        accepts_media=spec.accepts_images or spec.accepts_videos,
    )


@families
@pytest.mark.parametrize("limit", ["image=0,video=0", '{"image": 0, "video": 0}'])
def test_without_images_no_encoder_is_loaded(
    vision_folder: VisionFolder, monkeypatch: pytest.MonkeyPatch, family: str, limit: str
) -> None:
    folder = vision_folder(family)
    with_image, text = ask(folder, ONE), ask(folder, "Only text.")
    validate(with_image, limits(spec_of(folder)))

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an encoder is loaded")

    monkeypatch.setattr(encoder_model, "load_encoder", refuse)
    refusing = limits(spec_of(folder, limit_mm_per_prompt=limit))
    validate(text, refusing)
    with pytest.raises(InvalidRequest, match="reads text only"):
        validate(with_image, refusing)
    with running_engine(folder, limit_mm_per_prompt=limit) as engine:
        assert tokens(run_requests(engine, [text])) == [answer(folder, "Only text.")]


def test_a_step_has_room_for_a_whole_image_beside_all_that_decode(vision_folder: VisionFolder) -> None:
    """By default, if a step must compute the whole image. Here it has 16 tokens."""
    folder = vision_folder("gemma3")
    for name, value, most in (("max_num_seqs", 300, 316), ("max_num_seqs", 4, 256), ("max_num_batched_tokens", 16, 16)):
        spec = spec_of(folder, **{name: value})
        assert (spec.max_num_batched_tokens, spec.bidirectional_images) == (most, True)
    with pytest.raises(StartupError, match="is 9, but a step computes all of an image, which has 16 tokens: raise it"):
        spec_of(folder, max_num_batched_tokens=9)
    spec = spec_of(folder, max_num_seqs=300, limit_mm_per_prompt="image=0")
    assert (spec.max_num_batched_tokens, spec.bidirectional_images) == (256, False)


def test_videos_alone(vision_folder: VisionFolder) -> None:
    """The encoder is loaded if only one kind is wanted, and each kind only counts for models that read it."""
    read = [
        (spec.accepts_images, spec.accepts_videos)
        for family in ("qwen2_5_vl", "llava")
        for limit in ("", "image=0", "video=0", "image=0,video=0")
        for spec in [spec_of(vision_folder(family), limit_mm_per_prompt=limit)]
    ]
    assert read == [
        (True, True), (False, True), (True, False), (False, False), (True, False), (False, False), (True, False),
        (False, False),
    ]  # fmt: skip


@families
def test_random_weights_take_images(vision_folder: VisionFolder, tmp_path: Path, family: str) -> None:
    """Each time they are the same for the same seed, as on all ranks; there need not be a file with weights."""
    asked = [ask(vision_folder(family), image) for image in (ONE, OTHER)]
    shutil.copy(vision_folder(family) / "config.json", tmp_path)
    answers = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(answers))
        with running_engine(tmp_path, load_format="dummy", seed=seed) as engine:
            answers.append(tokens(run_requests(engine, asked)))
    assert {len(each) for found in answers for each in found} == {12}
    assert answers[0] == answers[1] != answers[2]


@families
def test_random_weights_leave_other_random_numbers_alone(vision_folder: VisionFolder, family: str) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert spec_of(vision_folder(family), load_format="dummy").accepts_images
    assert torch.equal(torch.rand(3), expected)


@families
def test_other_formats_have_the_encoder_too(vision_folder: VisionFolder, tmp_path: Path, family: str) -> None:
    """Of other formats, all tensors are read by Quire, not by Transformers."""
    folder = vision_folder(family)
    shutil.copy(folder / "config.json", tmp_path)
    torch.save(load_file(folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    with running_engine(tmp_path, load_format="pt") as engine:
        assert tokens(run_requests(engine, [ask(folder, ONE)])) == [answer(folder, ONE)]


def test_a_checkpoint_without_an_encoder_is_told_of(vision_folder: VisionFolder, tmp_path: Path) -> None:
    folder = vision_folder("llava")
    shutil.copy(folder / "config.json", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "vision_tower" not in name}
    assert len(kept) < len(tensors)
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(StartupError, match=r"lacks weights of the encoder.*-per-prompt image=0,video=0"):
        spec_of(tmp_path)
    with running_engine(tmp_path, limit_mm_per_prompt="image=0,video=0") as engine:
        assert tokens(run_requests(engine, [ask(folder, "Text.")])) == [answer(folder, "Text.")]


def test_the_encoder_of_a_quantized_model_is_not_quantized(vision_folder: VisionFolder, tmp_path: Path) -> None:
    """As in Llama 4 Maverick in FP8, whose configuration names what is not."""
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    kept = ("lm_head", "self_attn", "router", "feed_forward.experts", "vision_model", "multi_modal_projector")
    settings = {
        "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": [f"re:.*{name}" for name in kept],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip
    original = vision_folder("llama4")
    made = quantized_model(original, tmp_path, lambda weight: float8(weight, (1, 10**6)), settings, skipped=kept)
    asked = ask(original, ONE, "What is it?")
    expected = answer(made.plain, ONE, "What is it?")
    assert expected != answer(original, ONE, "What is it?")
    with running_engine(made.packed) as engine:
        assert tokens(run_requests(engine, [asked])) == [expected]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotations_stay_complex_in_16_bits(vision_folder: VisionFolder, dtype: torch.dtype) -> None:
    folder, image = vision_folder("llama4"), ask(vision_folder("llama4"), ONE).images[0]
    config, device = json.loads((folder / "config.json").read_text()), torch.device("cpu")
    exact, found = (
        ImageEncoder(encoder_model.load_encoder(folder, config, each, device, None), IMAGES, each, device)
        for each in (torch.float32, dtype)
    )
    expected = exact.encode(image).embeddings
    error = found.encode(image).embeddings.float() - expected
    assert 0 < error.norm() < 0.05 * expected.norm()


def test_a_part_for_whole_images_is_not_needed(vision_folder: VisionFolder, tmp_path: Path) -> None:
    """SigLIP's head, which Transformers adds if the configuration does not say otherwise."""
    original = vision_folder("cohere2_vision")
    folder = shutil.copytree(original, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    assert config["vision_config"].pop("vision_use_head") is False
    (folder / "config.json").write_text(json.dumps(config))
    with running_engine(folder) as engine:
        assert tokens(run_requests(engine, [ask(original, ONE)])) == [answer(original, ONE)]


# https://huggingface.co/llava-hf/llava-1.5-7b-hf/blob/main/config.json
LLAVA_1_5: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_token_index": 32000,
    "model_type": "llava", "pad_token_id": 32001, "projector_hidden_act": "gelu",
    "text_config": {
        "_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096, "model_type": "llama", "rms_norm_eps": 1e-05, "torch_dtype": "float16",
        "vocab_size": 32064,
    },
    "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.36.0.dev0",
    "vision_config": {
        "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
        "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
        "vocab_size": 32000,
    },
    "vision_feature_layer": -2, "vision_feature_select_strategy": "default",
}  # fmt: skip


def test_what_a_published_configuration_leaves_out_is_as_in_llama() -> None:
    """The sizes are those of Llama 2 7B: Touvron et al. 2023, and its own config.json."""
    found = config_for(text_part(LLAVA_1_5))
    assert (found.architecture, found.dtype) == ("LlamaForCausalLM", "float16")
    assert (found.hidden_size, found.intermediate_size, found.num_layers) == (4096, 11008, 32)
    assert (found.num_heads, found.num_kv_heads, found.head_dim, found.rotary_dim) == (32, 32, 128, 128)
    assert (found.vocab_size, found.max_position_embeddings, found.norm_eps) == (32064, 4096, 1e-05)
    assert found.rope_parameters["rope_theta"] == 10000.0
    assert found.rope_parameters.get("rope_type", "default") == "default"
    assert found.attention_scale == pytest.approx(128**-0.5)
    assert not found.tie_word_embeddings
    assert not found.qkv_bias
    assert found.norm == "rms"
