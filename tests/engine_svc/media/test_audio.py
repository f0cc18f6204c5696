"""Greedy float32 output for prompts with audio equals Transformers', token for token, however the work is split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from quire.errors import QuireError, StartupError
from tests.support.audio_files import Samples, sine
from tests.support.audio_models import FAMILIES, audio_request, make_audio_model, reference_generate
from tests.support.folders import FolderOf, made_once
from tests.support.run_engine import GREEDY, outcomes, run_requests, running_engine, tokens
from tests.support.vision_models.conversations import with_inputs

ANSWER = 6


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


AUDIO = {"type": "audio"}
# Conversations, with their audios: shorter and longer than a piece of two seconds, and two in a prompt.
CASES: list[tuple[list[dict[str, Any]], list[Samples]]] = [
    ([{"role": "user", "content": [AUDIO, text("What is heard?")]}], [sine(1.7)]),
    (
        [{"role": "user", "content": [text("Listen:"), AUDIO, text("again"), AUDIO]}],
        [sine(1.1, 900, seed=3), sine(2.0, 600, seed=2)],
    ),
    ([{"role": "user", "content": [text("No sound at all.")]}], []),
]  # fmt: skip
LONG = ([{"role": "user", "content": [AUDIO, text("All of it?")]}], [sine(4.3, 880, seed=1)])
ONE_PIECE = ("qwen2_audio",)  # takes no longer ones


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    return made_once(tmp_path_factory, make_audio_model)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_families(folder_of: FolderOf, family: str) -> None:
    """Together; and in small chunks that split audios, with and without what the prefix cache has of them."""
    folder = folder_of(family)
    cases = CASES if family in ONE_PIECE else [*CASES, LONG]
    expected = [reference_generate(folder, messages, audios, ANSWER) for messages, audios in cases]
    sampling = replace(GREEDY, max_tokens=ANSWER)
    requests = [audio_request(folder, messages, audios, sampling) for messages, audios in cases]
    assert [request.prompt_token_ids for request in requests] == [prompt for prompt, _ in expected]
    answers = [answer for _, answer in expected]
    with running_engine(folder) as engine:
        assert tokens(run_requests(engine, requests)) == answers
    with running_engine(folder, max_num_batched_tokens=7, max_num_seqs=4, block_size=4) as engine:
        assert tokens(run_requests(engine, requests)) == answers
        again = run_requests(engine, requests)
        assert tokens(again) == answers
        assert all(choices[0].usage and choices[0].usage.cached_prompt_tokens for choices in again)


def test_random_weights(folder_of: FolderOf) -> None:
    folder = folder_of("audioflamingo3")
    request = audio_request(folder, *CASES[0], replace(GREEDY, max_tokens=ANSWER))
    answers = []
    for seed in (3, 3, 4):
        with running_engine(folder, load_format="dummy", seed=seed) as engine:
            answers.append(tokens(run_requests(engine, [request])))
    assert answers[0] == answers[1] != answers[2]


def test_without_audio_it_is_a_text_model(folder_of: FolderOf) -> None:
    folder = folder_of("qwen2_audio")
    _, expected = reference_generate(folder, *CASES[2], ANSWER)
    request = audio_request(folder, *CASES[2], replace(GREEDY, max_tokens=ANSWER))
    with running_engine(folder, limit_mm_per_prompt="audio=0") as engine:
        assert tokens(run_requests(engine, [request])) == [expected]


MASK, FRAMES = "input_features_mask", 200


FAULTS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "glmasr": [
        ({"input_features": None}, "needs input_features and a mask"),
        ({MASK: None}, "needs input_features and a mask"),
        ({"input_features": np.zeros((1, 16, 100), np.float32)}, "takes float32 [rows, 16, 200]"),
        ({"input_features": np.zeros((1, 8, 200), np.float32)}, "takes float32 [rows, 16, 200]"),
        ({"input_features": np.zeros((1, 16, 200), np.uint8)}, "takes float32 [rows, 16, 200]"),
        ({"input_features": np.zeros((16, 200), np.float32)}, "takes float32 [rows, 16, 200]"),
        ({MASK: np.ones((1, 100), np.bool_)}, "must be bool [1, 200]"),
        ({MASK: np.ones((1, FRAMES), np.int64)}, "must be bool [1, 200]"),
        ({MASK: np.arange(FRAMES)[None] % 2 == 0}, "and then false to its end"),
        ({MASK: np.zeros((1, FRAMES), np.bool_)}, "true from the start"),
        ({MASK: np.ones((1, FRAMES), np.bool_)}, "embeddings for"),
    ],
    "qwen3_asr": [
        ({"input_features": np.zeros((1, 16, 250), np.float32)}, "takes float32 [1, 16, n * 100]"),
        ({"input_features": np.zeros((2, 16, 200), np.float32)}, "takes float32 [1, 16, n * 100]"),
    ],
}


@pytest.mark.parametrize("family", FAULTS)
def test_what_does_not_fit_fails_alone(folder_of: FolderOf, family: str) -> None:
    folder = folder_of(family)
    good = audio_request(folder, *CASES[0], replace(GREEDY, max_tokens=ANSWER))
    with running_engine(folder) as engine:
        for inputs, words in FAULTS[family]:
            (_, error), (answer, none) = outcomes(engine, [with_inputs(good, **inputs), good])
            assert isinstance(error, QuireError)
            assert words in error.message
            assert none is None
            assert len(answer) == ANSWER


def test_the_layout_of_qwens_own_package_is_refused(folder_of: FolderOf, tmp_path: Path) -> None:
    config = json.loads((folder_of("qwen3_asr") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "thinker_config": {}}))
    with pytest.raises(StartupError, match="take the one in Transformers' layout"), running_engine(tmp_path):
        pass
