"""The model's video processor: frames in, inputs of the image encoder and text of the prompt out.

Does what Transformers' `video_processing_*` and `processing_*` do, with Pillow and numpy. Pillow resizes frames to the
values that torchvision would, but for rounding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL.Image import Resampling
from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

from quire.images import PIXELS, PLACES, VIDEO_PIXELS
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.normalization import scale_and_shift
from tokenizer_svc.processed import Processed
from tokenizer_svc.video import VideoFacts
from tokenizer_svc.video_decoder import open_video
from tokenizer_svc.video_frames import (
    DEFAULT_RATE,
    Pixels,
    by_channels,
    fewer_of_long_ones,
    fitting_size,
    fitting_volume,
    frames_a_second,
    in_pairs,
    in_patches,
    in_placed_patches,
    resized,
    some_a_second,
    spread_evenly,
    times_of,
    to_the_last,
)
from tokenizer_svc.video_settings import VideoSettings, read_settings

_MAX_BYTES = 40 * 2**20  # of a video's pixels, which leaves room for other media in the same message
_CHANNELS = 3

Inputs = dict[str, npt.NDArray[Any]]


class VideoProcessor(ABC):
    """The video processor of a model.

    Attributes:
        placeholder: what the chat template writes for a video.
        token_id: the token that the prompt has for each embedding of a video.
    """

    has_own_token = True  # besides the one for images
    can_prune = False  # whether the model can leave out some of a video's tokens
    of_images: frozenset[str] = frozenset()  # settings of requests that are for images alone

    def __init__(self, processor: Any, settings: VideoSettings, image_token_id: int, pruning_rate: float = 0.0) -> None:
        """
        Args:
            processor: the model's processor in Transformers.
            image_token_id: the token for each embedding of an image.
            pruning_rate: share of a video's tokens that is left out, if the model can do without.
        """
        self._processor, self._settings, self._pruning_rate = processor, settings, pruning_rate
        self.placeholder: str = processor.video_token
        own_id = processor.tokenizer.convert_tokens_to_ids(self.placeholder)
        self.token_id: int = own_id if self.has_own_token else image_token_id

    def prepare(self, files: Sequence[bytes], settings: Mapping[str, Any], reading: Mapping[str, Any]) -> Processed:
        """
        Args:
            files: a video file, or images that are its frames.
            settings: instead of the model's own.
            reading: which frames are taken, see `spread_evenly`.

        Raises:
            MediaRejection: it is not a video, it is too large, or the settings do not suit the model.
        """
        video = open_video(files)
        indices = self._chosen(video.facts, reading)
        try:
            chosen = self._settings.changed({n: value for n, value in settings.items() if n not in self.of_images})
            size = self._size(chosen, video.facts, len(indices))
            resample, (scale, shift) = Resampling(chosen.resample), _normalization(chosen)
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            at_fault, with_them = ("mm_processor_kwargs", " with mm_processor_kwargs") if settings else ("", "")
            raise MediaRejection(
                f"The model's video processor does not accept the video{with_them}: {error}", at_fault
            ) from error
        if (num_bytes := len(indices) * math.prod(size) * _CHANNELS) > _MAX_BYTES:
            raise MediaRejection(
                f"{len(indices)} frames of a video take {num_bytes} bytes for the model; at most {_MAX_BYTES} are "
                "allowed. Take fewer frames (num_frames in media_io_kwargs).",
                "media_io_kwargs",
            )
        frames = np.stack([resized(frame, size, resample) for frame in video.frames(indices)])
        inputs, text = self._inputs(frames, chosen, video.facts, indices)
        tokens = self._processor.tokenizer.encode(text, add_special_tokens=False)
        return Processed(text, tokens.count(self.token_id), inputs, scale, shift)

    def _chosen(self, facts: VideoFacts, reading: Mapping[str, Any]) -> list[int]:
        """The places in the video of the frames that are taken.

        Raises:
            MediaRejection: these are too many.
        """
        return spread_evenly(facts, reading)

    def _size(self, settings: VideoSettings, facts: VideoFacts, num_frames: int) -> tuple[int, int]:
        """Width and height of the frames for the model.

        Raises:
            ValueError, LookupError, TypeError, ArithmeticError: the settings or the frames do not suit it.
        """
        width, height = settings.size["width"], settings.size["height"]
        if min(width, height) < 1:
            raise ValueError(f"size is {dict(settings.size)}")
        return int(width), int(height)

    @abstractmethod
    def _inputs(
        self, frames: Pixels, settings: VideoSettings, facts: VideoFacts, indices: Sequence[int]
    ) -> tuple[Inputs, str]:
        """The inputs of the encoder, and the text that takes the placeholder's place.

        Args:
            frames: [frames, height, width, channels]
            indices: the places of the frames in the video.
        """


class _Qwen2Videos(VideoProcessor):
    """Qwen2-VL: patches of two frames, all of whose tokens stand together."""

    can_prune = True

    def _chosen(self, facts: VideoFacts, reading: Mapping[str, Any]) -> list[int]:
        """See VideoProcessor."""
        count = frames_a_second(facts, reading)
        return super()._chosen(facts, reading) if count is None else in_pairs(facts, count)

    def _size(self, settings: VideoSettings, facts: VideoFacts, num_frames: int) -> tuple[int, int]:
        """See VideoProcessor. The areas of the settings are those of a frame."""
        limits = _limits(settings, _most_pixels(settings, num_frames))
        return fitting_size(facts.width, facts.height, settings.patch_size * settings.merge_size, limits)

    def _inputs(
        self, frames: Pixels, settings: VideoSettings, facts: VideoFacts, indices: Sequence[int]
    ) -> tuple[Inputs, str]:
        """See VideoProcessor."""
        patches, grid = in_patches(frames, settings.patch_size, settings.merge_size, settings.temporal_patch_size)
        inputs: Inputs = {PIXELS: patches, "image_grid_thw": grid}
        count = len(patches) // settings.merge_size**2
        if self._pruning_rate:
            count = max(count // int(grid[0, 0]), int(count * (1 - self._pruning_rate)))  # at least the first frame's
            inputs["num_kept"] = np.array([count])
        return inputs, self.placeholder * count


class _Qwen25Videos(_Qwen2Videos):
    """Qwen2.5-VL also takes the seconds between patches."""

    def _inputs(
        self, frames: Pixels, settings: VideoSettings, facts: VideoFacts, indices: Sequence[int]
    ) -> tuple[Inputs, str]:
        """See VideoProcessor."""
        inputs, text = super()._inputs(frames, settings, facts, indices)
        frames_per_second = len(indices) / facts.num_frames * facts.fps
        seconds = np.array([settings.temporal_patch_size / frames_per_second], np.float32)
        return inputs | {"second_per_grid_ts": seconds}, text


class _Qwen3Videos(VideoProcessor):
    """Qwen3-VL and Qwen3.5: patches of two frames; before those of each two frames stands their time in the video."""

    def _chosen(self, facts: VideoFacts, reading: Mapping[str, Any]) -> list[int]:
        """See VideoProcessor."""
        count = frames_a_second(facts, reading)
        return super()._chosen(facts, reading) if count is None else to_the_last(facts, count)

    def _size(self, settings: VideoSettings, facts: VideoFacts, num_frames: int) -> tuple[int, int]:
        """See VideoProcessor. The areas of the settings are those of all frames together."""
        limits = _limits(settings, num_frames * _most_pixels(settings, num_frames))
        factor, frames_per_patch = settings.patch_size * settings.merge_size, settings.temporal_patch_size
        return fitting_volume(facts.width, facts.height, factor, limits, num_frames, frames_per_patch)

    def _inputs(
        self, frames: Pixels, settings: VideoSettings, facts: VideoFacts, indices: Sequence[int]
    ) -> tuple[Inputs, str]:
        """See VideoProcessor."""
        patches, grid = in_patches(frames, settings.patch_size, settings.merge_size, settings.temporal_patch_size)
        times = times_of(indices, facts.fps, settings.temporal_patch_size)
        own, tokens = self._processor, self.placeholder * (len(patches) // len(times) // settings.merge_size**2)
        text = "".join(f"<{time:.1f} seconds>{own.vision_start_token}{tokens}{own.vision_end_token}" for time in times)
        return {PIXELS: patches, "image_grid_thw": grid}, text


class _Glm41Videos(_Qwen3Videos):
    """GLM-4.1V and 4.5V: patches of two frames, each an image, behind which stands the second of its first frame."""

    has_own_token = False

    def _chosen(self, facts: VideoFacts, reading: Mapping[str, Any]) -> list[int]:
        """See VideoProcessor."""
        if frames_a_second(facts, reading) is None:
            return spread_evenly(facts, reading)
        return some_a_second(facts, reading.get("fps", DEFAULT_RATE), self._settings.max_duration)

    def _inputs(
        self, frames: Pixels, settings: VideoSettings, facts: VideoFacts, indices: Sequence[int]
    ) -> tuple[Inputs, str]:
        """See VideoProcessor."""
        patches, grid = in_patches(frames, settings.patch_size, settings.merge_size, settings.temporal_patch_size)
        times = [index / facts.fps for index in indices[:: settings.temporal_patch_size]]
        tokens = self._processor.image_token * (len(patches) // len(times) // settings.merge_size**2)
        text = "".join(f"<|begin_of_image|>{tokens}<|end_of_image|>{self._written(time)}" for time in times)
        return {PIXELS: patches, "image_grid_thw": grid}, text

    def _written(self, time: float) -> str:
        return str(int(time))


class _Glm46Videos(_Glm41Videos):
    """GLM-4.6V: fewer frames of long videos, and their times in tenths of seconds."""

    def _chosen(self, facts: VideoFacts, reading: Mapping[str, Any]) -> list[int]:
        """See VideoProcessor."""
        is_chosen = facts.is_list or reading.keys() & {"fps", "num_frames"}
        return spread_evenly(facts, reading) if is_chosen else fewer_of_long_ones(facts)

    def _written(self, time: float) -> str:
        return f"{time:.1f} seconds"


class _InternVideos(VideoProcessor):
    """InternVL: each frame is an image with a number."""

    has_own_token = False

    def _inputs(
        self, frames: Pixels, settings: VideoSettings, facts: VideoFacts, indices: Sequence[int]
    ) -> tuple[Inputs, str]:
        """See VideoProcessor."""
        own = self._processor
        tokens = f"{own.start_image_token}{own.image_token * own.image_seq_length}{own.end_image_token}"
        return {PIXELS: by_channels(frames)}, "\n".join(f"Frame{i + 1}: {tokens}" for i in range(len(frames)))


class _OnevisionVideos(VideoProcessor):
    """LLaVA-OneVision: the embeddings of each frame are pooled, and one more ends the video."""

    def _inputs(
        self, frames: Pixels, settings: VideoSettings, facts: VideoFacts, indices: Sequence[int]
    ) -> tuple[Inputs, str]:
        """See VideoProcessor."""
        side = math.ceil(math.isqrt(self._processor.num_image_tokens) / 2)
        return {VIDEO_PIXELS: by_channels(frames)[None]}, self.placeholder * (len(frames) * side**2 + 1)


class _Gemma4Videos(VideoProcessor):
    """Gemma 4: each frame is an image behind its time, with fewer tokens than other images."""

    of_images = frozenset({"max_soft_tokens"})

    def _size(self, settings: VideoSettings, facts: VideoFacts, num_frames: int) -> tuple[int, int]:
        """See VideoProcessor."""
        pooled = settings.pooling_kernel_size
        height, width = get_aspect_ratio_preserving_size(
            facts.height, facts.width, settings.patch_size, settings.max_soft_tokens * pooled**2, pooled
        )
        return width, height

    def _inputs(
        self, frames: Pixels, settings: VideoSettings, facts: VideoFacts, indices: Sequence[int]
    ) -> tuple[Inputs, str]:
        """See VideoProcessor."""
        patches, places = in_placed_patches(frames, settings.patch_size)
        own, count = self._processor, patches.shape[1] // settings.pooling_kernel_size**2
        tokens = f"{own.boi_token}{self.placeholder * count}{own.eoi_token}"
        seconds = [int(index / facts.fps) for index in indices]
        text = " ".join(f"{each // 60:02d}:{each % 60:02d} {tokens}" for each in seconds)
        return {PIXELS: patches, PLACES: places}, text


class _Gemma4UnifiedVideos(_Gemma4Videos):
    """Gemma 4's 12B model, which has no encoder: patches are merged beforehand, so larger ones are cut."""

    def _size(self, settings: VideoSettings, facts: VideoFacts, num_frames: int) -> tuple[int, int]:
        """See VideoProcessor."""
        return super()._size(_merged(settings), facts, num_frames)

    def _inputs(
        self, frames: Pixels, settings: VideoSettings, facts: VideoFacts, indices: Sequence[int]
    ) -> tuple[Inputs, str]:
        """See VideoProcessor."""
        return super()._inputs(frames, _merged(settings), facts, indices)


def _merged(settings: VideoSettings) -> VideoSettings:
    return replace(settings, patch_size=settings.patch_size * settings.pooling_kernel_size, pooling_kernel_size=1)


_CLASSES: Mapping[str, type[VideoProcessor]] = {
    "Exaone4_5_Processor": _Qwen2Videos, "Qwen2VLProcessor": _Qwen2Videos, "Qwen2_5_VLProcessor": _Qwen25Videos,
    "Qwen2_5OmniProcessor": _Qwen25Videos, "Qwen3OmniMoeProcessor": _Qwen25Videos, "Qwen3VLProcessor": _Qwen3Videos,
    "Lfm3VlProcessor": _Qwen3Videos, "Glm4vProcessor": _Glm41Videos, "Glm46VProcessor": _Glm46Videos,
    "Gemma4Processor": _Gemma4Videos, "Gemma4UnifiedProcessor": _Gemma4UnifiedVideos,
    "InternVLProcessor": _InternVideos, "LlavaOnevisionProcessor": _OnevisionVideos,
}  # fmt: skip


def load_video_processor(
    folder: Path, processor: Any, image_token_id: int, pruning_rate: float = 0.0
) -> VideoProcessor | None:
    """The video processor of a model; None if the model reads no videos.

    Args:
        folder: with the model's files.
        processor: the model's processor in Transformers.
        image_token_id, pruning_rate: see VideoProcessor.
    """
    name = type(processor).__name__
    if (kind := _CLASSES.get(name)) is None:
        return None
    settings = getattr(processor, "video_settings", None) or read_settings(folder, name)
    return kind(processor, settings, image_token_id, pruning_rate)


def _limits(settings: VideoSettings, most: int) -> tuple[float, float]:
    """The least and the greatest area.

    Args:
        most: the greatest area that can be sent.
    """
    greatest = min(settings.size["longest_edge"], most)
    return min(settings.size["shortest_edge"], greatest), greatest


def _most_pixels(settings: VideoSettings, num_frames: int) -> int:
    """The greatest area of a frame for which all of them, and those that fill the last patches, can be sent."""
    filled = -(-num_frames // settings.temporal_patch_size) * settings.temporal_patch_size
    return _MAX_BYTES // _CHANNELS // filled


def _normalization(settings: VideoSettings) -> tuple[tuple[float, ...], tuple[float, ...]]:
    factor = settings.rescale_factor if settings.do_rescale else 1.0
    if not settings.do_normalize:
        return scale_and_shift(factor, 0.0, 1.0)
    return scale_and_shift(factor, settings.image_mean, settings.image_std)
