"""Which frames of a video a model sees, and as what: chosen, scaled, and cut into patches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.video import VideoFacts

_DEFAULT_FRAMES = 32
_MAX_FRAMES = 768
# For models that are trained with so many frames a second.
DEFAULT_RATE, _GREATEST_RATE, _LEAST_FRAMES = 2.0, 30.0, 4
_MAX_ASPECT_RATIO = 200
# For GLM-4.6V: frames a second of videos of up to so many seconds; no video counts as longer than the last of these.
_RATES = ((30, 6.0), (300, 2.0), (2400, 1.0))
_LONGEST_SECONDS, _MOST_FRAMES_OF_LONG_ONES = _RATES[-1][0], 640

Pixels = npt.NDArray[np.uint8]


def spread_evenly(facts: VideoFacts, reading: Mapping[str, Any]) -> list[int]:
    """The places in the video of the frames that are taken: a number of them, from the first to the last.

    Args:
        reading: num_frames, at most so many (by default 32, or all of a list of images; -1: all), and fps, at most so
            many a second.

    Raises:
        MediaRejection: these are too many.
    """
    count, rate = reading.get("num_frames", -1 if facts.is_list else _DEFAULT_FRAMES), reading.get("fps", -1)
    wanted = facts.num_frames if count < 0 else min(count, facts.num_frames)
    if rate > 0:
        wanted = min(wanted, math.floor(facts.duration * rate))
    wanted = max(wanted, 1)
    if wanted > _MAX_FRAMES:
        raise MediaRejection(
            f"A video has {wanted} frames; at most {_MAX_FRAMES} are taken. Set num_frames or fps.", "media_io_kwargs"
        )
    return np.linspace(0, facts.num_frames - 1, wanted, dtype=int).tolist()  # type: ignore[no-any-return]  # numpy says Any


def frames_a_second(facts: VideoFacts, reading: Mapping[str, Any]) -> float | None:
    """The number of frames of the video for models that take so many a second; None if the caller has chosen a
    number, or the frames.

    Args:
        reading: as in `spread_evenly`; fps is 2 by default.
    """
    rate: float = reading.get("fps", DEFAULT_RATE)
    if "num_frames" in reading or rate < 0 or facts.is_list:
        return None
    count = facts.num_frames / facts.fps * min(rate, _GREATEST_RATE)
    return min(max(count, _LEAST_FRAMES), _MAX_FRAMES, facts.num_frames)


def in_pairs(facts: VideoFacts, count: float) -> list[int]:
    """The places of an even number of frames, each the first of a part of the video: for Qwen2-VL."""
    number = int(count) // 2 * 2
    return [int(index * facts.num_frames / number) for index in range(number)] or [0]


def to_the_last(facts: VideoFacts, count: float) -> list[int]:
    """The places of frames from the first to the last: for Qwen3-VL."""
    return np.linspace(0, facts.num_frames - 1, int(count)).round().astype(int).tolist()  # type: ignore[no-any-return]  # numpy says Any


def some_a_second(facts: VideoFacts, rate: float, most_seconds: int) -> list[int]:
    """The places of so many frames a second, in pairs: for GLM-4.1V. A video that is longer than the most seconds has
    as many frames as one of that length."""
    seconds, last = facts.duration, facts.num_frames - 1
    rate = min(rate, _GREATEST_RATE, _MAX_FRAMES / min(seconds, most_seconds))
    if seconds <= most_seconds:
        count = max(math.floor(seconds * rate), 1)
        return _paired([min(last, math.ceil(index * facts.fps / rate)) for index in range(count)])
    if (count := int(most_seconds * rate)) >= facts.num_frames:
        return _paired(range(facts.num_frames))
    return _paired([min(last, math.ceil(time * facts.fps)) for time in np.linspace(0, seconds, count)])


def fewer_of_long_ones(facts: VideoFacts) -> list[int]:
    """The places of frames, in pairs: six a second of a short video, one of a long one. For GLM-4.6V."""
    seconds = min(facts.duration, _LONGEST_SECONDS)
    rate = next(rate for most, rate in _RATES if seconds <= most)
    count = min(int(seconds * rate), _MOST_FRAMES_OF_LONG_ONES)
    found: list[int] = []
    next_time, interval = 0.0, 1 / facts.fps
    for index in range(facts.num_frames if facts.num_frames >= count else 0):
        if index * interval >= next_time:
            next_time += 1 / rate
            found.append(index)
            if next_time >= int(facts.duration):
                break
    if len(found) != count:
        first, last = (found[0], found[-1]) if 0 < len(found) < count else (0, facts.num_frames - 1)
        found = np.linspace(first, last, count, dtype=int).tolist()
    return _paired(found)


def _paired(indices: Iterable[int]) -> list[int]:
    """The distinct ones; the last one twice if their number is odd."""
    found = list(dict.fromkeys(indices)) or [0]
    return found + found[-1:] * (len(found) % 2)


def times_of(indices: Sequence[int], fps: float, frames_per_patch: int) -> list[float]:
    """The times in seconds of patches of several frames each: the middle between the first and the last one."""
    added = -len(indices) % frames_per_patch
    times = [index / fps for index in [*indices, *[indices[-1]] * added]]
    return [
        (times[first] + times[first + frames_per_patch - 1]) / 2 for first in range(0, len(times), frames_per_patch)
    ]


def fitting_size(width: int, height: int, factor: int, limits: tuple[float, float]) -> tuple[int, int]:
    """Width and height of about the same ratio, multiples of a factor, whose area is within limits.

    Raises:
        ValueError: the ratio is too far from 1.
    """
    return _scaled(width, height, factor, limits, 1, 1)


def fitting_volume(
    width: int, height: int, factor: int, limits: tuple[float, float], num_frames: int, frames_per_patch: int
) -> tuple[int, int]:
    """As `fitting_size`, for limits on the area of all frames together. Small sides are brought up to the factor first.

    Raises:
        ValueError: the ratio of width and height is too far from 1.
    """
    if min(width, height) < factor:
        scale = max(factor / width, factor / height)
        width, height = int(width * scale), int(height * scale)
    num_frames = max(num_frames, frames_per_patch)  # a single frame is repeated
    rounded = round(num_frames / frames_per_patch) * frames_per_patch
    return _scaled(width, height, factor, limits, num_frames, rounded)


def _scaled(
    width: int, height: int, factor: int, limits: tuple[float, float], num_frames: int, rounded_frames: int
) -> tuple[int, int]:
    """
    Args:
        rounded_frames: number of frames that counts for whether a size is within the limits.
    """
    if (ratio := max(width, height) / min(width, height)) > _MAX_ASPECT_RATIO:
        raise ValueError(f"one side is {ratio:.0f} times as long as the other; at most {_MAX_ASPECT_RATIO} is allowed")
    (least, most), area = limits, num_frames * width * height
    found = [round(side / factor) * factor for side in (width, height)]
    if rounded_frames * math.prod(found) > most:
        down = math.sqrt(area / most)
        found = [math.floor(side / down / factor) * factor for side in (width, height)]
    elif rounded_frames * math.prod(found) < least:
        up = math.sqrt(least / area)
        found = [math.ceil(side * up / factor) * factor for side in (width, height)]
    return max(factor, found[0]), max(factor, found[1])


def resized(frame: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> Pixels:
    """A frame of another size: [height, width, channels]."""
    return np.asarray(frame.resize(size, resample))


def by_channels(frames: Pixels) -> Pixels:
    """[frames, height, width, channels] → [frames, channels, height, width]."""
    return np.ascontiguousarray(frames.transpose(0, 3, 1, 2))


def in_patches(frames: Pixels, side: int, merged: int, frames_per_patch: int) -> tuple[Pixels, npt.NDArray[np.int64]]:
    """Cuts frames into patches as Qwen's image encoders take them.

    Patches that become one embedding follow each other. The last frame is repeated to fill its patches.

    Args:
        frames: [frames, height, width, channels]
        side: pixels along a patch.
        merged: patches along each side of an embedding.

    Returns:
        [patches, channels * frames_per_patch * side * side], and the patches by time, row and column: int64 [1, 3].
    """
    if added := -len(frames) % frames_per_patch:
        frames = np.concatenate([frames, np.repeat(frames[-1:], added, axis=0)])
    count, height, width, channels = frames.shape
    times, rows, columns = count // frames_per_patch, height // side, width // side
    apart = frames.reshape(
        times, frames_per_patch, rows // merged, merged, side, columns // merged, merged, side, channels
    )
    patches = apart.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(times * rows * columns, -1)
    return np.ascontiguousarray(patches), np.array([[times, rows, columns]], np.int64)


def in_placed_patches(frames: Pixels, side: int) -> tuple[Pixels, npt.NDArray[np.int64]]:
    """Cuts frames into patches as Gemma 4's image encoder takes them, row by row.

    Args:
        frames: [frames, height, width, channels]
        side: pixels along a patch.

    Returns:
        [frames, patches, side * side * channels], and column and row of each patch: int64 [frames, patches, 2].
    """
    count, height, width, channels = frames.shape
    rows, columns = height // side, width // side
    apart = frames.reshape(count, rows, side, columns, side, channels).transpose(0, 1, 3, 2, 4, 5)
    places = np.indices((rows, columns))[::-1].reshape(2, -1).T
    patches = np.ascontiguousarray(apart.reshape(count, rows * columns, -1))
    return patches, np.ascontiguousarray(np.broadcast_to(places, (count, *places.shape)), np.int64)
