"""Images of which a model sees several tiles of one shape and a small copy of another (LFM2-VL)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from engine_svc.media import encoder
from quire.images import PIXELS
from tests.engine_svc.media.conftest import VisionFolder
from tests.support.run_engine import run_requests, running_engine, tokens
from tests.support.vision_models import random_image
from tests.support.vision_models.conversations import answer, ask

WIDE = random_image(60, 40, 1)  # six tiles of 16 patches, and a copy of 24
QUESTION = ("Look: ", WIDE, "What is it?")


@pytest.mark.parametrize(
    ("most", "shapes"),
    [
        (16384, [[6, 16], [1, 24]]),
        (96, [[6, 16], [1, 24]]),
        (40, [[2, 16], [2, 16], [2, 16], [1, 24]]),
        (1, [[1, 16]] * 6 + [[1, 24]]),
    ],
)
def test_tiles_are_encoded_in_parts_of_one_shape(
    vision_folder: VisionFolder, monkeypatch: pytest.MonkeyPatch, most: int, shapes: list[list[int]]
) -> None:
    """So that none is filled up, and memory stays bounded."""
    split, found = encoder._parts, []

    def noted(inputs: Mapping[str, torch.Tensor], **options: Any) -> Iterator[Mapping[str, torch.Tensor]]:
        for part in split(inputs, **options):
            found.append([*part[PIXELS].shape[:2]])
            yield part

    monkeypatch.setattr(encoder, "_parts", noted)
    monkeypatch.setattr(encoder, "_MOST_PATCHES", most)
    folder = vision_folder("lfm2_vl")
    with running_engine(folder) as engine:
        assert tokens(run_requests(engine, [ask(folder, *QUESTION)])) == [answer(folder, *QUESTION)]
    assert found == shapes
