"""Prompts with images as the tokenizer service makes them, without its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from engine_svc.requests.request import GenerationRequest
from quire.media import MediaKind
from quire.sampling import SamplingParameters
from tests.support.audio_files import Samples, audio_file
from tests.support.media_requests import media_request
from tests.support.vision_models.making import png_bytes
from tokenizer_svc.media import Medium


def request_of(
    folder: Path,
    messages: Sequence[Mapping[str, Any]],
    images: Sequence[Image.Image],
    sampling: SamplingParameters,
    settings: Mapping[str, Any] = {},
    videos: Sequence[Sequence[Image.Image]] = (),
    pruning_rate: float = 0.0,
) -> GenerationRequest:
    """The engine's request for a conversation, with the images and videos of the messages' parts in their order."""
    media = [medium_of(each) for each in (*images, *videos)]
    return media_request(folder, messages, media, sampling, settings, video_pruning_rate=pruning_rate)


def medium_of(given: Image.Image | Sequence[Image.Image] | Samples | bytes) -> Medium:
    """An image, a video of these frames or in this file, or an audio."""
    if isinstance(given, bytes):
        return Medium(MediaKind.VIDEO, (given,))
    if isinstance(given, Image.Image):
        return Medium(MediaKind.IMAGE, (png_bytes(given),))
    if isinstance(given, np.ndarray):
        return Medium(MediaKind.AUDIO, (audio_file(given, "wavf"),))
    return Medium(MediaKind.VIDEO, tuple(map(png_bytes, given)))
