"""Gemma 3n with audio answers as Transformers does; checkpoints are as published, with an encoder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from quire.errors import QuireError
from quire.media import MediaKind
from tests.support.audio_files import Samples, audio_file, sine
from tests.support.gemma3n_models import make_gemma3n, reference_generate
from tests.support.media_requests import media_request
from tests.support.run_engine import GREEDY, outcomes, run_requests, running_engine, tokens
from tests.support.vision_models.conversations import with_inputs
from tokenizer_svc.media import Medium

ANSWER = 10
SAMPLING = replace(GREEDY, max_tokens=ANSWER)
AUDIO = {"type": "audio"}


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


# Parts of a message, and the audios among them. Transformers fills audios of a prompt up to the length of the longest.
CASES: list[tuple[list[Any], list[Samples]]] = [
    ([AUDIO, text("What is it?")], [sine(0.3)]),
    ([text("a"), AUDIO, text("b"), AUDIO], [sine(0.9, 600), sine(0.9, 800, seed=2)]),
    ([text("Nothing but text.")], []),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gemma3n(tmp_path_factory.mktemp("gemma3n"))


def request_of(folder: Path, parts: list[Any], audios: list[Samples]) -> Any:
    media = [Medium(MediaKind.AUDIO, (audio_file(audio, "wavf"),)) for audio in audios]
    return media_request(folder, [{"role": "user", "content": parts}], media, SAMPLING)


def test_answers(folder: Path) -> None:
    """Together and in small chunks that split audios, with and without what the prefix cache has of them."""
    requests, expected = [], []
    for parts, audios in CASES:
        requests.append(request_of(folder, parts, audios))
        prompt, wanted = reference_generate(folder, [{"role": "user", "content": parts}], audios, ANSWER)
        assert requests[-1].prompt_token_ids == prompt
        expected.append(wanted)
    assert len({tuple(each) for each in expected}) == len(CASES)
    for options in ({}, {"max_num_batched_tokens": 7, "max_num_seqs": 3, "block_size": 4}):
        with running_engine(folder, **options) as engine:
            assert tokens(run_requests(engine, requests)) == expected
            assert tokens(run_requests(engine, requests)) == expected
    with running_engine(folder, limit_mm_per_prompt="audio=0") as engine:
        assert tokens(run_requests(engine, requests[-1:])) == expected[-1:]


def test_what_does_not_fit_fails_alone(folder: Path) -> None:
    good = request_of(folder, *CASES[0])
    wrong = with_inputs(good, input_features=np.zeros((1, 9, 8), np.float32))
    with running_engine(folder) as engine:
        (_, error), (answer, none) = outcomes(engine, [wrong, good])
    assert isinstance(error, QuireError)
    assert "takes float32 [1, up to 3000, 16]" in error.message
    assert none is None
    assert len(answer) == ANSWER
