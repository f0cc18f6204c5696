"""Gemma 4 with audio, beside images and videos, answers as Transformers does; only what it has is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from PIL.Image import Image
from safetensors.torch import load_file, save_file

from engine_svc.loader.names import is_of_text
from engine_svc.media import encoder_model
from engine_svc.media.audio import AudioEncoder
from engine_svc.media.encoder_model import load_encoder
from engine_svc.media.unfit import UnfitImage
from quire.images import FEATURES
from quire.media import MediaKind
from tests.engine_svc.media.conftest import VisionFolder
from tests.support.audio_files import Samples, sine
from tests.support.media_requests import media_request
from tests.support.run_engine import GREEDY, run_requests, running_engine, spec_of, tokens
from tests.support.tensor_executor import TensorExecutor
from tests.support.vision_models import random_frames, random_image, reference_generate
from tests.support.vision_models.conversations import Part, answer, ask, with_inputs
from tests.support.vision_models.prompts import medium_of, request_of

ANSWER = 6
SAMPLING = replace(GREEDY, max_tokens=ANSWER)
SEEN, FILM = random_image(60, 40, 1), random_frames(30, 40, 3, 2)
HEARD, OTHER = sine(1.69), sine(2.9, 800)  # the first is filled up so far that it would have one more token
IMAGE, VIDEO, AUDIO = ({"type": kind} for kind in ("image", "video", "audio"))
CPU = torch.device("cpu")


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


Film = Sequence[Image]
# Parts of a message, and the images, videos and audios among them.
CASES: list[tuple[list[Any], list[Image], list[Film], list[Samples]]] = [
    ([AUDIO, text("What is it?")], [], [], [HEARD]),
    ([text("a"), AUDIO, text("b"), IMAGE, text("c"), AUDIO], [SEEN], [], [HEARD, OTHER]),
    ([text("a"), VIDEO, AUDIO, text("b")], [], [FILM], [OTHER]),
    ([text("Nothing but text.")], [], [], []),
]


@pytest.fixture
def folder(vision_folder: VisionFolder) -> Path:
    return vision_folder("gemma4")


@pytest.mark.usefixtures("at_once")  # so that steps have images of some sequences beside audio of others
@pytest.mark.parametrize(("family", "chunk"), [("gemma4", 7), ("gemma4_unified", 73)])
def test_answers(vision_folder: VisionFolder, family: str, chunk: int, caplog: pytest.LogCaptureFixture) -> None:
    """Together and in small chunks that split media, with and without what the prefix cache has of them.

    Images of the model without an encoder are never split, but audio is.
    """
    folder = vision_folder(family)
    requests, expected = [], []
    for parts, images, films, audios in CASES:
        messages = [{"role": "user", "content": parts}]
        media = [medium_of(each) for each in (*images, *films, *audios)]
        requests.append(media_request(folder, messages, media, SAMPLING))
        # Transformers' audio encoder does not run in float64.
        prompt, wanted = reference_generate(
            folder, messages, images, ANSWER, torch.float32, videos=films, audios=audios
        )
        assert requests[-1].prompt_token_ids == prompt
        expected.append(wanted)
    assert len({tuple(each) for each in expected}) == len(CASES)
    for options in ({}, {"max_num_batched_tokens": chunk, "max_num_seqs": 3, "block_size": 4}):
        with running_engine(folder, 512, **options) as engine:
            assert tokens(run_requests(engine, requests)) == expected
            assert tokens(run_requests(engine, requests)) == expected
    assert "cannot run together" not in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        {"max_soft_tokens": 140},
        {"do_normalize": True, "image_mean": [0.0, 0.25, 0.5], "image_std": [1.0, 0.5, 0.25]},
    ],
    ids=lambda settings: min(settings),
)
def test_settings_of_images(folder: Path, settings: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": [IMAGE, text("What is it?")]}]
    request = request_of(folder, messages, [SEEN], SAMPLING, settings)
    prompt, wanted = reference_generate(folder, messages, [SEEN], ANSWER, settings=settings)
    assert request.prompt_token_ids == prompt
    assert wanted != reference_generate(folder, messages, [SEEN], ANSWER)[1]
    with running_engine(folder) as engine:
        assert tokens(run_requests(engine, [request])) == [wanted]


@pytest.mark.parametrize("further", [{}, {"enable_dbo": True, "dbo_prefill_token_threshold": 8}], ids=str)
def test_ranks_see_whole_images(vision_folder: VisionFolder, further: dict[str, Any]) -> None:
    """Of the large models, in layers with a window."""
    folder = vision_folder("gemma4_large")
    conversations: list[tuple[Part, ...]] = [("Look: ", SEEN, "What is it?"), (FILM[0], SEEN), ("Only text.",)]
    asked = [ask(folder, *parts) for parts in conversations]
    options = {"max_num_batched_tokens": 73, "max_num_seqs": 3, "cpu_threads": 1} | further
    expected = [answer(folder, *parts) for parts in conversations]
    with running_engine(folder, executor=TensorExecutor(), tensor_parallel_size=2, **options) as engine:
        assert tokens(run_requests(engine, asked)) == expected
        assert tokens(run_requests(engine, asked)) == expected


AUDIO_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no mask": ({"input_features_mask": None}, "it needs input_features and a mask"),
    "mels first": ({FEATURES: np.zeros((1, 16, 160), np.float32)}, "takes float32 [1, up to 3000, 16]"),
    "two rows": ({FEATURES: np.zeros((2, 160, 16), np.float32)}, "takes float32 [1, up to 3000, 16]"),
    "longer than any": (
        {FEATURES: np.zeros((1, 3001, 16), np.float32), "input_features_mask": np.ones((1, 3001), np.bool_)},
        "takes float32 [1, up to 3000, 16]",
    ),
    "another mask": ({"input_features_mask": np.ones((1, 7), np.bool_)}, "input_features_mask must be bool [1, "),
    "all padding": (
        {FEATURES: np.zeros((1, 160, 16), np.float32), "input_features_mask": np.zeros((1, 160), np.bool_)},
        "must be true from the start of each row on",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AUDIO_FAULTS)
def test_audio_that_does_not_fit(folder: Path, name: str) -> None:
    changes, words = AUDIO_FAULTS[name]
    config = json.loads((folder / "config.json").read_text())
    model = load_encoder(folder, config, torch.float32, CPU, None)
    encoder = AudioEncoder(model, frozenset({MediaKind.AUDIO}), torch.float32, CPU)
    request = media_request(folder, [{"role": "user", "content": [AUDIO]}], [medium_of(HEARD)], SAMPLING)
    assert len(encoder.encode(request.images[0]).embeddings) == request.images[0].num_tokens
    with pytest.raises(UnfitImage) as caught:
        encoder.encode(with_inputs(request, **changes).images[0])
    assert words in str(caught.value)


def test_samples_that_do_not_fit(vision_folder: VisionFolder) -> None:
    """Of the model without an encoder, those of an embedding are in each row."""
    folder = vision_folder("gemma4_unified")
    config = json.loads((folder / "config.json").read_text())
    model = load_encoder(folder, config, torch.float32, CPU, None)
    encoder = AudioEncoder(model, frozenset({MediaKind.AUDIO}), torch.float32, CPU)
    heard = HEARD[:1000]
    request = media_request(folder, [{"role": "user", "content": [AUDIO]}], [medium_of(heard)], SAMPLING)
    assert len(encoder.encode(request.images[0]).embeddings) == request.images[0].num_tokens == 4
    for shape in ((1, 4, 640), (2, 4, 320), (1, 3001, 320)):
        with pytest.raises(UnfitImage, match=r"takes float32 \[1, up to 3000, 320\]"):
            encoder.encode(with_inputs(request, **{FEATURES: np.zeros(shape, np.float32)}).images[0])


def test_encoders_have_what_the_checkpoint_has_for_them(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    found = load_encoder(folder, config, torch.float32, CPU, None).state_dict()
    wanted = {name: value for name, value in load_file(folder / "model.safetensors").items() if not is_of_text(name)}
    assert {f"model.{name}" for name in found} == wanted.keys()
    assert all(torch.equal(value, wanted[f"model.{name}"]) for name, value in found.items())
    parts = {name.split(".")[0] for name in found}
    assert parts == {"vision_tower", "audio_tower", "embed_vision", "embed_audio"}


def test_nothing_else_is_read_for_encoders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above all not the embeddings of all tokens for all layers, which are most of the smallest model."""
    monkeypatch.setattr(encoder_model, "TEXT_MODELS", ())  # so that what there was of the text model is kept
    config = json.loads((folder / "config.json").read_text())
    text_model = load_encoder(folder, config, torch.float32, CPU, None).language_model
    assert {name: list(value.shape) for name, value in text_model.state_dict().items()} == {
        "embed_tokens.weight": [1, 64], "norm.weight": [64],
    }  # fmt: skip


@pytest.mark.parametrize("deaf", [True, False])
def test_models_that_do_not_hear(folder: Path, tmp_path: Path, deaf: bool) -> None:
    """The larger ones."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    if deaf:
        config = json.loads((folder / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"audio_config": None}))
        tensors = load_file(folder / "model.safetensors")
        kept = {name: value for name, value in tensors.items() if "audio" not in name}
        assert len(kept) < len(tensors)
        save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    spec = spec_of(tmp_path)
    assert (spec.accepts_images, spec.accepts_videos, spec.accepts_audio) == (True, True, not deaf)
    with running_engine(tmp_path) as engine:
        assert tokens(run_requests(engine, [ask(folder, SEEN)])) == [answer(folder, SEEN)]
