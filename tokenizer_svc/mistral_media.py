"""Images and audio of models whose tokenizer is in tekken.json, which also has the settings of their processors."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mistral_common.tokens.tokenizers.audio import OFFLINE_STREAMING_BUFFER_TOKENS
from mistral_common.tokens.tokenizers.image import DATASET_MEAN, DATASET_STD
from PIL import Image

from quire.images import FEATURES, PIXELS
from quire.media import MediaKind
from quire.pcm import Pcm
from quire.tokenizer.tekken import AUDIO, IMAGE, IMAGE_BREAK, IMAGE_END, STREAMING_PAD, delay_tokens, is_live
from tokenizer_svc.audio_decoder import Samples
from tokenizer_svc.audio_processor import AudioProcessor, Mask
from tokenizer_svc.audio_settings import AudioSettings
from tokenizer_svc.image_decoder import decode_image
from tokenizer_svc.log_mel import Floats, LogMel
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
    around = ("", "")
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

    token = AUDIO

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """
        Args:
            settings: see `tekken_media`.
        """
        spectrogram = settings["audio_encoding_config"]
        self._hop: int = spectrogram["hop_length"]
        self._frames_per_token: int = int(settings["sampling_rate"] // settings["frame_rate"]) // self._hop
        self._chunk = self._chunk_of(settings)
        super().__init__(self.token, settings["token_id"], AudioSettings(
            "", self.token, _MAX_SECONDS, spectrogram["num_mel_bins"], settings["sampling_rate"], self._hop,
            spectrogram["window_size"],
        ))  # fmt: skip

    def _chunk_of(self, settings: Mapping[str, Any]) -> int:
        """Samples of a part."""
        return int(settings["chunk_length_s"] * settings["sampling_rate"])

    def _features(self, samples: Samples) -> tuple[Floats, Mask]:
        """See AudioProcessor."""
        rows = -(-len(samples) // self._chunk)
        features = self._log_mel.of(np.pad(samples, (0, rows * self._chunk - len(samples))))
        parts = features.reshape(len(features), rows, -1).transpose(1, 0, 2)
        return np.ascontiguousarray(parts), np.ones((rows, parts.shape[-1]), np.bool_)

    def _num_tokens(self, num_frames: int) -> int:
        """See AudioProcessor."""
        return num_frames // self._frames_per_token


class MistralLiveAudio(MistralAudio):
    """Voxtral Realtime, which hears a recording while it writes: a prompt has tokens for its beginning only.

    There is silence before it and after it, so that the text, which is behind it, comes to its end.
    """

    token = STREAMING_PAD
    _GREATEST = 1.5  # see LogMel: how loud the recording becomes cannot be known

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """See MistralAudio."""
        super().__init__(settings)
        delay = delay_tokens(settings)
        self._before: int = settings["streaming_n_left_pad_tokens"]
        self._in_prompt: int = self._before + delay
        self._after = delay + 1 + OFFLINE_STREAMING_BUFFER_TOKENS

    @functools.cached_property
    def _log_mel(self) -> LogMel:
        own = self._settings
        return LogMel(own.feature_size, own.sampling_rate, own.n_fft, own.hop_length, self._GREATEST)

    def _chunk_of(self, settings: Mapping[str, Any]) -> int:
        """See MistralAudio: those of a token."""
        return self._frames_per_token * self._hop

    def _features(self, samples: Samples) -> tuple[Floats, Mask]:
        """See AudioProcessor: a single row."""
        each = self._chunk
        features = self._log_mel.of(np.pad(samples, (self._before * each, -len(samples) % each + self._after * each)))
        return features[None], np.ones((1, features.shape[1]), np.bool_)

    def prepare_part(self, samples: Pcm, *, begins: bool, ends: bool) -> tuple[dict[str, npt.NDArray[Any]], int, int]:
        """Prepares samples of a recording that is still coming, as if the whole of it were prepared at once.

        Args: see quire.v1.PrepareLiveAudioRequest.

        Returns: the encoder's inputs, none if there are too few samples; how many tokens hear them; and how many of the
            samples are used up.
        """
        each, hop, half = self._chunk, self._hop, self._settings.n_fft // 2  # that a frame looks at before its middle
        # What is kept for the frames that follow, which they look at. Whole hops, so that frames stay where they are.
        context = -(-half // hop) * hop
        before, known = (self._before * each, 0) if begins else (0, context)
        after = -(len(samples) - known) % each + self._after * each if ends else 0
        values: Samples = np.pad(samples.astype(np.float32) / np.float32(1 << 15), (before, after))
        lookahead = 0 if ends else half - hop  # after the last frame's hop
        count = max(0, len(values) - known - lookahead) // each
        in_prompt = 1 + self._in_prompt  # with the token at its beginning; the text begins with the next one
        if not count or (begins and count <= in_prompt):
            return {}, 0, 0
        end = known + count * each
        features = self._log_mel.of(values[: end + lookahead])[None, :, known // hop : end // hop]
        mask = np.ones((1, features.shape[-1]), np.bool_)
        used = len(samples) if ends else end - context - before
        return {FEATURES: np.ascontiguousarray(features), self.mask_name: mask}, count, used

    def _num_tokens(self, num_frames: int) -> int:
        """See AudioProcessor: those that the text is behind."""
        return self._in_prompt


def load_mistral_media(
    settings: Mapping[str, Mapping[str, Any]],
) -> tuple[MistralImages | None, MistralAudio | None]:
    """What prepares the images and audio of a model, as far as it reads them.

    Args:
        settings: see `tekken_media`.

    Raises: KeyError or others if settings are missing or malformed.
    """
    images, audio = settings.get(MediaKind.IMAGE), settings.get(MediaKind.AUDIO)
    hearing = MistralLiveAudio if audio and is_live(audio) else MistralAudio
    return MistralImages(images) if images else None, hearing(audio) if audio else None
