"""Images and audio of models whose tokenizer is in tekken.json, which also has the settings of their processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mistral_common.tokens.tokenizers.image import DATASET_MEAN, DATASET_STD
from PIL import Image

from quire.images import PIXELS
from quire.media import MediaKind
from quire.tokenizer.tekken import AUDIO, IMAGE, IMAGE_BREAK, IMAGE_END
from tokenizer_svc.audio_decoder import Samples
from tokenizer_svc.audio_processor import AudioProcessor, Mask
from tokenizer_svc.audio_settings import AudioSettings
from tokenizer_svc.image_decoder import decode_image
from tokenizer_svc.log_mel import Floats
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.normalization import scale_and_shift
from tokenizer_svc.processed import Processed

_SIZES = "image_sizes"  # the input of the encoder with rows and columns of pixels
# The most that prompts may have (see quire.images) is less than what models could hear.
_MAX_SECONDS = 900


class MistralImages:
    """Prepares images for Pixtral's encoder; see ImageProcessor.

    They are scaled by Pillow, as Transformers does. (Mistral's own package has OpenCV do that, without smoothing.)
    """

    placeholder = IMAGE
    mark_ids: Sequence[int] = ()
    videos = None

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """
        Args:
            settings: see `tekken_media`.
        """
        self.image_token_id: int = settings["token_id"]
        self._most: int = settings["max_image_size"]  # of rows or columns of pixels
        self._side: int = settings["image_patch_size"] * settings.get("spatial_merge_size", 1)  # of a token
        self._scale, self._shift = scale_and_shift(1 / 255, DATASET_MEAN, DATASET_STD)

    def prepare(self, file: bytes, settings: Mapping[str, Any]) -> Processed:
        """
        Args:
            file: an image file.
            settings: of a request, which may have none.

        Raises:
            MediaRejection: it is not an image, it is too large, or there are settings.
        """
        self.check(settings)
        image = decode_image(file)
        columns, rows = self._tokens(*image.size)
        size = (columns * self._side, rows * self._side)
        pixels = np.asarray(image.resize(size, Image.Resampling.BICUBIC)).transpose(2, 0, 1)
        inputs = {PIXELS: np.ascontiguousarray(pixels)[None], _SIZES: np.array([size[::-1]], np.int64)}
        text = IMAGE_BREAK.join([IMAGE * columns] * rows) + IMAGE_END
        return Processed(text, rows * columns, inputs, self._scale, self._shift)

    def check(self, settings: Mapping[str, Any]) -> None:
        """
        Raises:
            MediaRejection: there are settings.
        """
        if settings:
            raise MediaRejection(
                f"{min(settings)!r} in mm_processor_kwargs is no setting for images with --tokenizer-mode mistral, "
                "which takes all from tekken.json. Leave it out.",
                "mm_processor_kwargs",
            )

    def _tokens(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of tokens of an image, which is made smaller if it is too large."""
        ratio = max(width / self._most, height / self._most, 1.0)
        columns, rows = (-(-max(1, round(pixels / ratio)) // self._side) for pixels in (width, height))
        return columns, rows


class MistralAudio(AudioProcessor):
    """Voxtral: silence fills audio up to whole parts of 30 s, and counts as audio. The spectrogram is made of all."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """
        Args:
            settings: see `tekken_media`.
        """
        spectrogram = settings["audio_encoding_config"]
        self._chunk = int(settings["chunk_length_s"] * settings["sampling_rate"])
        self._hop: int = spectrogram["hop_length"]
        self._frames_per_token: int = int(settings["sampling_rate"] // settings["frame_rate"]) // self._hop
        super().__init__(AUDIO, settings["token_id"], AudioSettings(
            "", AUDIO, _MAX_SECONDS, spectrogram["num_mel_bins"], settings["sampling_rate"], self._hop,
            spectrogram["window_size"],
        ))  # fmt: skip

    def _features(self, samples: Samples) -> tuple[Floats, Mask]:
        """See AudioProcessor."""
        rows = -(-len(samples) // self._chunk)
        features = self._log_mel.of(np.pad(samples, (0, rows * self._chunk - len(samples))))
        parts = features.reshape(len(features), rows, -1).transpose(1, 0, 2)
        return np.ascontiguousarray(parts), np.ones((rows, parts.shape[-1]), np.bool_)

    def _num_tokens(self, num_frames: int) -> int:
        """See AudioProcessor."""
        return num_frames // self._frames_per_token


def load_mistral_media(
    settings: Mapping[str, Mapping[str, Any]],
) -> tuple[MistralImages | None, MistralAudio | None]:
    """What prepares the images and audio of a model, as far as it reads them.

    Args:
        settings: see `tekken_media`.

    Raises: KeyError or others if settings are missing or malformed.
    """
    images, audio = settings.get(MediaKind.IMAGE), settings.get(MediaKind.AUDIO)
    return MistralImages(images) if images else None, MistralAudio(audio) if audio else None
