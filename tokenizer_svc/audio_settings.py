"""How a model's audio processor works: its files over the defaults of its class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

# Files with the settings; in the first, those of the feature extractor may be a part.
_FILES = ("processor_config.json", "preprocessor_config.json")
_PARTS = ("feature_extractor", "audio_processor")
# Processors of models some of which do not hear: the field of config.json with what others hear with.
_HEARING = MappingProxyType({"Gemma4Processor": "audio_config", "Gemma4UnifiedProcessor": "audio_config"})


@dataclass(frozen=True)
class AudioSettings:
    """Settings by their names in the files.

    Attributes:
        processor_class: name of the model's processor in Transformers.
        audio_token: what the chat template writes for an audio, and what the prompt has for each of its embeddings,
            unless the tokenizer says otherwise.
        feature_size: bands of a spectrogram.
        hop_length: samples from a spectrogram's frame to the next.
        n_fft: samples that a frame looks at.
        chunk_length: seconds of each part of an audio that is padded and encoded on its own.
        min_length: samples to which shorter audio is padded.
        max_audio_len: seconds that an audio may have; at least a chunk's.
        audio_samples_per_token: samples of an embedding, in models without an encoder.
        win_length: samples of these in the middle that a frame really sees, for Granite Speech's processor.
        projector_window_size: frames of the encoder that become a few embeddings together, for that processor.
        projector_downsample_rate: how many times fewer these are.
        audio_seq_length: embeddings of any audio, in models that give all audios as many.
    """

    processor_class: str
    audio_token: str
    max_audio_len: float = 0.0
    feature_size: int = 80
    sampling_rate: int = 16_000
    hop_length: int = 160
    n_fft: int = 400
    chunk_length: int = 30
    min_length: int = 0
    audio_samples_per_token: int = 640
    win_length: int = 400
    projector_window_size: int = 15
    projector_downsample_rate: int = 5
    audio_seq_length: int = 188

    def updated(self, changes: Mapping[str, Any]) -> AudioSettings:
        """The settings with some replaced. Names of others are skipped."""
        names = {each.name for each in fields(self)}
        return replace(self, **{name: value for name, value in changes.items() if name in names and value is not None})


# By the class of the model's processor.
DEFAULTS: Mapping[str, AudioSettings] = MappingProxyType({
    each.processor_class: each
    for each in (
        AudioSettings("Qwen2AudioProcessor", "<|AUDIO|>"),
        AudioSettings("AudioFlamingo3Processor", "<sound>", 600),
        AudioSettings("GlmAsrProcessor", "<|pad|>", 655),
        AudioSettings("GraniteSpeechProcessor", "<|audio|>", 600, n_fft=512),
        AudioSettings("Qwen2_5OmniProcessor", "<|AUDIO|>", 300, feature_size=128, chunk_length=300),
        AudioSettings("Qwen3ASRProcessor", "<|audio_pad|>", 900, feature_size=128, min_length=8000),
        AudioSettings("Qwen3OmniMoeProcessor", "<|audio_pad|>", 900, feature_size=128),
        AudioSettings("WhisperProcessor", "<|startoflm|>"),  # which its tokenizers have and prompts never use
        AudioSettings("Gemma3nProcessor", "<audio_soft_token>", 30, feature_size=128),
        AudioSettings("Gemma4Processor", "<|audio|>", 30, feature_size=128),
        AudioSettings("Gemma4UnifiedProcessor", "<|audio|>", 30),
    )
})  # fmt: skip


def read_audio_settings(folder: Path) -> AudioSettings | None:
    """The settings of a model's audio processor; None if the model has none that is supported, or does not hear.

    Args:
        folder: with the model's files.

    Raises:
        ValueError, OSError: a file cannot be read.
    """
    found: dict[str, Any] = {}
    for name in reversed(_FILES):
        if (folder / name).is_file():
            own = json.loads((folder / name).read_bytes())
            if not isinstance(own, dict):
                raise ValueError(f"{name} has no object")
            found |= next((own[part] for part in _PARTS if own.get(part)), {}) | own
    defaults = DEFAULTS.get(found.get("processor_class", ""))
    return defaults.updated(found) if defaults and _hears(folder, defaults.processor_class) else None


def _hears(folder: Path, processor_class: str) -> bool:
    """Whether a model hears, as far as its files tell: a tokenizer may be kept apart from its model's config.json."""
    name, file = _HEARING.get(processor_class), folder / "config.json"
    return name is None or not file.is_file() or bool(json.loads(file.read_bytes()).get(name))
