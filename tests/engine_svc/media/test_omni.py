"""Models that both see and hear answer as Transformers does, however the work is split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from quire.media import MediaKind
from tests.support.audio_files import sine
from tests.support.films import film
from tests.support.folders import FolderOf, made_once
from tests.support.omni_models import FAMILIES, make_omni_model, omni_request, reference_answer
from tests.support.run_engine import GREEDY, outcomes, run_requests, running_engine, spec_of, tokens
from tests.support.vision_models.conversations import with_image, with_inputs
from tests.support.vision_models.making import random_frames, random_image

ANSWER = 10
SAMPLING = replace(GREEDY, max_tokens=ANSWER)
SEEN, FILM = random_image(40, 30, 1), random_frames(30, 40, 4, 2)
HEARD, OTHER = sine(1.7), sine(2.9, 800)
LOUD = film(random_frames(30, 40, 6, 3), container="matroska", fps=2, sound=OTHER)
IMAGE, VIDEO, AUDIO = ({"type": kind} for kind in ("image", "video", "audio"))


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


# Parts of a message, the media among them in the order of images, videos and audios, and images and audios.
CASES: list[tuple[list[Any], list[Any], list[Any], list[Any]]] = [
    ([IMAGE, text("What is it?")], [SEEN], [SEEN], []),
    ([AUDIO, text("What is it?")], [HEARD], [], [HEARD]),
    ([text("a"), AUDIO, text("b"), IMAGE, text("c"), AUDIO], [SEEN, HEARD, OTHER], [SEEN], [HEARD, OTHER]),
    ([text("a"), VIDEO, AUDIO, text("b")], [FILM, HEARD], [], [HEARD]),
    ([AUDIO, text("a"), VIDEO, text("b"), IMAGE], [HEARD, LOUD, SEEN], [SEEN], [HEARD, OTHER]),
    ([text("Nothing but text.")], [], [], []),
]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    return made_once(tmp_path_factory, make_omni_model)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("at_once")  # so that steps have images of some sequences beside audio of others
def test_answers(folder_of: FolderOf, family: str, caplog: pytest.LogCaptureFixture) -> None:
    """Together and in small chunks that split media, with and without what the prefix cache has of them."""
    folder = folder_of(family)
    requests = [omni_request(folder, [{"role": "user", "content": case[0]}], case[1], SAMPLING) for case in CASES]
    expected = [
        reference_answer(folder, family, request, images, audios, ANSWER)
        for request, (_, _, images, audios) in zip(requests, CASES, strict=True)
    ]
    assert len({tuple(answer) for answer in expected}) == len(CASES)
    for options in ({}, {"max_num_batched_tokens": 7, "max_num_seqs": 4, "block_size": 4}):
        with running_engine(folder, **options) as engine:
            assert tokens(run_requests(engine, requests)) == expected
            assert tokens(run_requests(engine, requests)) == expected
    assert "cannot run together" not in caplog.text


def test_sound_that_does_not_fit(folder_of: FolderOf) -> None:
    """Nor without an encoder for it; the others answer."""
    folder = folder_of("qwen2_5_omni")
    whole = omni_request(folder, [{"role": "user", "content": [VIDEO]}], [LOUD], SAMPLING)
    is_sound = np.array([*whole.images[0].inputs[-1].data], np.bool_)
    wrong = {
        "does not fit 18 embeddings of a video and 72 of its sound": with_inputs(whole, is_sound=~is_sound),
        "is_sound is int64 [90]; it must be bool": with_inputs(whole, is_sound=is_sound.astype(np.int64)),
        "90 embeddings of a video and its sound do not fit 89 tokens": with_image(whole, num_tokens=89),
        "must have all of its embeddings": with_inputs(whole, num_kept=np.array([18])),
    }
    with running_engine(folder) as engine:
        *failed, (answer, _) = outcomes(engine, [*wrong.values(), whole])
    for words, (_, error) in zip(wrong, failed, strict=True):
        assert error is not None
        assert words in error.message
    assert len(answer) == ANSWER


@pytest.mark.parametrize(
    ("limit", "kinds"),
    [
        ("audio=0", {MediaKind.IMAGE, MediaKind.VIDEO}), ("image=0,video=0", {MediaKind.AUDIO}),
        ("image=0", {MediaKind.VIDEO, MediaKind.AUDIO}), ("image=0,video=0,audio=0", set()),
    ],
)  # fmt: skip
def test_some_kinds_alone(folder_of: FolderOf, limit: str, kinds: set[MediaKind]) -> None:
    folder = folder_of("qwen2_5_omni")
    read = {MediaKind.IMAGE: 0, MediaKind.AUDIO: 1}
    chosen = [CASES[place] for kind, place in read.items() if kind in kinds] + CASES[-1:]
    requests = [omni_request(folder, [{"role": "user", "content": case[0]}], case[1], SAMPLING) for case in chosen]
    with running_engine(folder, limit_mm_per_prompt=limit) as engine:
        answers = tokens(run_requests(engine, requests))
        if MediaKind.AUDIO not in kinds and MediaKind.VIDEO in kinds:
            ((_, error),) = outcomes(
                engine, [omni_request(folder, [{"role": "user", "content": [VIDEO]}], [LOUD], SAMPLING)]
            )
            assert "it is a video with sound, but this server hears nothing" in str(error)
    spec = spec_of(folder, limit_mm_per_prompt=limit)
    found = {MediaKind.IMAGE: spec.accepts_images, MediaKind.VIDEO: spec.accepts_videos}
    assert {kind for kind, accepted in (found | {MediaKind.AUDIO: spec.accepts_audio}).items() if accepted} == kinds
    assert answers == [
        reference_answer(folder, "qwen2_5_omni", request, images, audios, ANSWER)
        for request, (_, _, images, audios) in zip(requests, chosen, strict=True)
    ]


def test_videos_that_last_longer_than_the_model_has_positions(folder_of: FolderOf) -> None:
    """Positions go on with time, so a few frames may take more of them than the longest sequence has tokens."""
    folder = folder_of("qwen2_5_omni")
    long, longer = (
        omni_request(folder, [{"role": "user", "content": [VIDEO]}], [random_frames(28, 28, count, 3)], SAMPLING)
        for count in (24, 30)
    )
    with running_engine(folder, max_model_len=520) as engine:
        (answer, _), (_, error) = outcomes(engine, [long, longer])
    assert answer == reference_answer(folder, "qwen2_5_omni", long, [], [], ANSWER)
    assert error is not None
    assert "positions go up to 1160, but the model has 1040; send a shorter video" in error.message
