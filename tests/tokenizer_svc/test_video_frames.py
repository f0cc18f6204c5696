"""Which frames are taken of a video, and their sizes and patches: as Transformers' processors have them."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import pytest
import torch
from transformers.video_utils import VideoMetadata

from tests.support.for_each import for_each
from tests.support.vision_models.video_reference import video_processor_class
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.video import VideoFacts
from tokenizer_svc.video_frames import (
    fewer_of_long_ones,
    fitting_size,
    fitting_volume,
    frames_a_second,
    in_pairs,
    in_patches,
    some_a_second,
    spread_evenly,
    times_of,
    to_the_last,
)

SIZES = [(1280, 720), (60, 40), (40, 60), (10, 900), (28, 28), (1, 1), (4096, 2304), (33, 47), (5, 700)]


@functools.cache
def processor(name: str) -> Any:
    """Transformers' processor, which choosing frames does not change."""
    return video_processor_class(name)()


def facts(num_frames: int, fps: float = 10.0) -> VideoFacts:
    return VideoFacts(num_frames, fps, 64, 48)


@pytest.mark.parametrize(
    ("num_frames", "reading", "chosen"),
    [
        (5, {}, [0, 1, 2, 3, 4]),
        (5, {"num_frames": 2}, [0, 4]),
        (5, {"num_frames": 1}, [0]),
        (10, {"num_frames": 4}, [0, 3, 6, 9]),
        (100, {"num_frames": 4}, [0, 33, 66, 99]),
        (100, {"fps": 0.5}, [0, 24, 49, 74, 99]),
        (100, {"fps": 0.5, "num_frames": 3}, [0, 49, 99]),
        (100, {"fps": 2, "num_frames": -1}, [*np.linspace(0, 99, 20, dtype=int)]),
        (3, {"fps": 0.1}, [0]),
        (40, {"fps": -1}, [*np.linspace(0, 39, 32, dtype=int)]),
        (40, {"num_frames": -1}, [*range(40)]),
        (768, {"num_frames": -1}, [*range(768)]),
    ],
)
def test_frames_are_spread_evenly(num_frames: int, reading: dict[str, Any], chosen: list[int]) -> None:
    assert spread_evenly(facts(num_frames), reading) == chosen


def test_too_many_frames() -> None:
    with pytest.raises(MediaRejection, match="769 frames; at most 768") as caught:
        spread_evenly(facts(769), {"num_frames": -1})
    assert caught.value.parameter == "media_io_kwargs"


@for_each("num_frames", [*range(1, 60), 451, 600, 899, 7200, 100_000])
@pytest.mark.parametrize(("fps", "rate"), [(10.0, 2), (30.0, 2), (29.97, 1), (1.0, 2), (12.5, 0.5), (24.0, 24)])
def test_frames_a_second(num_frames: int, fps: float, rate: float) -> None:
    """As Transformers' processors choose them, which take no video of a single frame."""
    whole = VideoFacts(num_frames, fps, 64, 48)
    count = frames_a_second(whole, {"fps": rate})
    assert count is not None
    about = VideoMetadata(total_num_frames=num_frames, fps=fps)
    third = processor("Qwen3VLVideoProcessor").sample_frames(about, fps=rate).tolist()
    assert to_the_last(whole, count) == third
    if num_frames < 2:
        assert in_pairs(whole, count) == [0]
        return
    second = processor("Qwen2VLVideoProcessor").sample_frames(about, fps=rate).tolist()
    found = in_pairs(whole, count)
    assert len(found) % 2 == 0
    # Theirs are computed in float32, in which there may be one more behind the end.
    assert found == pytest.approx(second[: len(found)], abs=1)
    assert len(second) - len(found) in (0, 1)


@for_each("num_frames", [*range(1, 60), 451, 600, 899, 901, 7200, 9001, 72_000, 100_000])
@pytest.mark.parametrize(("fps", "rate"), [(10.0, 2), (30.0, 2), (29.97, 1), (1.0, 2), (12.5, 0.5), (24.0, 2.5)])
def test_frames_of_glm(num_frames: int, fps: float, rate: float) -> None:
    """As Transformers' processors choose them: GLM-4.1V's, and GLM-4.6V's, whose rate depends on the duration alone."""
    whole = VideoFacts(num_frames, fps, 64, 48)
    about = VideoMetadata(total_num_frames=num_frames, fps=fps, duration=whole.duration)
    first, second = (processor(f"Glm{name}VideoProcessor") for name in ("4v", "46V"))
    assert some_a_second(whole, rate, 300) == first.sample_frames(about, fps=rate).tolist()
    assert fewer_of_long_ones(whole) == (second.sample_frames(about).tolist() or [0, 0])


def test_no_more_frames_of_glm_than_of_others() -> None:
    assert 700 < len(some_a_second(facts(5000), 30, 300)) <= 770


def test_a_number_of_frames_comes_first() -> None:
    assert frames_a_second(facts(100), {}) == 20
    for reading in ({"num_frames": 5}, {"num_frames": 5, "fps": 1}, {"fps": -1}):
        assert frames_a_second(facts(100), reading) is None


def theirs(family: str) -> Any:
    """The module of Transformers' video processor."""
    return importlib.import_module(video_processor_class(family).__module__)


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("limits", [(3136, 9000), (128 * 28 * 28, 768 * 28 * 28), (1, 800), (784, 1e9)])
def test_sizes_of_frames(width: int, height: int, limits: tuple[float, float]) -> None:
    resize = theirs("Qwen2VLVideoProcessor").smart_resize
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(ValueError, match="aspect ratio"):
            resize(height, width, 28, *limits)
        with pytest.raises(ValueError, match="at most 200"):
            fitting_size(width, height, 28, limits)
        return
    expected = resize(height, width, 28, *limits)
    assert fitting_size(width, height, 28, limits) == (expected[1] or 28, expected[0] or 28)  # theirs may be nothing


@for_each(("width", "height"), SIZES)
@for_each("num_frames", [2, 3, 5, 6, 31])
@pytest.mark.parametrize("limits", [(784, 12000), (128 * 32 * 32, 768 * 32 * 32), (4096, 25165824)])
def test_volumes_of_frames(width: int, height: int, num_frames: int, limits: tuple[int, int]) -> None:
    resize = theirs("Qwen3VLVideoProcessor").smart_resize
    try:
        expected = resize(num_frames, height, width, 2, 32, *limits)
    except ValueError:
        with pytest.raises(ValueError, match="at most 200"):
            fitting_volume(width, height, 32, limits, num_frames, 2)
    else:
        assert fitting_volume(width, height, 32, limits, num_frames, 2) == (expected[1], expected[0])


def test_a_single_frame_counts_as_those_of_a_patch() -> None:
    limits = (784, 12000)
    assert fitting_volume(60, 40, 14, limits, 1, 2) == fitting_volume(60, 40, 14, limits, 2, 2)


@pytest.mark.parametrize("num_frames", [1, 2, 5])
def test_patches(num_frames: int) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (num_frames, 28, 42, 3), np.uint8)
    videos = torch.from_numpy(frames).permute(0, 3, 1, 2)[None]
    expected, *grid = processor("Qwen3VLVideoProcessor").patchify(videos, 7, 2, 2)
    patches, found = in_patches(frames, 7, 2, 2)
    assert found.tolist() == [grid]
    assert np.array_equal(patches, expected[0].numpy())


def test_times_are_those_between_the_frames_of_a_patch() -> None:
    assert times_of([0, 3, 6], 2.0, 2) == [0.75, 3.0]
    assert times_of([4], 2.0, 2) == [2.0]
