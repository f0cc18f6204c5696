"""Videos with their sound, whose tokens stand among those of the frames that are seen meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.images import SOUND
from tokenizer_svc.audio_decoder import has_sound
from tokenizer_svc.audio_processor import AudioProcessor
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.processed import Processed
from tokenizer_svc.sound_order import SoundOrder
from tokenizer_svc.video_processor import VideoProcessor

_SETTING, _PARAMETER = "use_audio_in_video", "mm_processor_kwargs"


class VideosWithSound:
    """Prepares videos for models that can hear what they see, with or without the sound."""

    def __init__(self, videos: VideoProcessor, audio: AudioProcessor, order: SoundOrder) -> None:
        self._videos, self._audio, self._order = videos, audio, order

    def split(self, settings: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
        """Whether settings want the sound, and the other ones.

        Raises:
            MediaRejection: they do not say.
        """
        others = dict(settings)
        wanted = others.pop(_SETTING, False)
        if not isinstance(wanted, bool):
            raise MediaRejection(f"{_SETTING} in {_PARAMETER} must be true or false.", _PARAMETER)
        return wanted, others

    def prepare(self, files: Sequence[bytes], settings: Mapping[str, Any], reading: Mapping[str, Any]) -> Processed:
        """As VideoProcessor.prepare, with the sound if the settings want it and the file has any.

        Raises:
            MediaRejection: also if the sound is too long or damaged, or tokens of the video are left out.
        """
        wanted, others = self.split(settings)
        seen = self._videos.prepare(files, others, reading)
        if not wanted or len(files) > 1 or not has_sound(files[0]):
            return seen
        if "num_kept" in seen.inputs:
            raise MediaRejection(
                f"{_SETTING} is not for servers with --video-pruning-rate. Leave one of them out.", _PARAMETER
            )
        if not (heard := self._audio.prepare(files[0], {})).num_tokens:
            return seen
        is_sound = self._order.is_sound(_seconds(seen), heard.num_tokens)
        before, after = self._audio.around
        tokens = "".join(self._audio.placeholder if each else self._videos.placeholder for each in is_sound)
        return Processed(
            f"{before}{tokens}{after}", len(is_sound), {**seen.inputs, **heard.inputs, SOUND: is_sound},
            seen.pixel_scale, seen.pixel_shift,
        )  # fmt: skip


def _seconds(video: Processed) -> npt.NDArray[np.float64]:
    """When each of a video's tokens is seen: [tokens]."""
    frames = int(video.inputs["image_grid_thw"][0, 0])
    times = np.arange(frames) * float(video.inputs["second_per_grid_ts"][0])
    return np.repeat(times, video.num_tokens // frames)
