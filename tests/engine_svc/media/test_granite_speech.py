"""Granite Speech answers as Transformers does, however the work is split."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine_svc.requests.request import GenerationRequest
from quire.media import MediaKind
from tests.support.audio_files import Samples, audio_file, sine
from tests.support.granite_speech_models import TOKEN, make_granite_speech, reference_answer
from tests.support.media_requests import media_request
from tests.support.run_engine import GREEDY, run_requests, running_engine, tokens
from tokenizer_svc.media import Medium

ANSWER = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_granite_speech(tmp_path_factory.mktemp("granite"))


def request_of(folder: Path, *audios: Samples) -> GenerationRequest:
    media = [Medium(MediaKind.AUDIO, (audio_file(each, "wavf"),)) for each in audios]
    messages = [{"role": "user", "content": f"{TOKEN * len(audios)}can you transcribe the speech?"}]
    return media_request(folder, messages, media, replace(GREEDY, max_tokens=ANSWER))


def test_answers(folder: Path) -> None:
    """Together and in small chunks that split audio, with and without what the prefix cache has of it."""
    requests = [request_of(folder, sine(0.1)), request_of(folder, sine(2.3)), request_of(folder)]
    assert [each.images[0].num_tokens if each.images else 0 for each in requests] == [3, 24, 0]
    expected = [reference_answer(folder, request, ANSWER) for request in requests]
    with running_engine(folder, max_num_batched_tokens=7, max_num_seqs=4, block_size=4) as engine:
        assert tokens(run_requests(engine, requests)) == expected
        assert tokens(run_requests(engine, [*requests, request_of(folder, sine(0.1), sine(2.3))]))[:-1] == expected
