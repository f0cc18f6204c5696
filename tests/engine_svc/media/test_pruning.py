"""Videos of which some embeddings are left out (--video-pruning-rate): the prompt is what remains, at its places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engine_svc.media.pruning import most_changed
from quire.errors import QuireError
from tests.engine_svc.media.conftest import VisionFolder
from tests.support.run_engine import GREEDY, outcomes, run_requests, running_engine, tokens
from tests.support.vision_models import random_frames
from tests.support.vision_models.conversations import with_inputs
from tests.support.vision_models.prompts import request_of
from tests.support.vision_models.pruning import pruned_by_hand

ANSWER = 6
FRAMES = random_frames(84, 60, 6, 1)  # 3 patches in time, each of 6 x 4 embeddings
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "video"}, {"type": "text", "text": "So?"}]}
]


def test_the_most_changed_are_kept() -> None:
    """The first frame whole; then those whose direction differs most, the earlier first where they differ as much."""
    first = torch.eye(4)[:2]
    second = torch.stack([first[0], -first[1]])  # as before, the opposite
    third = torch.stack([torch.eye(4)[2], torch.eye(4)[3]])  # two right angles
    embeddings = torch.cat([first, 3 * second, third])
    for count, kept in ((2, [0, 1]), (3, [0, 1, 3]), (4, [0, 1, 3, 4]), (5, [0, 1, 3, 4, 5]), (6, [0, 1, 2, 3, 4, 5])):
        assert most_changed(embeddings, 3, count).tolist() == kept


def by_hand(folder: Path, rate: float) -> list[int]:
    return pruned_by_hand(folder, MESSAGES, FRAMES, rate, ANSWER)


@pytest.mark.parametrize(("family", "rate"), [("qwen2_vl", 0.9), ("qwen2_5_vl", 0.3)])
def test_answers(vision_folder: VisionFolder, family: str, rate: float) -> None:
    """Computed whole and in pieces, and found again."""
    folder = vision_folder(family)
    request = request_of(folder, MESSAGES, [], replace(GREEDY, max_tokens=ANSWER), videos=[FRAMES], pruning_rate=rate)
    kept = {0.3: 50, 0.9: 24}[rate]  # of 72; at least the first frame
    assert request.images[0].num_tokens == kept
    expected = [by_hand(folder, rate)]
    for options in ({}, {"max_num_batched_tokens": 7, "max_num_seqs": 4, "block_size": 4}):
        with running_engine(folder, **options) as engine:
            for _ in range(2):
                assert tokens(run_requests(engine, [request])) == expected


def test_the_same_video_with_more_and_less_left_out(vision_folder: VisionFolder) -> None:
    """Each is its own in the prefix cache, though their tokens begin alike."""
    folder = vision_folder("qwen2_5_vl")
    rates = (0.3, 0.0, 0.9)
    requests = [
        request_of(folder, MESSAGES, [], replace(GREEDY, max_tokens=ANSWER), videos=[FRAMES], pruning_rate=rate)
        for rate in rates
    ]
    with running_engine(folder, block_size=4) as engine:
        for request, rate in zip(requests, rates, strict=True):
            assert tokens(run_requests(engine, [request])) == [by_hand(folder, rate)]


@pytest.mark.parametrize(
    ("family", "cases"),
    [
        (
            "qwen2_5_vl",
            [
                ([23], "num_kept must be int64 [1], from 24 to 72"),
                ([73], "num_kept must be int64 [1], from 24 to 72"),
                ([30, 30], "num_kept must be int64 [1]"),
                ([30], "72 tokens"),
            ],
        ),
        ("qwen3_vl", [([30], "all of a video's embeddings together")]),
    ],
)
def test_what_does_not_fit(vision_folder: VisionFolder, family: str, cases: list[tuple[list[int], str]]) -> None:
    folder = vision_folder(family)
    good = request_of(folder, MESSAGES, [], replace(GREEDY, max_tokens=ANSWER), videos=[FRAMES])
    with running_engine(folder) as engine:
        for kept, words in cases:
            ((_, error),) = outcomes(engine, [with_inputs(good, num_kept=np.array(kept))])
            assert isinstance(error, QuireError)
            assert words in error.message
        assert run_requests(engine, [good])
