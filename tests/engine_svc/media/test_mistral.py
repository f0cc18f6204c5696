"""Mistral's models that see or hear answer as Transformers does, from either layout of their files."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from engine_svc.config_formats.mistral import from_mistral
from engine_svc.loader.formats.registry import create_format
from quire.errors import StartupError
from quire.media import MediaKind
from quire.options.load import LoadOptions
from tests.support.audio_files import audio_file, sine
from tests.support.folders import FolderOf, made_once
from tests.support.mistral_media import FAMILIES, as_mistrals, make_mistral_model, mistral_request, reference_answer
from tests.support.run_engine import GREEDY, run_requests, running_engine, tokens
from tests.support.vision_models.making import random_image

ANSWER = 6
SAMPLING = replace(GREEDY, max_tokens=ANSWER)


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def png(width: int, height: int, seed: int) -> bytes:
    file = io.BytesIO()
    random_image(width, height, seed).save(file, "PNG")
    return file.getvalue()


FILES = {
    MediaKind.IMAGE: (png(50, 40, 1), png(90, 30, 2)),
    MediaKind.AUDIO: (audio_file(sine(1.7), "wavf"), audio_file(sine(4.3, 880, seed=1), "wavf")),
}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    return made_once(tmp_path_factory, make_mistral_model)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "voxtral_realtime"])
def test_answers(folder_of: FolderOf, tmp_path: Path, family: str) -> None:
    """Together and in small chunks that split media, with and without what the prefix cache has of them."""
    folder, kind = folder_of(family), FAMILIES[family].kind
    one, two = FILES[kind]
    medium = {"type": str(kind)}
    cases = [
        (user(medium, text("What is it?")), [one]),
        (user(text("First"), medium, text("and then"), medium), [two, one]),
        (user(text("Nothing but text.")), []),
    ]
    requests = [mistral_request(folder, messages, files, SAMPLING, kind) for messages, files in cases]
    if kind is MediaKind.AUDIO:
        requests.append(mistral_request(folder, user(medium), [two], SAMPLING, kind, transcription="de"))
    expected = [reference_answer(folder, family, request, ANSWER) for request in requests]
    assert len({tuple(answer) for answer in expected}) == len(expected)
    mistrals = as_mistrals(folder, tmp_path / "mistral", family)
    for place, options in ((folder, {}), (mistrals, {"max_num_batched_tokens": 7, "max_num_seqs": 4, "block_size": 4})):
        with running_engine(place, **options) as engine:
            assert tokens(run_requests(engine, requests)) == expected
            again = run_requests(engine, requests)
            assert tokens(again) == expected
            cached = [choices[0].usage.cached_prompt_tokens for choices in again if choices[0].usage]
            assert all(count for count, request in zip(cached, requests, strict=True) if request.images)


def test_text_alone_needs_no_encoder(folder_of: FolderOf, tmp_path: Path) -> None:
    mistrals = as_mistrals(folder_of("voxtral"), tmp_path / "mistral", "voxtral")
    request = mistral_request(mistrals, user(text("Text.")), [], SAMPLING, MediaKind.AUDIO)
    with running_engine(mistrals, limit_mm_per_prompt="audio=0") as engine:
        found = tokens(run_requests(engine, [request]))
    assert found == [reference_answer(folder_of("voxtral"), "voxtral", request, ANSWER)]


def rounded(weight: torch.Tensor, each_output: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight in 8 bits, and its scale, or that of each output."""
    scale = (weight.abs().amax(1, keepdim=True) if each_output else weight.abs().max()) / 448
    return (weight / scale).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize("each_output", [False, True])
def test_text_models_of_eight_bits(folder_of: FolderOf, tmp_path: Path, each_output: bool) -> None:
    """As Ministral 3 is published: only the layers of the text model are quantized."""
    original = Path(shutil.copytree(folder_of("mistral3"), tmp_path / "original"))
    tensors = load_file(original / "model.safetensors")
    for name in [name for name in tensors if re.search(r"language_model.*_proj\.weight", name)]:
        weight, scale = rounded(tensors[name], each_output)
        tensors[name] = weight.float() * scale
    save_file(tensors, original / "model.safetensors", metadata={"format": "pt"})
    folder = as_mistrals(original, tmp_path / "mistral", "mistral3")
    tensors = load_file(folder / "consolidated.safetensors")
    for name in [name for name in tensors if re.match(r"layers\.\d+\.(attention|feed_forward)\.", name)]:
        module = name.removesuffix(".weight")
        tensors[name], tensors[f"{module}.qscale_weight"] = rounded(tensors[name], each_output)
        tensors[f"{module}.qscale_act"] = torch.tensor(1.0)
    save_file(tensors, folder / "consolidated.safetensors")
    params = json.loads((folder / "params.json").read_text())
    quantization = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    (folder / "params.json").write_text(json.dumps(params | {"quantization": quantization}))
    messages = user({"type": "image"}, text("What is it?"))
    request = mistral_request(folder, messages, [FILES[MediaKind.IMAGE][0]], SAMPLING, MediaKind.IMAGE)
    with running_engine(folder) as engine:
        assert tokens(run_requests(engine, [request])) == [reference_answer(original, "mistral3", request, ANSWER)]


HEARS: dict[str, Any] = {"encoder_args": {"dim": 32, "hidden_dim": 128}}


def hearing(settings: dict[str, Any]) -> dict[str, Any]:
    return {"vision_encoder": None, "multimodal": {"whisper_model_args": settings}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vision_encoder": {"hidden_size": None, "num_attention_heads": 2}}, "has an invalid value"),
        ({"vision_encoder": {"hidden_size": 32}}, "lacks 'num_attention_heads'"),
        ({"vision_encoder": {"mm_projector_id": "patch_merge"}}, "has only one of mm_projector_id"),
        ({"multimodal": {"whisper_model_args": HEARS}}, "encoders of both images and audio"),
        (hearing({"a": 1}), "lacks 'encoder_args'"),
        (hearing({"encoder_args": {"causal": True}}), "lacks 'audio_encoding_args'"),
        (hearing({"encoder_args": {"pos_embed": "rope"}}), "pos_embed 'rope' of an encoder that is not causal"),
        (hearing(HEARS | {"downsample_args": {"downsample_factor": 8}}), "downsample_factor 8"),
    ],
)  # fmt: skip
def test_what_params_may_not_say(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    params = {"dim": 64, "n_layers": 2, "n_heads": 4, "vision_encoder": FAMILIES["mistral3"].params["vision_encoder"]}
    with pytest.raises(StartupError, match=words):
        from_mistral(params | changes)
    (tmp_path / "params.json").write_text(json.dumps(params | changes))
    with pytest.raises(StartupError, match=words):
        create_format(tmp_path, LoadOptions(load_format="mistral"))
