"""The model's audio processor: audio files in, inputs of the audio encoder and text of the prompt out.

Does what Transformers' `processing_*` and feature extractors do, most of which need torch, with numpy.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import transformers

from quire.media import filled_up
from quire.pcm import Pcm, piece_ends
from tokenizer_svc.audio_decoder import FILLING_SECONDS, Samples, decode_audio, decode_long_audio
from tokenizer_svc.audio_settings import AudioSettings, read_audio_settings
from tokenizer_svc.log_mel import Floats, LogMel
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.processed import Processed
from tokenizer_svc.sound_order import SoundOrder

Mask = npt.NDArray[np.bool_]


class AudioProcessor(ABC):
    """The audio processor of a model.

    Attributes:
        placeholder: what the chat template writes for an audio, apart from what is around it.
        wrapped: the placeholder with what is around it, for templates that take contents as strings.
        sees: whether the model also reads images.
        order: of a video's tokens and those of its sound; None for models that do not hear the sound of videos.
        token_id: the token that the prompt has for each embedding of an audio.
        mark_tokens: tokens after these whose embeddings are the audio encoder's, too.
        mark_ids: their ids.
    """

    mask_name = "input_features_mask"
    around = ("", "")
    sees = False
    order: SoundOrder | None = None
    mark_tokens: Sequence[str] = ()
    mark_ids: Sequence[int] = ()

    def __init__(self, placeholder: str, token_id: int, settings: AudioSettings) -> None:
        self.placeholder, self.token_id = placeholder, token_id
        self._settings = settings
        before, after = self.around
        self.wrapped = f"{before}{self.placeholder}{after}"

    @classmethod
    def of(cls, folder: Path, placeholder: str, token_id: int, settings: AudioSettings) -> Self:
        """The processor of the model in a folder, whose files it may read further settings from.

        Raises: various exceptions if Transformers cannot load it.
        """
        return cls(placeholder, token_id, settings)

    @functools.cached_property
    def _log_mel(self) -> LogMel:
        own = self._settings
        return LogMel(own.feature_size, own.sampling_rate, own.n_fft, own.hop_length)

    def prepare(self, file: bytes, settings: Mapping[str, Any]) -> Processed:
        """
        Args:
            file: an audio file.
            settings: of a request, which may have none for audio.

        Raises:
            MediaRejection: it is no audio, it is too long, or there are settings.
        """
        if settings:
            raise MediaRejection(
                f"{min(settings)!r} in mm_processor_kwargs is no setting for audio, which has none. Leave it out.",
                "mm_processor_kwargs",
            )
        samples = decode_audio(file, self._settings.sampling_rate, self._max_seconds())
        features, mask = self._features(samples)
        count = self._num_tokens(int(mask.sum()))
        return Processed(
            self._text(count), count, {"input_features": features, self.mask_name: mask}, (), (),
            len(samples) / self._settings.sampling_rate,
        )  # fmt: skip

    def _text(self, num_tokens: int) -> str:
        """What takes the placeholder's place in the prompt."""
        return self.placeholder * num_tokens

    @property
    def rate(self) -> int:
        """Samples a second that the model takes."""
        return self._settings.sampling_rate

    def split(self, file: bytes, most_seconds: float) -> tuple[Pcm, list[int]]:
        """Cuts a recording into pieces that `prepare` takes.

        Args:
            file: an audio file.
            most_seconds: how long it may be.

        Returns:
            The samples, and where among them each piece ends.

        Raises:
            MediaRejection: it is no audio, or it is too long.
        """
        samples, most = decode_long_audio(file, self.rate, most_seconds), self._max_seconds()
        if len(samples) <= int((most + FILLING_SECONDS) * self.rate):  # `prepare` takes it as it is
            return samples, [len(samples)]
        return samples, piece_ends(samples, self.rate, most)

    def _max_seconds(self) -> float:
        """The length of audio that the model takes whole."""
        return self._settings.max_audio_len

    @abstractmethod
    def _features(self, samples: Samples) -> tuple[Floats, Mask]:
        """The spectrograms [rows, mels, frames], and which frames [rows, frames] are not padding.

        Some encoders take [rows, frames, mels].
        """

    @abstractmethod
    def _num_tokens(self, num_frames: int) -> int:
        """The number of embeddings of an audio.

        Args:
            num_frames: of all rows together, apart from padding.
        """


class _ChunkedAudio(AudioProcessor):
    """Audio in parts of the same length, each padded with silence and a row of its own."""

    def _max_seconds(self) -> float:
        """See AudioProcessor. Transformers cuts what is beyond whole parts."""
        each = self._settings.chunk_length
        return max(1, int(self._settings.max_audio_len // each)) * each

    def _features(self, samples: Samples) -> tuple[Floats, Mask]:
        """See AudioProcessor."""
        hop, size = self._settings.hop_length, self._settings.chunk_length * self._settings.sampling_rate
        num_rows = -(-len(samples) // size)
        rows = np.pad(samples, (0, num_rows * size - len(samples))).reshape(num_rows, size)
        features = np.stack([self._log_mel.of(row) for row in rows])
        starts = np.arange(size // hop) * hop + np.arange(num_rows)[:, None] * size
        return features, starts < len(samples)

    def _num_tokens(self, num_frames: int) -> int:
        """See AudioProcessor. Rows that are full have a multiple of four frames."""
        return (_halved(num_frames) - 2) // 2 + 1


class _Qwen2Audio(_ChunkedAudio):
    """Qwen2-Audio: a single part."""

    mask_name = "feature_attention_mask"
    around = ("<|audio_bos|>", "<|audio_eos|>")


class _GlmAudio(_ChunkedAudio):
    """GLM-ASR: four of the encoder's frames are an embedding."""

    around = ("<|begin_of_audio|>", "<|end_of_audio|>")

    def _num_tokens(self, num_frames: int) -> int:
        """See AudioProcessor."""
        return (_halved(num_frames) - 4) // 4 + 1


class _Qwen3Audio(AudioProcessor):
    """Qwen3-ASR: a single row of any length, whose frames are filled up for the encoder's convolutions."""

    around = ("<|audio_start|>", "<|audio_end|>")
    _FRAMES_PER_CHUNK, _TOKENS_PER_CHUNK = 100, 13  # of the encoder's convolutions

    def _features(self, samples: Samples) -> tuple[Floats, Mask]:
        """See AudioProcessor. Silence that makes audio long enough counts as audio, other padding does not."""
        least = max(self._settings.min_length, self._settings.hop_length)
        features = self._log_mel.of(np.pad(samples, (0, max(0, least - len(samples)))))
        num_frames = features.shape[1]
        filling = (0, -num_frames % self._FRAMES_PER_CHUNK)
        return np.pad(features, ((0, 0), filling))[None], np.pad(np.ones(num_frames, np.bool_), filling)[None]

    def _num_tokens(self, num_frames: int) -> int:
        """See AudioProcessor."""
        chunks, remainder = divmod(num_frames, self._FRAMES_PER_CHUNK)
        return chunks * self._TOKENS_PER_CHUNK + _halved(_halved(_halved(remainder)))


class _Qwen25Omni(AudioProcessor):
    """Qwen2.5-Omni: a single row of any length, after which there is silence. Windows of the encoder fill it up."""

    mask_name = "feature_attention_mask"
    around = ("<|audio_bos|>", "<|audio_eos|>")
    sees = True
    order = SoundOrder(tokens_per_second=25, chunk=50)
    _FRAMES_PER_WINDOW = 200

    def _features(self, samples: Samples) -> tuple[Floats, Mask]:
        """See AudioProcessor. Frames at the end look at the silence, unless the audio is as long as any may be."""
        hop, most = self._settings.hop_length, self._settings.chunk_length * self.rate
        num_frames = -(-len(samples) // hop)
        filled = max(num_frames * hop, min(num_frames * hop + self._settings.n_fft, most))
        silent = np.pad(samples, (0, filled - len(samples)))
        filling = (0, -num_frames % self._FRAMES_PER_WINDOW)
        features = self._log_mel.of(silent)[:, :num_frames]
        return np.pad(features, ((0, 0), filling))[None], np.pad(np.ones(num_frames, np.bool_), filling)[None]

    def _num_tokens(self, num_frames: int) -> int:
        """See AudioProcessor."""
        return (_halved(num_frames) - 2) // 2 + 1


class _Qwen3Omni(_Qwen3Audio):
    """Qwen3-Omni: as Qwen3-ASR."""

    mask_name = "feature_attention_mask"
    sees = True
    order = SoundOrder(tokens_per_second=13)


class _GraniteSpeech(AudioProcessor):
    """Granite Speech: a single row of any length, of two frames each."""

    @functools.cached_property
    def _log_mel(self) -> LogMel:
        own = self._settings
        return LogMel(own.feature_size, own.sampling_rate, own.n_fft, own.hop_length, torchaudio_window=own.win_length)

    def _features(self, samples: Samples) -> tuple[Floats, Mask]:
        """See AudioProcessor. [1, pairs of frames, both frames' mels]; a last frame without another is left out."""
        frames = self._log_mel.of(samples).T
        pairs = np.ascontiguousarray(frames[: len(frames) // 2 * 2]).reshape(1, -1, 2 * frames.shape[1])
        return pairs, np.ones(pairs.shape[:2], np.bool_)

    def _num_tokens(self, num_frames: int) -> int:
        """See AudioProcessor."""
        window = self._settings.projector_window_size
        return -(-num_frames // window) * (window // self._settings.projector_downsample_rate)


class _Whisper(_ChunkedAudio):
    """Whisper: a single part, all of whose embeddings the model sees, those of the padding too. More fill it up."""

    def _num_tokens(self, num_frames: int) -> int:
        """See AudioProcessor."""
        return filled_up(self._settings.chunk_length * self.rate // self._settings.hop_length // 2)


class _Gemma4Audio(AudioProcessor):
    """Gemma 4: a single row of any length up to 30 s, as Transformers' feature extractor makes it, without torch."""

    sees = True
    _EXTRACTOR = "Gemma4AudioFeatureExtractor"
    _BEGIN, _END = "<|audio>", "<audio|>"  # which templates leave to the processor

    _extractor: Any

    @classmethod
    def of(cls, folder: Path, placeholder: str, token_id: int, settings: AudioSettings) -> Self:
        """See AudioProcessor."""
        made = cls(placeholder, token_id, settings)
        made._extractor = getattr(transformers, cls._EXTRACTOR).from_pretrained(folder)
        return made

    def _features(self, samples: Samples) -> tuple[Floats, Mask]:
        """See AudioProcessor. [1, frames, mels]; frames that look beyond the audio's end are padding."""
        found = self._extractor([samples], return_tensors="np")
        return found["input_features"], found["input_features_mask"]

    def _num_tokens(self, num_frames: int) -> int:
        """See AudioProcessor."""
        return _halved(_halved(num_frames))

    def _text(self, num_tokens: int) -> str:
        """See AudioProcessor."""
        return f"{self._BEGIN}{super()._text(num_tokens)}{self._END}"


class _Gemma3nAudio(_Gemma4Audio):
    """Gemma 3n: a row as for Gemma 4, but however long it is, it has as many embeddings."""

    sees = False
    mark_tokens = ("<end_of_audio>",)
    _EXTRACTOR, _BEGIN, _END = "Gemma3nAudioFeatureExtractor", "\n\n<start_of_audio>", "<end_of_audio>\n\n"

    def _num_tokens(self, num_frames: int) -> int:
        """See AudioProcessor."""
        return self._settings.audio_seq_length + len(self.mark_tokens) if num_frames else 0

    def _text(self, num_tokens: int) -> str:
        """See AudioProcessor."""
        return super()._text(num_tokens - len(self.mark_tokens))


class _Gemma4UnifiedAudio(_Gemma4Audio):
    """Gemma 4's 12B model, which has no encoder: the samples themselves, those of an embedding in each row."""

    @classmethod
    def of(cls, folder: Path, placeholder: str, token_id: int, settings: AudioSettings) -> Self:
        """See AudioProcessor."""
        return cls(placeholder, token_id, settings)

    def _features(self, samples: Samples) -> tuple[Floats, Mask]:
        """See AudioProcessor. [1, rows, samples]; silence fills up the last row."""
        size = self._settings.audio_samples_per_token
        rows = np.pad(samples, (0, -len(samples) % size)).reshape(1, -1, size)
        return rows, np.ones(rows.shape[:2], np.bool_)

    def _num_tokens(self, num_frames: int) -> int:
        """See AudioProcessor."""
        return num_frames


_CLASSES: Mapping[str, type[AudioProcessor]] = {
    "Qwen2AudioProcessor": _Qwen2Audio, "AudioFlamingo3Processor": _ChunkedAudio, "GlmAsrProcessor": _GlmAudio,
    "GraniteSpeechProcessor": _GraniteSpeech,
    "Qwen2_5OmniProcessor": _Qwen25Omni, "Qwen3ASRProcessor": _Qwen3Audio, "Qwen3OmniMoeProcessor": _Qwen3Omni,
    "WhisperProcessor": _Whisper, "Gemma3nProcessor": _Gemma3nAudio, "Gemma4Processor": _Gemma4Audio,
    "Gemma4UnifiedProcessor": _Gemma4UnifiedAudio,
}  # fmt: skip


def load_audio_processor(folder: Path) -> AudioProcessor | None:
    """The audio processor of a model; None if the model has none that is supported.

    Args:
        folder: with the model's files.

    Raises: various exceptions if Transformers cannot load the tokenizer, or it lacks the placeholder.
    """
    if (settings := read_audio_settings(folder)) is None:
        return None
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    placeholder: str = getattr(tokenizer, "audio_token", None) or settings.audio_token
    token_id = tokenizer.convert_tokens_to_ids(placeholder)
    if token_id is None or token_id == tokenizer.unk_token_id:
        raise ValueError(f"the tokenizer has no token {placeholder}")
    found = _CLASSES[settings.processor_class].of(folder, placeholder, token_id, settings)
    found.mark_ids = [tokenizer.convert_tokens_to_ids(token) for token in found.mark_tokens]
    return found


def _halved(num_frames: int) -> int:
    """Frames after a convolution with a stride of two."""
    return (num_frames - 1) // 2 + 1
